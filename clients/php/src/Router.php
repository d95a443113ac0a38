<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Connection\Connection;
use Dlock\Exception\Closed;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Redirected;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * Commands to whoever serves their key, on the one connection to each node; and the end of these connections.
 *
 * @internal
 */
final class Router
{
    /** To give up on a reply ends the connection, and what is tied to it. So each may take this long, however late it is. */
    public const GRACE = 0.4;
    private const REFRESH_EVERY = 0.1;

    private bool $closed = false;
    private int $process;
    private float $refreshed = -INF;

    public function __construct(
        private readonly Servers $servers,
        private readonly Ties $ties,
        private readonly float $bound,
    ) {
        $this->process = (int) getmypid();
    }

    /**
     * The reply of whoever serves the key, and who that is.
     *
     * @param list<int|string> $words
     *
     * @return array{mixed, Node}
     */
    public function call(string $key, array $words, float $until): array
    {
        $this->check();
        $node = $this->servers->of($key);
        $asking = false;
        for ($hops = 1;; ++$hops) {
            try {
                if ($asking) {
                    $this->ask($node, ['ASKING'], $until);
                }

                return [$this->ask($node, $words, $until), $node];
            } catch (Redirected $error) {
                if ($hops === 4) {
                    throw $error;
                }
                [$node, $asking] = [$this->servers->redirected($error, $node), $error->once()];
            }
        }
    }

    /**
     * The same for what may be said twice: again until it passes.
     *
     * @param list<int|string> $words
     * @param bool             $ends  it gives a hold back: what a request without a reply may have done is no error
     */
    public function insist(string $key, array $words, bool $ends = false): mixed
    {
        $until = Clock::now() + $this->bound;
        $heard = true;
        while (true) {
            try {
                return $this->call($key, $words, $until)[0];
            } catch (Unanswered | Refused $error) {
                if ($error instanceof NotHeld && $ends && !$heard) {
                    return null;
                }
                if (Clock::now() >= $until) {
                    throw $error;
                }
                $this->mend($error, $until);
                $heard = $heard && $error instanceof Refused;
            }
        }
    }

    /**
     * The reply of this node. When the time is up nothing is sent, and the connection goes on.
     *
     * @param list<int|string> $words
     */
    public function ask(Node $node, array $words, float $until): mixed
    {
        return $this->on($node, $until, static fn (Connection $one, float $bound) => $one->call($words, $bound));
    }

    /**
     * Its replies to many, in one go. See Connection.
     *
     * @param list<list<int|string>> $commands
     *
     * @return list<mixed>
     */
    public function askAll(Node $node, array $commands, float $until): array
    {
        return $this->on($node, $until, static fn (Connection $one, float $bound) => $one->callAll($commands, $bound));
    }

    /** @param \Closure(Connection, float): mixed $work */
    private function on(Node $node, float $until, \Closure $work): mixed
    {
        if (Clock::now() >= $until) {
            throw new Unanswered('no time is left to ask');
        }
        $left = fn (): float => max(min(self::GRACE, $this->bound), $until - Clock::now());
        try {
            $node->connection ??= ($node->connect)($left());

            return $work($node->connection, $left());
        } catch (Refused $error) {
            if ($error->code() === 'READONLY') { // who is primary now is found by connecting
                $this->drop($node);
            }
            throw $error;
        } catch (\InvalidArgumentException $error) {
            throw $error;
        } catch (\Throwable $error) { // an exception of a signal's handler, too: its reply is nobody's
            $this->drop($node);
            throw $error;
        }
    }

    private function drop(Node $node): void
    {
        $node->connection?->close();
        $node->connection = null;
        $this->ties->loosen($node);
    }

    /** After an error: throws it if time cannot mend it. */
    public function mend(Unanswered | Refused $error, float $until): void
    {
        if ($error instanceof Refused && !$error->passes()) {
            throw $error;
        }
        $this->lookAround($until);
        Clock::sleep(min(max(0.0, $until - Clock::now()), random_int(20, 100) / 1000));
    }

    /** Another node may serve by now what this one has served. */
    public function lookAround(float $until): void
    {
        $now = Clock::now();
        if ($now - $this->refreshed > self::REFRESH_EVERY) {
            $this->refreshed = $now;
            $this->servers->refresh(fn (Node $node, array $words) => $this->ask($node, $words, min($until, $now + 1)));
        }
    }

    /** An error if nothing may be asked any more. */
    public function check(): void
    {
        if ($this->closed) {
            throw new Closed('these locks are closed');
        }
        if ($this->process !== getmypid()) { // the child of a fork begins with nothing
            $this->process = (int) getmypid();
            $this->disconnect('it is held by the process that has forked this one');
        }
    }

    /** True while something may be asked in the name of this process. */
    public function isOpen(): bool
    {
        return !$this->closed && $this->process === getmypid();
    }

    public function close(): void
    {
        $open = $this->isOpen();
        $this->closed = true;
        if ($open) {
            $this->disconnect('closed', false);
        }
    }

    /** All connections end without a word: in a child they are the parent's, too. */
    private function disconnect(string $reason, bool $warns = true): void
    {
        $ties = [];
        foreach ($this->servers->nodes as $node) {
            $node->connection?->close();
            $node->connection = null;
            $ties = [...$ties, ...array_values($node->ties)];
        }
        foreach ($ties as $tie) {
            $this->ties->lose($tie, $reason, $warns);
        }
    }
}

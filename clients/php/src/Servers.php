<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Closed;
use Dlock\Exception\DlockException;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * Commands to the server that serves their key, on the one connection to each; and the end of these connections.
 *
 * @internal
 */
final class Servers
{
    /** To give up on a reply ends the connection, and with it ephemeral holds. So each reply may take this long, however late it is. */
    public const GRACE = 0.4;
    private const HOPS = 4;
    /** How often Sentinels are asked whether another server is the primary by now, and for how long at most. */
    private const ASK_EVERY = 1.0;
    private const ASK_FOR = 0.3;
    /** The most keys of a cluster whose node is remembered. */
    private const MOST_KNOWN = 1000;

    public bool $closed = false;
    /** @var array<string, Link> by address */
    private array $links = [];
    /** @var array<string, string> by key, or by what is in its braces: the address that has answered, or that MOVED has told */
    private array $known = [];
    /** The address of the primary that a Sentinel has named for this connection, and when one was asked last. */
    private string $primary = '';
    private float $askedAt = -INF;
    /** Which seed is asked for the others. */
    private int $seed = 0;
    private int $process;
    /** A command is on its way. The reply to another one would be taken for its reply. */
    private bool $isBusy = false;
    /** The address of the server that gave the last reply. */
    public string $answered = '';

    /** @param \Closure(?string): mixed $ended the connection to this address has ended; null: all are the parent's, after a fork */
    public function __construct(
        private readonly Connect $where,
        private readonly float $replyTimeout,
        private readonly \Closure $ended,
    ) {
        $this->process = (int) getmypid();
    }

    /**
     * Returns the reply of the server that serves the key, or throws its refusal.
     *
     * @param list<int|string> $words
     * @param bool             $once   the command must not be sent twice
     * @param ?DlockException  $before why the last attempt has failed
     */
    public function ask(string $key, array $words, float $until, bool $once = false, ?DlockException $before = null): mixed
    {
        $this->check();
        if ($this->isBusy) {
            throw new DlockException('a command is on its way: a signal handler or a destructor cannot send another one');
        }
        $address = $this->of($key);
        for ($hops = 1, $asks = false;; ++$hops) {
            try {
                if ($asks) {
                    $this->send($address, ['ASKING'], $until, $once, $before);
                }
                $reply = $this->send($address, $words, $until, $once, $before);
                if (!$asks) {
                    $this->remember($key, $address); // or another seed would be asked when one fails
                }
                $this->answered = $address;

                return $reply;
            } catch (Refused $error) {
                $isRedirected = in_array($error->word(), ['MOVED', 'ASK'], true);
                if (!$isRedirected || $hops === self::HOPS) {
                    throw $error;
                }
                $before ??= $error;
                $asks = $error->word() === 'ASK';
                $address = self::redirected($error->getMessage(), $address);
                if (!$asks) {
                    $this->remember($key, $address);
                }
            }
        }
    }

    /**
     * Returns the same for a command that may be sent twice: again until its error passes.
     *
     * @param list<int|string> $words
     * @param float            $endsAt when it ends a hold that is still believed (INF: none). From then on NotHeld is no error after an
     *                                 attempt without a reply
     */
    public function insist(string $key, array $words, float $endsAt = INF): mixed
    {
        $until = Clock::now() + $this->replyTimeout;
        $heard = true;
        $error = null;
        while (true) {
            try {
                return $this->ask($key, $words, $until, $endsAt < INF, $error);
            } catch (Unanswered | Refused $error) {
                if ($error instanceof NotHeld && !$heard && Clock::now() >= $endsAt) {
                    return null;
                }
                if (Clock::now() >= $until || !$error->passes()) {
                    throw $error;
                }
                $this->pause($until);
                $heard = $heard && $error instanceof Refused;
            }
        }
    }

    /**
     * Sends a command to one server: once more if a connection that was idle has ended long ago, or its server is a replica now.
     *
     * @param list<int|string> $words
     */
    private function send(string $address, array $words, float $until, bool $once, ?DlockException $before): mixed
    {
        if (Clock::now() >= $until) {
            $why = $before === null ? '' : ": {$before->getMessage()}";
            throw new Unanswered("no time is left to ask$why", 0, $before);
        }
        $left = fn (): float => max(min(self::GRACE, $this->replyTimeout), $until - Clock::now());
        if (isset($this->links[$address]) && (!$this->links[$address]->isOpen() || $this->isFormer())) {
            $this->disconnect($address);
        }
        $isNew = !isset($this->links[$address]);
        try {
            $this->isBusy = true;
            $link = $this->links[$address] ??= $this->open($address, $left());

            return $link->ask($words, $left());
        } catch (Unanswered | Refused $error) {
            $this->isBusy = false;
            $isReadOnly = $error instanceof Refused && $error->word() === 'READONLY'; // who is primary now is found by connecting
            if ($error instanceof Refused && !$isReadOnly) {
                throw $error;
            }
            $this->disconnect($address);
            if ($isNew || $once && !$isReadOnly || Clock::now() >= $until) {
                throw $error;
            }

            return $this->send($address, $words, $until, true, $error);
        } finally {
            $this->isBusy = false;
        }
    }

    private function open(string $address, float $within): Link
    {
        if ($this->where->named === null) {
            return $this->where->open($within, $address);
        }
        $until = Clock::now() + $within;
        $this->primary = ($this->where->named)($within / 2);
        $this->askedAt = Clock::now();

        return $this->where->open(max(0.001, $until - Clock::now()), $this->primary);
    }

    /** Returns true if the Sentinels name another primary. After a planned failover the former one still grants locks. */
    private function isFormer(): bool
    {
        if ($this->where->named === null || Clock::now() - $this->askedAt < self::ASK_EVERY) {
            return false;
        }
        try {
            return ($this->where->named)(self::ASK_FOR) !== $this->primary;
        } catch (Unanswered | Refused) {
            return false; // nobody says so
        } finally {
            $this->askedAt = Clock::now();
        }
    }

    /** The connection has ended, and in a cluster another node may serve its keys by now. */
    private function disconnect(string $address): void
    {
        ++$this->seed;
        $this->known = array_diff($this->known, [$address]);
        if (isset($this->links[$address])) {
            $this->links[$address]->close();
            unset($this->links[$address]);
            ($this->ended)($address);
        }
    }

    /** Waits a little before another attempt. */
    public function pause(float $until): void
    {
        Clock::sleep(min(max(0.0, $until - Clock::now()), random_int(20, 100) / 1000));
    }

    /** The address of the server that serves the key, as far as it is known. A seed says where. */
    public function of(string $key): string
    {
        $seeds = $this->where->seeds;

        return $seeds === [] ? '' : $this->known[self::tag($key)] ?? $seeds[$this->seed % count($seeds)];
    }

    /** Returns the address in `MOVED slot address`, which another one has said. */
    private static function redirected(string $text, string $by): string
    {
        $address = explode(' ', $text)[2] ?? '';

        // A server that names no host means its own.
        return str_starts_with($address, ':') && substr_count($address, ':') === 1
            ? Connect::address('seeds', $by)[0] . $address
            : $address;
    }

    private function remember(string $key, string $address): void
    {
        if ($this->where->seeds !== [] && ($this->known[self::tag($key)] ?? '') !== $address) {
            unset($this->known[self::tag($key)]);
            $this->known = array_slice($this->known, -self::MOST_KNOWN, null, true) + [self::tag($key) => $address];
        }
    }

    /** What decides who serves a key: what is in its first braces, if there is something; else all of it. */
    private static function tag(string $key): string
    {
        return preg_match('/^[^{]*\{([^}]+)\}/', $key, $tag) ? $tag[1] : $key;
    }

    /** Throws if these locks are closed. In the child of a fork everything begins again. */
    public function check(): void
    {
        if ($this->closed) {
            throw new Closed('these locks are closed');
        }
        if ($this->process !== getmypid()) {
            $this->process = (int) getmypid();
            $this->isBusy = false;
            $this->end();
            ($this->ended)(null);
        }
    }

    /** Returns true while something may be asked in the name of this process. */
    public function isOpen(): bool
    {
        return !$this->closed && $this->process === getmypid();
    }

    /** Returns true while a command is on its way: a signal handler may run in the middle of it. */
    public function isBusy(): bool
    {
        return $this->isBusy;
    }

    /** Ends all connections. */
    public function end(): void
    {
        foreach ($this->links as $link) {
            $link->close();
        }
        $this->links = [];
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Closed;
use Dlock\Exception\Fenced;
use Dlock\Exception\NotHeld;

/**
 * A lock that is held, until `release()`. When nobody refers to it any more it is reported lost, and its lease ends it.
 */
final class Hold
{
    /** The lock's name. */
    public readonly string $key;
    /** The name under which it is held: of the machine, of the process, and of the owner. */
    public readonly string $owner;
    /** The fencing token: higher than that of every grant before. */
    public readonly int $token;
    private bool $over = false;
    private string $reason = '';
    private readonly float $since;

    /** @internal */
    public function __construct(
        private readonly Core $core,
        private readonly Request $request,
        private readonly ?\Closure $onLost,
    ) {
        [$this->key, $this->owner, $this->token] = [$request->key, $request->owner, $request->token];
        $this->since = Clock::now();
        $request->hold = \WeakReference::create($this);
    }

    /** @return array<string, mixed> what `var_dump` shows */
    public function __debugInfo(): array
    {
        return ['key' => $this->key, 'owner' => $this->owner, 'token' => $this->token, 'over' => $this->over];
    }

    public function __destruct()
    {
        if (!$this->over) {
            $this->over = true;
            $this->core->forsake($this, $this->request);
        }
    }

    public function __clone()
    {
        throw new \LogicException('a hold has no copy');
    }

    /** @return array<string, mixed> */
    public function __serialize(): array
    {
        throw new \LogicException('a hold belongs to its process');
    }

    /**
     * True if it is not held any more, for sure or for all that can be known. Looks by itself once a second at most, so it may
     * be asked as often as one likes; a server that does not answer costs no more than the bound for a reply.
     */
    public function lost(): bool
    {
        if (!$this->over) {
            try {
                $this->core->keep();
            } catch (Closed) {
                return true;
            }
        }

        return $this->over;
    }

    /** For a program that works long: a sign of life for all locks, once a second at most. NotHeld if this one is lost. */
    public function keep(): void
    {
        $this->core->check();
        if ($this->lost()) {
            throw $this->notHeld();
        }
    }

    /** Returns for how many seconds it is surely held, even if the server does not answer again. Sends no command. */
    public function left(): float
    {
        return $this->over || !$this->core->isOpen() ? 0.0 : max(0.0, $this->request->until - Clock::now());
    }

    /** Why it is not held any more, or an empty string. */
    public function reason(): string
    {
        return $this->reason;
    }

    /**
     * Runs a command if, and only if, the lock is still held, in one step with it: `guard('SET', 'stock:left', 41)`. In a
     * cluster its keys are of the lock's slot. Fenced if it was not run; it is not sent a second time.
     */
    public function guard(string $command, string|int|float ...$arguments): mixed
    {
        $words = ['DLOCK.GUARD', $this->key, $this->token, $command, ...array_map(strval(...), array_values($arguments))];

        try {
            return $this->core->call($this->key, $words, Clock::now() + $this->core->settings->replyTimeout);
        } catch (Fenced $error) {
            $this->core->lose($this->request, 'fenced');
            throw $error;
        }
    }

    /** Gives it back. NotHeld if it was lost before. */
    public function release(): void
    {
        $this->giveBack();
        $this->core->release($this->request, $this->since);
    }

    /** Releases the lock this many seconds from now, for work that runs once a period. Throws NotHeld if it was lost before. */
    public function releaseAfter(int|float $seconds): void
    {
        $seconds = Settings::positive('seconds', $seconds);
        $this->giveBack();
        $this->core->releaseAfter($this->request, $seconds, $this->since);
    }

    private function giveBack(): void
    {
        $this->core->check();
        if ($this->over) {
            throw $this->notHeld();
        }
        [$this->over, $this->reason] = [true, 'it was given back before'];
    }

    /** @internal it is told lost, and given back, before its end */
    public function stepDown(): void
    {
        $this->core->lose($this->request, 'nobody has confirmed it in time');
        $this->core->abandon($this->request);
    }

    /** @internal it has ended; true if that is news */
    public function end(string $reason): bool
    {
        $news = !$this->over;
        if ($news) {
            [$this->over, $this->reason] = [true, $reason];
        }

        return $news;
    }

    /** @internal */
    public function told(): void
    {
        try {
            $this->onLost !== null && ($this->onLost)($this);
        } catch (\Throwable $error) {
            $this->core->failed('onLost', $error);
        }
    }

    private function notHeld(): NotHeld
    {
        return new NotHeld("NOTHELD lock $this->key was lost: $this->reason");
    }
}

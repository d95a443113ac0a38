<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Closed;
use Dlock\Exception\Fenced;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * A lock that is held, until `release()`. When nothing refers to it any longer, the client reports it lost, and its lease ends it.
 */
final class Hold
{
    /** The longest time between two renewals, in seconds. */
    private const INTERVAL = 1.0;

    /** The lock's name. */
    public readonly string $key;
    /** The name under which it is held: `host/pid/actor#random`. */
    public readonly string $owner;
    private readonly float $since;
    /** When `maxHold` is over: the client gives the hold up then. */
    private readonly float $last;
    private float $until = -INF;
    private float $askedAt = -INF;
    /** The address of the server to whose connection it is tied. */
    private string $at = '';
    /** Why the server has not renewed it at the last attempt. */
    private string $failure = '';
    private bool $isOver = false;
    private bool $isReleased = false;
    private string $reason = '';

    /** @internal */
    public function __construct(
        private readonly Core $core,
        /** @internal */
        public readonly Request $request,
        /** The fencing token: higher than that of every grant before. */
        public readonly int $token,
        private readonly ?\Closure $onLost,
    ) {
        [$this->key, $this->owner, $this->since] = [$request->key, $request->owner, Clock::now()];
        $this->last = $this->since + ($request->maxHold ?? INF);
    }

    /** @return array<string, mixed> what `var_dump` shows */
    public function __debugInfo(): array
    {
        return ['key' => $this->key, 'owner' => $this->owner, 'token' => $this->token, 'over' => $this->isOver];
    }

    public function __destruct()
    {
        if (!$this->isOver) {
            $this->core->abandon($this);
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
     * Returns true if the lock is no longer held, for sure or for all that can be known. Asks the server once a second at most,
     * so call it as often as you like. A server that does not answer costs no more than `replyTimeout`.
     */
    public function lost(): bool
    {
        if (!$this->isOver) {
            try {
                $this->core->keep(first: $this);
            } catch (Closed) {
                return true;
            }
        }

        return $this->isOver;
    }

    /** Renews all locks (the heartbeat), each once a second at most. Throws NotHeld if this one is lost. */
    public function keep(): void
    {
        $this->core->servers->check();
        if ($this->lost()) {
            throw $this->notHeld();
        }
    }

    /**
     * Returns for how many seconds it is held, even if the server does not answer again. Sends no command. An ephemeral hold ends
     * earlier if its connection does.
     */
    public function left(): float
    {
        return $this->isOver || !$this->core->servers->isOpen() ? 0.0 : max(0.0, $this->until - Clock::now());
    }

    /** Returns why the lock is no longer held, or an empty string. */
    public function reason(): string
    {
        return $this->reason;
    }

    /**
     * Runs a command if, and only if, the lock is still held, in one step with it: `guard('SET', 'stock:left', 41)`. In a
     * cluster its keys are of the lock's slot. Throws Fenced if it was not run. Never sends it a second time.
     */
    public function guard(string $command, string|int|float ...$arguments): mixed
    {
        $this->core->servers->check();
        if ($this->isOver) { // a child has the parent's token, which is still good
            throw new Fenced("FENCED lock $this->key was lost: $this->reason");
        }
        $words = ['DLOCK.GUARD', $this->key, $this->token, $command, ...array_map(strval(...), array_values($arguments))];
        try {
            return $this->core->servers->ask($this->key, $words, Clock::now() + $this->core->settings->replyTimeout, true);
        } catch (Fenced $error) {
            $this->core->lose($this, 'fenced');
            throw $error;
        }
    }

    /** Releases the lock. Throws NotHeld if it was lost before. */
    public function release(): void
    {
        $this->giveBack(null);
    }

    /** Releases the lock this many seconds from now, for work that runs once a period. Throws NotHeld if it was lost before. */
    public function releaseAfter(int|float $seconds): void
    {
        $this->giveBack(Settings::positive('seconds', $seconds));
    }

    /** @internal releases it at the end of its block, unless the work has done so */
    public function leave(): void
    {
        if (!$this->isReleased) {
            $this->release();
        }
    }

    private function giveBack(?float $after): void
    {
        $this->core->servers->check();
        if ($this->isOver) {
            throw $this->notHeld();
        }
        $this->isReleased = true;
        $this->core->release($this->request, $this->token, $this->until, $after, $this);
        $this->core->tell(fn (Observer $one) => $one->released($this->key, Clock::now() - $this->since));
    }

    private function notHeld(): NotHeld
    {
        return new NotHeld("NOTHELD lock $this->key was lost: $this->reason");
    }

    // What the core does with it.

    /**
     * Believes in a lease that began no earlier than then.
     *
     * @internal
     */
    public function believe(float $sent, float $lease, string $at): void
    {
        [$this->askedAt, $this->at, $this->failure] = [$sent, $at, ''];
        $this->until = min($this->last, max($this->until, $this->end($sent, $lease)));
    }

    /** @internal notes why the server has not renewed it */
    public function failed(float $sent, Unanswered | Refused $error): void
    {
        [$this->askedAt, $this->failure] = [$sent, $error->getMessage()];
        if ($error instanceof Refused && $error->word() === 'NOACK') { // no replica knows of more than a lease from then
            $this->until = min($this->until, $this->end($sent, $this->request->lease));
        }
    }

    private function end(float $sent, float $lease): float
    {
        return $sent + $lease - Settings::ROUNDING - $this->request->settings->clockMargin;
    }

    /** @internal */
    public function askedAt(): float
    {
        return $this->askedAt;
    }

    /** @internal */
    public function until(): float
    {
        return $this->until;
    }

    /** @internal returns true if the server should be asked for it */
    public function isDue(): bool
    {
        $now = Clock::now();

        return $now >= $this->until || $now - $this->askedAt >= min(self::INTERVAL, $this->request->lease / 3);
    }

    /** @internal returns true if it is tied to the connection to this address, which has ended. The next renewal ties it to a new one */
    public function isCut(string $address): bool
    {
        if ($this->at !== $address) {
            return false;
        }
        $this->askedAt = -INF;

        return true;
    }

    /**
     * @internal
     *
     * @return list<int|string>
     */
    public function renewal(): array
    {
        return $this->request->renew($this->token, $this->last - Clock::now());
    }

    /** @internal returns why its believed end has passed */
    public function why(): string
    {
        $why = 'nobody has confirmed it before its end' . ($this->failure === '' ? '' : ": $this->failure");

        return Clock::now() >= $this->last ? 'max_hold is over' : $why;
    }

    /** @internal ends it; returns true if that is news */
    public function setOver(string $reason): bool
    {
        $isNews = !$this->isOver;
        if ($isNews) {
            [$this->isOver, $this->reason] = [true, $reason];
        }

        return $isNews;
    }

    /** @internal takes its end back: the release has found that it was lost before */
    public function reopen(): void
    {
        $this->isOver = false;
    }

    /** @internal calls the program's `onLost` */
    public function told(): void
    {
        if ($this->onLost !== null) {
            ($this->onLost)($this);
        }
    }
}

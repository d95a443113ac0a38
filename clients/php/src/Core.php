<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Deadlock;
use Dlock\Exception\LockTimeout;
use Dlock\Exception\NoAck;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Replaced;
use Dlock\Exception\Unanswered;
use Psr\Log\LoggerInterface;

/**
 * Taking, keeping, and giving back.
 *
 * A process has one connection to a server, and one thing to do: there is no thread. Whatever a lock needs is done in the calls of
 * the program.
 *
 * @internal
 */
final class Core
{
    private const WARN_EVERY = 10.0;
    /** The longest slice of a wait: a signal's handler runs at its end. */
    private const SLICE = 1.0;
    /** The longest time between two signs of life. */
    private const INTERVAL = 1.0;

    private readonly Servers $servers;
    /** @var array<string, Request> what is held, by owner */
    private array $held = [];
    /** @var array<Errand> */
    private array $errands = [];
    /** Why RENEW was refused last: what is held is not kept any more. */
    private ?string $refusal = null;

    public function __construct(
        Connect $where,
        public readonly Settings $settings,
        private readonly ?LoggerInterface $logger = null,
        private readonly ?Observer $observer = null,
    ) {
        $this->servers = new Servers($where, $settings->replyTimeout, $this->ended(...));
    }

    // Taking.

    /**
     * Returns the request if it was granted; null if it is taken. A time-out of 0: one try; null: no bound. If its owner holds the
     * lock in another way already, only the place is left when it fails.
     */
    public function take(Request $request, ?float $timeout, bool $isUpgrade = false): ?Request
    {
        $this->servers->check();
        $this->refuseDeadlock($request, $timeout);
        $began = Clock::now();
        $granted = $error = null;
        try {
            $granted = $this->taken($request, $timeout, $began) ? $request : null;
            $this->doErrands(); // the server has answered just now
        } catch (\Throwable $error) {
            if (!$error instanceof Replaced) {
                $this->leave($request, $isUpgrade);
            }
            // A server that has not answered is not waited for a second time.
            $error instanceof Unanswered || $error instanceof LockTimeout || $this->doErrands(Clock::now());
            throw $error;
        } finally {
            $took = Clock::now() - $began;
            $request->queued && $this->tell(fn (Observer $one) => $one->waited($request->key));
            $this->tell($granted !== null
                ? fn (Observer $one) => $one->granted($request->key, $took)
                : fn (Observer $one) => $one->refused($request->key, $took, $error));
        }

        return $granted;
    }

    /** An actor that waits for what it holds waits for itself. */
    private function refuseDeadlock(Request $request, ?float $timeout): void
    {
        $blocks = static fn (Request $one): bool => $one->blocks($request);
        if ($timeout !== 0.0 && array_filter($this->held, $blocks) !== []) {
            $this->keep(true);
            if (array_filter($this->held, $blocks) !== []) {
                throw new Deadlock("DEADLOCK $request->key is held by the same actor: give it back first");
            }
        }
    }

    private function taken(Request $request, ?float $timeout, float $began): bool
    {
        $end = $timeout === null ? INF : $began + ($timeout > 0 ? $timeout : $this->settings->replyTimeout);
        $warned = -INF;
        $before = null;
        while (true) {
            try {
                return $this->attempt($request, $timeout === 0.0, $end);
            } catch (Unanswered | Refused $error) {
                $request->isUnheard = $request->isUnheard || $error instanceof Unanswered;
                // The grant may have ended before it was confirmed: that is no refusal.
                $again = $error instanceof NotHeld;
                if ($timeout === 0.0 && !$again) { // a try is one attempt
                    throw $error;
                }
                if (!$again && $error instanceof Refused && !$error->passes()) {
                    throw $error;
                }
                if (Clock::now() >= $end) {
                    // The end has cut the last attempt short: the reason is what was heard before.
                    $why = $error instanceof Unanswered ? $before ?? $error : $error;
                    throw new LockTimeout("$request->key was not granted within $timeout s: {$why->getMessage()}", 0, $why);
                }
                $before = $error;
                if (Clock::now() - $warned >= self::WARN_EVERY) {
                    $this->logger?->warning('still waiting for lock {key}: {error}', [
                        'key' => $request->key,
                        'error' => $error->getMessage(),
                    ]);
                    $warned = Clock::now();
                }
                $again ? Clock::sleep(0.02) : $this->servers->mend($error, $end);
                $this->look(false, $end);
            }
        }
    }

    private function attempt(Request $request, bool $atOnce, float $end): bool
    {
        $until = fn (): float => min(Clock::now() + $this->settings->replyTimeout, $end + Servers::GRACE);
        $this->refuseUnkept($request, $until());
        // If an answer was lost, the server may have granted it then. How much is left (dlock.max-hold-ms) RENEW says.
        $again = $request->asked;
        $request->asked = true;
        if (!$request->queued) {
            $sent = Clock::now();
            $reply = $this->servers->ask($request->key, $request->take($atOnce), $until());
            if ($reply) {
                return $again
                    ? $this->confirmed($request, $reply[0], $until())
                    : $this->granted($request, $reply[0], $sent, $request->lease);
            }
            if ($atOnce) {
                return false;
            }
            $request->queued = true;
            $this->tell(fn (Observer $one) => $one->waiting($request->key));
        }
        while (true) {
            $slice = min(self::SLICE, $this->settings->replyTimeout / 2, $end - Clock::now());
            if ($slice <= 0) {
                $this->leave($request);
                $this->doErrands($end);

                return false;
            }
            // To connect and to be answered has its bound, to wait its slice. Nobody waits longer than what is held is believed.
            $now = Clock::now();
            $bound = min($now + $slice + $this->settings->replyTimeout, max($now + $slice + Servers::GRACE, $this->firstEnd()));
            $reply = $this->servers->ask($request->key, $request->wait($slice), min($bound, $end + Servers::GRACE));
            if ($reply) { // when in the slice it was granted the reply does not say
                return $this->confirmed($request, $reply[0], $until());
            }
            $this->look(false, $end);
        }
    }

    /** Takes nothing that it cannot keep: where the server refused RENEW, it asks again first. */
    private function refuseUnkept(Request $request, float $until): void
    {
        if ($request->tracked && $this->refusal !== null) {
            try {
                $this->servers->ask($request->key, $request->words('RENEW'), $until);
            } catch (NotHeld) {
                $this->refusal = null;
            }
        }
    }

    private function firstEnd(): float
    {
        return min([INF, ...array_map(static fn (Request $one): float => $one->until, array_values($this->held))]);
    }

    private function confirmed(Request $request, int $token, float $until): bool
    {
        $sent = Clock::now();
        $left = $this->servers->ask($request->key, $request->renew($token), $until);

        return $this->granted($request, $token, $sent, $left / 1000);
    }

    private function granted(Request $request, int $token, float $sent, float $lease): bool
    {
        $this->servers->check(); // a signal's handler may have closed the locks meanwhile
        $request->grant($token, $this->servers->of($request->key));
        if ($request->tracked) {
            $this->held[$request->owner] = $request;
            $request->believe($sent, $lease);
        }

        return true;
    }

    // Giving back.

    /** Gives back what was granted, and insists. NotHeld if it has ended before. */
    public function release(Request $request, float $since): void
    {
        $this->forget($request);
        $this->giveBack($request, $request->release(), true);
        $held = Clock::now() - $since;
        $this->tell(static fn (Observer $one) => $one->released($request->key, $held));
    }

    /** Leaves the lock taken for this long, and stops keeping it. NotHeld if the hold has ended before. */
    public function releaseAfter(Request $request, float $seconds, float $since): void
    {
        $this->forget($request);
        $this->giveBack($request, $request->untie($seconds, true), false);
        $held = Clock::now() - $since;
        $this->tell(static fn (Observer $one) => $one->released($request->key, $held));
    }

    /** @param list<int|string> $words */
    private function giveBack(Request $request, array $words, bool $ends): void
    {
        try {
            $this->servers->insist($request->key, $words, $ends);
        } catch (NotHeld $error) {
            throw $error;
        } catch (\Throwable $error) {
            // Without the right to release it, the hold ends with its lease.
            $isRefused = $error instanceof Refused && !$error->passes();
            $this->later($request, [$isRefused ? $request->untie($request->lease) : $words]);
            throw $error;
        }
    }

    /**
     * Leaves a hold that nobody refers to any more to its lease: the work may go on, and needs that time to stop. The next call
     * tells the server, since a destructor may run in the middle of a command.
     */
    public function forsake(Hold $hold, Request $request): void
    {
        if ($this->servers->isOpen()) {
            $this->logger?->warning('lock {key} of {owner} is lost: its hold was forgotten, and not released', [
                'key' => $hold->key,
                'owner' => $hold->owner,
            ]);
            $this->tell(static fn (Observer $one) => $one->lost($hold->key, 'forgotten'));
            $this->forget($request);
            $this->later($request, [$request->untie($request->lease)]);
        }
    }

    /** Releases a hold that no program has. */
    public function abandon(Request $request): void
    {
        $this->forget($request);
        if ($request->token !== 0) {
            $this->later($request, [$request->release()]);
            $this->doErrands();
        }
    }

    /** Leaves a queue, with what may have been granted meanwhile. */
    public function leave(Request $request, bool $isUpgrade = false): void
    {
        if ($request->asked) {
            $request->asked = false;
            $this->forget($request);
            $release = $isUpgrade || $request->reused ? [] : [$request->release()];
            $this->later($request, [$request->words('CANCEL'), ...$release], $request->isUnheard);
        }
    }

    /**
     * Notes what is to be said about a request until the server has answered.
     *
     * @param list<list<int|string>> $commands
     */
    private function later(Request $request, array $commands, bool $repeats = false, float $at = -INF): void
    {
        $end = Clock::now() + $request->lease + max($request->hangTimeout ?? 0.0, $this->settings->queueGrace);
        $this->errands[] = new Errand($request->key, $commands, $at, $end, $repeats);
    }

    /** Sends what is due, until a command is not answered: that one is sent again later, behind the others. */
    public function doErrands(float $end = INF): void
    {
        $enough = Clock::now() + self::INTERVAL;
        foreach ($this->errands as $i => $errand) {
            while ($errand->isDue() && Clock::now() < $enough && $this->servers->isOpen()) {
                try {
                    // What is held is to be renewed in time.
                    $most = $this->held === [] ? $this->settings->replyTimeout : self::INTERVAL;
                    $until = min(Clock::now() + min($most, $this->settings->replyTimeout), $end + Servers::GRACE);
                    $this->servers->ask($errand->key, $errand->command(), $until);
                    $errand->answered();
                } catch (Unanswered | Refused $error) {
                    if ($error instanceof Unanswered || $error->passes()) {
                        $errand->failed();
                        unset($this->errands[$i]);
                        $this->errands[] = $errand;
                        break 2;
                    }
                    $errand->answered(); // NotHeld, or no right to it
                }
            }
            if ($errand->isDone()) {
                unset($this->errands[$i]);
            }
        }
    }

    private function forget(Request $request): void
    {
        unset($this->held[$request->owner]);
    }

    /**
     * It is not held any more, and the program is told.
     *
     * @return list<Hold> for whom that is news
     */
    public function lose(Request $request, string $reason): array
    {
        $this->forget($request);
        $hold = $request->hold?->get();
        if ($hold === null || !$hold->end($reason)) {
            return [];
        }
        $this->logger?->warning('lock {key} of {owner} is lost: {reason}', [
            'key' => $hold->key,
            'owner' => $hold->owner,
            'reason' => $reason,
        ]);
        $this->tell(static fn (Observer $one) => $one->lost($hold->key, $reason));
        $hold->told();

        return [$hold];
    }

    /** Reports lost what ends with its connection or with this process. The rest is tied to the next connection. */
    private function ended(?string $address): void
    {
        foreach ($this->held as $request) {
            if ($address === null) {
                $this->lose($request, 'it is held by the process that has forked this one');
            } elseif ($request->at === $address) {
                $request->askedAt = -INF;
                if ($request->ephemeral) {
                    $this->later($request, [$request->release()]); // the server may not have seen the end of the connection
                    $this->lose($request, 'closed');
                }
            }
        }
        if ($address === null) {
            $this->errands = [];
        }
    }

    // Keeping.

    /**
     * Asks for each hold that was not asked for within a second, or a third of its lease, or that is not believed any more. That is
     * a sign of life.
     *
     * @return list<Hold> what was found lost
     */
    public function keep(bool $now = false): array
    {
        return $this->look($now, INF);
    }

    /** @return list<Hold> */
    private function look(bool $now, float $end): array
    {
        $this->servers->check();
        if ($this->servers->isBusy()) {
            return []; // a signal handler has interrupted a command, and its caller looks next
        }
        $lost = $silent = [];
        $enough = $now ? INF : Clock::now() + self::INTERVAL;
        foreach ($this->held as $owner => $request) {
            $at = Clock::now();
            $isDue = $now || $at >= $request->until || $at - $request->askedAt >= min(self::INTERVAL, $request->lease / 3);
            $isLate = $at >= $enough && $at < $request->until; // the next look asks for it first
            if (!$isDue || $isLate || !isset($this->held[$owner]) || isset($silent[$this->servers->of($request->key)])) {
                continue;
            }
            $this->forget($request);
            $this->held[$owner] = $request;
            try {
                $this->renew($request, $end);
            } catch (NotHeld) {
                array_push($lost, ...$this->lose($request, 'not held any more'));
            } catch (Unanswered $error) {
                $this->logger?->info('lock {key} could not be renewed: {error}', [
                    'key' => $request->key,
                    'error' => $error->getMessage(),
                ]);
                $silent[$this->servers->of($request->key)] = true; // its other holds need not wait for it, too
            } catch (Refused $error) {
                $this->refused($request, $at, $error);
            }
        }
        foreach ($this->held as $request) {
            if ($request->until <= Clock::now()) {
                $isWanted = Clock::now() < $request->last;
                array_push($lost, ...$this->lose($request, match (true) {
                    !$isWanted => 'max_hold is over',
                    $this->refusal !== null => "the server refuses to renew it: $this->refusal",
                    default => 'nobody has confirmed it before its end',
                }));
                $at = $isWanted ? Clock::now() + self::INTERVAL : -INF; // nobody answers now
                $this->later($request, [$request->release()], at: $at);
            }
        }
        $this->doErrands($end);

        return $lost;
    }

    /** Renews a hold on the present connection to its server. */
    private function renew(Request $request, float $end): void
    {
        $at = Clock::now();
        // A silent server costs no more than the bound, and keeps nobody in the belief that a lock is still held; but a
        // caller that looks at the last moment waits for an answer as well.
        $last = $request->until > $at ? max($request->until, $at + self::INTERVAL) : INF;
        $until = min($last, $at + $this->settings->replyTimeout, $end);
        $request->askedAt = $at;
        $left = $this->servers->ask($request->key, $request->renew($request->token), max($until, $at + Servers::GRACE));
        [$this->refusal, $request->at] = [null, $this->servers->of($request->key)];
        $request->believe($at, $left / 1000);
    }

    /** Notes why the server has not renewed a hold. */
    private function refused(Request $request, float $sent, Refused $error): void
    {
        if ($error instanceof NoAck) { // perhaps it has been cut to that
            $request->doubt($sent);
        } elseif (!$error->passes()) {
            if ($this->refusal === null) {
                $this->logger?->warning('the server refuses to keep locks: {error}', ['error' => $error->getMessage()]);
            }
            $this->refusal = $error->getMessage();
        }
    }

    // What else the program asks.

    /**
     * Returns the reply of the server that serves the key. The command is sent once.
     *
     * @param list<int|string> $words
     */
    public function call(string $key, array $words, float $until): mixed
    {
        return $this->servers->ask($key, $words, $until, true);
    }

    /**
     * Returns the same for a command that may be sent twice: again until its error passes.
     *
     * @param list<int|string> $words
     * @param bool             $ends  it gives a hold back: what a request without a reply may have done is no error
     */
    public function insist(string $key, array $words, bool $ends = false): mixed
    {
        return $this->servers->insist($key, $words, $ends);
    }

    /** Throws if nothing may be asked any more. In the child of a fork everything begins anew. */
    public function check(): void
    {
        $this->servers->check();
    }

    /** Returns true while holds are this process's. */
    public function isOpen(): bool
    {
        return $this->servers->isOpen();
    }

    /** Everything ends: what is held is told lost, and lives on until its lease. */
    public function close(): void
    {
        $open = $this->servers->isOpen();
        $this->servers->closed = true;
        $this->servers->end();
        foreach ($open ? $this->held : [] as $request) {
            $this->lose($request, 'closed');
        }
    }

    /** Tells the observer. It may fail, and nothing else does. */
    private function tell(\Closure $what): void
    {
        try {
            $this->observer !== null && $what($this->observer);
        } catch (\Throwable $error) {
            $this->failed('the observer', $error);
        }
    }

    /** So that a callback of the program's stops nothing. */
    public function failed(string $whose, \Throwable $error): void
    {
        $this->logger?->error("$whose has failed: {error}", ['error' => $error->getMessage()]);
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Deadlock;
use Dlock\Exception\LockTimeout;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Replaced;
use Dlock\Exception\Unanswered;
use Psr\Log\LoggerInterface;

/**
 * Takes, renews and releases.
 *
 * There is no background thread: every call does the work that is due.
 *
 * @internal
 */
final class Core
{
    private const WARN_EVERY = 10.0;
    /** The longest slice of a wait: a signal handler runs at its end. */
    private const SLICE = 1.0;
    /** How long one call continues with work that the next one can do as well. */
    private const ENOUGH = 1.0;

    public readonly Servers $servers;
    /** @var array<string, \WeakReference<Hold>> by owner: what is held, for as long as the program refers to it */
    private array $holds = [];
    /** @var array<Errand> */
    private array $errands = [];

    public function __construct(
        Connect $where,
        public readonly Settings $settings,
        private readonly ?LoggerInterface $logger = null,
        private readonly ?Observer $observer = null,
    ) {
        $this->servers = new Servers($where, $settings->replyTimeout, $this->ended(...));
    }

    // Taking.

    /** Returns the hold, or null if the lock is taken. A time-out of 0: one try; null: no bound. */
    public function hold(Request $request, ?float $timeout, ?\Closure $onLost): ?Hold
    {
        return $this->take($request, $timeout, function (int $token, float $sent, float $lease) use ($request, $onLost): Hold {
            $hold = new Hold($this, $request, $token, $onLost);
            $hold->believe($sent, $lease, $this->servers->answered);
            $this->holds[$request->owner] = \WeakReference::create($hold);

            return $hold;
        });
    }

    /**
     * Returns what is made of a grant, or null if the lock is taken.
     *
     * @template T
     *
     * @param \Closure(int, float, float): T $granted gets the token, and when a lease of how many seconds began at the earliest
     *
     * @return ?T
     */
    public function take(Request $request, ?float $timeout, \Closure $granted): mixed
    {
        $this->servers->check();
        $this->refuseDeadlock($request, $timeout);
        $began = Clock::now();
        $isUnheard = false;
        try {
            $grant = $this->wait($request, $timeout, $began, $isUnheard);
            $this->servers->check(); // a signal handler may have closed the locks meanwhile
            if ($grant === null && $timeout !== 0.0) { // a try has no place
                $this->cancel($request, $isUnheard);
            }
            $result = $grant === null ? null : $granted(...$grant);
            $took = Clock::now() - $began;
            $this->tell(static fn (Observer $one) => $grant === null
                ? $one->refused($request->key, $took, null)
                : $one->granted($request->key, $took));
            $this->doErrands(Clock::now());

            return $result;
        } catch (\Throwable $error) { // also a signal handler's: no caller gets what was granted
            if (!$error instanceof Replaced) {
                $this->cancel($request, $isUnheard);
            }
            $this->tell(static fn (Observer $one) => $one->refused($request->key, Clock::now() - $began, $error));
            if (!$error instanceof Unanswered && !$error instanceof LockTimeout) { // that server is not awaited twice
                $this->doErrands(Clock::now());
            }
            throw $error;
        }
    }

    /** An actor that waits for what it holds waits for itself. */
    private function refuseDeadlock(Request $request, ?float $timeout): void
    {
        $blocks = static fn (\WeakReference $one): bool => $one->get()?->request->blocks($request) ?? false;
        if ($timeout !== 0.0 && array_filter($this->holds, $blocks) !== []) {
            $this->keep(true);
            if (array_filter($this->holds, $blocks) !== []) {
                throw new Deadlock("DEADLOCK $request->key is held by the same actor: release it first");
            }
        }
    }

    /**
     * Returns the grant, or null if the lock is taken.
     *
     * A slice is short, and a lease begins at the grant: so each slice's grant is believed from when the slice began. Only after a
     * failure may the server have granted it before.
     *
     * @param bool $isUnheard whether a command was not answered, and may reach the server late
     *
     * @return ?array{int, float, float}
     */
    private function wait(Request $request, ?float $timeout, float $began, bool &$isUnheard): ?array
    {
        $end = $timeout === null ? INF : $began + ($timeout > 0 ? $timeout : $this->settings->replyTimeout);
        $warned = -INF;
        $failure = null;
        $isWaiting = false;
        try {
            while (true) {
                $sent = Clock::now();
                $slice = $timeout === 0.0 ? null : $this->slice($request, $end - $sent);
                try {
                    $bound = $this->bound($sent + ($slice ?? 0.0), $end);
                    $reply = $this->servers->ask($request->key, $request->take($slice), $bound, before: $failure);
                    if ($reply) {
                        return $failure === null
                            ? [$reply[0], $sent, $request->lease]
                            : $this->confirmed($request, $reply[0], $end);
                    }
                    if ($slice !== null && !$isWaiting) {
                        $isWaiting = true;
                        $this->tell(static fn (Observer $one) => $one->waiting($request->key));
                    }
                    if ($slice === null || Clock::now() >= $end) {
                        return null;
                    }
                } catch (Unanswered | Refused $error) {
                    $isUnheard = $isUnheard || $error instanceof Unanswered;
                    // A grant that has ended before it was confirmed is no refusal.
                    if ($timeout === 0.0 || !$error->passes() && !$error instanceof NotHeld) {
                        throw $error;
                    }
                    if (Clock::now() >= $end) { // which has cut the last attempt short: the reason is what was heard before
                        $why = $error instanceof Unanswered ? $failure ?? $error : $error;
                        throw new LockTimeout("$request->key was not granted within $timeout s: {$why->getMessage()}", 0, $why);
                    }
                    $failure = $error;
                    if (Clock::now() - $warned >= self::WARN_EVERY) {
                        $warned = Clock::now();
                        $this->logger?->warning('still waiting for lock {key}: {error}', [
                            'key' => $request->key,
                            'error' => $error->getMessage(),
                        ]);
                    }
                    $this->servers->pause($end);
                }
                $this->keep(end: $end);
            }
        } finally {
            if ($isWaiting) {
                $this->tell(static fn (Observer $one) => $one->waited($request->key));
            }
        }
    }

    private function slice(Request $request, float $left): float
    {
        return max(0.001, min(self::SLICE, $this->settings->replyTimeout / 2, $request->lease / 3, $left));
    }

    /** A reply that is due then is awaited until then. No longer than what is held is believed, since meanwhile nobody renews it. */
    private function bound(float $due, float $end): float
    {
        return min($due + $this->settings->replyTimeout, max($due + Servers::GRACE, $this->firstEnd()), $end + Servers::GRACE);
    }

    /** Returns the first end of what is believed. */
    private function firstEnd(): float
    {
        $ends = array_map(static fn (\WeakReference $one): float => $one->get()?->until() ?? INF, array_values($this->holds));
        $now = Clock::now();

        return min([INF, ...array_filter($ends, static fn (float $end): bool => $end > $now)]);
    }

    /** @return array{int, float, float} */
    private function confirmed(Request $request, int $token, float $end): array
    {
        $sent = Clock::now();
        $left = $this->servers->ask($request->key, $request->renew($token), $this->bound($sent, $end));

        return [$token, $sent, $left / 1000];
    }

    // Releasing.

    /**
     * Releases a hold, or leaves it to a lease of $after seconds. Throws NotHeld if the hold has ended before. The next calls repeat a
     * command that no server answered.
     *
     * @param float $until the believed end of the hold. From then on NotHeld is a loss, even after an attempt without a reply
     */
    public function release(Request $request, int $token, float $until, ?float $after = null, ?Hold $hold = null): void
    {
        $words = $after === null ? $request->release($token) : $request->untie($token, $after, true);
        $now = Clock::now();
        $endsAt = $until > $now ? $now + ($after ?? 0.0) : INF;
        try {
            $hold?->setOver('it was released before');
            unset($this->holds[$request->owner]);
            $this->servers->insist($request->key, $words, $endsAt);
        } catch (NotHeld $error) {
            if ($hold !== null) {
                $hold->reopen();
                $this->lose($hold, 'not held any more');
            }
            throw $error;
        } catch (\Throwable $error) {
            // Without the right to release it, the hold ends with its lease.
            $isForbidden = $error instanceof Refused && !$error->passes();
            $this->later($request, [$isForbidden ? $request->untie($token, $request->lease) : $words]);
            throw $error;
        }
    }

    /**
     * Stops renewing a hold that nothing refers to any longer: its work may continue, and needs the lease to stop. The next call
     * tells the server, since a destructor may run in the middle of a command.
     */
    public function abandon(Hold $hold): void
    {
        if ($this->servers->isOpen()) {
            $this->later($hold->request, [$hold->request->untie($hold->token, $hold->request->lease)]);
            $this->lose($hold, 'forgotten');
        }
    }

    /** Cancels a request, and releases what it may have been granted. */
    public function cancel(Request $request, bool $isUnheard): void
    {
        ($this->holds[$request->owner] ?? null)?->get()?->setOver('it was cancelled');
        unset($this->holds[$request->owner]);
        $release = $request->isReused ? [] : [$request->release(null)];
        $this->later($request, [$request->words('CANCEL'), ...$release], $isUnheard);
    }

    /** Reports a hold lost, and releases it. */
    public function giveUp(Hold $hold, string $reason): void
    {
        $this->later($hold->request, [$hold->request->release($hold->token)]);
        $this->lose($hold, $reason);
    }

    /**
     * Notes commands about a request, which the next calls repeat until the server has answered.
     *
     * @param list<list<int|string>> $commands
     */
    private function later(Request $request, array $commands, bool $repeats = false): void
    {
        $end = Clock::now() + $request->lease + max($request->hangTimeout ?? 0.0, $this->settings->queueGrace);
        $this->errands[] = new Errand($request->key, $commands, $end, $repeats);
    }

    /**
     * Sends what is due, for a second at most. A server that does not answer one errand is not asked for the others.
     *
     * @param array<string, true> $silent the addresses of servers that have just not answered
     */
    public function doErrands(float $end = INF, array $silent = []): void
    {
        $enough = Clock::now() + self::ENOUGH;
        // What is held needs to be renewed in time.
        $most = min($this->settings->replyTimeout, $this->holds === [] ? INF : self::ENOUGH);
        foreach ($this->errands as $i => $errand) {
            if (Clock::now() >= $enough || $this->servers->isBusy() || !$this->servers->isOpen()) {
                return;
            }
            $address = $this->servers->of($errand->key);
            if ($errand->isDue() && !$errand->isOver() && !isset($silent[$address])) {
                $errand->postpone();
                if (!$this->isAnswered($errand, min($most, $end + Servers::GRACE - Clock::now()))) {
                    $silent[$address] = true;
                } elseif (!$errand->repeats) {
                    unset($this->errands[$i]);
                }
            }
            if ($errand->isOver()) {
                unset($this->errands[$i]);
            }
        }
    }

    private function isAnswered(Errand $errand, float $bound): bool
    {
        foreach ($errand->commands as $words) {
            try {
                $this->servers->ask($errand->key, $words, Clock::now() + $bound);
            } catch (Unanswered | Refused $error) {
                if ($error->passes()) {
                    return false;
                }
                // It is not held, or the user has no right to the command.
            }
        }

        return true;
    }

    // Keeping.

    /**
     * Renews each hold that was not renewed within a second, or a third of its lease, or whose believed end has passed. What takes
     * longer than a second is left to the next call; `$first` is not.
     */
    public function keep(bool $now = false, float $end = INF, ?Hold $first = null): void
    {
        $this->servers->check();
        if ($this->servers->isBusy()) {
            return; // a signal handler has interrupted a command, and its caller does this next
        }
        $silent = [];
        $enough = $now ? INF : Clock::now() + self::ENOUGH;
        $holds = array_filter(array_map(static fn (\WeakReference $one): ?Hold => $one->get(), $this->holds));
        $due = $now ? $holds : array_filter($holds, static fn (Hold $one): bool => $one->isDue());
        uasort($due, static fn (Hold $a, Hold $b): int => [$b === $first, $a->askedAt()] <=> [$a === $first, $b->askedAt()]);
        foreach ($due as $owner => $hold) {
            if (!isset($this->holds[$owner]) || Clock::now() >= $enough) {
                continue; // it has ended with its connection, or it is left to the next call
            }
            if (!isset($silent[$this->servers->of($hold->key)]) && !$this->renew($hold, $end)) {
                $silent[$this->servers->of($hold->key)] = true; // no other hold needs to wait for this server
            }
            if (isset($this->holds[$owner]) && $hold->until() <= Clock::now()) {
                $this->giveUp($hold, $hold->why());
            }
        }
        $this->doErrands($end, $silent);
    }

    /** Returns false if no server has answered. */
    private function renew(Hold $hold, float $end): bool
    {
        $sent = Clock::now();
        // A silent server costs no more than the bound, and keeps nobody in the belief that a lock is still held; but a
        // caller that asks at the last moment waits for an answer as well.
        $last = $hold->until() > $sent ? max($this->firstEnd(), $sent + self::ENOUGH) : INF;
        $until = max($sent + Servers::GRACE, min($last, $sent + $this->settings->replyTimeout, $end));
        try {
            $left = $this->servers->ask($hold->key, $hold->renewal(), $until);
            $hold->believe($sent, $left / 1000, $this->servers->answered);
        } catch (NotHeld) {
            $this->lose($hold, 'not held any more');
        } catch (Unanswered | Refused $error) {
            $hold->failed($sent, $error);
            $this->logger?->info('lock {key} was not renewed: {error}', ['key' => $hold->key, 'error' => $error->getMessage()]);

            return !$error instanceof Unanswered;
        }

        return true;
    }

    /** Reports a hold lost: it is no longer held. */
    public function lose(Hold $hold, string $reason): void
    {
        unset($this->holds[$hold->owner]);
        if (!$hold->setOver($reason)) {
            return;
        }
        $this->logger?->warning('lock {key} of {owner} is lost: {reason}', [
            'key' => $hold->key,
            'owner' => $hold->owner,
            'reason' => $reason,
        ]);
        $this->tell(static fn (Observer $one) => $one->lost($hold->key, $reason));
        $this->guarded('onLost', $hold->told(...));
    }

    /** Reports what ends with its connection, or with a fork. The rest is tied to the next connection. */
    private function ended(?string $address): void
    {
        foreach ($this->holds as $reference) {
            $hold = $reference->get();
            if ($hold !== null && $address === null) {
                $this->lose($hold, 'it is held by the process that has forked this one');
            } elseif ($hold !== null && $hold->isCut($address) && $hold->request->ephemeral) {
                $this->giveUp($hold, 'closed'); // the server may not have seen the end of the connection
            }
        }
        if ($address === null) {
            $this->errands = [];
        }
    }

    /** Ends the connections, and reports all holds lost. Their leases run on. */
    public function close(): void
    {
        $isOpen = $this->servers->isOpen();
        $this->servers->closed = true;
        $this->servers->end();
        foreach ($isOpen ? $this->holds : [] as $reference) {
            $hold = $reference->get();
            if ($hold !== null) {
                $this->lose($hold, 'closed');
            }
        }
    }

    public function tell(\Closure $what): void
    {
        if ($this->observer !== null) {
            $this->guarded('the observer', fn () => $what($this->observer));
        }
    }

    /** Runs a callback of the program. Its exceptions are logged and otherwise ignored. */
    private function guarded(string $whose, \Closure $callback): void
    {
        try {
            $callback();
        } catch (\Throwable $error) {
            $this->logger?->error("$whose has failed: {error}", ['error' => $error->getMessage()]);
        }
    }
}

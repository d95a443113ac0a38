<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Closed;
use Dlock\Exception\LockTimeout;
use Dlock\Exception\NoAck;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Redirected;
use Dlock\Exception\Refused;
use Dlock\Exception\Replaced;
use Dlock\Exception\Unanswered;
use Psr\Log\LoggerInterface;

/**
 * Take, wait, keep, lose, leave: all on the one connection to a node, in the time of whoever calls.
 *
 * - A process has one connection to a node, and one thing to do at a time. So a wait blocks on that connection, in slices
 *   below the bound for a reply, and there is no orphan to look for: who gives up on a reply ends the connection, and with
 *   it the server ends what nobody has been told of.
 * - A *tie* is a hold that the server renews for that connection (AUTO), with nothing of ours running. KEEP, sent when the
 *   program asks, moves the believed end of all ties of a connection, and tells what was lost.
 * - A believed end that has passed while the program did something else is no loss yet: there is nobody who could have
 *   heard of it. The next look asks. It is a loss if nobody answers.
 *
 * @internal
 */
final class Core
{
    private const GRACE = 0.4; // so much longer whoever's time is up waits for a reply, and as long to leave
    private const WARN_EVERY = 10.0;
    private const ROUNDING = 0.002;

    /** @var array<int, array{float, Request, int}> until when to try, what to leave, and its token (or 0) */
    private array $leaving = [];
    private bool $closed = false;
    private int $process;
    private float $refreshed = -INF;

    public function __construct(
        private readonly Servers $servers,
        public readonly Settings $settings,
        private readonly ?LoggerInterface $logger,
        public readonly ?Observer $observer,
    ) {
        $this->process = (int) getmypid();
    }

    // Asking.

    /**
     * The reply of whoever serves the key, and who that is.
     *
     * @param list<int|string> $words
     *
     * @return array{mixed, Node}
     */
    public function call(string $key, array $words, float $until): array
    {
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
                [$node, $asking] = [$this->servers->redirected($error), $error->once()];
            }
        }
    }

    /**
     * The same for what may be said twice: again until it passes.
     *
     * @param list<int|string> $words
     */
    public function insist(string $key, array $words): mixed
    {
        $this->check();
        $until = Clock::now() + $this->settings->bound;
        while (true) {
            try {
                return $this->call($key, $words, $until)[0];
            } catch (Unanswered | Refused $error) {
                if (Clock::now() >= $until) {
                    throw $error;
                }
                $this->mend($error, $until);
            }
        }
    }

    /** @param list<int|string> $words */
    private function ask(Node $node, array $words, float $until): mixed
    {
        $left = static fn (): float => max(0.01, $until - Clock::now());
        try {
            $node->connection ??= ($node->connect)($left());

            return $node->connection->call($words, $left());
        } catch (Refused | \InvalidArgumentException $error) {
            throw $error;
        } catch (\Throwable $error) { // an exception of a signal's handler, too: its reply is nobody's
            $this->drop($node);
            throw $error;
        }
    }

    /** The connection has ended, and its ties with it. */
    private function drop(Node $node): void
    {
        $node->connection?->close();
        $node->connection = null;
        foreach ($node->ties as $tie) {
            $tie->tied = false;
            if ($tie->request->session) {
                $this->lose($tie, 'session');
            }
        }
    }

    /** After an error: throws it if time cannot mend it. */
    private function mend(Unanswered | Refused $error, float $until): void
    {
        if ($error instanceof Refused && !$error->passes()) {
            throw $error;
        }
        $this->lookAround($error, $until);
        Clock::sleep(min(max(0.0, $until - Clock::now()), random_int(20, 100) / 1000));
    }

    private function lookAround(Unanswered | Refused $error, float $until): void
    {
        if ($error instanceof Refused && $error->code() === 'READONLY') { // who is primary now is found by connecting
            foreach ($this->servers->nodes as $node) {
                $this->drop($node);
            }
        }
        $now = Clock::now();
        if ($now - $this->refreshed > 0.1) {
            $this->refreshed = $now;
            $this->servers->refresh(fn (Node $node, array $words) => $this->ask($node, $words, min($until, $now + 1)));
        }
    }

    // Taking.

    /** The token of what was granted; null if it is taken. A time-out of 0: one try; null: no bound. */
    public function take(Request $request, ?float $timeout): ?int
    {
        $this->check();
        $this->depart();
        $began = Clock::now();
        $token = $error = null;
        try {
            $token = $this->taken($request, $timeout, $began);
        } catch (\Throwable $error) {
            if ($request->asked && !$error instanceof Replaced) {
                $this->leave($request);
            }
            throw $error;
        } finally {
            $took = Clock::now() - $began;
            $request->queued && $this->tell(fn (Observer $observer) => $observer->waited($request->key));
            $this->tell($token !== null
                ? fn (Observer $observer) => $observer->granted($request->key, $took)
                : fn (Observer $observer) => $observer->refused($request->key, $took, $error));
        }

        return $token;
    }

    private function taken(Request $request, ?float $timeout, float $began): ?int
    {
        $end = $timeout === null ? INF : $began + ($timeout > 0 ? $timeout : $this->settings->bound);
        $warned = -INF;
        $before = null;
        while (true) {
            try {
                return $this->attempt($request, $timeout === 0.0, $end);
            } catch (Unanswered | Refused $error) {
                // The grant may have ended before it was confirmed: that is no refusal.
                $again = $error instanceof NotHeld && $request->before === 0;
                if (!$again && $error instanceof Refused && !$error->passes()) {
                    throw $error;
                }
                if ($timeout === 0.0 && ($error instanceof NoAck || Clock::now() >= $end)) {
                    throw $error;
                }
                if (Clock::now() >= $end) {
                    // The end has cut the last try short: the reason is what was heard before.
                    $why = $error instanceof Unanswered ? $before ?? $error : $error;
                    throw new LockTimeout("$request->key was not granted within $timeout s: {$why->getMessage()}", 0, $why);
                }
                $before = $error;
                if ($timeout !== 0.0 && Clock::now() - $warned >= self::WARN_EVERY) {
                    $this->logger?->warning('still waiting for lock {key}: {error}', [
                        'key' => $request->key,
                        'error' => $error->getMessage(),
                    ]);
                    $warned = Clock::now();
                }
                $again ? Clock::sleep(0.02) : $this->mend($error, $end);
            }
        }
    }

    private function attempt(Request $request, bool $atOnce, float $end): ?int
    {
        $until = fn (): float => min(Clock::now() + $this->settings->bound, $end + self::GRACE);
        if (!$request->looked) {
            $held = $this->call($request->key, $request->words('HELD'), $until())[0];
            [$request->outer, $request->before] = $held ? [$held[0], $held[1]] : [0, 0];
            $request->looked = true;
        }
        $request->asked = true;
        if (!$request->queued) {
            $sent = Clock::now();
            [$reply, $node] = $this->call($request->key, $request->take($atOnce), $until());
            if ($reply) {
                return $this->granted($request, $node, $reply[0], $sent, $request->seconds());
            }
            if ($atOnce) {
                $request->asked = false;

                return null;
            }
            $request->queued = true;
            $this->tell(fn (Observer $observer) => $observer->waiting($request->key));
        }
        while (true) {
            $slice = min($this->settings->bound / 2, $end - Clock::now());
            if ($slice <= 0) {
                $this->leave($request);

                return null;
            }
            // To connect and to be answered has its bound, to wait its slice.
            $reply = $this->call($request->key, $request->wait($slice), min(
                Clock::now() + $slice + $this->settings->bound,
                $end + self::GRACE,
            ))[0];
            if ($reply) {
                return $this->confirm($request, $reply[0], $until());
            }
            $this->keep();
        }
    }

    /** Whoever has waited says that it has heard of the grant: until then it is a short one. */
    private function confirm(Request $request, int $token, float $until): int
    {
        $sent = Clock::now();
        [$left, $node] = $this->call($request->key, $request->renew($token), $until);

        return $this->granted($request, $node, $token, $sent, $left / 1000);
    }

    private function granted(Request $request, Node $node, int $token, float $sent, float $lease): int
    {
        if ($request->outer !== 0 && $request->outer !== $token) { // an upgrade: the outer hold has ended with its token
            $outer = $this->find($request->outer);
            [$request->outer, $request->before] = [$token, 0];
            $outer !== null && $this->lose($outer, 'upgraded');
        }
        if ($request->auto !== null && $request->tracked) {
            $request->tie = $node->ties[$token] ??= new Tie($request, $token);
            $this->believe($request->tie, $sent, $lease);
        }

        return $token;
    }

    private function believe(Tie $tie, float $sent, float $lease): void
    {
        $tie->tied = true;
        $tie->until = max($tie->until, $sent + $lease - self::ROUNDING - $this->settings->allowance);
    }

    // Keeping.

    /**
     * A sign of life to each node that has not had one for a while, or of which a hold is not believed any more.
     *
     * @return list<Hold> what was found lost
     */
    public function keep(bool $now = false): array
    {
        $this->check();
        $lost = [];
        foreach ($this->servers->nodes as $node) {
            $at = Clock::now();
            $first = $node->ties === [] ? INF : min(array_map(static fn (Tie $tie) => $tie->until, $node->ties));
            if ($first === INF || (!$now && $at < $first && $at - $node->keptAt < $this->settings->interval)) {
                continue;
            }
            $node->keptAt = $at;
            // A silent node costs no more than the bound, and keeps nobody in the belief that a lock is still held; but who looks
            // at the last moment waits for an answer, too.
            $until = $at + $this->settings->bound;
            $until = $first > $at ? min($until, max($first, $at + $this->settings->interval)) : $until;
            for ($try = 1; $try <= 3; ++$try) {
                try {
                    $lost = [...$lost, ...$this->round($node, $until)];
                    break;
                } catch (Unanswered | Refused $error) {
                    $this->logger?->info('node {node}: {error}', ['node' => $node->name, 'error' => $error->getMessage()]);
                    $this->lookAround($error, Clock::now() + 1); // what is not kept here may be kept elsewhere, now
                    if ($error instanceof NoAck || Clock::now() >= $until) {
                        break;
                    }
                }
            }
            foreach ($node->ties as $tie) {
                if ($tie->until <= Clock::now()) {
                    $lost = [...$lost, ...$this->lose($tie, 'nobody has confirmed it before its end')];
                    $this->leaving[] = [Clock::now() + $this->settings->lease, $tie->request, $tie->token];
                }
            }
        }
        $this->depart();

        return $lost;
    }

    /** @return list<Hold> */
    private function round(Node $node, float $until): array
    {
        $tied = array_filter($node->ties, static fn (Tie $tie) => $tie->tied);
        $lost = [];
        if ($tied !== []) {
            $sent = Clock::now();
            [$count, $left, $ended] = $this->ask($node, ['DLOCK.KEEP', Settings::ms($this->settings->auto)], $until);
            foreach ($ended ?? [] as [, $token, $reason]) {
                if (!isset($tied[$token])) {
                    continue;
                }
                $tied[$token]->tied = false;
                if (!in_array($reason, ['moved', 'renamed', 'taken', 'demoted'], true)) {
                    $lost = [...$lost, ...$this->lose($tied[$token], $reason)];
                }
            }
            // Fewer than we know of: the connection is another one by now, and nobody has told us. SESSION has ended with it.
            $known = count(array_filter($tied, static fn (Tie $tie) => $tie->tied));
            $all = $ended !== null && $count >= $known;
            foreach ($tied as $tie) {
                $tie->tied = $tie->tied && $all;
                if (!$all && $ended !== null && $tie->request->session) {
                    $lost = [...$lost, ...$this->lose($tie, 'session')];
                } elseif ($tie->tied && is_int($left)) {
                    $this->believe($tie, $sent, $left / 1000);
                }
            }
        }
        foreach ($node->ties as $tie) {
            if (!$tie->tied) {
                $lost = [...$lost, ...$this->retie($tie, $until)];
            }
        }

        return $lost;
    }

    /** @return list<Hold> */
    private function retie(Tie $tie, float $until): array
    {
        if (array_filter($tie->holds, static fn (\WeakReference $one) => $one->get() !== null) === []) {
            return $this->lose($tie, 'forgotten');
        }
        $sent = Clock::now();
        try {
            [$left, $node] = $this->call($tie->request->key, $tie->request->renew($tie->token), $until);
            $this->believe($tie, $sent, $left / 1000);
            foreach ($this->servers->nodes as $other) {
                unset($other->ties[$tie->token]);
            }
            $node->ties[$tie->token] = $tie;
        } catch (NotHeld) {
            return $this->lose($tie, 'not held any more');
        } catch (NoAck) { // perhaps it has been cut to that
            $tie->until = min($tie->until, $sent + $tie->request->seconds() - $this->settings->allowance);
        } catch (Refused $error) {
            if ($error->passes()) {
                throw $error;
            }
            $this->logger?->warning('lock {key} cannot be renewed: {error}', [
                'key' => $tie->request->key,
                'error' => $error->getMessage(),
            ]);
        }

        return [];
    }

    private function find(int $token): ?Tie
    {
        foreach ($this->servers->nodes as $node) {
            if (isset($node->ties[$token])) {
                return $node->ties[$token];
            }
        }

        return null;
    }

    /** @return list<Hold> */
    private function lose(Tie $tie, string $reason): array
    {
        $told = [];
        foreach ($this->servers->nodes as $node) {
            unset($node->ties[$tie->token]);
        }
        foreach ($tie->holds as $one) {
            $hold = $one->get();
            if ($hold !== null && $hold->end($reason)) {
                $told[] = $hold;
                $this->closed || $this->logger?->warning('lock {key} of {owner} is lost: {reason}', [
                    'key' => $hold->key,
                    'owner' => $hold->owner,
                    'reason' => $reason,
                ]);
                $this->tell(fn (Observer $observer) => $observer->lost($hold->key, $reason));
                $hold->told();
            }
        }

        return $told;
    }

    // Giving back.

    public function release(Request $request, int $token): void
    {
        $until = Clock::now() + $this->settings->bound;
        $heard = true;
        while (true) {
            try {
                $this->call($request->key, $request->release('TOKEN', $token), $until);
                $this->released($request, $token);

                return;
            } catch (NotHeld $error) {
                $this->released($request, $token);
                if ($heard) {
                    throw $error;
                }

                return; // the first one has given it back
            } catch (Unanswered | Refused $error) {
                if (Clock::now() >= $until || ($error instanceof Refused && !$error->passes())) {
                    $this->leaving[] = [Clock::now() + $this->settings->lease, $request, $token];
                    throw $error;
                }
                $this->mend($error, $until);
                $heard = $heard && $error instanceof Refused;
            }
        }
    }

    /** What is left of it belongs to an outer hold, or it is gone. */
    private function released(Request $request, int $token): void
    {
        $tie = $this->find($token);
        if ($tie !== null && $request->before === 0) {
            $this->lose($tie, 'released');
        }
    }

    /** A hold that nobody refers to any more. Says nothing, and takes no time where there is no connection. */
    public function forsake(Request $request, int $token): void
    {
        if ($this->closed || $this->process !== getmypid()) {
            return;
        }
        $this->leaving[] = [Clock::now() + $this->settings->lease, $request, $token];
        try {
            $this->depart();
        } catch (\Throwable) {
            // Its lease ends it.
        }
    }

    /** Leaves a wait, or what may have been granted to it. */
    private function leave(Request $request): void
    {
        $request->asked = false;
        $until = Clock::now() + max($this->settings->lease, $this->settings->claim);
        $this->leaving[] = [$until, $request, 0];
        $this->depart();
    }

    /** Gives back what is to be given back, in little time: what cannot be now is tried the next time. */
    private function depart(): void
    {
        $until = Clock::now() + self::GRACE;
        foreach ($this->leaving as $i => [$deadline, $request, $token]) {
            try {
                $this->gone($request, $token, $until);
                unset($this->leaving[$i]);
            } catch (Unanswered | Refused $error) {
                if (Clock::now() >= $deadline || ($error instanceof Refused && !$error->passes())) {
                    unset($this->leaving[$i]);
                }
                if (Clock::now() >= $until) {
                    return;
                }
            }
        }
    }

    private function gone(Request $request, int $token, float $until): void
    {
        try {
            if ($token === 0) {
                $this->call($request->key, $request->words('CANCEL'), $until);
                $held = $request->before > 0 ? $this->call($request->key, $request->words('HELD'), $until)[0] : null;
                if ($held && $held[0] !== $request->outer) { // an upgrade came first: the outer hold has ended
                    $this->call($request->key, $request->words('RELEASE', 'TOKEN', $held[0], 'HOLDS', 0), $until);
                }
            }
            $this->call($request->key, $token !== 0 ? $request->release('TOKEN', $token) : $request->release(), $until);
        } catch (NotHeld) {
            // It is gone.
        }
        $this->released($request, $token !== 0 ? $token : $request->tie->token ?? 0);
    }

    // The end.

    /** An error if nothing may be asked any more. */
    public function check(): void
    {
        if ($this->closed) {
            throw new Closed('these locks are closed');
        }
        if ($this->process !== getmypid()) {
            $this->begin();
        }
    }

    /** The child of a fork begins with nothing. The sockets are its parent's, too: they are closed without a word. */
    private function begin(): void
    {
        $this->process = (int) getmypid();
        $this->leaving = [];
        foreach ($this->servers->nodes as $node) {
            $node->connection?->close();
            $node->connection = null;
            foreach ($node->ties as $tie) {
                $this->lose($tie, 'it is held by the process that has forked this one');
            }
        }
    }

    /** Everything ends: what is held is told lost, and lives on until its lease. */
    public function close(): void
    {
        if ($this->closed || $this->process !== getmypid()) {
            $this->closed = true;

            return;
        }
        $this->depart();
        $this->closed = true;
        foreach ($this->servers->nodes as $node) {
            foreach ($node->ties as $tie) {
                $this->lose($tie, 'closed');
            }
            $node->connection?->close();
            $node->connection = null;
        }
    }

    /** Whoever counts may fail, and nothing else does. */
    private function tell(\Closure $what): void
    {
        try {
            $this->observer !== null && $what($this->observer);
        } catch (\Throwable $error) {
            $this->logger?->error('the observer has failed: {error}', ['error' => $error->getMessage()]);
        }
    }

    /** So that a callback of the program's stops nothing. */
    public function failed(\Throwable $error): void
    {
        $this->logger?->error('onLost has failed: {error}', ['error' => $error->getMessage()]);
    }

    /** The observer is told of a hold that was given back. */
    public function given(Hold $hold, float $seconds): void
    {
        $this->tell(fn (Observer $observer) => $observer->released($hold->key, $seconds));
    }
}

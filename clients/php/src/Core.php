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
    private const TRIES = 3;
    /** The most renamed owners that are remembered. */
    private const MOST_RENAMED = 1000;
    /** The hold goes on, and nobody renews it here: at another server, under another name, by another connection, by a replica. */
    private const UNRENEWED = ['moved', 'renamed', 'taken', 'demoted'];

    private readonly Servers $servers;
    /** Something is renewed for these connections that is not known here: the count of KEEP tells nothing. */
    private bool $others = false;
    /** @var array<string, array{string, int}> by key and name: what an owner's name ends with, and how many RELEASEs are unanswered */
    private array $renamed = [];
    private int $aliases = 0;

    public function __construct(
        Connect $where,
        public readonly Settings $settings,
        private readonly ?LoggerInterface $logger = null,
        private readonly ?Observer $observer = null,
    ) {
        $this->servers = new Servers($where, $settings->replyTimeout, $this->lose(...));
    }

    // Taking.

    /**
     * Returns what was granted: the request, or the one of the same owner that holds it already; null if it is taken. A time-out of
     * 0: one try; null: no bound. If its owner holds the lock in another way already, only the place is left when it fails.
     */
    public function take(Request $request, ?float $timeout, bool $isUpgrade = false): ?Request
    {
        $this->servers->check();
        if ($request->tracked && ($held = $this->heldBy($request)) !== null) {
            return $held;
        }
        $began = Clock::now();
        $granted = $error = null;
        try {
            $granted = $this->taken($request, $timeout, $began) ? $request : null;
        } catch (\Throwable $error) {
            if (!$error instanceof Replaced) {
                $this->leave($request, $isUpgrade);
            }
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

    /** What this owner holds here already: a second hold is one more of it, and no command. */
    private function heldBy(Request $request): ?Request
    {
        $find = fn (): ?Request => array_reduce(
            $this->servers->nodes,
            static fn (?Request $found, Node $node) => $found ?? $node->held[$request->id()] ?? null,
        );
        if ($find() === null) {
            return null;
        }
        $this->keep(false);
        $held = $find();
        if ($held !== null && !$held->covers($request)) {
            throw new Deadlock("DEADLOCK $request->key is held by the same owner, whose hold lets in others: give it back first");
        }

        if ($held !== null && $request->permits > $held->permits) {
            $how = "must be at most $held->permits, which the owner's hold has, not $request->permits";
            throw new \InvalidArgumentException("permits $how: give it back, and ask again");
        }

        return $held;
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
                // The grant may have ended before it was confirmed: that is no refusal.
                $again = $error instanceof NotHeld;
                if ($timeout === 0.0 && !$again) { // a try is one attempt
                    $this->servers->distrust();
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
            [$reply, $node] = $this->ask($request, $request->take($atOnce), $until());
            if ($reply && $again) {
                return $this->confirmed($request, $reply[0], $until());
            }
            if ($reply) {
                return $this->granted($request, $node, $reply[0], $sent, $request->seconds());
            }
            if ($atOnce) {
                return false;
            }
            $request->queued = true;
            $this->tell(fn (Observer $one) => $one->waiting($request->key));
        }
        while (true) {
            $slice = min($this->settings->replyTimeout / 2, $end - Clock::now());
            if ($slice <= 0) {
                $this->leave($request);

                return false;
            }
            // To connect and to be answered has its bound, to wait its slice.
            $bound = Clock::now() + $slice + $this->settings->replyTimeout;
            $reply = $this->ask($request, $request->wait($slice), min($bound, $end + Servers::GRACE))[0];
            if ($reply) { // a caller that has waited says that it has heard of the grant: until then it is a short one
                return $this->confirmed($request, $reply[0], $until());
            }
            $this->keep(false);
        }
    }

    /**
     * @param list<int|string> $words
     *
     * @return array{mixed, Node}
     */
    private function ask(Request $request, array $words, float $until): array
    {
        $request->node = $this->servers->of($request->key);

        return [, $request->node] = $this->servers->call($request->key, $words, $until);
    }

    /** What nobody can keep is not taken: a server that has refused KEEP is asked whether it still does. */
    private function refuseUnkept(Request $request, float $until): void
    {
        $node = $this->servers->of($request->key);
        if ($request->tracked && $node->refusal !== null) {
            $reply = $this->servers->ask($node, [['DLOCK.KEEP', Settings::ms($this->settings->hangTimeout)]], $until)[0];
            if ($reply instanceof Refused) {
                throw $reply;
            }
            $node->refusal = null;
        }
    }

    private function confirmed(Request $request, int $token, float $until): bool
    {
        $sent = Clock::now();
        [$left, $node] = $this->ask($request, $request->renew($token), $until);

        return $this->granted($request, $node, $token, $sent, $left / 1000);
    }

    private function granted(Request $request, Node $node, int $token, float $sent, float $lease): bool
    {
        $this->servers->check(); // a signal's handler may have closed the locks meanwhile
        [$request->token, $request->node] = [$token, $node];
        if ($request->hangTimeout !== null && $request->tracked) {
            $node->held[$request->id()] = $request;
            $request->believe($sent, $lease);
        } elseif ($request->hangTimeout !== null) {
            $this->others = true;
        }

        return true;
    }

    // Giving back.

    /** Gives back what was granted, and insists. NotHeld if it has ended before. */
    public function release(Hold $hold, Request $request, float $since): void
    {
        if (!$request->isHad()) { // it was the last of its owner's
            $answered = $this->rename($request);
            try {
                $this->servers->insist($request->key, $request->release('TOKEN', $request->token), true);
                $answered();
            } catch (NotHeld $error) {
                $answered();
                throw $error;
            } finally {
                $this->forget($request); // where the server holds it all the same, KEEP counts one too many
            }
        }
        $held = Clock::now() - $since;
        $this->tell(static fn (Observer $one) => $one->released($hold->key, $held));
    }

    /**
     * Leaves a hold that nobody refers to any more to its lease: the work may go on, and needs that time to stop. An owner that
     * the program has named has another name until then, or it would be let in beside that work.
     */
    public function forsake(Hold $hold, Request $request): void
    {
        if ($this->servers->isOpen()) {
            $this->logger?->warning('lock {key} of {owner} is lost: nothing refers to its hold, and it was not released', [
                'key' => $hold->key,
                'owner' => $hold->owner,
            ]);
            $this->tell(static fn (Observer $one) => $one->lost($hold->key, 'forgotten'));
            if (!$request->isHad()) {
                $this->forget($request);
                $this->rename($request);
                $this->servers->post($request->node, [$request->untie()]);
            }
        }
    }

    /** Gives back what nobody has, once. */
    public function abandon(Request $request): void
    {
        $this->forget($request);
        if ($request->token !== 0) {
            $answered = $this->rename($request);
            $this->servers->post(
                $request->node,
                [$request->release('TOKEN', $request->token)],
                static fn (mixed $reply) => $reply instanceof Unanswered || $answered(),
            );
        }
    }

    /** Leaves a queue, with what may have been granted meanwhile: behind the request, on its connection. */
    private function leave(Request $request, bool $isUpgrade = false): void
    {
        if ($request->asked && $request->node !== null) {
            $request->asked = false;
            $request->isLeftLate = !$isUpgrade && !$request->reused;
            $this->forget($request);
            $commands = [$request->words('CANCEL'), ...($request->isLeftLate ? [$request->release()] : [])];
            $answered = $this->rename($request);
            $this->servers->post($request->node, $commands, static function (mixed $reply) use ($request, $answered): void {
                if (!$reply instanceof Unanswered) {
                    $request->isLeftLate = false;
                    $answered();
                }
            });
        }
    }

    /** What the name of an owner ends with now. */
    public function alias(string $key, string $name): string
    {
        return $this->renamed[Request::at($key, $name)][0] ?? '';
    }

    /**
     * Gives an owner that the program has named another name, before a RELEASE is sent for the one it has: until that is answered,
     * which the function that is returned notes, it may be read late, and must end nothing that the owner is granted later.
     */
    private function rename(Request $request): \Closure
    {
        if (!$request->isNamed()) {
            return static function (): void {
            };
        }
        $at = $request->id();
        $unanswered = $this->renamed[$at][1] ?? 0;
        $unanswered > 0 || count($this->renamed) < self::MOST_RENAMED || array_shift($this->renamed);
        $this->renamed[$at] = ['+' . ++$this->aliases, $unanswered + 1];

        return function () use ($at): void {
            if (isset($this->renamed[$at]) && --$this->renamed[$at][1] <= 0) {
                unset($this->renamed[$at]);
            }
        };
    }

    /**
     * Sends what takes a request back behind it, and waits for nothing.
     *
     * @param list<int|string> ...$commands
     */
    public function takeBack(string $key, array ...$commands): void
    {
        $this->servers->post($this->servers->of($key), array_values($commands));
    }

    private function forget(Request $request): void
    {
        foreach ($this->servers->nodes as $node) {
            if (($node->held[$request->id()] ?? null) === $request) {
                unset($node->held[$request->id()]);
            }
        }
    }

    /**
     * It is not held any more, and the program is told.
     *
     * @return list<Hold> for whom that is news
     */
    public function lose(Request $request, string $reason, bool $warns = true): array
    {
        $this->forget($request);
        $told = [];
        foreach ($request->holds as $one) {
            $hold = $one->get();
            if ($hold === null || !$hold->end($reason)) {
                continue;
            }
            $told[] = $hold;
            $warns && $this->logger?->warning('lock {key} of {owner} is lost: {reason}', [
                'key' => $hold->key,
                'owner' => $hold->owner,
                'reason' => $reason,
            ]);
            $this->tell(static fn (Observer $one) => $one->lost($hold->key, $reason));
            $hold->told();
        }

        return $told;
    }

    // Keeping.

    /**
     * A sign of life to each node that has not had one for a while, or of which a hold is not believed any more.
     *
     * @return list<Hold> what was found lost
     */
    public function keep(bool $now = false): array
    {
        $this->servers->check();
        $lost = [];
        foreach ($this->servers->nodes as $node) {
            $at = Clock::now();
            $first = $node->held === [] ? INF : min(array_map(static fn (Request $one) => $one->until, $node->held));
            if ($first < INF && ($now || $at >= $first || $at - $node->keptAt >= $this->settings->interval)) {
                $node->keptAt = $at;
                // A silent node costs no more than the bound, and keeps nobody in the belief that a lock is still held; but a
                // caller that looks at the last moment waits for an answer, too.
                $until = $at + $this->settings->replyTimeout;
                $until = $first > $at ? min($until, max($first, $at + $this->settings->interval)) : $until;
                array_push($lost, ...$this->look($node, $until), ...$this->expire($node));
            }
        }

        return $lost;
    }

    /** @return list<Hold> */
    private function look(Node $node, float $until): array
    {
        $lost = [];
        for ($try = 1; $try <= self::TRIES; ++$try) {
            try {
                array_push($lost, ...$this->sign($node, $until));
                array_push($lost, ...$this->renewAll($node, $until));
                break;
            } catch (Unanswered | Refused $error) {
                $this->logger?->info('node {node}: {error}', ['node' => $node->name, 'error' => $error->getMessage()]);
                $this->servers->refresh(Clock::now() + 1); // what is not kept here may be kept elsewhere, now
                if ($error instanceof NoAck || Clock::now() >= $until) {
                    break;
                }
            }
        }

        return $lost;
    }

    /**
     * What is not believed any more is lost, and given back if the server hears it.
     *
     * @return list<Hold>
     */
    private function expire(Node $node): array
    {
        $lost = [];
        foreach ($node->held as $request) {
            if ($request->until <= Clock::now()) {
                $reason = $node->refusal === null
                    ? 'nobody has confirmed it before its end'
                    : "the server refuses to renew it: $node->refusal";
                array_push($lost, ...$this->lose($request, $reason));
                $this->abandon($request);
            }
        }

        return $lost;
    }

    /** @return list<Hold> */
    private function sign(Node $node, float $until): array
    {
        $known = [];
        foreach ($node->held as $request) {
            $request->renewed && $known[$request->token] = $request;
        }
        if ($known === []) {
            return [];
        }
        $lost = [];
        $sent = Clock::now();
        $reply = $this->servers->ask($node, [['DLOCK.KEEP', Settings::ms($this->settings->hangTimeout)]], $until)[0];
        if ($reply instanceof Refused) {
            $this->refused($node, $reply);
        }
        $node->refusal = null;
        [$count, $left, $ended] = $reply;
        foreach ($ended ?? [] as [, $token, $reason]) {
            $request = $known[$token] ?? null;
            unset($known[$token]);
            if ($request !== null && in_array($reason, self::UNRENEWED, true)) {
                $request->renewed = false;
            } elseif ($request !== null) {
                array_push($lost, ...$this->lose($request, $reason));
            }
        }
        if (is_int($left) && $ended !== null) {
            foreach ($known as $request) {
                $request->believe($sent, $left / 1000);
            }
        }
        // It is the least of all. Where one hold may not last (dlock.max-hold-ms), each is asked for its own.
        $near = $left / 1000 < $this->settings->lease / 2 ? Clock::now() + $this->settings->lease / 2 : -INF;
        // Fewer than are known here, or more have ended than the server can tell; or the count tells nothing.
        $all = $this->others || $ended === null || $count < count($known);
        foreach ($known as $request) {
            $request->renewed = !$all && $request->until >= $near;
        }
        $node->surplus = $count > count($known) && !$this->others ? $node->surplus + 1 : 0;
        if ($node->surplus > 1) { // twice in a row: they end with this connection
            $this->logger?->warning('the connection keeps holds that nobody has: it is replaced', []);
            $this->servers->disconnect($node);
        }

        return $lost;
    }

    private function refused(Node $node, Refused $error): never
    {
        if (!$error->passes()) {
            if ($node->refusal === null) {
                $this->logger?->warning('the server refuses to keep locks: {error}', ['error' => $error->getMessage()]);
            }
            $node->refusal = $error->getMessage();
        }
        throw $error;
    }

    /**
     * Asks for each that the server does not renew for its connection, those of one node in one go.
     *
     * @return list<Hold>
     */
    private function renewAll(Node $node, float $until): array
    {
        $groups = $lost = [];
        foreach ($node->held as $request) {
            if (!$request->isHad()) {
                $this->forget($request);
            } elseif (!$request->renewed) {
                $groups[$this->servers->of($request->key)->name][] = $request;
            }
        }
        $failed = null;
        foreach ($groups as $name => $requests) {
            $target = $this->servers->nodes[$name];
            $sent = Clock::now();
            try {
                $commands = array_map(static fn (Request $one) => $one->renew($one->token), $requests);
                // None is lost without having been asked for.
                $replies = $this->servers->ask($target, $commands, max($until, $sent + Servers::GRACE));
            } catch (Unanswered | Refused $failed) {
                continue;
            }
            foreach ($replies as $i => $reply) {
                try {
                    array_push($lost, ...$this->renewed($requests[$i], $target, $sent, $reply));
                } catch (Unanswered | Refused $failed) {
                    // The others go on.
                }
            }
        }

        return $failed === null ? $lost : throw $failed;
    }

    /** @return list<Hold> */
    private function renewed(Request $request, Node $node, float $sent, mixed $reply): array
    {
        if ($reply instanceof Exception\Redirected) {
            $sent = Clock::now();
            try {
                [$reply, $node] = $this->servers->call($request->key, $request->renew($request->token), $sent + Servers::GRACE);
            } catch (Refused $reply) {
                // As the others.
            }
        }
        if (is_int($reply)) {
            $this->forget($request);
            $node->held[$request->id()] = $request;
            $request->node = $node;
            $request->believe($sent, $reply / 1000);
        } elseif ($reply instanceof NotHeld) {
            return $this->lose($request, 'not held any more');
        } elseif ($reply instanceof NoAck) { // perhaps it has been cut to that
            $request->doubt($sent, $request->seconds());
        } elseif ($reply instanceof Refused && !$reply->passes()) {
            $this->logger?->warning('lock {key} cannot be renewed: {error}', [
                'key' => $request->key,
                'error' => $reply->getMessage(),
            ]);
        } elseif ($reply instanceof Refused) {
            throw $reply;
        }

        return [];
    }

    // What else the program asks.

    /**
     * Returns the reply of the server that serves the key, asked once.
     *
     * @param list<int|string> $words
     */
    public function call(string $key, array $words, float $until): mixed
    {
        return $this->servers->call($key, $words, $until)[0];
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
        if ($open) {
            $this->servers->end('closed');
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

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

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
 * This is the front door. Behind it each part knows only those below it: Taking, Keeping, Leaving, Router, Ties.
 *
 * @internal
 */
final class Core
{
    private readonly Report $report;
    private readonly Router $router;
    private readonly Leaving $leaving;
    private readonly Keeping $keeping;
    private readonly Taking $taking;

    public function __construct(
        Servers $servers,
        public readonly Settings $settings,
        ?LoggerInterface $logger,
        ?Observer $observer,
    ) {
        $this->report = new Report($logger, $observer);
        $ties = new Ties($servers, $settings->allowance, $this->report);
        $this->router = new Router($servers, $ties, $settings->bound);
        $this->leaving = new Leaving($this->router, $ties, $settings);
        $this->keeping = new Keeping($servers, $this->router, $ties, $this->leaving, $settings, $this->report);
        $this->taking = new Taking($this->router, $ties, $this->keeping, $this->leaving, $settings, $this->report);
    }

    /**
     * The reply of whoever serves the key, asked once.
     *
     * @param list<int|string> $words
     */
    public function call(string $key, array $words, float $until): mixed
    {
        return $this->router->call($key, $words, $until)[0];
    }

    /**
     * The same for what may be said twice: again until it passes.
     *
     * @param list<int|string> $words
     * @param bool             $ends  it gives a hold back: what a request without a reply may have done is no error
     */
    public function insist(string $key, array $words, bool $ends = false): mixed
    {
        return $this->router->insist($key, $words, $ends);
    }

    /** The token of what was granted; null if it is taken. A time-out of 0: one try; null: no bound. */
    public function take(Request $request, ?float $timeout): ?int
    {
        $this->router->check();

        return $this->taking->take($request, $timeout);
    }

    /** @return list<Hold> what was found lost */
    public function keep(bool $now = false): array
    {
        $this->router->check();

        return $this->keeping->keep($now);
    }

    /** NotHeld if it has ended before. */
    public function release(Hold $hold, Request $request, float $since): void
    {
        $this->leaving->release($request, $hold->token);
        $held = Clock::now() - $since;
        $this->report->tell(static fn (Observer $observer) => $observer->released($hold->key, $held));
    }

    /** A hold that nobody refers to any more. Says nothing. */
    public function forsake(Request $request, int $token): void
    {
        $this->leaving->forsake($request, $token);
    }

    /** An error if nothing may be asked any more. In the child of a fork everything begins anew. */
    public function check(): void
    {
        $this->router->check();
    }

    /** True while holds are this process's. */
    public function isOpen(): bool
    {
        return $this->router->isOpen();
    }

    /** Everything ends: what is held is told lost, and lives on until its lease. */
    public function close(): void
    {
        $this->leaving->depart();
        $this->router->close();
    }

    /** So that a callback of the program's stops nothing. */
    public function failed(\Throwable $error): void
    {
        $this->report->failed('onLost', $error);
    }
}

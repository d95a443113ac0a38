<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * Giving back, and leaving for good. What cannot be given back now is owed, and tried again with the next call.
 *
 * @internal
 */
final class Leaving
{
    /** @var array<int, array{float, Request, int}> until when to try, what to leave, and its token (or 0) */
    private array $owed = [];
    /** Whose these are: the child of a fork owes nothing. */
    private int $process;

    public function __construct(
        private readonly Router $router,
        private readonly Ties $ties,
        private readonly Settings $settings,
    ) {
        $this->process = (int) getmypid();
    }

    /** Gives a hold back. NotHeld if it has ended before. */
    public function release(Request $request, int $token): void
    {
        try {
            $this->router->insist($request->key, $request->release('TOKEN', $token), true);
        } catch (NotHeld $error) {
            $this->released($request, $token);
            throw $error;
        } catch (\Throwable $error) { // of a signal's handler, too; or the connection is within MULTI
            $this->owe($request, $token);
            throw $error;
        }
        $this->released($request, $token);
    }

    /** A hold that nobody refers to any more. Says nothing. */
    public function forsake(Request $request, int $token): void
    {
        if (!$this->router->isOpen()) {
            return;
        }
        $this->owe($request, $token);
        try {
            $this->depart();
        } catch (\Throwable) {
            // Its lease ends it.
        }
    }

    /** Leaves a wait, and what may have been granted to it. */
    public function leave(Request $request): void
    {
        $request->asked = false;
        $this->owe($request, 0);
        $this->depart();
    }

    public function owe(Request $request, int $token): void
    {
        $seconds = $token !== 0 ? $this->settings->lease : max($this->settings->lease, $this->settings->claim);
        $this->owed[] = [Clock::now() + $seconds, $request, $token];
    }

    /** Gives back what is owed, in little time: what is begun is brought to its end, and the rest comes the next time. */
    public function depart(): void
    {
        if (!$this->router->isOpen()) {
            return;
        }
        $end = Clock::now() + Router::GRACE;
        $until = static fn (): float => Clock::now() + Router::GRACE;
        foreach ($this->mine() as $i => $one) {
            if (Clock::now() >= $end) {
                return;
            }
            try {
                $this->giveBack($i, $until);
            } catch (Unanswered | Refused) {
                unset($this->owed[$i]);
                if (Clock::now() < $one[0]) {
                    $this->owed[] = $one; // behind the others: they may be another node's, which answers
                }
            }
        }
    }

    /**
     * Who asks again under a name has first left what it asked for before. Else that would be given back later, and with it
     * what was granted in between.
     *
     * @param \Closure(): float $until how long the next reply may take
     */
    public function settle(Request $request, \Closure $until): void
    {
        foreach ($this->mine() as $i => [, $before]) {
            if ($before->key === $request->key && $before->owner === $request->owner) {
                $this->giveBack($i, $until);
            }
        }
    }

    /** @return array<int, array{float, Request, int}> */
    private function mine(): array
    {
        if ($this->process !== getmypid()) {
            [$this->process, $this->owed] = [(int) getmypid(), []];
        }

        return $this->owed;
    }

    /**
     * Throws what can pass: then it is owed as before.
     *
     * @param \Closure(): float $until
     */
    private function giveBack(int $i, \Closure $until): void
    {
        if (!isset($this->owed[$i])) {
            return; // a callback's call has given it back
        }
        [, $request, $token] = $this->owed[$i];
        try {
            $this->gone($request, $token, $until);
        } catch (Refused $error) {
            if ($error->passes()) {
                throw $error;
            }
            $this->untie($request, $token !== 0 ? $token : $request->tie->token ?? 0, $until);
        }
        unset($this->owed[$i]);
    }

    /**
     * What may not be given back ends with its lease: no KEEP is to make it longer.
     *
     * @param \Closure(): float $until
     */
    private function untie(Request $request, int $token, \Closure $until): void
    {
        if ($token === 0 || $request->before > 0) {
            return;
        }
        try {
            $this->router->call($request->key, $request->untie($token), $until());
        } catch (Refused $error) {
            if ($error->passes()) {
                throw $error;
            }
        }
        $this->released($request, $token);
    }

    /** @param \Closure(): float $until */
    private function gone(Request $request, int $token, \Closure $until): void
    {
        try {
            if ($token === 0) {
                $this->router->call($request->key, $request->words('CANCEL'), $until());
                $held = $request->before > 0
                    ? $this->router->call($request->key, $request->words('HELD'), $until())[0]
                    : null;
                if ($held && $held[0] !== $request->outer) { // an upgrade came first: the outer hold has ended
                    $this->router->call($request->key, $request->words('RELEASE', 'TOKEN', $held[0], 'HOLDS', 0), $until());
                }
            }
            $words = $token !== 0 ? $request->release('TOKEN', $token) : $request->release();
            $this->router->call($request->key, $words, $until());
        } catch (NotHeld) {
            // It is gone.
        }
        $this->released($request, $token !== 0 ? $token : $request->tie->token ?? 0);
    }

    /** What is left of it belongs to an outer hold, or it is gone. */
    private function released(Request $request, int $token): void
    {
        $tie = $this->ties->find($request->key, $token);
        if ($tie !== null && $request->before === 0) {
            $this->ties->lose($tie, 'released');
        }
    }
}

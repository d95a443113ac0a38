<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\LockTimeout;
use Dlock\Exception\NoAck;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Replaced;
use Dlock\Exception\Unanswered;

/**
 * Taking a lock and waiting for it: in slices below the bound for a reply, between which what is held already is kept.
 *
 * @internal
 */
final class Taking
{
    private const WARN_EVERY = 10.0;

    public function __construct(
        private readonly Router $router,
        private readonly Ties $ties,
        private readonly Keeping $keeping,
        private readonly Leaving $leaving,
        private readonly Settings $settings,
        private readonly Report $report,
    ) {
    }

    /** The token of what was granted; null if it is taken. A time-out of 0: one try; null: no bound. */
    public function take(Request $request, ?float $timeout): ?int
    {
        $this->leaving->depart();
        $began = Clock::now();
        $token = $error = null;
        try {
            $token = $this->taken($request, $timeout, $began);
        } catch (\Throwable $error) {
            if ($request->asked && !$error instanceof Replaced) {
                $this->leaving->leave($request);
            }
            throw $error;
        } finally {
            $took = Clock::now() - $began;
            $request->queued && $this->report->tell(fn (Observer $observer) => $observer->waited($request->key));
            $this->report->tell($token !== null
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
                    $this->report->warn('still waiting for lock {key}: {error}', [
                        'key' => $request->key,
                        'error' => $error->getMessage(),
                    ]);
                    $warned = Clock::now();
                }
                $again ? Clock::sleep(0.02) : $this->router->mend($error, $end);
            }
        }
    }

    private function attempt(Request $request, bool $atOnce, float $end): ?int
    {
        $until = fn (): float => min(Clock::now() + $this->settings->bound, $end + Router::GRACE);
        $this->leaving->settle($request, $until);
        if (!$request->looked) {
            $held = $this->router->call($request->key, $request->words('HELD'), $until())[0];
            [$request->outer, $request->before] = $held ? [$held[0], $held[1]] : [0, 0];
            $request->looked = true;
        }
        $request->asked = true;
        if (!$request->queued) {
            $sent = Clock::now();
            [$reply, $node] = $this->router->call($request->key, $request->take($atOnce), $until());
            if ($reply) {
                return $this->granted($request, $node, $reply[0], $sent, $request->seconds());
            }
            if ($atOnce) {
                $request->asked = false;

                return null;
            }
            $request->queued = true;
            $this->report->tell(fn (Observer $observer) => $observer->waiting($request->key));
        }

        return $this->wait($request, $end, $until);
    }

    /** @param \Closure(): float $until how long the next reply may take that is not waited for */
    private function wait(Request $request, float $end, \Closure $until): ?int
    {
        while (true) {
            $slice = min($this->settings->bound / 2, $end - Clock::now());
            if ($slice <= 0) {
                $this->leaving->leave($request);

                return null;
            }
            // To connect and to be answered has its bound, to wait its slice.
            $reply = $this->router->call($request->key, $request->wait($slice), min(
                Clock::now() + $slice + $this->settings->bound,
                $end + Router::GRACE,
            ))[0];
            if ($reply) {
                return $this->confirm($request, $reply[0], $until());
            }
            $this->keeping->keep(false);
        }
    }

    /** Whoever has waited says that it has heard of the grant: until then it is a short one. */
    private function confirm(Request $request, int $token, float $until): int
    {
        $sent = Clock::now();
        [$left, $node] = $this->router->call($request->key, $request->renew($token), $until);

        return $this->granted($request, $node, $token, $sent, $left / 1000);
    }

    private function granted(Request $request, Node $node, int $token, float $sent, float $lease): int
    {
        $this->router->check(); // a signal's handler may have closed the locks meanwhile
        if ($request->outer !== 0 && $request->outer !== $token) { // an upgrade: the outer hold has ended with its token
            $outer = $this->ties->find($request->key, $request->outer);
            [$request->outer, $request->before] = [$token, 0];
            $outer !== null && $this->ties->lose($outer, 'upgraded');
        }
        if ($request->auto !== null && $request->tracked) {
            // A slot that has moved since its owner took it: it is one hold, wherever.
            $request->tie = $this->ties->find($request->key, $token) ?? new Tie($request, $token);
            $this->ties->put($request->tie, $node);
            $this->ties->believe($request->tie, $sent, $lease);
        } elseif ($request->auto !== null) {
            $this->ties->alone = false;
        }

        return $token;
    }
}

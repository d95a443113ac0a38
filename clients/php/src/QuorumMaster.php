<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * One of a quorum's masters: it votes, or it has an error.
 *
 * The first lease is a short one. Only a caller that has received the grant makes it longer.
 *
 * @internal
 */
final class QuorumMaster
{
    /** A master that did not answer within these seconds is asked last. */
    private const SILENCE = 1.0;
    private const SLICE = 1.0;

    public ?string $error = null;
    private readonly Core $core;
    private float $silentAt = -INF;

    public function __construct(Connect|\Closure $client, private readonly Settings $settings)
    {
        $this->core = new Core(Connect::of($client), $settings);
    }

    /** @param list<self> $masters */
    public static function silentLast(array $masters): array
    {
        $silent = static fn (self $one): bool => Clock::now() - $one->silentAt < self::SILENCE;
        usort($masters, static fn (self $a, self $b) => $silent($a) <=> $silent($b));

        return $masters;
    }

    /** The token of a grant for which it was waited until then; null: it is taken, or there is an error. */
    public function wait(Request $request, float $end): ?int
    {
        do {
            $slice = max(0.001, min(self::SLICE, $end - Clock::now()));
            $reply = $this->ask($request->key, $request->take($slice), $slice);
        } while (!$reply && $this->error === null && Clock::now() < $end);

        return $reply[0] ?? null;
    }

    /** The token of a grant at once; null: it is taken, or there is an error. */
    public function take(Request $request): ?int
    {
        return $this->ask($request->key, $request->take(null))[0] ?? null;
    }

    /** The seconds that it is held for; null: it is not, or there is an error. */
    public function renew(Request $request, int $token, float $seconds): ?float
    {
        $words = $request->words('RENEW', Settings::ms($seconds), 'TOKEN', $token);
        $left = $this->ask($request->key, $words, once: false);

        return $left === null ? null : $left / 1000;
    }

    /** Releases what was granted, and leaves the queue. The next call tells a server that does not answer now. */
    public function leave(Request $request): void
    {
        $this->core->cancel($request, false);
        if ($this->error === null) {
            $this->core->doErrands(Clock::now());
        }
    }

    /**
     * Connects first, so that the time to connect does not count against the lease, and no request is sent on a connection that has
     * ended while it was idle: nobody could say whether a master has read it.
     */
    public function reach(Request $request): bool
    {
        $this->ask($request->key, $request->words('HELD'), once: false);

        return $this->error === null;
    }

    /** @param list<int|string> $words */
    private function ask(string $key, array $words, float $more = 0.0, bool $once = true): mixed
    {
        $this->error = null;
        try {
            return $this->core->servers->ask($key, $words, Clock::now() + $this->settings->replyTimeout + $more, $once);
        } catch (NotHeld) {
            return null;
        } catch (Unanswered $error) {
            $this->silentAt = Clock::now();
        } catch (Refused $error) {
            // It says why it does not vote.
        }
        $this->error = $error->getMessage();

        return null;
    }
}

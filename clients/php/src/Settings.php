<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * The settings of Locks, in seconds. See there.
 *
 * @internal
 */
final class Settings
{
    /** The server counts whole milliseconds. */
    public const ROUNDING = 0.002;

    public readonly float $hangTimeout;

    public function __construct(
        public readonly float $lease,
        float $hangTimeout,
        public readonly float $queueGrace,
        public readonly float $replyTimeout,
        public readonly float $clockMargin,
    ) {
        self::positive('lease', $lease);
        self::positive('hangTimeout', $hangTimeout);
        self::positive('queueGrace', $queueGrace);
        self::positive('replyTimeout', $replyTimeout);
        self::seconds('clockMargin', $clockMargin);
        $this->believable($lease);
        $this->hangTimeout = max($hangTimeout, $lease);
    }

    /** Returns the lease if a part of it is left for belief. */
    public function believable(float $lease): float
    {
        if ($lease <= $this->clockMargin + self::ROUNDING) {
            throw new \InvalidArgumentException("lease must be longer than clockMargin, which is $this->clockMargin, not $lease");
        }

        return $lease;
    }

    /** Returns the argument if it is a time, and null if it is infinite or null. */
    public static function seconds(string $name, int|float|null $value): ?float
    {
        if ($value === null || $value === INF) {
            return null;
        }
        if (!($value >= 0)) { // NaN is not
            throw new \InvalidArgumentException(sprintf('%s must be seconds, 0 or more, or null, not %s', $name, $value));
        }

        return (float) $value;
    }

    /** Returns the argument if it is a time of a millisecond or more. */
    public static function positive(string $name, int|float $value): float
    {
        if (!($value >= 0.001) || $value === INF) {
            throw new \InvalidArgumentException(sprintf('%s must be at least 0.001 seconds, not %s', $name, $value));
        }

        return (float) $value;
    }

    /** Returns whole milliseconds, as the server counts them. */
    public static function ms(float $seconds): int
    {
        return max(1, (int) min($seconds * 1000, 2 ** 53)); // a larger number would become 0
    }
}

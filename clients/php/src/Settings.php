<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * See Locks.
 *
 * @internal
 */
final class Settings
{
    /** The lease until whoever has waited has confirmed the grant. */
    public readonly float $first;
    /** So often a hold is kept, at most. */
    public readonly float $interval;
    public readonly float $auto;

    public function __construct(
        public readonly float $lease,
        float $auto,
        public readonly float $claim,
        public readonly float $bound,
        public readonly float $allowance,
    ) {
        foreach (['lease' => $lease, 'auto' => $auto, 'claim' => $claim, 'bound' => $bound] as $name => $value) {
            self::positive($name, $value);
        }
        self::seconds('allowance', $allowance);
        $this->auto = max($auto, $lease);
        $this->first = min($lease, 3.0);
        $this->interval = min(1.0, $lease / 3);
    }

    /** The argument, if it is a time; infinite is none. */
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

    public static function positive(string $name, int|float $value): float
    {
        if (!($value >= 0.001) || $value === INF) {
            throw new \InvalidArgumentException(sprintf('%s must be at least 0.001 seconds, not %s', $name, $value));
        }

        return (float) $value;
    }

    public static function ms(float $seconds): int
    {
        return max(1, (int) min($seconds * 1000, 2 ** 53)); // what is no number any more would be 0
    }
}

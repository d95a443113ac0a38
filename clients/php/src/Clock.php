<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * Seconds that never go back, and continue while the machine is suspended.
 *
 * PHP's steady clock stops meanwhile, and the wall clock does not: when the wall clock jumps ahead, this one jumps as far.
 * It is never too slow, so that no lease is believed for too long.
 *
 * @internal
 */
final class Clock
{
    private const JUMP = 0.05;

    private static ?float $ahead = null;
    private static float $jumps = 0.0;

    public static function now(): float
    {
        $steady = hrtime(true) / 1e9;
        $ahead = microtime(true) - $steady;
        self::$ahead ??= $ahead;
        if (abs($ahead - self::$ahead) > self::JUMP) {
            self::$jumps += max(0.0, $ahead - self::$ahead);
            self::$ahead = $ahead;
        }

        return $steady + self::$jumps;
    }

    public static function sleep(float $seconds): void
    {
        if ($seconds > 0) {
            usleep((int) (min($seconds, 1e9) * 1e6));
        }
    }
}

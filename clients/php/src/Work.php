<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * The program's work under a lock. The lock is given back when the work returns, so what it returns must be done by then.
 *
 * @internal
 */
final class Work
{
    /** Throws if the work is a generator function. Call it before the lock is taken. */
    public static function check(callable $work): void
    {
        if ((new \ReflectionFunction(\Closure::fromCallable($work)))->isGenerator()) {
            throw new \InvalidArgumentException('work must not be a generator, which runs only after the lock was given back');
        }
    }

    /** Returns the result. Throws if it is a generator or a promise, whose work is not done yet. */
    public static function done(mixed $result): mixed
    {
        if ($result instanceof \Generator || is_object($result) && method_exists($result, 'then')) {
            $what = get_debug_type($result);
            throw new \InvalidArgumentException("work must not return a $what, which runs after the lock was given back");
        }

        return $result;
    }
}

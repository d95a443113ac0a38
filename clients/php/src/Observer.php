<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/** What happens, for whoever counts it. Extend it and override what you need; it is called at once, so it must be quick. */
abstract class Observer
{
    /** The lock is taken, and the program waits for it. Told when the first slice of the wait, of a second at most, has ended. */
    public function waiting(string $key): void
    {
    }

    /** A wait that `waiting` has told has ended: with the lock or without. */
    public function waited(string $key): void
    {
    }

    /** The lock was granted, this many seconds after the program asked for it. */
    public function granted(string $key, float $seconds): void
    {
    }

    /** It was not: it is taken (null), or for this reason. */
    public function refused(string $key, float $seconds, ?\Throwable $error): void
    {
    }

    /** The program released it, after this many seconds. */
    public function released(string $key, float $seconds): void
    {
    }

    /** It was held, and is no more. */
    public function lost(string $key, string $reason): void
    {
    }
}

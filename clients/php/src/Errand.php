<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * Commands about one request that the client repeats, all of them, until the server has answered each.
 *
 * @internal
 */
final class Errand
{
    private const FIRST_PAUSE = 0.1;
    private const LONGEST_PAUSE = 5.0;

    private float $at = -INF;
    private float $pause = self::FIRST_PAUSE;

    /**
     * @param list<list<int|string>> $commands
     * @param float                  $end      nothing can be left then
     * @param bool                   $repeats  what they take back may reach the server late: they are repeated until the end
     */
    public function __construct(
        public readonly string $key,
        public readonly array $commands,
        private readonly float $end,
        public readonly bool $repeats,
    ) {
    }

    public function isDue(): bool
    {
        return Clock::now() >= $this->at;
    }

    public function isOver(): bool
    {
        return Clock::now() >= $this->end;
    }

    /** Waits for longer each time. */
    public function postpone(): void
    {
        $this->at = Clock::now() + $this->pause;
        $this->pause = min(2 * $this->pause, self::LONGEST_PAUSE);
    }
}

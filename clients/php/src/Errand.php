<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * Commands about one request that the client repeats until the server has answered, and how far it has come.
 *
 * @internal
 */
final class Errand
{
    private const FIRST_PAUSE = 0.1;
    private const LONGEST_PAUSE = 5.0;

    private int $said = 0;
    private float $pause = self::FIRST_PAUSE;

    /**
     * @param list<list<int|string>> $commands
     * @param float $at      not before
     * @param float $end     nothing can be left then
     * @param bool  $repeats what they take back may reach the server late: they are said again until the end
     */
    public function __construct(
        public readonly string $key,
        private readonly array $commands,
        private float $at,
        private readonly float $end,
        private readonly bool $repeats,
    ) {
    }

    public function isDue(): bool
    {
        return !$this->isDone() && Clock::now() >= $this->at;
    }

    public function isDone(): bool
    {
        return $this->said === count($this->commands) || Clock::now() >= $this->end;
    }

    /** @return list<int|string> */
    public function command(): array
    {
        return $this->commands[$this->said];
    }

    public function answered(): void
    {
        if (++$this->said === count($this->commands) && $this->repeats) {
            [$this->said, $this->at] = [0, Clock::now() + self::LONGEST_PAUSE];
        }
    }

    public function failed(): void
    {
        $this->at = Clock::now() + $this->pause;
        $this->pause = min(2 * $this->pause, self::LONGEST_PAUSE);
    }
}

<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Link;

/** A connection to a server that says what a test wants. */
final class Scripted implements Link
{
    /** @param \Closure(list<int|string>): mixed $says */
    public function __construct(private readonly \Closure $says)
    {
    }

    public function ask(array $words, float $timeout): mixed
    {
        return ($this->says)($words);
    }

    public function askAll(array $commands, float $timeout): array
    {
        return array_map($this->says, $commands);
    }

    public function isOpen(): bool
    {
        return true;
    }

    public function close(): void
    {
    }
}

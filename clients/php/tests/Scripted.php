<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Link;

/** A connection to a server that says what a test wants. */
final class Scripted implements Link
{
    /** @param \Closure(list<int|string>, float): mixed $says returns the reply to a command, or its error; the number is the bound in seconds */
    public function __construct(private readonly \Closure $says)
    {
    }

    public function ask(array $words, float $timeout): mixed
    {
        $said = ($this->says)($words, $timeout);

        return $said instanceof \Throwable ? throw $said : $said;
    }

    public function isOpen(): bool
    {
        return true;
    }

    public function close(): void
    {
    }
}

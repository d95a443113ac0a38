<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Connection\Connection;

/**
 * A server that we talk to: the one connection to it, and what is held there.
 *
 * @internal
 */
final class Node
{
    public ?Connection $connection = null;
    /** @var array<int, Tie> by token */
    public array $ties = [];
    /** When KEEP was sent last. */
    public float $keptAt = -INF;

    /** @param \Closure(float): Connection $connect within so many seconds */
    public function __construct(public readonly string $name, public readonly \Closure $connect)
    {
    }
}

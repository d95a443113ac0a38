<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * A server that we talk to: the one connection to it, and what is held there.
 *
 * @internal
 */
final class Node
{
    public ?Connection $connection = null;
    /** A reply is overdue: the connection takes no other command than those that take a request back. */
    public bool $overdue = false;
    /** @var array<string, Request> what is held here, by Request::id() */
    public array $held = [];
    /** When KEEP was sent last. */
    public float $keptAt = -INF;
    /** How often in a row KEEP has counted more holds than are known here. */
    public int $surplus = 0;
    /** Why KEEP, or to connect, was refused last: what is held is not renewed any more. */
    public ?string $refusal = null;

    public function __construct(public readonly string $name, public readonly Connect $where)
    {
    }

    /** The connection has ended: RENEW will tell what has become of what is held. What ends with it is returned. */
    public function disconnect(): array
    {
        $this->connection?->close();
        $this->connection = null;
        $this->overdue = false;
        $this->surplus = 0;
        foreach ($this->held as $one) {
            $one->renewed = false;
        }

        return array_filter($this->held, static fn (Request $one) => $one->ephemeral);
    }
}

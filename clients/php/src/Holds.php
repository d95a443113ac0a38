<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\DlockException;

/**
 * Several locks that are held together. Released in reverse order. When nothing refers to it any longer, each ends with its lease.
 *
 * @implements \IteratorAggregate<string, Hold>
 */
final class Holds implements \IteratorAggregate, \Countable
{
    /** @var array<string, Hold> by key, in the order in which they were taken */
    private array $holds = [];

    /** @internal */
    public function add(Hold $hold): void
    {
        $this->holds[$hold->key] = $hold;
    }

    public function of(string $key): Hold
    {
        return $this->holds[$key] ?? throw new \InvalidArgumentException("key is none of these locks: $key");
    }

    public function getIterator(): \Iterator
    {
        foreach ($this->holds as $key => $hold) {
            yield (string) $key => $hold;
        }
    }

    public function count(): int
    {
        return count($this->holds);
    }

    /** True if any of them is lost. */
    public function lost(): bool
    {
        return array_filter($this->holds, static fn (Hold $hold) => $hold->lost()) !== [];
    }

    /** Releases all, and then throws the first error. */
    public function release(): void
    {
        $first = null;
        while ($this->holds !== []) {
            try {
                array_pop($this->holds)->release();
            } catch (DlockException $error) {
                $first ??= $error;
            }
        }
        if ($first !== null) {
            throw $first;
        }
    }
}

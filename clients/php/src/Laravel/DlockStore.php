<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Laravel;

use Dlock\Locks;
use Illuminate\Cache\RedisStore;

/**
 * Laravel's cache in Redis, whose locks are dlock's. Their connection is made as `lock_connection` of the application is, with its
 * prefix, and is another one: nothing that Laravel does on its own meets a lock. In a cluster they are those of useLocks().
 */
class DlockStore extends RedisStore
{
    private ?Locks $locks = null;
    /** @var ?\Closure(string, float): object connects by the settings of that name, within that many seconds */
    private ?\Closure $connect = null;
    /** @var ?\Closure(string): string returns the prefix in the settings of that name */
    private ?\Closure $prefixOf = null;
    /** Where the locks are made as the application's connection is: its name, and the prefix of its keys. */
    private ?string $like = null;
    private string $connectionPrefix = '';

    /** Has other locks than those of `lock_connection`. In a cluster: Locks::cluster(…). */
    public function useLocks(Locks $locks): static
    {
        [$this->locks, $this->like, $this->connectionPrefix] = [$locks, null, ''];

        return $this;
    }

    /** @internal for the provider */
    public function connectBy(\Closure $connect, \Closure $prefixOf): static
    {
        [$this->connect, $this->prefixOf] = [$connect, $prefixOf];

        return $this;
    }

    /**
     * @param string          $name
     * @param int             $seconds
     * @param string|int|null $owner
     *
     * @return DlockLock
     */
    public function lock($name, $seconds = 0, $owner = null)
    {
        $locks = $this->locks();

        // Two applications on one server are kept apart by the prefix of their connection.
        return new DlockLock($locks, $this->connectionPrefix . $this->getPrefix() . $name, (int) $seconds, $owner);
    }

    private function locks(): Locks
    {
        $name = $this->lockConnection ?? $this->connection;
        if ($this->locks !== null && ($this->like === null || $this->like === $name)) {
            return $this->locks;
        }
        $connect = $this->connect ?? throw new \InvalidArgumentException('the store has no locks: useLocks(…)');
        [$this->connectionPrefix, $this->like] = [($this->prefixOf)($name), $name];

        return $this->locks = new Locks(static fn (float $within): object => $connect($name, $within));
    }
}

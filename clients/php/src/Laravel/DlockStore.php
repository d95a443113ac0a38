<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Laravel;

use Dlock\Locks;
use Illuminate\Cache\RedisStore;
use Illuminate\Redis\Connections\PhpRedisClusterConnection;
use Illuminate\Redis\Connections\PredisClusterConnection;

/**
 * Laravel's cache in Redis, whose locks are dlock's. They are on the connection `lock_connection` of the application, with
 * its prefix; in a cluster on Locks of its own.
 */
class DlockStore extends RedisStore
{
    private ?Locks $locks = null;
    private ?object $client = null;

    /** In a cluster: Locks::cluster(…). */
    public function useLocks(Locks $locks): static
    {
        [$this->locks, $this->client] = [$locks, null];

        return $this;
    }

    /**
     * @param string      $name
     * @param int         $seconds
     * @param string|null $owner
     *
     * @return DlockLock
     */
    public function lock($name, $seconds = 0, $owner = null)
    {
        $locks = $this->locks();

        return new DlockLock($locks, $this->lockPrefix() . $name, (int) $seconds, $owner);
    }

    private function locks(): Locks
    {
        if ($this->locks !== null && $this->client === null) {
            return $this->locks;
        }
        $connection = $this->lockConnection();
        if ($connection instanceof PhpRedisClusterConnection || $connection instanceof PredisClusterConnection) {
            throw new \InvalidArgumentException('locks of a cluster are told to the store: useLocks(Locks::cluster(…))');
        }
        if ($this->locks === null || $this->client !== $connection->client()) { // it has connected anew
            $this->client = $connection->client();
            $this->locks = new Locks($this->client);
        }

        return $this->locks;
    }

    /** Two applications on one server are kept apart by the prefix of their connection. */
    private function lockPrefix(): string
    {
        $prefix = match (true) {
            $this->client instanceof \Redis => $this->client->_prefix(''),
            $this->client !== null => (string) $this->client->getOptions()->prefix?->getPrefix(),
            default => '',
        };

        return $prefix . $this->getPrefix();
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Laravel;

use Dlock\Connect;
use Dlock\Locks;
use Illuminate\Cache\RedisStore;
use Illuminate\Redis\Connections\PhpRedisClusterConnection;
use Illuminate\Redis\Connections\PredisClusterConnection;

/**
 * Laravel's cache in Redis, whose locks are dlock's. Their connection is made as `lock_connection` of the application is, with its
 * prefix, and is another one: nothing that Laravel does on its own meets a lock. In a cluster they are those of useLocks().
 */
class DlockStore extends RedisStore
{
    private ?Locks $locks = null;
    /** Where the locks are made as the application's connection is: its name, and the prefix of its keys. */
    private ?string $like = null;
    private string $connectionPrefix = '';

    /** In a cluster: Locks::cluster(…). */
    public function useLocks(Locks $locks): static
    {
        [$this->locks, $this->like, $this->connectionPrefix] = [$locks, null, ''];

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

        return new DlockLock($locks, $this->lockPrefix() . $name, (int) $seconds, $owner);
    }

    private function locks(): Locks
    {
        $name = $this->lockConnection ?? $this->connection;
        if ($this->locks !== null && ($this->like === null || $this->like === $name)) {
            return $this->locks;
        }
        $connection = $this->lockConnection();
        if ($connection instanceof PhpRedisClusterConnection || $connection instanceof PredisClusterConnection) {
            throw new \InvalidArgumentException('locks of a cluster are told to the store: useLocks(Locks::cluster(…))');
        }
        $client = $connection->client();
        $this->connectionPrefix = $client instanceof \Redis
            ? $client->_prefix('')
            : (string) $client->getOptions()->prefix?->getPrefix();
        $this->like = $name;

        return $this->locks = new Locks(Connect::like($client, self::tls($connection)));
    }

    /**
     * What phpredis does not tell of its client, and Laravel keeps.
     *
     * @return array<string, mixed>
     */
    private static function tls(object $connection): array
    {
        $config = property_exists($connection, 'config') ? (fn () => $this->config)->call($connection) : [];

        return $config['context']['stream'] ?? $config['context'] ?? [];
    }

    /** Two applications on one server are kept apart by the prefix of their connection. */
    private function lockPrefix(): string
    {
        return $this->connectionPrefix . $this->getPrefix();
    }
}

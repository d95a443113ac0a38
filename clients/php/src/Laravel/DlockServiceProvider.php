<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Laravel;

use Illuminate\Cache\CacheManager;
use Illuminate\Redis\RedisManager;
use Illuminate\Support\ServiceProvider;

/** The cache driver `dlock`: as `redis`, with `connection`, `lock_connection` and `prefix`. */
class DlockServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        $connect = self::connect(...);
        $this->callAfterResolving('cache', static function (CacheManager $cache) use ($connect): void {
            $cache->extend('dlock', function ($app, array $config) use ($cache, $connect) {
                $connection = $config['connection'] ?? 'default';
                $prefix = $config['prefix'] ?? $app['config']['cache.prefix'] ?? '';
                // Laravel 13 has one argument more.
                $store = new DlockStore($app['redis'], $prefix, $connection, $app['config']['cache.serializable_classes'] ?? null);
                $store->setLockConnection($config['lock_connection'] ?? $connection);
                $store->connectBy(static fn (string $name, float $within): object => $connect($app, $name, $within));

                return $cache->repository($store, $config);
            });
        });
    }

    /**
     * Connects within $within seconds with the settings of Laravel's connection of this name. Nothing else uses the client.
     *
     * @param \Illuminate\Contracts\Container\Container $app
     */
    private static function connect($app, string $name, float $within): object
    {
        $all = $app['config']['database.redis'];
        if (!isset($all[$name])) {
            throw new \InvalidArgumentException("no connection is named $name. In a cluster: useLocks(Locks::cluster(…))");
        }
        $all[$name] = ['persistent' => false, 'timeout' => $within] + $all[$name];

        return (new RedisManager($app, $all['client'] ?? 'phpredis', $all))->resolve($name)->client();
    }
}

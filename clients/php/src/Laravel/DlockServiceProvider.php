<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Laravel;

use Illuminate\Cache\CacheManager;
use Illuminate\Redis\Connectors\PhpRedisConnector;
use Illuminate\Redis\RedisManager;
use Illuminate\Support\ServiceProvider;

/** The cache driver `dlock`: as `redis`, with `connection`, `lock_connection` and `prefix`. */
class DlockServiceProvider extends ServiceProvider
{
    /** From Predis 3 on a connection keeps the bound that it is made with: this one outlasts a slice of a wait. */
    private const SLICE = 2.0;

    public function register(): void
    {
        [$connect, $prefix] = [self::connect(...), self::prefix(...)];
        $this->callAfterResolving('cache', static function (CacheManager $cache) use ($connect, $prefix): void {
            $cache->extend('dlock', function ($app, array $config) use ($cache, $connect, $prefix) {
                $connection = $config['connection'] ?? 'default';
                $ours = $config['prefix'] ?? $app['config']['cache.prefix'] ?? '';
                // Laravel 13 has one argument more.
                $store = new DlockStore($app['redis'], $ours, $connection, $app['config']['cache.serializable_classes'] ?? null);
                $store->setLockConnection($config['lock_connection'] ?? $connection);
                $store->connectBy(
                    static fn (string $name, float $within): object => $connect($app, $name, $within),
                    static fn (string $name): string => $prefix($app, $name),
                );

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
        return self::manager($app, $name, [
            'persistent' => false,
            'timeout' => $within,
            'read_timeout' => $within,
            'read_write_timeout' => max($within, self::SLICE), // of Predis
        ])->resolve($name)->client();
    }

    /**
     * Returns the prefix that Laravel's own connector finds in the settings. Connects nowhere, since no server may be there.
     *
     * @param \Illuminate\Contracts\Container\Container $app
     */
    private static function prefix($app, string $name): string
    {
        $connector = new class () extends PhpRedisConnector {
            public string $prefix = '';

            protected function createClient(array $config): \Redis
            {
                $this->prefix = empty($config['prefix']) ? '' : (string) $config['prefix'];

                return new \Redis();
            }
        };
        // Laravel binds this closure to its manager, so it is not static. Predis connects only for a command.
        $client = self::manager($app, $name)->extend('phpredis', fn () => $connector)->resolve($name)->client();

        return $client instanceof \Redis ? $connector->prefix : (string) $client->getOptions()->prefix?->getPrefix();
    }

    /**
     * @param \Illuminate\Contracts\Container\Container $app
     * @param array<string, mixed>                       $settings of this connection, before its own
     */
    private static function manager($app, string $name, array $settings = []): RedisManager
    {
        $all = $app['config']['database.redis'];
        if (!isset($all[$name])) {
            throw new \InvalidArgumentException("no connection is named $name. In a cluster: useLocks(Locks::cluster(…))");
        }
        $all[$name] = $settings + $all[$name];
        // For phpredis the options of all connections come before a connection's settings, and its own options before both.
        $all[$name]['options'] = $settings + ($all[$name]['options'] ?? []);

        return new RedisManager($app, $all['client'] ?? 'phpredis', $all);
    }
}

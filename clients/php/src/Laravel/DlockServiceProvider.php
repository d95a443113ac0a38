<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Laravel;

use Illuminate\Cache\CacheManager;
use Illuminate\Support\ServiceProvider;

/** The cache driver `dlock`: as `redis`, with `connection`, `lock_connection` and `prefix`. */
class DlockServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        $this->callAfterResolving('cache', static function (CacheManager $cache): void {
            $cache->extend('dlock', function ($app, array $config) use ($cache) {
                $connection = $config['connection'] ?? 'default';
                $store = new DlockStore($app['redis'], $config['prefix'] ?? $app['config']['cache.prefix'] ?? '', $connection);

                return $cache->repository($store->setLockConnection($config['lock_connection'] ?? $connection));
            });
        });
    }
}

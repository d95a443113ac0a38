<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Connection;

use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * A connection by phpredis: one of our own, or the program's, whose settings are as before after each call.
 *
 * @internal
 */
final class PhpRedis implements Connection
{
    /** @var ?\WeakMap<\Redis, int> how many of these there are of each */
    private static ?\WeakMap $users = null;

    public function __construct(private readonly \Redis $redis)
    {
        if ($redis->isConnected() && $redis->getPersistentID() !== null) {
            throw new \InvalidArgumentException('client must not be a persistent connection: a lock would outlive the request');
        }
        self::$users ??= new \WeakMap();
        self::$users[$redis] = (self::$users[$redis] ?? 0) + 1;
    }

    public function __destruct()
    {
        --self::$users[$this->redis];
    }

    public function call(array $words, float $bound): mixed
    {
        $redis = $this->redis;
        if ($redis->getMode() !== \Redis::ATOMIC) {
            throw new \InvalidArgumentException('client must not be within MULTI or a pipeline');
        }
        $timeout = $redis->getOption(\Redis::OPT_READ_TIMEOUT);
        $retries = $redis->getOption(\Redis::OPT_MAX_RETRIES);
        // A connection that it opens anew by itself has its own bound, and where that is 0 this one.
        $default = $redis->getTimeout() > 0 ? false : ini_set('default_socket_timeout', (string) max(1, (int) ceil($bound)));
        try {
            $redis->setOption(\Redis::OPT_READ_TIMEOUT, $bound);
            // Once: without it a Redis whose connection was lost is lost for good. KEEP finds it out, by its count.
            $redis->setOption(\Redis::OPT_MAX_RETRIES, 1);
            $redis->clearLastError();
            $reply = $redis->rawCommand(...array_map(strval(...), $words));
        } catch (\RedisException $error) {
            throw $this->failed($redis->getLastError(), $error);
        } finally {
            $redis->setOption(\Redis::OPT_READ_TIMEOUT, $timeout);
            $redis->setOption(\Redis::OPT_MAX_RETRIES, $retries);
            if ($default !== false) {
                ini_set('default_socket_timeout', $default);
            }
        }
        if ($reply === false && $redis->getLastError() !== null) {
            throw Refused::by($redis->getLastError());
        }

        return $reply === false ? null : $reply;
    }

    public function close(): void
    {
        try {
            $this->redis->close();
        } catch (\RedisException) {
            // It was closed before.
        }
    }

    public function isShared(): bool
    {
        return self::$users[$this->redis] > 1;
    }

    private function failed(?string $said, \RedisException $error): \Throwable
    {
        if ($said !== null) {
            return Refused::by($said, $error);
        }
        // When it connects anew by itself it says what the server said like any other failure.
        if (preg_match('/^(NOAUTH|WRONGPASS|NOPERM|ERR) /', $error->getMessage())) {
            return Refused::by($error->getMessage(), $error);
        }
        // The library keeps the connection, and would take the late reply for that of the next command.
        $this->close();

        return new Unanswered($error->getMessage(), 0, $error);
    }
}

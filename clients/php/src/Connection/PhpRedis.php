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
        $reply = $this->bounded($bound, static fn (\Redis $redis) => $redis->rawCommand(...array_map(strval(...), $words)));
        if ($reply === false && $this->redis->getLastError() !== null) {
            throw Refused::by($this->redis->getLastError());
        }

        return $reply === false ? null : $reply;
    }

    public function callAll(array $commands, float $bound): array
    {
        $replies = $this->bounded($bound, function (\Redis $redis) use ($commands): mixed {
            $redis->pipeline();
            try {
                foreach ($commands as $words) {
                    $redis->rawCommand(...array_map(strval(...), $words));
                }

                return $redis->exec();
            } catch (\RedisException $error) {
                for ($one = $error; $one !== null; $one = $one->getPrevious()) {
                    if (!preg_match('/^[A-Z]+ /', $one->getMessage())) { // behind all that was refused one was silent
                        $this->close();
                        throw new Unanswered($one->getMessage(), 0, $error);
                    }
                }
                throw Refused::by($error->getMessage(), $error); // all are read, and which it was is not told
            } finally {
                $redis->getMode() !== \Redis::ATOMIC && $redis->discard();
            }
        });
        if (!is_array($replies) || count($replies) !== count($commands)) {
            $this->close();
            throw new Unanswered('the connection has ended');
        }

        return array_map(static fn (mixed $one) => $one === false ? null : $one, $replies);
    }

    /** @param \Closure(\Redis): mixed $work */
    private function bounded(float $bound, \Closure $work): mixed
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

            return $work($redis);
        } catch (\RedisException $error) {
            throw $this->failed($redis->getLastError(), $error);
        } finally {
            $redis->setOption(\Redis::OPT_READ_TIMEOUT, $timeout);
            $redis->setOption(\Redis::OPT_MAX_RETRIES, $retries);
            if ($default !== false) {
                ini_set('default_socket_timeout', $default);
            }
        }
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

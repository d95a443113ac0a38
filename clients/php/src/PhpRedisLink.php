<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * A connection of phpredis.
 *
 * @internal
 */
final class PhpRedisLink implements Link
{
    private readonly \Redis $redis;

    /** @param array<string, mixed> $tls options of PHP's stream context for `ssl` */
    public function __construct(string $host, int $port, array $tls, float $timeout)
    {
        $this->redis = new \Redis();
        try {
            $isOpen = $this->redis->connect($host, $port, $timeout, null, 0, $timeout, $tls === [] ? [] : ['stream' => $tls]);
        } catch (\RedisException $error) {
            $isOpen = false;
        }
        $isOpen || throw new Unanswered("$host:$port: " . (isset($error) ? $error->getMessage() : 'no connection'));
        // A new connection has none of the ties of this one, so it must not come silently.
        $this->redis->setOption(\Redis::OPT_MAX_RETRIES, 0);
        $this->redis->setOption(\Redis::OPT_NULL_MULTIBULK_AS_NULL, true);
        $this->redis->setOption(\Redis::OPT_REPLY_LITERAL, true);
    }

    public function ask(array $words, float $timeout): mixed
    {
        $reply = $error = null;
        try {
            $this->redis->setOption(\Redis::OPT_READ_TIMEOUT, $timeout);
            $this->redis->clearLastError();
            $reply = $this->redis->rawCommand(...$words);
        } catch (\RedisException $error) {
            // phpredis throws refusals too, except those that begin with ERR.
        }
        $refusal = $this->redis->getLastError();
        if ($refusal !== null) {
            throw Refused::by($refusal);
        }
        if ($error !== null) {
            throw new Unanswered($error->getMessage(), 0, $error);
        }

        return $reply === false ? null : $reply;
    }

    public function isOpen(): bool
    {
        return $this->redis->isConnected();
    }

    public function close(): void
    {
        try {
            $this->redis->close();
        } catch (\RedisException) {
            // It was closed.
        }
    }
}

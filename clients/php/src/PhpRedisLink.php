<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Unanswered;

/**
 * A connection of phpredis.
 *
 * @internal
 */
final class PhpRedisLink implements Link
{
    public function __construct(private readonly \Redis $redis)
    {
        if (!$redis->isConnected()) {
            throw new \InvalidArgumentException('client must be connected: the closure makes a new one for each connection');
        }
        if (is_string($redis->getPersistentID())) {
            throw new \InvalidArgumentException('client must not be persistent: others would use the same connection');
        }
        // A new connection has none of the ties of this one, so it must not come silently.
        $redis->setOption(\Redis::OPT_MAX_RETRIES, 0);
        $redis->setOption(\Redis::OPT_NULL_MULTIBULK_AS_NULL, true);
        $redis->setOption(\Redis::OPT_REPLY_LITERAL, true);
    }

    /** @param array<string, mixed> $tls options of PHP's stream context for `ssl` */
    public static function to(string $host, int $port, array $tls, float $within): self
    {
        $redis = new \Redis();
        if (!$redis->connect($host, $port, $within, null, 0, $within, $tls === [] ? [] : ['stream' => $tls])) {
            throw new \RedisException('no connection');
        }

        return new self($redis);
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
            throw ErrorReply::of($refusal);
        }
        if ($error !== null) {
            throw new Unanswered($error->getMessage(), 0, $error);
        }

        return self::value($reply);
    }

    /** The server's null is false in phpredis. */
    private static function value(mixed $reply): mixed
    {
        return is_array($reply) ? array_map(self::value(...), $reply) : ($reply === false ? null : $reply);
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

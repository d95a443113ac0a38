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

    public function ask(array $commands, float $timeout): array
    {
        $isOne = count($commands) === 1;
        $replies = $error = null;
        try {
            $this->redis->setOption(\Redis::OPT_READ_TIMEOUT, $timeout);
            $this->redis->clearLastError();
            $isOne || $this->redis->pipeline();
            $replies = array_map(fn (array $words): mixed => $this->redis->rawCommand(...$words), $commands);
            $replies = $isOne ? $replies : $this->redis->exec();
        } catch (\RedisException $error) {
            // Of a refusal as well, unless it begins with ERR.
        } catch (\Throwable $error) { // of a signal's handler
            $isOne || $this->close(); // the pipeline is still open
            throw $error;
        }
        $said = $this->redis->getLastError();
        if ($said === null) {
            return $error === null && is_array($replies)
                ? array_map(static fn (mixed $one): mixed => $one === false ? null : $one, $replies)
                : throw new Unanswered($error?->getMessage() ?? 'no reply');
        }
        $refused = Refused::by($said);
        if ($isOne || !in_array($refused->code(), ['NOTHELD', 'MOVED', 'ASK'], true)) {
            return array_fill(0, count($commands), $refused);
        }
        // phpredis throws the replies away with the first refusal, and each half tells more.
        [$first, $second] = array_chunk($commands, (int) ceil(count($commands) / 2));

        return [...$this->ask($first, $timeout), ...$this->ask($second, $timeout)];
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

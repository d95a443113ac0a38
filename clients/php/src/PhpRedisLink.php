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
    }

    public function ask(array $words, float $timeout): mixed
    {
        try {
            $this->redis->setOption(\Redis::OPT_READ_TIMEOUT, $timeout);
            $this->redis->clearLastError();
            $reply = $this->redis->rawCommand(...$words);
        } catch (\RedisException $error) {
            $reply = false;
        }

        return $reply === false ? throw $this->refusal($error ?? null) : $reply;
    }

    public function askAll(array $commands, float $timeout): array
    {
        if (count($commands) === 1) {
            try {
                return [$this->ask($commands[0], $timeout)];
            } catch (Refused $refused) {
                return [$refused];
            }
        }
        $error = null;
        try {
            $this->redis->setOption(\Redis::OPT_READ_TIMEOUT, $timeout);
            $this->redis->clearLastError();
            $pipeline = $this->redis->pipeline();
            foreach ($commands as $words) {
                $pipeline->rawCommand(...$words);
            }
            $replies = $pipeline->exec();
            if (is_array($replies) && !in_array(false, $replies, true)) {
                return $replies;
            }
        } catch (\RedisException $error) {
            // See below.
        } catch (\Throwable $error) { // of a signal's handler: the pipeline is still open
            $this->close();
            throw $error;
        }
        $refused = $this->refusal($error);
        if ($refused instanceof Unanswered) {
            throw $refused;
        }
        // phpredis throws the replies away with the first refusal, and each half tells more.
        if (!in_array($refused->code(), ['NOTHELD', 'MOVED', 'ASK'], true)) {
            return array_fill(0, count($commands), $refused);
        }
        [$first, $second] = array_chunk($commands, (int) ceil(count($commands) / 2));

        return [...$this->askAll($first, $timeout), ...$this->askAll($second, $timeout)];
    }

    /** What the server has said, if it has. */
    private function refusal(?\RedisException $error): Refused|Unanswered
    {
        $said = $this->redis->getLastError();

        return $said !== null ? Refused::by($said) : new Unanswered($error?->getMessage() ?? 'no reply');
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

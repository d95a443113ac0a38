<?php

declare(strict_types=1);

namespace Dlock\Tests;

/** What a server shows of its locks, and another owner, which takes them by plain commands. */
final class Server
{
    public readonly string $key;
    /** @var array<string, \Redis> */
    private array $nodes = [];

    public function __construct(public readonly string $place = 'single', private readonly ?string $address = null)
    {
        $this->key = '{' . bin2hex(random_bytes(6)) . '}lock';
    }

    /** Returns a connection to the node that serves the key now. */
    public function node(string $key): \Redis
    {
        if ($this->place === 'single') {
            return $this->nodes[''] ??= Stage::connect($this->address ?? Stage::addresses('DLOCK_SINGLE')[0]);
        }
        if (isset($this->nodes[$key]) && self::serves($this->nodes[$key], $key)) {
            return $this->nodes[$key];
        }

        return $this->nodes[$key] = Stage::until(function () use ($key) {
            foreach (Stage::addresses($this->place === 'pair' ? 'DLOCK_PAIR' : 'DLOCK_CLUSTER') as $address) {
                try {
                    $node = Stage::connect($address);
                    if (self::serves($node, $key)) {
                        return $node;
                    }
                } catch (\RedisException) {
                    // Another one.
                }
            }

            return null;
        }, "$key is served");
    }

    /** A node that hangs serves nothing now. */
    private static function serves(\Redis $node, string $key): bool
    {
        try {
            $node->setOption(\Redis::OPT_READ_TIMEOUT, 1);
            $node->clearLastError();
            $node->rawCommand('EXISTS', $key);
            $serves = $node->getLastError() === null && $node->rawCommand('ROLE')[0] === 'master';
            $node->setOption(\Redis::OPT_READ_TIMEOUT, 30);

            return $serves;
        } catch (\RedisException) {
            return false;
        }
    }

    public function addressOf(string $key): string
    {
        $node = $this->node($key);

        return $node->getHost() . ':' . $node->getPort();
    }

    public function ask(string ...$words): mixed
    {
        $key = ['DLOCK.FORCERELEASE' => 1, 'DEL' => 1, 'PEXPIRE' => 1, 'GET' => 1, 'SET' => 1][$words[0]] ?? null;
        $node = $this->node($key !== null || str_starts_with($words[0], 'DLOCK.') ? $words[1] : $this->key);
        $node->clearLastError();
        $reply = $node->rawCommand(...$words);
        if ($node->getLastError() !== null) {
            throw new \RuntimeException($node->getLastError());
        }

        return $reply;
    }

    /** @return array<string, mixed> */
    public function info(?string $key = null): array
    {
        $reply = $this->ask('DLOCK.INFO', $key ?? $this->key, 'COUNT', '5000');
        $info = ['holders' => [], 'queue' => [], ...self::map($reply ?: [])];
        $info['holders'] = array_map(self::map(...), $info['holders']);
        $info['queue'] = array_map(self::map(...), $info['queue']);

        return $info;
    }

    /** @return list<string> */
    public function queue(?string $key = null): array
    {
        return array_column($this->info($key)['queue'], 'owner');
    }

    /** @return list<string> */
    public function owners(?string $key = null): array
    {
        return array_column($this->info($key)['holders'], 'owner');
    }

    /** Waits until this many are queued. With `$absent` it also counts a process that is between two slices of its wait. */
    public function awaitQueued(int $count, ?string $key = null, bool $absent = false): void
    {
        Stage::until(function () use ($count, $key, $absent) {
            $queue = $this->info($key)['queue'];

            return count($queue) === $count && ($absent || count(array_filter(array_column($queue, 'client'))) === $count);
        }, "$count are queued" . ($absent ? '' : ', and nobody is absent'));
    }

    public function awaitGone(?string $key = null): void
    {
        Stage::until(fn () => !$this->ask('DLOCK.INFO', $key ?? $this->key), 'nobody holds it and nobody waits');
    }

    /** Takes the lock for another owner, for longer than any test lasts. */
    public function hold(string $owner = 'other', ?string $key = null, string ...$options): int
    {
        $reply = $this->ask('DLOCK.ACQUIRE', $key ?? $this->key, $owner, '600000', ...$options);

        return $reply[0] ?? throw new \RuntimeException('the lock is taken');
    }

    /** Releases the lock, and returns its next holder, read in the same step. */
    public function handOver(string $owner = 'other', ?string $key = null): ?string
    {
        $key ??= $this->key;
        $node = $this->node($key)->multi();
        $node->rawCommand('DLOCK.RELEASE', $key, $owner, 'HOLDS', '0');
        $node->rawCommand('DLOCK.HELD', $key);

        return $node->exec()[1][3] ?? null;
    }

    /**
     * Releases the lock, and returns its next holder. A client that waits in slices may be away for an instant, and still has its
     * place.
     */
    public function next(string $owner = 'other'): string
    {
        $next = $this->handOver($owner);

        return $next ?? Stage::until(fn () => $this->owners()[0] ?? null, 'the next one has it');
    }

    /**
     * @param list<mixed> $pairs
     *
     * @return array<string, mixed>
     */
    private static function map(array $pairs): array
    {
        $map = [];
        for ($i = 0; $i + 1 < count($pairs); $i += 2) {
            $map[(string) $pairs[$i]] = $pairs[$i + 1];
        }

        return $map;
    }
}

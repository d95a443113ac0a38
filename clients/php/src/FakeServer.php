<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;


/**
 * Answers the commands of this package, for FakeLocks.
 *
 * @internal
 */
final class FakeServer implements Link
{
    /** @var list<list<string>> */
    public array $commands = [];
    /** Answers a guarded command, by its words. */
    public ?\Closure $reply = null;
    private int $token = 0;
    /** @var array<string, array<string, array{token: int, limit: float, permits: int, end: float}>> by key and owner */
    private array $holds = [];

    public function ask(array $words, float $timeout): mixed
    {
        [$name, $key, $owner] = array_map(strval(...), array_slice($words, 0, 3)) + [2 => ''];
        $held = static fn (array $one): bool => $one['end'] > Clock::now();
        $this->holds[$key] = array_filter($this->holds[$key] ?? [], $held);
        $hold = $this->holds[$key][$owner] ?? null;
        $isIts = $hold !== null && $this->number($words, 'TOKEN', $hold['token']) === $hold['token'];

        if (!$isIts && in_array($name, ['DLOCK.RENEW', 'DLOCK.RELEASE', 'DLOCK.DOWNGRADE'], true)) {
            throw ErrorReply::of("NOTHELD $key is not held by $owner");
        }
        switch ($name) {
            case 'DLOCK.ACQUIRE':
            case 'DLOCK.FAIRACQUIRE':
                $reply = $this->acquire($key, $owner, $words);
                if ($reply === null) {
                    Clock::sleep($this->number($words, 'BLOCK', 0) / 1000);
                }

                return $reply;
            case 'DLOCK.RENEW':
                $this->holds[$key][$owner]['end'] = $this->end($words);

                return $words[3];
            case 'DLOCK.RELEASE':
                unset($this->holds[$key][$owner]);

                return 0;
            case 'DLOCK.DOWNGRADE':
                $this->holds[$key][$owner]['limit'] = INF;

                return 'OK';
            case 'DLOCK.HELD':
                $owner = $owner === '' ? (string) array_key_last($this->holds[$key]) : $owner;
                $hold = $this->holds[$key][$owner] ?? null;

                return $hold === null ? null : [$hold['token'], 1, (int) (1000 * ($hold['end'] - Clock::now())), $owner];
            case 'DLOCK.FORCERELEASE':
                return count($this->lose($key));
            case 'DLOCK.CANCEL':
                return 0;
            case 'DLOCK.GUARD':
                if (!in_array($words[2], array_column($this->holds[$key], 'token'), true)) {
                    throw ErrorReply::of("FENCED $key");
                }
                $this->commands[] = $command = array_map(strval(...), array_slice($words, 3));

                return $this->reply === null ? null : ($this->reply)(...$command);
        }
        throw ErrorReply::of("ERR unknown command '$name'");
    }

    /**
     * @param list<int|string> $words
     *
     * @return ?array{int, int}
     */
    private function acquire(string $key, string $owner, array $words): ?array
    {
        $asked = ['limit' => in_array('SHARED', $words, true) ? INF : $this->number($words, 'LIMIT', 1)];
        $asked += ['permits' => $this->number($words, 'PERMITS', 1), 'end' => $this->end($words)];
        $others = array_diff_key($this->holds[$key], [$owner => true]);
        $all = [...array_values($others), $asked];
        if (array_sum(array_column($all, 'permits')) > min(array_column($all, 'limit'))) {
            return null;
        }
        $this->holds[$key][$owner] = $asked + ['token' => $this->holds[$key][$owner]['token'] ?? ++$this->token];

        return [$this->holds[$key][$owner]['token'], 1];
    }

    /**
     * Returns when a hold ends: with AUTO it is renewed for so long, and its lease runs on from there.
     *
     * @param list<int|string> $words
     */
    private function end(array $words): float
    {
        return Clock::now() + ($words[3] + $this->number($words, 'AUTO', 0)) / 1000;
    }

    /** @param list<int|string> $words */
    private function number(array $words, string $name, int $usual): int
    {
        $at = array_search($name, array_slice($words, 3), true);

        return $at === false ? $usual : (int) $words[$at + 4];
    }

    /** @return array<string, mixed> the holds that have ended */
    public function lose(string $key): array
    {
        [$holds, $this->holds[$key]] = [$this->holds[$key] ?? [], []];

        return $holds;
    }

    public function isOpen(): bool
    {
        return true;
    }

    public function close(): void
    {
    }
}

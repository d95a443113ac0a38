<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Exception\LockTimeout;

/** The servers of a test, and what is done to them. */
final class Stage
{
    public static function patience(): float
    {
        return (float) (getenv('PATIENCE') ?: 30);
    }

    /** A busy machine is late by itself. */
    public static function late(): float
    {
        $late = getenv('DLOCK_LATE');

        return $late === false || $late === '' ? 4.0 : (float) $late;
    }

    /** @return list<string> */
    public static function addresses(string $name): array
    {
        return explode(',', getenv($name) ?: throw new \LogicException("$name is not set"));
    }

    public static function control(string $line): string
    {
        $control = stream_socket_client('tcp://' . self::addresses('DLOCK_CONTROL')[0]);
        fwrite($control, "$line\n");
        stream_set_timeout($control, 60);
        $answer = trim((string) fgets($control));
        if (!str_starts_with($answer, 'ok')) {
            throw new \RuntimeException("$line: $answer");
        }

        return substr($answer, 3);
    }

    public static function until(callable $condition, string $what, ?float $patience = null): mixed
    {
        $end = microtime(true) + ($patience ?? self::patience());
        while (!($value = $condition())) {
            if (microtime(true) > $end) {
                throw new \RuntimeException("gave up waiting until $what");
            }
            usleep(20_000);
        }

        return $value;
    }

    /**
     * What a wait whose time is up gives, or the LockTimeout that it throws. That has no cause where the lock is taken. But a
     * stall at its end is one, however long it has waited: then it waits again.
     */
    public static function timesOut(callable $wait): mixed
    {
        return self::until(static function () use ($wait): ?array {
            try {
                return [$wait()];
            } catch (LockTimeout $error) {
                return $error->getPrevious() === null ? [$error] : null;
            }
        }, 'its time is up, and nothing else is wrong')[0];
    }

    public static function connect(string $address): \Redis
    {
        [$host, $port] = explode(':', $address);
        $redis = new \Redis();
        $redis->connect($host, (int) $port, 5);
        $redis->setOption(\Redis::OPT_READ_TIMEOUT, 30);

        return $redis;
    }
}

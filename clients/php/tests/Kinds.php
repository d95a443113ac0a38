<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Connect;
use Dlock\Locks;

/** The ways in which a program connects. */
final class Kinds
{
    /** Up to a third of the lease has passed when a stall of seconds begins: the rest outlasts it. So does the claim. */
    public const SETTINGS = ['lease' => 6.0, 'hangTimeout' => 30.0, 'queueGrace' => 4.0];

    /** @param array<string, mixed> $settings */
    public static function locks(
        string $place = 'single',
        string $library = 'phpredis',
        ?string $address = null,
        array $auth = [],
        mixed ...$settings,
    ): Locks {
        $settings += self::SETTINGS;
        if ($place === 'cluster') {
            $connect = $library === 'predis'
                ? static fn (string $host, int $port) => new \Predis\Client(['host' => $host, 'port' => $port])
                : static fn (string $host, int $port) => Connect::url("redis://$host:$port");

            return Locks::cluster(Stage::addresses('DLOCK_CLUSTER'), $connect, ...$settings);
        }
        if ($place === 'pair') {
            return new Locks(self::primary(...), ...$settings);
        }
        $address ??= Stage::addresses('DLOCK_SINGLE')[0];
        [$host, $port] = explode(':', $address);
        $word = $auth === [] ? '' : implode(':', $auth) . '@';

        return new Locks(match ($library) {
            'phpredis' => Connect::url("redis://$word$address"),
            'own' => static fn () => Stage::connect($address),
            'predis' => static fn () => new \Predis\Client(['host' => $host, 'port' => (int) $port]),
        }, ...$settings);
    }

    /** A client of the one of the pair that is the primary now. */
    private static function primary(float $within): \Redis
    {
        foreach (Stage::addresses('DLOCK_PAIR') as $address) {
            [$host, $port] = explode(':', $address);
            $redis = new \Redis();
            try {
                $redis->connect($host, (int) $port, $within / 2, null, 0, $within / 2);
                if ($redis->rawCommand('ROLE')[0] === 'master') {
                    return $redis;
                }
            } catch (\RedisException) {
                // Perhaps the other one.
            }
        }
        throw new \RedisException('none of them is the primary now');
    }
}

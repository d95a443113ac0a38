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
                : static fn (string $host, int $port) => Connect::to($host, $port, auth: $auth);

            return Locks::cluster(Stage::addresses('DLOCK_CLUSTER'), $connect, ...$settings);
        }
        if ($place === 'pair') {
            $ways = array_map(static fn (string $one) => Connect::url("redis://$one"), Stage::addresses('DLOCK_PAIR'));

            return new Locks(Connect::primaryOf($ways), ...$settings);
        }
        $address ??= Stage::addresses('DLOCK_SINGLE')[0];
        [$host, $port] = explode(':', $address);
        $word = $auth === [] ? '' : implode(':', $auth) . '@';

        return new Locks(match ($library) {
            'phpredis' => Connect::url("redis://$word$address"),
            'own' => Stage::connect($address),
            'predis' => new \Predis\Client(['host' => $host, 'port' => (int) $port]),
        }, ...$settings);
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Connection\Connection;
use Dlock\Connection\PhpRedis;
use Dlock\Connection\Predis;
use Dlock\Exception\Redirected;
use Predis\ClientInterface;

/**
 * Who serves a key: one server.
 *
 * @internal
 */
class Servers
{
    /** @var array<string, Node> */
    public array $nodes = [];

    /** @param \Closure(float): Connection $connect */
    public function __construct(private readonly \Closure $connect)
    {
    }

    /** How a client, or a way to make one, becomes connections. */
    public static function by(object $client): self
    {
        if ($client instanceof \Redis) {
            $one = new PhpRedis($client);

            return new self(static fn (float $bound) => $one);
        }
        if ($client instanceof ClientInterface) {
            return new self(static fn (float $bound) => Predis::like($client, $bound));
        }
        if ($client instanceof \Closure) {
            return new self(static fn (float $bound) => self::wrap(self::made($client, $bound), $bound));
        }
        throw new \InvalidArgumentException('client must be a Redis, a Predis client, or a closure that makes one, not '
            . get_debug_type($client) . ($client instanceof \RedisCluster ? ': see Locks::cluster()' : ''));
    }

    /** @internal what a program's closure has made */
    public static function made(\Closure $make, mixed ...$about): mixed
    {
        try {
            return $make(...$about);
        } catch (\RedisException $error) {
            throw Connect::failed($error);
        }
    }

    public static function wrap(mixed $client, float $bound): Connection
    {
        return match (true) {
            $client instanceof \Redis => new PhpRedis($client),
            $client instanceof ClientInterface => Predis::like($client, $bound),
            default => throw new \InvalidArgumentException(
                'client must make a Redis or a Predis client, not ' . get_debug_type($client),
            ),
        };
    }

    public function of(string $key): Node
    {
        return $this->node('');
    }

    /** Where it is from now on, or for this command. */
    public function redirected(Redirected $error, Node $by): Node
    {
        throw $error;
    }

    /**
     * Asks anew who serves what.
     *
     * @param \Closure(Node, list<int|string>): mixed $ask
     */
    public function refresh(\Closure $ask): void
    {
    }

    protected function node(string $name): Node
    {
        return $this->nodes[$name] ??= new Node($name, $this->connect);
    }
}

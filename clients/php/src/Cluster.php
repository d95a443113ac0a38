<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Redirected;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * Who serves a key: the node of a cluster that serves its slot.
 *
 * RedisCluster of phpredis does not follow MOVED for commands that it does not know, and has one time-out for all replies;
 * so there is a connection of our own to each node that serves a lock.
 *
 * @internal
 */
final class Cluster extends Servers
{
    private const SLOTS = 16384;

    /** @var list<array{int, int, string}> first slot, last slot, address of the master */
    private array $map = [];
    /** @var array<int, string> what MOVED has told since */
    private array $moved = [];

    /**
     * @param list<string>                        $seeds   `host:port` of some nodes
     * @param \Closure(string, int, float): mixed $connect makes a client of the node
     */
    public function __construct(private readonly array $seeds, private readonly \Closure $connect)
    {
        if ($seeds === []) {
            throw new \InvalidArgumentException('seeds must not be empty');
        }
        array_map(self::parts(...), $seeds);
    }

    public function of(string $key): Node
    {
        $slot = self::slot($key);
        if (isset($this->moved[$slot])) {
            return $this->node($this->moved[$slot]);
        }
        foreach ($this->map as [$first, $last, $address]) {
            if ($first <= $slot && $slot <= $last) {
                return $this->node($address);
            }
        }

        return $this->node($this->seeds[0]); // it says where
    }

    public function redirected(Redirected $error, Node $by): Node
    {
        $address = $error->address();
        if (preg_match('/^:\d+$/', $address)) { // a server that tells no host means the one that was asked
            $address = self::parts($by->name)[0] . $address;
        }
        if (!$error->once()) {
            $this->moved[$error->slot()] = $address;
        }

        return $this->node($address);
    }

    public function refresh(\Closure $ask): void
    {
        // Those that are connected answer at once. Each is asked until one has answered.
        array_map($this->node(...), $this->seeds);
        $nodes = $this->nodes;
        usort($nodes, static fn (Node $a, Node $b) => ($b->connection !== null) <=> ($a->connection !== null));
        foreach ($nodes as $node) {
            try {
                $map = [];
                foreach ($ask($node, ['CLUSTER', 'SLOTS']) as [$first, $last, $master]) {
                    $map[] = [$first, $last, ($master[0] ?: self::parts($node->name)[0]) . ':' . $master[1]];
                }
                if ($map !== []) {
                    [$this->map, $this->moved] = [$map, []];

                    return;
                }
            } catch (Unanswered | Refused) {
                // The next one may know.
            }
        }
    }

    /** The slot of a key: of what is in its first braces, if there is something. */
    public static function slot(string $key): int
    {
        if (preg_match('/\{([^}]+)\}/', $key, $tag) && strpos($key, '{') === strpos($key, $tag[0])) {
            $key = $tag[1];
        }
        $crc = 0;
        for ($i = 0; $i < strlen($key); ++$i) {
            $crc ^= ord($key[$i]) << 8;
            for ($bit = 0; $bit < 8; ++$bit) {
                $crc = ($crc & 0x8000) !== 0 ? ($crc << 1 ^ 0x1021) & 0xFFFF : $crc << 1 & 0xFFFF;
            }
        }

        return $crc % self::SLOTS;
    }

    protected function node(string $name): Node
    {
        [$host, $port] = self::parts($name);
        $connect = $this->connect;

        return $this->nodes[$name] ??= new Node(
            $name,
            static fn (float $bound) => self::wrap(self::made($connect, $host, $port, $bound), $bound),
        );
    }

    /** @return array{string, int} */
    private static function parts(string $address): array
    {
        if (!preg_match('/^(.+):(\d+)$/', $address, $parts)) {
            throw new \InvalidArgumentException("seeds must be host:port, not $address");
        }

        return [$parts[1], (int) $parts[2]];
    }
}

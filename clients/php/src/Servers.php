<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Closed;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Redirected;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * Commands to the server that serves their key, on the one connection to each; and the end of these connections.
 *
 * @internal
 */
final class Servers
{
    /** To give up on a reply may end the connection, and what is tied to it. So each may take this long, however late it is. */
    public const GRACE = 0.4;
    private const SLOTS = 16384;
    private const REFRESH_EVERY = 0.1;

    /** @var array<string, Node> */
    public array $nodes = [];
    public bool $closed = false;
    private int $process;
    private float $refreshed = -INF;
    /** A try has failed: who serves what is asked for before the next command. */
    private bool $stale = false;
    /** @var list<array{int, int, string}> first slot, last slot, address of the master */
    private array $map = [];
    /** @var array<int, string> what MOVED has told since */
    private array $moved = [];

    /** @param \Closure(Request, string): mixed $lost what ends with its connection, or with this process */
    public function __construct(
        private readonly Connect $where,
        private readonly float $replyTimeout,
        private readonly \Closure $lost,
    ) {
        $this->process = (int) getmypid();
    }

    /** @return array<string, mixed> what `var_dump` shows: no password */
    public function __debugInfo(): array
    {
        return ['nodes' => array_keys($this->nodes)];
    }

    /**
     * Returns the reply of the server that serves the key, and which that is.
     *
     * @param list<int|string> $words
     *
     * @return array{mixed, Node}
     */
    public function call(string $key, array $words, float $until): array
    {
        $this->check();
        if ($this->stale) {
            $this->stale = false;
            $this->refresh($until);
        }
        $node = $this->of($key);
        $asking = false;
        for ($hops = 1;; ++$hops) {
            try {
                $replies = $this->ask($node, $asking ? [['ASKING'], $words] : [$words], $until);
                $reply = end($replies);

                return [$reply instanceof Refused ? throw $reply : $reply, $node];
            } catch (Redirected $error) {
                if ($hops === 4) {
                    throw $error;
                }
                [$node, $asking] = [$this->redirected($error, $node), $error->once()];
            }
        }
    }

    /**
     * Returns the same for a command that may be sent twice: again until its error passes.
     *
     * @param list<int|string> $words
     * @param bool             $ends  it gives a hold back: what a request without a reply may have done is no error
     */
    public function insist(string $key, array $words, bool $ends = false): mixed
    {
        $until = Clock::now() + $this->replyTimeout;
        $heard = true;
        while (true) {
            try {
                return $this->call($key, $words, $until)[0];
            } catch (Unanswered | Refused $error) {
                if ($error instanceof NotHeld && $ends && !$heard) {
                    return null;
                }
                if (Clock::now() >= $until) {
                    throw $error;
                }
                $this->mend($error, $until);
                $heard = $heard && $error instanceof Refused;
            }
        }
    }

    /**
     * Returns this node's replies to many, sent in one go. When the time is up nothing is sent, and the connection goes on.
     *
     * @param list<list<int|string>> $commands
     *
     * @return list<mixed>
     */
    public function ask(Node $node, array $commands, float $until): array
    {
        if (Clock::now() >= $until) {
            throw new Unanswered('no time is left to ask');
        }
        $left = fn (): float => max(Clock::now() + min(self::GRACE, $this->replyTimeout), $until);
        if ($node->connection !== null && ($node->overdue || !$node->connection->isOpen())) {
            $this->disconnect($node);
        }
        try {
            $node->connection ??= Connection::open($node->where, $left());
        } catch (Refused $error) {
            if (!$error->passes()) {
                $node->refusal = $error->getMessage();
            }
            throw $error;
        }
        try {
            $replies = $node->connection->callAll($commands, $left());
        } catch (Unanswered $error) {
            // It stays for those who take their request back, behind it.
            $node->connection->isOpen() ? $node->overdue = true : $this->disconnect($node);
            throw $error;
        }
        foreach ($replies as $reply) {
            if ($reply instanceof Refused && $reply->code() === 'READONLY') { // who is primary now is found by connecting
                $this->disconnect($node);
            }
        }

        return $replies;
    }

    /**
     * Sends what takes a request back, on its connection and behind it, and waits for nothing. If that has ended there is no place
     * any more, and the lease ends the rest.
     *
     * @param list<list<int|string>>     $commands
     * @param ?\Closure(mixed): void $then     gets the last one's reply, or an Unanswered if there is none
     */
    public function post(?Node $node, array $commands, ?\Closure $then = null): void
    {
        if (!$this->isOpen() || $node?->connection?->isOpen() !== true) {
            return;
        }
        foreach ($commands as $i => $words) {
            $node->connection->post($words, $i === array_key_last($commands) ? $then : null);
        }
        if ($node->overdue) {
            $this->disconnect($node);
        }
    }

    public function disconnect(Node $node): void
    {
        foreach ($node->disconnect() as $request) {
            ($this->lost)($request, 'closed');
        }
    }

    /** After an error: throws it if time cannot mend it. */
    public function mend(Unanswered | Refused $error, float $until): void
    {
        if ($error instanceof Refused && !$error->passes()) {
            throw $error;
        }
        $this->refresh($until);
        Clock::sleep(min(max(0.0, $until - Clock::now()), random_int(20, 100) / 1000));
    }

    /** Another node may serve what this one has served, by the time of the next command. */
    public function distrust(): void
    {
        $this->stale = true;
    }

    /** Asks the cluster anew who serves what: the nodes that are connected first, since they answer at once. */
    public function refresh(float $until): void
    {
        $now = Clock::now();
        if ($this->where->seeds === [] || $now - $this->refreshed <= self::REFRESH_EVERY) {
            return;
        }
        $this->refreshed = $now;
        array_map($this->node(...), $this->where->seeds);
        $nodes = $this->nodes;
        usort($nodes, static fn (Node $a, Node $b) => ($b->connection !== null) <=> ($a->connection !== null));
        foreach ($nodes as $node) {
            try {
                $slots = $this->ask($node, [['CLUSTER', 'SLOTS']], min($until, $now + 1))[0];
                $map = [];
                foreach (is_array($slots) ? $slots : [] as [$first, $last, $master]) {
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

    /** The node that serves the key, as far as it is known. */
    public function of(string $key): Node
    {
        if ($this->where->seeds === []) {
            return $this->node('');
        }
        $slot = self::slot($key);
        if (isset($this->moved[$slot])) {
            return $this->node($this->moved[$slot]);
        }
        foreach ($this->map as [$first, $last, $address]) {
            if ($first <= $slot && $slot <= $last) {
                return $this->node($address);
            }
        }

        return $this->node($this->where->seeds[0]); // it says where
    }

    /** The node that serves it from now on, or for this command. */
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

    private function node(string $name): Node
    {
        return $this->nodes[$name] ??= new Node($name, $this->where->node($name));
    }

    /** @return array{string, int} */
    public static function parts(string $address): array
    {
        if (!preg_match('/^(.+):(\d+)$/', $address, $parts)) {
            throw new \InvalidArgumentException("seeds must be host:port, not $address");
        }

        return [$parts[1], (int) $parts[2]];
    }

    /** Throws if nothing may be asked any more. In the child of a fork everything begins anew. */
    public function check(): void
    {
        if ($this->closed) {
            throw new Closed('these locks are closed');
        }
        if ($this->process !== getmypid()) {
            $this->process = (int) getmypid();
            $this->end('it is held by the process that has forked this one');
        }
    }

    /** Returns true while something may be asked in the name of this process. */
    public function isOpen(): bool
    {
        return !$this->closed && $this->process === getmypid();
    }

    /** Ends all connections without a word: in a child they are the parent's, too. */
    public function end(string $reason): void
    {
        $held = array_merge(...array_values(array_map(static fn (Node $node) => array_values($node->held), $this->nodes)));
        foreach ($this->nodes as $node) {
            $node->disconnect();
        }
        foreach ($held as $request) {
            ($this->lost)($request, $reason);
        }
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\DlockException;
use Dlock\Exception\LockTimeout;
use Psr\Log\LoggerInterface;

/**
 * Locks of the dlock module, for a process with one connection to each server.
 *
 *     $locks = new Locks(Connect::url('redis://localhost'));
 *     $hold = $locks->lock('stock', timeout: 5);      // LockTimeout after 5 s
 *     $hold->guard('SET', 'stock:left', 41);          // runs only while the lock is held: else Fenced
 *     $hold->release();
 *
 * The server renews what is held while this connection lives (AUTO), for `hangTimeout` seconds after the last heartbeat: no
 * thread and no timer is needed here. A program that works longer calls `keep()` now and then. Times are in seconds. FakeLocks
 * need no server.
 */
class Locks
{
    /** @internal */
    public readonly Core $core;
    private readonly Settings $settings;

    /**
     * @param Connect|\Closure $client where to connect: a Connect, or `fn (float $within)`, which makes a client of phpredis or Predis.
     *                                  Its connection belongs to these locks. When it has failed they call the closure again
     * @param float $lease        what a lock has left when the program dies or loses the server
     * @param float $hangTimeout  how long the server renews it after the last heartbeat
     * @param float $queueGrace   how long a place in a queue is kept while the connection is away
     * @param float $replyTimeout how long a connect or a reply may take
     * @param float $clockMargin  how long before its end a lease is believed to have ended
     */
    public function __construct(
        Connect|\Closure $client,
        float $lease = 10.0,
        float $hangTimeout = 60.0,
        float $queueGrace = 5.0,
        float $replyTimeout = 3.0,
        float $clockMargin = 0.1,
        ?LoggerInterface $logger = null,
        ?Observer $observer = null,
    ) {
        $this->settings = new Settings($lease, $hangTimeout, $queueGrace, $replyTimeout, $clockMargin);
        $this->core = new Core(Connect::of($client), $this->settings, $logger, $observer);
    }

    /**
     * Locks in a cluster: one connection to each node that serves one of them.
     *
     * @param list<string> $seeds   `host:port` of some nodes; of all, if one may be away
     * @param ?\Closure    $connect `fn (string $host, int $port, float $within)` makes a Redis, a Predis client or a Connect of it
     */
    public static function cluster(array $seeds, ?\Closure $connect = null, mixed ...$settings): self
    {
        return new self(Connect::cluster($seeds, $connect), ...$settings);
    }

    /**
     * Takes the lock. Throws LockTimeout if it was not granted in time; without a time-out it waits for ever.
     *
     * @param bool              $shared  with others that share it
     * @param ?int              $limit   with this many holders at most
     * @param bool              $ephemeral the hold ends as soon as the connection does
     * @param ?string           $owner   the old name of actor
     * @param int|float|null    $hangTimeout how long this one is renewed after the last heartbeat
     * @param ?callable(Hold):void $onLost is called when `keep()`, `lost()`, or a wait for another finds it lost
     * @param ?int              $permits the hold takes this many of `limit`, all at once; 1 unless set
     * @param int|float|null    $lease   what this one has left when the program dies or loses the server
     * @param int|float|null    $maxHold after so long the client reports it lost and releases it
     * @param ?string           $actor   a name of 1 to 900 bytes, for the server's operator. A wait by these Locks for a lock that
     *                                   the same actor holds by them is refused: Deadlock
     */
    public function lock(
        string $key,
        int|float|null $timeout = null,
        bool $shared = false,
        ?int $limit = null,
        bool $ephemeral = false,
        ?string $owner = null,
        int|float|null $hangTimeout = null,
        ?callable $onLost = null,
        ?int $permits = null,
        int|float|null $lease = null,
        int|float|null $maxHold = null,
        ?string $actor = null,
    ): Hold {
        $options = compact('shared', 'limit', 'ephemeral', 'owner', 'hangTimeout', 'onLost', 'permits', 'lease', 'maxHold', 'actor');

        return $this->tryLock($key, $timeout, ...$options)
            ?? throw new LockTimeout("$key was not granted within $timeout s: it is taken");
    }

    /** Takes it as lock() does, but returns null if it is taken, and without a time-out makes one attempt and does not wait. */
    public function tryLock(
        string $key,
        int|float|null $timeout = 0,
        bool $shared = false,
        ?int $limit = null,
        bool $ephemeral = false,
        ?string $owner = null,
        int|float|null $hangTimeout = null,
        ?callable $onLost = null,
        ?int $permits = null,
        int|float|null $lease = null,
        int|float|null $maxHold = null,
        ?string $actor = null,
    ): ?Hold {
        if ($owner !== null) {
            @trigger_error('dlock/redis: the option owner is called actor now, and locks are not re-entered', \E_USER_DEPRECATED);
        }
        $lease = $this->settings->believable(Settings::positive('lease', $lease ?? $this->settings->lease));
        $hangTimeout = Settings::positive('hangTimeout', $hangTimeout ?? $this->settings->hangTimeout);
        $request = new Request(
            $this->settings,
            $key,
            null,
            $shared,
            $limit,
            $permits,
            $ephemeral,
            max($hangTimeout, $lease),
            $lease,
            $maxHold === null ? null : Settings::positive('maxHold', $maxHold),
            $actor ?? $owner,
        );

        return $this->core->hold($request, Settings::seconds('timeout', $timeout), $onLost === null ? null : $onLost(...));
    }

    /**
     * Runs the work while the lock is held, and returns its result. Throws InvalidArgumentException if that is a generator or a
     * promise, whose work would run without the lock.
     *
     * @template T
     *
     * @param callable(Hold): T $work
     * @param mixed             ...$options those of lock(), by name
     *
     * @return T
     */
    public function with(string $key, callable $work, mixed ...$options): mixed
    {
        $hold = $this->lock($key, ...$options);
        try {
            $result = $work($hold);
            if ($result instanceof \Generator || is_object($result) && method_exists($result, 'then')) {
                $what = get_debug_type($result);
                throw new \InvalidArgumentException("work must not return a $what, which runs after the lock was released");
            }
        } catch (\Throwable $error) {
            try {
                $hold->leave();
            } catch (DlockException) {
                // The first error is the one to tell.
            }
            throw $error;
        }
        $hold->leave();

        return $result;
    }

    /**
     * Takes locks of any slots, one after the other in the order of their names: nobody can wait in a circle.
     *
     * @param array<string> $keys
     * @param int|float|null $timeout for all of them together
     * @param mixed          ...$options those of lock(), by name
     */
    public function many(array $keys, int|float|null $timeout = null, mixed ...$options): Holds
    {
        if ($keys === []) {
            throw new \InvalidArgumentException('keys must not be empty');
        }
        $keys = array_unique(array_map(strval(...), $keys));
        sort($keys, SORT_STRING);
        $end = Clock::now() + (Settings::seconds('timeout', $timeout) ?? INF);
        $holds = new Holds();
        try {
            foreach ($keys as $key) {
                $left = $end === INF ? null : max(0.001, $end - Clock::now());
                $holds->add($this->lock($key, $left, ...$options));
            }
        } catch (\Throwable $error) {
            try {
                $holds->release();
            } catch (DlockException) {
                // The first error is the one to tell.
            }
            throw $error;
        }

        return $holds;
    }

    /**
     * Renews all locks (the heartbeat): call it now and then in long work, as often as you like. The client sends it once a second,
     * or three times a lease, at most; with `now` at once. `onLost` and `lost()` of a hold tell what was found lost.
     */
    public function keep(bool $now = false): void
    {
        $this->core->keep($now);
    }

    /** Ends the connections, and reports all holds lost. Their leases run on. Every later call throws Closed. */
    public function close(): void
    {
        $this->core->close();
    }
}

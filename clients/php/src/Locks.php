<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\DlockException;
use Dlock\Exception\LockTimeout;
use Predis\ClientInterface;
use Psr\Log\LoggerInterface;

/**
 * Locks of the dlock module, for a process with one connection.
 *
 *     $locks = new Locks(Connect::url('redis://localhost'));
 *     $hold = $locks->lock('stock', timeout: 5);      // LockTimeout after 5 s
 *     $hold->guard('SET', 'stock:left', 41);          // runs only while the lock is held: else Fenced
 *     $hold->release();
 *
 * The server renews what is held while this connection lives (AUTO), for `auto` seconds after the last sign of life: no
 * thread and no timer is needed here. A program that works longer calls `keep()` now and then. Times are in seconds.
 */
final class Locks
{
    /** @internal */
    public readonly Core $core;
    private readonly Settings $settings;
    private readonly string $name;

    /**
     * @param Connect|\Redis|ClientInterface|\Closure $client where to connect: a Connect; a client of phpredis or Predis, as whose
     *                                                        copy a connection is made; or `fn (float $within)`, which makes one
     *                                                        of these, again whenever the connection has ended
     * @param float $lease        what a lock has left when the program dies or loses the server
     * @param float $hangTimeout  how long the server renews it after the last sign of life
     * @param float $queueGrace   how long a place in a queue is kept while the connection is away
     * @param float $replyTimeout how long a connect or a reply may take
     * @param float $clockMargin  so much before its end a lease is believed to have ended
     * @param ?float $auto        the old name of hangTimeout; so are claim, bound and allowance of the three after it
     */
    public function __construct(
        object $client,
        float $lease = 10.0,
        float $hangTimeout = 60.0,
        float $queueGrace = 5.0,
        float $replyTimeout = 3.0,
        float $clockMargin = 0.1,
        ?LoggerInterface $logger = null,
        ?Observer $observer = null,
        ?float $auto = null,
        ?float $claim = null,
        ?float $bound = null,
        ?float $allowance = null,
    ) {
        $this->settings = new Settings(
            $lease,
            Settings::renamed('auto', $auto, 'hangTimeout', $hangTimeout),
            Settings::renamed('claim', $claim, 'queueGrace', $queueGrace),
            Settings::renamed('bound', $bound, 'replyTimeout', $replyTimeout),
            Settings::renamed('allowance', $allowance, 'clockMargin', $clockMargin),
        );
        $this->core = new Core(Connect::like($client), $this->settings, $logger, $observer);
        $this->name = bin2hex(random_bytes(4));
    }

    /** @return array<string, mixed> what `var_dump` shows: no password */
    public function __debugInfo(): array
    {
        return ['settings' => $this->settings];
    }

    /**
     * Locks in a cluster: one connection to each node that serves one of them.
     *
     * @param list<string> $seeds   `host:port` of some nodes; of all, if one may be away
     * @param ?\Closure    $connect `fn (string $host, int $port, float $within)` makes a Connect, a Redis, or a Predis client of it
     */
    public static function cluster(array $seeds, ?\Closure $connect = null, mixed ...$settings): self
    {
        return new self(Connect::cluster($seeds, $connect), ...$settings);
    }

    /**
     * Takes the lock. LockTimeout if it was not granted in time; without a time-out it waits for ever.
     *
     * @param bool              $shared  with others that share it
     * @param ?int              $limit   with so many holders at most
     * @param bool              $ephemeral the hold ends as soon as the connection does
     * @param ?string           $owner   a name of 1 to 900 bytes: whoever asks for a lock by these Locks under the name that
     *                                   holds it has it, too, and it is given back with the last of these holds. Else each hold
     *                                   has a new one
     * @param int|float|null    $hangTimeout how long this one is renewed after the last sign of life
     * @param ?callable(Hold):void $onLost is called when a look (`keep()`, `lost()`, or a wait for another) finds it lost
     * @param int|float|null    $auto    the old name of hangTimeout
     * @param ?int              $permits the hold takes this many of `limit`, all at once; 1 unless set
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
        int|float|null $auto = null,
        ?int $permits = null,
    ): Hold {
        return $this->tryLock($key, $timeout, $shared, $limit, $ephemeral, $owner, $hangTimeout, $onLost, $auto, $permits)
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
        int|float|null $auto = null,
        ?int $permits = null,
    ): ?Hold {
        $timeout = Settings::seconds('timeout', $timeout);
        $hangTimeout = Settings::renamed('auto', $auto, 'hangTimeout', $hangTimeout ?? $this->settings->hangTimeout);
        Settings::positive('hangTimeout', $hangTimeout);
        if ($owner === '' || strlen($owner ?? '') > 900) {
            throw new \InvalidArgumentException('owner must have 1 to 900 bytes');
        }
        // Nobody elsewhere has the same name by accident: it is this process's, and these Locks'.
        $named = $owner === null ? null : Request::owner("$owner#$this->name");
        $owner = $named === null ? null : $named . $this->core->alias($key, $named);
        $request = new Request(
            $this->settings,
            $key,
            $owner,
            $shared,
            $limit,
            $permits,
            $ephemeral,
            $hangTimeout,
            name: $named,
        );

        return $this->held($request, $timeout, $onLost);
    }

    /** @internal for those whose owners have names of their own */
    public function held(Request $request, ?float $timeout, ?callable $onLost): ?Hold
    {
        try {
            $granted = $this->core->take($request, $timeout);

            return $granted === null ? null : new Hold($this->core, $granted, $onLost === null ? null : $onLost(...));
        } catch (\Throwable $error) { // of a signal's handler, too: nobody has what was granted
            $this->core->abandon($request);
            throw $error;
        }
    }

    /**
     * Runs the work while the lock is held, and gives back what it gives. InvalidArgumentException if that is a generator or a
     * promise, whose work would not be locked.
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
        Work::check($work);
        $hold = $this->lock($key, ...$options);
        try {
            $result = Work::done($work($hold));
        } catch (\Throwable $error) {
            try {
                $hold->release();
            } catch (DlockException) {
                // The first error is the one to tell.
            }
            throw $error;
        }
        $hold->release();

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
     * A sign of life for all that is held: call it now and then in long work, as often as you like. It is sent once a
     * second, or three times a lease, at most; with `now` at once.
     *
     * @return list<Hold> those that were found lost
     */
    public function keep(bool $now = false): array
    {
        return $this->core->keep($now);
    }

    /** Ends the connection. What is held is told lost, and lives on until its lease; every call is an error then. */
    public function close(): void
    {
        $this->core->close();
    }
}

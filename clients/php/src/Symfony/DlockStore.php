<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Symfony;

use Dlock\Clock;
use Dlock\Exception\Deadlock;
use Dlock\Exception\DlockException;
use Dlock\Exception\NotHeld;
use Dlock\Locks;
use Dlock\Request;
use Dlock\Settings;
use Symfony\Component\Lock\BlockingSharedLockStoreInterface;
use Symfony\Component\Lock\BlockingStoreInterface;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\Store\ExpiringStoreTrait;

/**
 * A store for symfony/lock: `new LockFactory(new DlockStore($locks))`.
 *
 * Waiting is in the server, in a queue: nobody polls and nobody is overtaken. A lock ends by its TTL, as in the other stores
 * for Redis, and its key can be handed to another process. With `watchdog` the key belongs to this process: the server renews the
 * lock while the connection lives, until the TTL after the last `refresh()` is over. Then a short outage of the connection can end
 * it, too, unless `refresh()` comes in time.
 */
final class DlockStore implements BlockingStoreInterface, BlockingSharedLockStoreInterface
{
    use ExpiringStoreTrait;

    /** @var \WeakMap<Key, \WeakMap<self, int>> by store, the token of what this process was granted */
    private static \WeakMap $tokens;

    /** @param float $initialTtl the seconds that a lock has until it gets its TTL */
    public function __construct(
        private readonly Locks $locks,
        private readonly float $initialTtl = 300.0,
        private readonly bool $watchdog = false,
    ) {
        Settings::positive('initialTtl', $initialTtl);
        self::$tokens ??= new \WeakMap();
    }

    public function save(Key $key): void
    {
        $this->take($key, false, 0.0);
    }

    public function waitAndSave(Key $key): void
    {
        $this->take($key, false, null);
    }

    public function saveRead(Key $key): void
    {
        $this->take($key, true, 0.0);
    }

    public function waitAndSaveRead(Key $key): void
    {
        $this->take($key, true, null);
    }

    public function putOffExpiration(Key $key, float $ttl): void
    {
        Settings::positive('ttl', $ttl);
        $owner = $this->owner($key) ?? throw new LockConflictedException('It is not held.');
        $key->reduceLifetime($ttl);
        try {
            $this->locks->core->servers->insist((string) $key, $this->request($key, $owner, false, $ttl)->renew(null));
        } catch (NotHeld $error) {
            throw new LockConflictedException($error->getMessage(), 0, $error);
        } catch (DlockException $error) {
            throw new LockAcquiringException($error->getMessage(), 0, $error);
        }
        $this->checkNotExpired($key);
    }

    public function delete(Key $key): void
    {
        $owner = $this->owner($key);
        if ($owner === null) {
            return;
        }
        try {
            // Under its token: this may be read late, and the key may hold the lock again by then.
            $token = self::$tokens[$key][$this] ?? $this->held($key, $owner)[0] ?? null;
            if ($token !== null) {
                unset($this->tokens($key)[$this]);
                $left = max(0.001, $key->getRemainingLifetime() ?? $this->initialTtl);
                $this->locks->core->release($this->request($key, $owner, false, $left), $token, Clock::now() + $left);
            }
        } catch (NotHeld) {
            // It has ended before.
        } catch (DlockException $error) {
            throw new LockReleasingException($error->getMessage(), 0, $error);
        }
    }

    public function exists(Key $key): bool
    {
        $owner = $this->owner($key);

        return $owner !== null && $this->held($key, $owner) !== null;
    }

    /** @return ?array<int, mixed> */
    private function held(Key $key, string $owner): ?array
    {
        return $this->locks->core->servers->insist((string) $key, ['DLOCK.HELD', (string) $key, $owner]);
    }

    private function take(Key $key, bool $shared, ?float $timeout): void
    {
        $owner = $this->owner($key);
        if ($timeout !== null) {
            $key->reduceLifetime($this->initialTtl);
        }
        try {
            if ($owner !== null && $shared) {
                $this->downgrade($key, $owner);
            }
            // What this key holds already is looked for, so that a promotion that fails leaves it as it was.
            $before = $owner === null ? null : $this->held($key, $owner);
            $isReused = true; // under an owner that may have been granted more, the client takes back nothing: delete() finds it
            if ($before === null) {
                $isKnown = isset(self::$tokens[$key]); // else it comes from another process, and may hold the lock at other stores
                unset($this->tokens($key)[$this]);
                // Late commands may come under an owner that has held it, so only a key that holds it at other stores keeps that.
                if ($owner === null || $isKnown && count($this->tokens($key)) === 0) {
                    [$owner, $isReused] = [Request::owner(), false];
                }
            }
            $request = $this->request($key, $owner, $shared, $this->initialTtl, $isReused);
            $granted = $this->locks->core->take($request, $timeout, static fn (int $token): int => $token);
        } catch (DlockException $error) {
            if (isset($before) && ($now = $this->held($key, $owner)) !== null && $now[0] !== $before[0]) {
                $this->tokens($key)[$this] = $now[0];
                $this->delete($key); // it was promoted all the same, and what it was before has ended
            }
            // Of two readers that want to become the writer the second is refused.
            throw $error instanceof Deadlock
                ? new LockConflictedException($error->getMessage(), 0, $error)
                : new LockAcquiringException($error->getMessage(), 0, $error);
        }
        if ($granted === null) {
            throw new LockConflictedException('It is taken.');
        }
        $key->setState(self::class, $request->owner);
        $this->tokens($key)[$this] = $granted;
        if ($this->watchdog) {
            $key->markUnserializable();
        }
        if ($timeout === null) { // the wait is no part of it
            $key->reduceLifetime($this->initialTtl);
        }
        $this->checkNotExpired($key);
    }

    private function downgrade(Key $key, string $owner): void
    {
        try {
            $this->locks->core->servers->insist((string) $key, ['DLOCK.DOWNGRADE', (string) $key, $owner, 'SHARED']);
        } catch (NotHeld) {
            // The caller takes it again.
        }
    }

    private function request(Key $key, string $owner, bool $shared, float $ttl, bool $reused = true): Request
    {
        $settings = $this->locks->core->settings;
        [$lease, $hangTimeout] = $this->watchdog ? [min($settings->lease, $ttl), $ttl] : [$ttl, null];

        return new Request(
            $settings,
            (string) $key,
            $owner,
            $shared,
            hangTimeout: $hangTimeout,
            lease: $lease,
            isReused: $reused,
        );
    }

    /** @return \WeakMap<self, int> */
    private function tokens(Key $key): \WeakMap
    {
        return self::$tokens[$key] ??= new \WeakMap();
    }

    /**
     * The name under which the key holds what it holds, of its own: with several stores (CombinedStore) the same at all.
     */
    private function owner(Key $key): ?string
    {
        return $key->hasState(self::class) ? $key->getState(self::class) : null;
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Laravel;

use Dlock\Clock;
use Dlock\Exception\NotHeld;
use Dlock\Locks;
use Dlock\Request;
use Dlock\Settings;
use Illuminate\Cache\Lock;
use Illuminate\Contracts\Cache\LockTimeoutException;

/**
 * Laravel's lock: `Cache::lock('stock', 10)`. `block()` waits in the server, in a queue. It ends by its seconds.
 *
 * Laravel's owner is a name that several processes may give. So each attempt asks under an owner of its own, `name#random`: the
 * server lets in one of them.
 */
class DlockLock extends Lock
{
    /** Laravel's locks of 0 seconds end when they are released. These also end after a day. */
    public const FOREVER = 86400;

    /** @var ?array{string, int, float} what this object was granted: the owner's name at the server, the token, and the end */
    private ?array $granted = null;

    /**
     * @param string          $name
     * @param int             $seconds
     * @param string|int|null $owner
     */
    public function __construct(private readonly Locks $locks, $name, $seconds, $owner = null)
    {
        parent::__construct($name, $seconds, $owner === null ? Request::owner() : (string) $owner);
    }

    /** @return bool */
    public function acquire()
    {
        return $this->take(0.0);
    }

    /**
     * @param int           $seconds  0 or less: one try
     * @param callable|null $callback
     *
     * @return mixed
     */
    public function block($seconds, $callback = null)
    {
        if (!$this->take(max(0.0, (float) $seconds))) {
            throw new LockTimeoutException();
        }
        if (!is_callable($callback)) {
            return true;
        }
        try {
            return $callback();
        } finally {
            $this->release();
        }
    }

    /** @return bool */
    public function release()
    {
        [$granted, $this->granted] = [$this->granted ?? $this->held(), null];
        try {
            if ($granted !== null) {
                [$owner, $token, $end] = $granted;
                $this->locks->core->release($this->request($owner), $token, $end);
            }

            return $granted !== null;
        } catch (NotHeld) {
            return false;
        }
    }

    /**
     * Gives it these seconds from now on, or as many as at first. 0 are those of a lock that ends when it is released.
     *
     * @param int|null $seconds
     *
     * @return bool
     */
    public function refresh($seconds = null)
    {
        $held = $this->held();
        try {
            if ($held !== null) {
                $request = $this->request($held[0], (float) ($seconds ?? $this->seconds));
                $end = Clock::now() + $request->lease;
                $this->locks->core->servers->insist($this->name, $request->renew($held[1]));
                if (($this->granted[1] ?? null) === $held[1]) {
                    $this->granted[2] = $end;
                }
            }

            return $held !== null;
        } catch (NotHeld) {
            return false;
        }
    }

    /** @return void */
    public function forceRelease()
    {
        $servers = $this->locks->core->servers;
        // DLOCK.FORCERELEASE is an operator's right; Laravel releases the locks of its own jobs so. A command that named the token would
        // hide the end from the owner's session.
        if ($held = $servers->insist($this->name, ['DLOCK.HELD', $this->name])) {
            try {
                $servers->insist($this->name, ['DLOCK.RELEASE', $this->name, $held[3], 'HOLDS', 0]);
            } catch (NotHeld) {
                // It has ended by itself.
            }
        }
    }

    /** @return string|null null: nobody holds it */
    protected function getCurrentOwner()
    {
        $held = $this->locks->core->servers->insist($this->name, ['DLOCK.HELD', $this->name]);

        return $held ? self::named($held[3]) : null;
    }

    /** @return ?array{string, int, float} the owner's name at the server, token and end, if this object's owner holds the lock */
    private function held(): ?array
    {
        $asked = Clock::now();
        $held = $this->locks->core->servers->insist($this->name, ['DLOCK.HELD', $this->name]);

        return $held && self::named($held[3]) === $this->owner ? [$held[3], $held[0], $asked + $held[2] / 1000] : null;
    }

    /** Returns Laravel's owner of one at the server. */
    private static function named(string $owner): string
    {
        return (string) preg_replace('/#[^#]*$/D', '', $owner);
    }

    private function request(string $owner, ?float $seconds = null): Request
    {
        $seconds ??= (float) $this->seconds;

        return new Request($this->locks->core->settings, $this->name, $owner, lease: $seconds > 0 ? $seconds : (float) self::FOREVER);
    }

    private function take(float $timeout): bool
    {
        $request = $this->request("$this->owner#" . bin2hex(random_bytes(11)));
        $granted = $this->locks->core->take(
            $request,
            $timeout,
            static fn (int $token, float $sent, float $lease): array => [$request->owner, $token, $sent + $lease],
        );
        $this->granted = $granted ?? $this->granted;

        return $granted !== null;
    }
}

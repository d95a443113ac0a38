<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Laravel;

use Dlock\Exception\NotHeld;
use Dlock\Locks;
use Dlock\Request;
use Dlock\Settings;
use Dlock\Work;
use Illuminate\Cache\Lock;
use Illuminate\Contracts\Cache\LockTimeoutException;

/** Laravel's lock: `Cache::lock('stock', 10)`. `block()` waits in the server, in a queue. It ends by its seconds. */
class DlockLock extends Lock
{
    /** Laravel's locks of 0 seconds end when they are released. These end after a day, too. */
    public const FOREVER = 86400;

    /** This owner may hold it already. */
    private bool $known;
    /** Of what this object was granted. */
    private ?int $token = null;

    /**
     * @param string          $name
     * @param int             $seconds
     * @param string|int|null $owner
     */
    public function __construct(private readonly Locks $locks, $name, $seconds, $owner = null)
    {
        parent::__construct($name, $seconds, $owner === null ? Request::owner() : (string) $owner);
        $this->known = $owner !== null;
    }

    /** @return bool */
    public function acquire()
    {
        return $this->take(0.0);
    }

    /**
     * @param callable|null $callback
     *
     * @return mixed
     */
    public function get($callback = null)
    {
        is_callable($callback) && Work::check($callback);

        return $this->acquire() ? $this->during($callback) : false;
    }

    /**
     * @param int           $seconds
     * @param callable|null $callback
     *
     * @return mixed
     */
    public function block($seconds, $callback = null)
    {
        is_callable($callback) && Work::check($callback);
        if ($this->isOurs()) { // Laravel's owners do not re-enter: it waits for itself
            return parent::block($seconds, $callback);
        }
        if (!$this->take((float) $seconds)) {
            throw new LockTimeoutException();
        }

        return $this->during($callback);
    }

    /** Returns what the callback returns, and gives the lock back; without one the lock is kept. */
    private function during(mixed $callback): mixed
    {
        if (!is_callable($callback)) {
            return true;
        }
        try {
            return Work::done($callback());
        } finally {
            $this->release();
        }
    }

    /** @return bool */
    public function release()
    {
        try {
            $token = $this->token ?? $this->locks->core->insist($this->name, ['DLOCK.HELD', $this->name, $this->owner])[0] ?? null;
            $this->token = null;
            if ($token === null) {
                return false;
            }
            // Under its token: this may be read late, and the owner may hold the lock again by then.
            $words = ['DLOCK.RELEASE', $this->name, $this->owner, 'HOLDS', 0, 'TOKEN', $token];
            $this->locks->core->insist($this->name, $words, true);

            return true;
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
        $lease = Settings::ms(self::lease((float) ($seconds ?? $this->seconds)));
        try {
            $this->locks->core->insist($this->name, ['DLOCK.RENEW', $this->name, $this->owner, $lease]);

            return true;
        } catch (NotHeld) {
            return false;
        }
    }

    /** @return void */
    public function forceRelease()
    {
        $this->locks->core->insist($this->name, ['DLOCK.FORCERELEASE', $this->name]);
    }

    /** @return string|null null: nobody holds it */
    protected function getCurrentOwner()
    {
        return $this->locks->core->insist($this->name, ['DLOCK.HELD', $this->name])[3] ?? null;
    }

    private static function lease(float $seconds): float
    {
        return $seconds > 0 ? $seconds : (float) self::FOREVER;
    }

    private function isOurs(): bool
    {
        return $this->known
            && $this->locks->core->insist($this->name, ['DLOCK.HELD', $this->name, $this->owner]);
    }

    private function take(float $timeout): bool
    {
        if ($this->isOurs()) {
            return false;
        }
        $settings = $this->locks->core->settings;
        $lease = self::lease((float) $this->seconds);
        $request = new Request($settings, $this->name, $this->owner, lease: $lease, tracked: false, reused: $this->known);
        try {
            $granted = $this->locks->core->take($request, $timeout);
        } finally {
            if (!isset($granted) && !$this->known) { // what is left may be told late, and nobody knows this owner yet
                $this->owner = Request::owner();
            }
        }
        $this->token = $granted?->token;
        $this->known = $this->known || $granted !== null;

        return $granted !== null;
    }
}

<?php

// Asks of this package's lock what Laravel 13 asks. DLOCK_LARAVEL is the autoload file of a project with that version
// (`composer require illuminate/cache:^13 illuminate/redis:^13`). Without one the classes below stand in for it: a process of its
// own, since the tests have Debian's older ones. They have the methods of version 13, with its meanings.

declare(strict_types=1);

namespace Illuminate\Contracts\Cache {
    if (getenv('DLOCK_LARAVEL')) {
        require_once getenv('DLOCK_LARAVEL');
    } else {
        class LockTimeoutException extends \Exception
        {
        }
        interface Lock
        {
            public function get($callback = null);

            public function block($seconds, $callback = null);

            public function release();

            public function owner();

            public function forceRelease();
        }
        interface LockProvider
        {
            public function lock($name, $seconds = 0, $owner = null);

            public function restoreLock($name, $owner);
        }
        interface CanFlushLocks
        {
            public function flushLocks(): bool;

            public function hasSeparateLockStore(): bool;
        }
    }
}

namespace Illuminate\Cache {
    use Illuminate\Contracts\Cache\CanFlushLocks;
    use Illuminate\Contracts\Cache\Lock as Contract;
    use Illuminate\Contracts\Cache\LockProvider;

    if (!getenv('DLOCK_LARAVEL')) {
        abstract class Lock implements Contract
        {
            protected $name;
            protected $seconds;
            protected $owner;
            protected $sleepMilliseconds = 250;

            public function __construct($name, $seconds, $owner = null)
            {
                [$this->name, $this->seconds, $this->owner] = [$name, $seconds, $owner ?? bin2hex(random_bytes(8))];
            }

            abstract public function acquire();

            abstract public function release();

            abstract protected function getCurrentOwner();

            public function get($callback = null)
            {
                return $this->acquire() ? ($callback === null ?: $this->during($callback)) : false;
            }

            public function block($seconds, $callback = null)
            {
                throw new \LogicException('it polls: the package has its own');
            }

            public function refresh($seconds = null)
            {
                throw new \RuntimeException('a store that cannot says so');
            }

            public function owner()
            {
                return $this->owner;
            }

            public function isLocked(): bool
            {
                return $this->getCurrentOwner() !== null;
            }

            public function isOwnedByCurrentProcess()
            {
                return $this->isOwnedBy($this->owner);
            }

            public function isOwnedBy($owner)
            {
                return $this->getCurrentOwner() === $owner;
            }

            public function betweenBlockedAttemptsSleepFor($milliseconds)
            {
                $this->sleepMilliseconds = $milliseconds;

                return $this;
            }

            private function during(callable $work): mixed
            {
                try {
                    return $work();
                } finally {
                    $this->release();
                }
            }
        }
        class RedisStore implements CanFlushLocks, LockProvider
        {
            protected $lockConnection;

            public function __construct(
                protected $redis,
                protected $prefix = '',
                protected $connection = 'default',
                protected $serializableClasses = null,
            ) {
            }

            public function lock($name, $seconds = 0, $owner = null)
            {
                throw new \LogicException('the package has its own');
            }

            public function restoreLock($name, $owner)
            {
                return $this->lock($name, 0, $owner);
            }

            public function flushLocks(): bool
            {
                return false;
            }

            public function hasSeparateLockStore(): bool
            {
                return $this->lockConnection !== $this->connection;
            }

            public function getPrefix()
            {
                return $this->prefix; // as it was given: before version 13 it has a colon behind it
            }

            public function lockConnection()
            {
                return $this->redis->connection($this->lockConnection ?? $this->connection);
            }
        }
    }
}

namespace {
    use Dlock\Laravel\DlockStore;
    use Dlock\Tests\Kinds;

    require __DIR__ . '/bootstrap.php';

    $store = (new ReflectionClass(DlockStore::class))->newInstanceWithoutConstructor(); // it asks for an application's connections
    (function (): void {
        $this->prefix = 'cache';
    })->call($store);
    $store->useLocks(Kinds::locks());
    $name = $argv[1];
    $lock = $store->lock($name, 10);
    $seen = ['free' => $lock->isLocked(), 'not ours' => $lock->isOwnedByCurrentProcess()];
    $seen += ['taken' => $lock->get(), 'locked' => $lock->isLocked(), 'ours' => $lock->isOwnedByCurrentProcess()];
    $other = $store->lock($name, 10);
    $seen += ['seen by others' => $other->isLocked(), 'not theirs' => $other->isOwnedByCurrentProcess(), 'refused' => $other->get()];
    $seen += ['refreshed' => $lock->refresh(60), 'for ever' => $lock->refresh(0), 'not by others' => $other->refresh(60)];
    $seen += ['released' => $lock->release(), 'free again' => $lock->isLocked()];
    $seen += ['a callback' => $lock->get(fn () => 'done'), 'a wait' => $lock->block(1, fn () => 'done')];
    $numbered = $store->lock($name, 10, 7);
    $seen += ['a number takes it' => $numbered->get(), 'is seen' => $numbered->isOwnedByCurrentProcess()];
    $seen += ['and gives it back' => $store->restoreLock($name, 7)->release(), 'in the end' => $lock->isLocked()];
    echo json_encode($seen);
}

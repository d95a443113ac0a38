<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Connect;
use Dlock\ErrorReply;
use Dlock\Exception\LockTimeout;
use Dlock\Exception\Unanswered;
use Dlock\FakeLocks;
use Dlock\Laravel\DlockLock;
use Dlock\Laravel\DlockServiceProvider;
use Dlock\Laravel\DlockStore;
use Dlock\Locks;
use Illuminate\Cache\CacheManager;
use Illuminate\Cache\Repository;
use Illuminate\Config\Repository as Config;
use Illuminate\Container\Container;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Illuminate\Redis\RedisManager;
use PHPUnit\Framework\TestCase;

/**
 * Laravel's cache with its own classes, and the driver `dlock`. DLOCK_LARAVEL names the autoload file of another Laravel than Debian's;
 * what version 13 asks of a lock is in Laravel13Test as well.
 */
final class LaravelTest extends TestCase
{
    private Server $server;
    private CacheManager $cache;

    protected function setUp(): void
    {
        error_reporting(E_ALL & ~E_DEPRECATED); // the framework sets its own
        $laravel = getenv('DLOCK_LARAVEL') ?: '/usr/share/php/Illuminate/autoload.php';
        if (!is_file($laravel)) {
            self::markTestSkipped('there is no Laravel');
        }
        require_once $laravel;
        $this->with('phpredis');
    }

    /** @param array<string, mixed> $more settings of Redis */
    private function with(string $library, ?string $address = null, array $more = []): Repository
    {
        $this->server = new Server();
        [$host, $port] = explode(':', $address ?? Stage::addresses('DLOCK_SINGLE')[0]);
        $connection = ['host' => $host, 'port' => (int) $port, 'database' => 0];
        $application = new class () extends Container {
            public function runningInConsole(): bool
            {
                return true;
            }
        };
        $redis = ['client' => $library, 'options' => ['prefix' => 'application:'], 'default' => $connection];
        $redis = array_replace_recursive($redis, $more);
        $application->instance('config', new Config(['database' => ['redis' => $redis], 'cache' => [
            'default' => 'locks',
            'prefix' => 'cache',
            'stores' => ['locks' => ['driver' => 'dlock', 'connection' => 'default']],
        ]]));
        $application->singleton('redis', static fn ($application) => new RedisManager($application, $library, $redis));
        $application->singleton('cache', static fn ($application) => new CacheManager($application));
        (new DlockServiceProvider($application))->register();
        $this->cache = $application['cache'];

        return $this->cache->store();
    }

    /** Laravel's owners of those that hold the lock. @return list<string> */
    private function owners(?string $key = null): array
    {
        return preg_replace('/#[^#]*$/D', '', $this->server->owners($key ?? $this->key()));
    }

    private function key(): string
    {
        return "application:{$this->cache->store()->getPrefix()}{$this->server->key}"; // before 13 the prefix has a colon behind it
    }

    /** @return list<array{string}> */
    public static function libraries(): array
    {
        return [['phpredis'], ['predis']];
    }

    /** @dataProvider libraries */
    public function testTakenAndGivenBack(string $library): void
    {
        $cache = $this->with($library);
        self::assertInstanceOf(DlockStore::class, $cache->getStore());
        $cache->put('value', 41, 10);
        self::assertEquals(41, $cache->get('value'));
        $lock = $cache->lock($this->server->key, 10);
        self::assertInstanceOf(DlockLock::class, $lock);
        self::assertTrue($lock->get());
        self::assertFalse($lock->get(), 'an owner does not re-enter');
        self::assertFalse($cache->lock($this->server->key, 10)->get());
        self::assertSame([$lock->owner()], $this->owners());
        self::assertLessThanOrEqual(10_000, $this->server->ask('DLOCK.HELD', $this->key())[2]);
        self::assertTrue($lock->release());
        self::assertFalse($lock->release());
        $this->server->awaitGone($this->key());
        self::assertTrue($lock->get(), 'it can be taken again');
        self::assertTrue($lock->release());
    }

    public function testACallback(): void
    {
        $lock = $this->cache->store()->lock($this->server->key, 10);
        self::assertSame('done', $lock->get(fn () => $this->owners() === [$lock->owner()] ? 'done' : ''));
        self::assertSame('done', $lock->block(10, static fn () => 'done'));
        try {
            $lock->block(10, static fn () => throw new \LogicException('no'));
            self::fail('the error is told');
        } catch (\LogicException) {
            $this->server->awaitGone($this->key());
        }
    }

    /** Two processes may give one owner: they are two for the server, which lets in one of them. */
    public function testTwoOfOneOwner(): void
    {
        $this->server->hold('other', $this->key());
        $children = [];
        for ($i = 1; $i <= 2; ++$i) {
            $children[] = $child = pcntl_fork();
            if ($child === 0) {
                (new DlockLock(Kinds::locks(), $this->key(), 60, 'nightly'))->block(2 * Stage::patience());
                posix_kill((int) getmypid(), SIGKILL); // or it would also run the other tests
            }
        }
        Stage::until(fn () => count($this->server->queue($this->key())) === 2, 'both wait');
        $this->server->handOver('other', $this->key());
        Stage::until(fn () => $this->owners() === ['nightly'], 'one of them has it');
        $lock = $this->cache->store()->lock($this->server->key, 60, 'nightly');
        self::assertFalse($lock->get());
        self::assertTrue($lock->release(), 'it has the owner that holds it');
        Stage::until(fn () => $this->owners() === ['nightly'], 'the other one has it');
        array_map(static fn (int $child) => pcntl_waitpid($child, $status), $children);
    }

    /** What is released while no server answers is released when one does. */
    public function testAReleaseThatIsNotAnswered(): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        $locks = Kinds::locks(address: $path, replyTimeout: 0.5);
        $lock = new DlockLock($locks, $this->server->key, 600);
        self::assertTrue($lock->get());
        Stage::control("silence $path");
        try {
            $lock->release();
            self::fail('nobody answers');
        } catch (Unanswered) {
            Stage::control("cut $path");
            Stage::control("sound $path");
        }
        Stage::until(function () use ($locks): bool {
            $locks->keep();

            return $this->server->owners() === [];
        }, 'it is released');
        $this->addToAssertionCount(1);
    }

    /** @dataProvider libraries */
    public function testItBlocksInTheServer(string $library): void
    {
        $cache = $this->with($library);
        $this->server->hold('other', $this->key());
        $child = pcntl_fork();
        if ($child === 0) {
            $server = new Server();
            Stage::until(fn () => count($server->queue($this->key())) === 1, 'somebody waits');
            $server->handOver('other', $this->key());
            pcntl_exec('/bin/true');
        }
        $lock = $cache->lock($this->server->key, 10);
        self::assertTrue($lock->block(10));
        pcntl_waitpid($child, $status);
        self::assertSame([$lock->owner()], $this->owners());
        $held = $this->server->ask('DLOCK.HELD', $this->key())[2];
        self::assertGreaterThan(3000, $held, 'it has all its seconds, and not only the first lease');
        try {
            Stage::timesOut(function () use ($cache, &$began): void {
                $began = microtime(true);
                $cache->lock($this->server->key, 10)->block(1);
            });
            self::fail('it is taken');
        } catch (LockTimeoutException) {
            self::assertLessThan(2 + Stage::late(), microtime(true) - $began);
        }
        // Sooner than its claim of five seconds would end.
        Stage::until(fn () => $this->server->queue($this->key()) === [], 'its place is left', 3.0);
        $lock->release();
    }

    /**
     * The connection's own time-outs, which may be longer, are for other commands.
     *
     * @dataProvider libraries
     */
    public function testAHungServerEndsAWaitInTime(string $library): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        Stage::control("silence $path");
        $long = ['timeout' => 60.0, 'read_timeout' => 60.0, 'read_write_timeout' => 60.0];
        $cache = $this->with($library, $path, ['options' => $long, 'default' => $long]);
        $began = microtime(true);
        try {
            $cache->lock($this->server->key, 10)->block(2);
            self::fail('nobody answers');
        } catch (LockTimeout) {
            self::assertLessThan(6 + Stage::late(), microtime(true) - $began);
        }
    }

    /**
     * Nothing else may connect for the first lock, with other errors.
     *
     * @dataProvider libraries
     */
    public function testTheFirstLockOutlastsARefusedConnection(string $library): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        Stage::control("close $path");
        $lock = $this->with($library, $path)->lock($this->server->key, 10);
        try {
            $lock->get();
            self::fail('nobody is there');
        } catch (Unanswered) {
            // A try waits for nobody.
        }
        $began = microtime(true);
        try {
            $lock->block(1);
            self::fail('nobody is there');
        } catch (LockTimeout $error) {
            self::assertInstanceOf(Unanswered::class, $error->getPrevious());
            self::assertGreaterThan(0.99, microtime(true) - $began);
        }
    }

    /**
     * Which of several prefixes counts depends on Laravel's version.
     *
     * @dataProvider libraries
     */
    public function testThePrefixIsLaravels(string $library): void
    {
        $cache = $this->with($library, null, ['default' => ['prefix' => 'own:']]);
        $cache->put($this->server->key, 41, 10);
        $lock = $cache->lock("{$this->server->key}:lock", 10);
        self::assertTrue($lock->get());
        $keys = $this->server->ask('KEYS', "*{$this->server->key}*");
        sort($keys);
        self::assertSame([$keys[0], "$keys[0]:lock"], $keys);
        self::assertTrue($lock->release());
    }

    public function testWithoutAServer(): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        Stage::control("close $path");
        $cache = $this->with('phpredis', $path);
        $cache->useLocks(new FakeLocks());
        $lock = $cache->lock('stock', 10);
        self::assertTrue($lock->get());
        self::assertFalse($cache->lock('stock', 10)->get());
        self::assertTrue($lock->release());
    }

    public function testANegativeTimeIsOneTry(): void
    {
        $asked = [];
        $locks = new Locks(Connect::fake(new Scripted(static function (array $words) use (&$asked): mixed {
            $asked[] = $words[0];

            return null;
        })));
        try {
            (new DlockLock($locks, $this->server->key, 5))->block(-1);
            self::fail('it is taken');
        } catch (LockTimeoutException) {
            self::assertSame(['DLOCK.ACQUIRE'], array_unique($asked));
        }
    }

    public function testItExpires(): void
    {
        $lock = $this->cache->store()->lock($this->server->key, 10);
        self::assertTrue($lock->get());
        self::assertTrue($lock->refresh(2));
        $this->server->awaitGone($this->key());
        self::assertFalse($lock->release());
        self::assertFalse($lock->refresh());
    }

    /** The first RELEASE is not answered, and the next one is NOTHELD. */
    public function testAReleaseHidesNoEndThatCameBefore(): void
    {
        $releases = 0;
        $locks = new Locks(Connect::fake(new Scripted(static function (array $words) use (&$releases): mixed {
            return match ($words[0]) {
                'DLOCK.RELEASE' => ++$releases % 2 === 1 ? new Unanswered('silence') : ErrorReply::of('NOTHELD it has ended'),
                'DLOCK.HELD' => [1, 1, 1000, 'me#1'],
                default => [1, 1],
            };
        })));
        $lock = new DlockLock($locks, $this->server->key, 60, 'me');
        self::assertTrue($lock->get());
        self::assertTrue($lock->release());
        self::assertTrue($lock->get());
        self::assertTrue($lock->refresh(1));
        $other = new DlockLock($locks, $this->server->key, 1, 'me');
        self::assertTrue($other->get());
        usleep(1_000_000);
        self::assertFalse($lock->release());
        self::assertFalse($other->release());
    }

    public function testItIsRestored(): void
    {
        $first = $this->cache->store()->lock($this->server->key);
        self::assertTrue($first->get());
        self::assertGreaterThan(80_000_000, $this->server->ask('DLOCK.HELD', $this->key())[2], 'without seconds: for a day');
        $second = $this->cache->store()->restoreLock($this->server->key, $first->owner());
        self::assertFalse($second->get());
        self::assertTrue($second->release());
        $this->server->awaitGone($this->key());
    }

    /** From Laravel 13 on `isLocked()` uses the current owner, which a free lock does not have. */
    public function testAFreeLockHasNoOwner(): void
    {
        $lock = $this->cache->store()->lock($this->server->key, 10);
        $current = fn (): mixed => (fn () => $this->getCurrentOwner())->call($lock);
        self::assertNull($current());
        self::assertTrue($lock->get());
        self::assertSame($lock->owner(), $current());
        self::assertTrue($lock->release());
        self::assertNull($current());
    }

    public function testAnOwnerThatIsANumber(): void
    {
        $lock = $this->cache->store()->lock($this->server->key, 10, 42);
        self::assertSame('42', $lock->owner());
        self::assertTrue($lock->get());
        self::assertTrue($this->cache->store()->restoreLock($this->server->key, 42)->release());
        $this->server->awaitGone($this->key());
    }

    public function testItIsReleasedByForce(): void
    {
        $lock = $this->cache->store()->lock($this->server->key, 10);
        self::assertTrue($lock->get());
        $this->cache->store()->lock($this->server->key)->forceRelease();
        self::assertFalse($lock->release());
        self::assertTrue($this->cache->store()->lock($this->server->key, 10)->get());
    }

    /** A client of another language, which holds it in a session, learns of it at once. */
    public function testAReleaseByForceIsARowOfTheOwnersSession(): void
    {
        $key = $this->server->key;
        $this->server->ask('DLOCK.SESSION', $key, 'other', '60000');
        $this->server->ask('DLOCK.ACQUIRE', $key, 'other/1', '60000', 'IN', 'other');
        (new DlockLock(Kinds::locks(), $key, 0))->forceRelease();
        $told = json_encode($this->server->ask('DLOCK.SESSION', $key, 'other', '60000'), JSON_THROW_ON_ERROR);
        self::assertStringContainsString('"released"', $told);
    }

    /** Laravel releases the locks of its own jobs so. */
    public function testAProgramReleasesByForceWithoutAnOperatorsRights(): void
    {
        $name = trim($this->server->key, '{}');
        $this->server->ask('ACL', 'SETUSER', $name, 'on', '>word', '~*', '&*', '+@all', '-dlock.forcerelease');
        $lock = fn (int $seconds) => new DlockLock(Kinds::locks(auth: [$name, 'word']), $this->server->key, $seconds);
        self::assertTrue($lock(600)->get());
        $lock(0)->forceRelease();
        $lock(0)->forceRelease(); // nobody holds it
        self::assertTrue($lock(1)->get());
        $this->server->ask('ACL', 'DELUSER', $name);
    }

    /** The reply is lost, and the second try says that it is not held: the first one has given it back. */
    public function testAReleaseWhoseReplyIsLost(): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        $lock = new DlockLock(Kinds::locks(address: $path), $this->server->key, 600);
        self::assertTrue($lock->get());
        Stage::control("delay $path 1000");
        $child = pcntl_fork();
        if ($child === 0) {
            $redis = Stage::connect(Stage::addresses('DLOCK_SINGLE')[0]);
            Stage::until(fn () => !$redis->rawCommand('DLOCK.HELD', $this->server->key), 'it is given back');
            Stage::control("delay $path 0");
            Stage::control("cut $path");
            posix_kill((int) getmypid(), SIGKILL); // or it would also run the other tests
        }
        self::assertTrue($lock->release());
        pcntl_waitpid($child, $status);
    }

    public function testInACluster(): void
    {
        $store = $this->cache->store()->getStore();
        self::assertInstanceOf(DlockStore::class, $store);
        $store->useLocks(Kinds::locks('cluster'));
        $lock = $store->lock($this->server->key, 10);
        self::assertTrue($lock->get());
        self::assertFalse($store->lock($this->server->key, 10)->get());
        self::assertStringStartsWith("{$lock->owner()}#", (new Server('cluster'))->owners($store->getPrefix() . $this->server->key)[0]);
        self::assertTrue($lock->release());
    }
}

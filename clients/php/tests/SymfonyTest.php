<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Connect;
use Dlock\Exception\Unanswered;
use Dlock\FakeLocks;
use Dlock\FakeServer;
use Dlock\Locks;
use Dlock\Symfony\DlockStore;
use PHPUnit\Framework\TestCase;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockExpiredException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Exception\UnserializableKeyException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\CombinedStore;
use Symfony\Component\Lock\Strategy\UnanimousStrategy;

/** What the component expects of a store: alone, expiring, blocking, shared; and the component on top of it. */
final class SymfonyTest extends TestCase
{
    private Server $server;
    private DlockStore $store;

    protected function setUp(): void
    {
        $this->on('single', 'phpredis');
    }

    private function on(string $place, string $library, bool $watchdog = false, float $ttl = 30.0): void
    {
        $this->server = new Server($place);
        $this->store = new DlockStore(Kinds::locks($place, $library), $ttl, $watchdog);
    }

    private function key(): Key
    {
        return new Key($this->server->key);
    }

    /** @return array<string, array{string, string, bool}> */
    public static function stores(): array
    {
        return [
            'phpredis' => ['single', 'phpredis', false],
            'Predis' => ['single', 'predis', false],
            'cluster' => ['cluster', 'phpredis', false],
            'watchdog' => ['single', 'phpredis', true],
        ];
    }

    public function testWithoutAServer(): void
    {
        $factory = new LockFactory(new DlockStore(new FakeLocks()));
        $lock = $factory->createLock('stock');
        self::assertTrue($lock->acquire(true));
        self::assertFalse($factory->createLock('stock')->acquire());
        $lock->release();
        self::assertFalse($lock->isAcquired());
    }

    /** @dataProvider stores */
    public function testTwoKeysOfOneResource(string $place, string $library, bool $watchdog): void
    {
        $this->on($place, $library, $watchdog);
        [$one, $two] = [$this->key(), $this->key()];
        self::assertFalse($this->store->exists($one));
        $this->store->save($one);
        $this->store->save($one); // this key already holds it
        self::assertSame([true, false], [$this->store->exists($one), $this->store->exists($two)]);
        try {
            $this->store->save($two);
            self::fail('it is taken');
        } catch (LockConflictedException) {
            self::assertSame([true, false], [$this->store->exists($one), $this->store->exists($two)]);
        }
        $this->store->delete($two); // this key has nothing to release
        self::assertTrue($this->store->exists($one));
        $this->store->delete($one);
        self::assertFalse($this->store->exists($one));
        $this->server->awaitGone();
        $this->store->save($two);
        self::assertSame([false, true], [$this->store->exists($one), $this->store->exists($two)]);
        $this->store->delete($two);
    }

    /** @dataProvider stores */
    public function testTwoResources(string $place, string $library, bool $watchdog): void
    {
        $this->on($place, $library, $watchdog);
        [$one, $two] = [$this->key(), new Key($this->server->key . '2')];
        $this->store->save($one);
        $this->store->save($two);
        $this->store->delete($one);
        self::assertSame([false, true], [$this->store->exists($one), $this->store->exists($two)]);
        $this->store->delete($two);
    }

    public function testItExpires(): void
    {
        $key = $this->key();
        $this->store->save($key);
        $this->store->putOffExpiration($key, 4.0);
        self::assertGreaterThan(0.0, $key->getRemainingLifetime());
        self::assertLessThanOrEqual(4.0, $key->getRemainingLifetime());
        Stage::until(fn () => !$this->store->exists($key), 'its time is over');
        $this->store->save($this->key());
        $this->expectException(LockConflictedException::class);
        $this->store->putOffExpiration($key, 5);
    }

    public function testItIsPutOff(): void
    {
        $key = $this->key();
        $this->store->save($key);
        $this->store->putOffExpiration($key, 10.0);
        $this->store->putOffExpiration($key, 60.0);
        $held = $this->server->ask('DLOCK.HELD', $this->server->key);
        self::assertEqualsWithDelta(60_000, $held[2], 1000 * (1 + Stage::late()));
        $this->store->delete($key);
    }

    public function testTheFirstTtlIsTheStores(): void
    {
        $this->on('single', 'phpredis', false, 7.0);
        $key = $this->key();
        $this->store->save($key);
        self::assertLessThanOrEqual(7.0, $key->getRemainingLifetime());
        self::assertLessThanOrEqual(7000, $this->server->ask('DLOCK.HELD', $this->server->key)[2]);
        $this->expectException(\InvalidArgumentException::class);
        new DlockStore(Kinds::locks(), 0.0);
    }

    public function testAnExpiredKeyIsToldAndGivenBack(): void
    {
        $key = $this->key();
        $this->store->save($key);
        $key->reduceLifetime(-1);
        try {
            $this->store->putOffExpiration($key, 5);
            self::fail('it has expired');
        } catch (LockExpiredException $error) {
            self::assertStringContainsString($this->server->key, $error->getMessage());
            $this->server->awaitGone();
        }
    }

    /** @dataProvider stores */
    public function testItWaitsInTheServer(string $place, string $library, bool $watchdog): void
    {
        $this->on($place, $library, $watchdog);
        $this->server->hold();
        $key = $this->key();
        $child = $this->handsOver();
        $this->store->waitAndSave($key);
        pcntl_waitpid($child, $status);
        self::assertTrue($this->store->exists($key));
        self::assertGreaterThan(20.0, $key->getRemainingLifetime());
        $this->store->delete($key);
        $this->server->awaitGone();
    }

    public function testAReaderWaitsInTheServer(): void
    {
        $this->server->hold();
        $key = $this->key();
        $child = $this->handsOver();
        $this->store->waitAndSaveRead($key);
        pcntl_waitpid($child, $status);
        $this->store->saveRead($other = $this->key());
        self::assertSame([true, true], [$this->store->exists($key), $this->store->exists($other)]);
        $this->store->delete($key);
        $this->store->delete($other);
    }

    /** @dataProvider stores */
    public function testReadersAndAWriter(string $place, string $library, bool $watchdog): void
    {
        $this->on($place, $library, $watchdog);
        [$one, $two, $writer] = [$this->key(), $this->key(), $this->key()];
        $this->store->saveRead($one);
        $this->store->saveRead($two);
        self::assertSame([true, true], [$this->store->exists($one), $this->store->exists($two)]);
        $this->assertConflict(fn () => $this->store->save($writer));
        $this->store->delete($one);
        $this->assertConflict(fn () => $this->store->save($writer));
        $this->store->delete($two);
        $this->store->save($writer);
        $this->assertConflict(fn () => $this->store->saveRead($one));
        $this->store->delete($writer);
        $this->server->awaitGone();
    }

    /** @dataProvider stores */
    public function testPromotionAndDemotion(string $place, string $library, bool $watchdog): void
    {
        $this->on($place, $library, $watchdog);
        [$one, $two] = [$this->key(), $this->key()];
        $this->store->saveRead($one);
        $this->store->saveRead($two);
        $this->assertConflict(fn () => $this->store->save($one));
        self::assertTrue($this->store->exists($one), 'it is a reader as before');
        $this->store->delete($two);
        $this->store->save($one);
        self::assertTrue($this->store->exists($one));
        $this->assertConflict(fn () => $this->store->saveRead($two));
        $this->store->saveRead($one);
        self::assertTrue($this->store->exists($one));
        $this->store->saveRead($two);
        $this->store->delete($one);
        $this->store->delete($two);
        $this->server->awaitGone();
    }

    public function testTwoReadersCannotBothWaitToBeTheWriter(): void
    {
        [$one, $two] = [$this->key(), $this->key()];
        $this->store->saveRead($one);
        $this->store->saveRead($two);
        $child = $this->child(fn () => $this->fresh()->waitAndSave($one));
        $this->server->awaitQueued(1);
        $this->assertConflict(fn () => $this->store->waitAndSave($two));
        $this->store->delete($two);
        pcntl_waitpid($child, $status);
        self::assertSame(0, pcntl_wexitstatus($status));
    }

    public function testAKeyGoesToAnotherProcess(): void
    {
        $key = $this->key();
        $this->store->save($key);
        $other = unserialize(serialize($key));
        $store = new DlockStore(Kinds::locks());
        self::assertTrue($store->exists($other));
        $store->putOffExpiration($other, 10);
        $store->delete($other);
        self::assertFalse($this->store->exists($key));
    }

    public function testAWatchdogsKeyDoesNot(): void
    {
        $this->on('single', 'phpredis', true);
        $key = $this->key();
        $this->store->save($key);
        $this->expectException(UnserializableKeyException::class);
        serialize($key);
    }

    /** The TTL is thirty seconds, and the lock is gone with its process all the same. */
    public function testAWatchdogLivesAsLongAsTheProcess(): void
    {
        $this->on('single', 'phpredis', true);
        $child = $this->child(function (): void {
            $this->store = new DlockStore(Kinds::locks(), 30.0, true);
            $this->store->save($this->key());
            while (true) {
                sleep(60);
            }
        });
        Stage::until(fn () => ($this->server->info()['holders'][0]['held-ms'] ?? 0) > 9000, 'a lease has passed');
        posix_kill($child, SIGKILL);
        pcntl_waitpid($child, $status);
        $began = microtime(true);
        $this->server->awaitGone();
        self::assertLessThan(7 + Stage::late(), microtime(true) - $began);
    }

    public function testTheComponent(): void
    {
        $factory = new LockFactory($this->store);
        $lock = $factory->createLock($this->server->key, 20);
        self::assertTrue($lock->acquire());
        self::assertTrue($lock->isAcquired());
        self::assertFalse($factory->createLock($this->server->key, 20)->acquire());
        self::assertFalse($factory->createLock($this->server->key, 20)->acquireRead());
        self::assertLessThanOrEqual(20_000, $this->server->ask('DLOCK.HELD', $this->server->key)[2]);
        $lock->refresh(40);
        self::assertGreaterThan(20.0, $lock->getRemainingLifetime());
        self::assertFalse($lock->isExpired());
        $lock->release();
        self::assertFalse($lock->isAcquired());
        $child = $this->child(fn () => (new LockFactory($this->fresh()))->createLock($this->server->key)->acquire(true) || exit(1));
        pcntl_waitpid($child, $status);
        $again = $factory->createLock($this->server->key);
        self::assertTrue($again->acquire(true));
        unset($again); // released
        $this->server->awaitGone();
        $reader = $factory->createLock($this->server->key);
        self::assertTrue($reader->acquireRead(true));
        self::assertTrue($reader->acquire());
        $reader->release();
    }

    public function testTheComponentSaysWhatTheServerSays(): void
    {
        $store = new DlockStore(new Locks(\Dlock\Connect::url('redis://' . Stage::addresses('DLOCK_BARE')[0])));
        try {
            (new LockFactory($store))->createLock('x')->acquire(true);
            self::fail('it is not dlock');
        } catch (LockAcquiringException $error) {
            self::assertStringContainsString('unknown command', (string) $error->getPrevious()?->getMessage());
        }
    }

    /** Symfony's own lock over several servers. */
    public function testCombined(): void
    {
        $stores = array_map(
            static fn (string $address) => new DlockStore(Kinds::locks(address: $address)),
            Stage::addresses('DLOCK_MASTERS'),
        );
        $factory = new LockFactory(new CombinedStore($stores, new UnanimousStrategy()));
        $lock = $factory->createLock($this->server->key, 20);
        self::assertTrue($lock->acquire());
        self::assertFalse($factory->createLock($this->server->key, 20)->acquire());
        $before = $this->ownerAtAll();
        self::assertTrue($lock->acquire());
        self::assertSame($before, $this->ownerAtAll());
        $lock->release();
        self::assertTrue($factory->createLock($this->server->key, 20)->acquire());
        self::assertTrue($lock->acquire());
        self::assertNotSame($before, $this->ownerAtAll());
        $lock->release();
        $this->server->awaitGone();
    }

    private function ownerAtAll(): string
    {
        $owners = array_map(
            fn (string $address) => (new Server('single', $address))->owners($this->server->key),
            Stage::addresses('DLOCK_MASTERS'),
        );
        self::assertSame(array_fill(0, count($owners), $owners[0]), $owners);

        return $owners[0][0];
    }

    /** The reply to a grant is lost: nobody is to hold the lock for its TTL, and what takes it back ends no later hold. */
    public function testAKeyIsUsedAgain(): void
    {
        [$server, $owners, $loses] = [new FakeServer(), [], false];
        $says = static function (array $words) use ($server, &$owners, &$loses): mixed {
            $reply = $server->ask($words, 1.0);
            if ($words[0] !== 'DLOCK.ACQUIRE') {
                return $reply;
            }
            $owners[] = $words[2];

            return $loses ? new Unanswered('silence') : $reply;
        };
        $locks = new Locks(Connect::fake(new Scripted($says)));
        $store = new DlockStore($locks);
        $store->save($key = $this->key());
        $store->save($key);
        self::assertCount(1, array_unique($owners));
        $store->delete($key);
        $loses = true;
        try {
            $store->save($key);
            self::fail('nobody answers');
        } catch (LockAcquiringException) {
            $loses = false;
        }
        $locks->keep();
        self::assertNull($server->ask(['DLOCK.HELD', $this->server->key], 1.0));
        $store->save($key);
        usleep(150_000); // then it is said again
        $locks->keep();
        self::assertTrue($store->exists($key));
        self::assertCount(3, array_unique($owners));
    }

    /** A key of another process keeps its owner. So what takes back an unheard grant must not end the next one. */
    public function testAKeyOfAnotherProcessIsUsedAgain(): void
    {
        [$server, $loses] = [new FakeServer(), true];
        $says = static function (array $words) use ($server, &$loses): mixed {
            $reply = $server->ask($words, 1.0);

            return $loses && $words[0] === 'DLOCK.ACQUIRE' ? new Unanswered('silence') : $reply;
        };
        $locks = new Locks(Connect::fake(new Scripted($says)));
        $store = new DlockStore($locks);
        $key = $this->key();
        $key->setState(DlockStore::class, 'of another process');
        try {
            $store->save($key);
            self::fail('nobody answers');
        } catch (LockAcquiringException) {
            $loses = false;
        }
        usleep(150_000); // then it is said again
        $store->save($key);
        usleep(150_000);
        $locks->keep();
        self::assertTrue($store->exists($key));
        $store->delete($key);
        self::assertNull($server->ask(['DLOCK.HELD', $this->server->key], 1.0));
    }

    private function assertConflict(callable $work): void
    {
        try {
            $work();
            self::fail('it is taken');
        } catch (LockConflictedException) {
            $this->addToAssertionCount(1);
        }
    }

    /** PHP before 8.4 starts no fiber in a destructor, and a new connection is made in one. */
    public function testALockThatIsDestroyedAfterACutIsReleased(): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        $lock = (new LockFactory(new DlockStore(Kinds::locks(address: $path))))->createLock($this->server->key);
        $lock->acquire();
        Stage::control("cut $path");
        unset($lock);
        $this->server->awaitGone();
        self::assertSame([], $this->server->info()['holders']);
    }

    /** What is released while no server answers is released when one does. */
    public function testAReleaseThatIsNotAnswered(): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        $locks = Kinds::locks(address: $path, replyTimeout: 0.5);
        $store = new DlockStore($locks);
        $store->save($key = $this->key());
        Stage::control("delay $path 700");
        try {
            $store->delete($key);
            self::fail('nobody answers');
        } catch (LockReleasingException) {
            Stage::control("cut $path");
            Stage::control("delay $path 0");
        }
        Stage::until(function () use ($locks): bool {
            $locks->keep();

            return $this->server->owners() === [];
        }, 'it is released');
        $this->addToAssertionCount(1);
    }

    private function fresh(): DlockStore
    {
        return new DlockStore(Kinds::locks());
    }

    private function handsOver(): int
    {
        return $this->child(function (): void {
            $server = new Server($this->server->place);
            Stage::until(fn () => count($server->queue($this->server->key)) === 1, 'somebody waits');
            usleep(100_000);
            $server->handOver('other', $this->server->key);
        });
    }

    /** Runs the work in a child process, which shares only the variables of the work with this one. */
    private function child(callable $work): int
    {
        $child = pcntl_fork();
        if ($child === 0) {
            $status = 1;
            try {
                $work();
                $status = 0;
            } catch (\Throwable $error) {
                fwrite(STDERR, "$error\n");
            }
            // Without the end of the tests, which is this process' parent's.
            pcntl_exec('/bin/sh', ['-c', "exit $status"]);
        }

        return $child;
    }
}

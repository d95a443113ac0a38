<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Exception\Deadlock;
use Dlock\Exception\Fenced;
use Dlock\Exception\LockTimeout;
use Dlock\Exception\NotHeld;
use Dlock\FakeLocks;
use Dlock\Locks;
use PHPUnit\Framework\TestCase;

/** Locks without a server are as those with one: each test runs with both. */
final class FakeLocksTest extends TestCase
{
    /** @return array<string, array{callable(): Locks}> */
    public static function both(): array
    {
        return ['fake' => [static fn () => new FakeLocks()], 'server' => [static fn () => Kinds::locks()]];
    }

    /** @dataProvider both */
    public function testATakenLock(callable $make): void
    {
        [$locks, $key] = [$make(), (new Server())->key];
        $hold = $locks->lock($key);
        self::assertNull($locks->tryLock($key));
        self::assertNull($locks->tryLock($key, shared: true));
        try {
            $locks->lock($key, 0.1);
            self::fail('it is taken');
        } catch (LockTimeout $error) {
            self::assertTrue($error->taken());
        }
        self::assertFalse($hold->lost());
        $hold->release();
        self::assertGreaterThan($hold->token, $locks->lock($key)->token);
    }

    /** @dataProvider both */
    public function testReadersAndPermits(callable $make): void
    {
        [$locks, $key] = [$make(), (new Server())->key];
        $readers = [$locks->lock($key, shared: true), $locks->lock($key, shared: true)];
        self::assertNull($locks->tryLock($key));
        array_map(static fn ($one) => $one->release(), $readers);
        $large = $locks->lock($key, limit: 4, permits: 3);
        self::assertNull($locks->tryLock($key, limit: 4, permits: 2));
        $locks->lock($key, limit: 4)->release();
        $large->release();
    }

    /** @dataProvider both */
    public function testAnActorDoesNotWaitForItself(callable $make): void
    {
        [$locks, $key] = [$make(), (new Server())->key];
        $hold = $locks->lock($key, actor: 'me');
        self::assertNull($locks->tryLock($key, actor: 'me'));
        $this->expectException(Deadlock::class);
        try {
            $locks->lock($key, actor: 'me');
        } finally {
            $hold->release();
        }
    }

    /** @dataProvider both */
    public function testTheHoldIsLeftForAPeriod(callable $make): void
    {
        [$locks, $key] = [$make(), (new Server())->key];
        $hold = $locks->lock($key);
        $hold->releaseAfter(1.5);
        self::assertNull($locks->tryLock($key));
        $began = microtime(true);
        $locks->lock($key, 10)->release();
        self::assertGreaterThan(0.5, microtime(true) - $began);
        $this->expectException(NotHeld::class);
        $hold->release();
    }

    /** @dataProvider both */
    public function testTheProgramWantsItNoLonger(callable $make): void
    {
        [$locks, $key] = [$make(), (new Server())->key];
        $hold = $locks->lock($key, maxHold: 0.3);
        self::assertLessThanOrEqual(0.3, $hold->left());
        Stage::until(static fn () => $hold->lost(), 'it is lost');
        self::assertSame('max_hold is over', $hold->reason());
        self::assertNotNull($locks->tryLock($key), 'and given back');
    }

    /** @dataProvider both */
    public function testItIsRenewedWithoutACall(callable $make): void
    {
        [$locks, $key] = [$make(), (new Server())->key];
        $hold = $locks->lock($key, lease: 2);
        sleep(3);
        self::assertNull($locks->tryLock($key));
        self::assertFalse($hold->lost(), $hold->reason());
        $hold->release();
    }

    public function testAFakeIsNotRenewedForLongerThanAServerDoes(): void
    {
        $hold = (new FakeLocks(lease: 0.2, hangTimeout: 0.3))->lock('stock');
        usleep(600_000);
        self::assertTrue($hold->lost(), 'its heartbeat was missing');
    }

    public function testWhatIsGuardedAndLost(): void
    {
        $told = [];
        $locks = new FakeLocks();
        $hold = $locks->lock('stock', onLost: static function () use (&$told): void {
            $told[] = 'lost';
        });
        self::assertNull($hold->guard('SET', 'stock:left', 41));
        $locks->replyWith(static fn (string ...$command): int => count($command));
        self::assertSame(2, $hold->guard('GET', 'stock:left'));
        $locks->lose('stock');
        self::assertSame(['lost'], $told);
        self::assertTrue($hold->lost());
        self::assertSame([['SET', 'stock:left', '41'], ['GET', 'stock:left']], $locks->commands());
        $this->expectException(Fenced::class);
        $hold->guard('SET', 'stock:left', 40);
    }
}

<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Connect;
use Dlock\ErrorReply;
use Dlock\Exception\Closed;
use Dlock\Exception\DlockException;
use Dlock\Exception\Fenced;
use Dlock\Exception\LockTimeout;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;
use Dlock\Hold;
use Dlock\Locks;
use Dlock\Observer;
use Dlock\Symfony\DlockStore;
use PHPUnit\Framework\TestCase;
use Psr\Log\AbstractLogger;
use Symfony\Component\Lock\LockFactory;

/** What is slow, silent or over at one place costs nothing that is held at another. */
final class TroubleTest extends TestCase
{
    private Server $server;
    private string $key;

    protected function setUp(): void
    {
        $this->on('single');
    }

    private function on(string $place): void
    {
        $this->server = new Server($place);
        $this->key = $this->server->key;
    }

    private static function path(string $address): string
    {
        return Stage::control("path $address");
    }

    private function singlePath(): string
    {
        return self::path(Stage::addresses('DLOCK_SINGLE')[0]);
    }

    /** A key that another node serves. */
    private function elsewhere(): string
    {
        do {
            $key = '{' . bin2hex(random_bytes(6)) . '}lock';
        } while ($this->server->addressOf($key) === $this->server->addressOf($this->key));

        return $key;
    }

    /**
     * Locks of the cluster, which know of one node at first. To some nodes they have a path of their own.
     *
     * @param array<string, string> $paths by address
     */
    private function locks(array $paths, mixed ...$settings): Locks
    {
        $connect = static function (string $host, int $port) use ($paths): Connect {
            return Connect::url('redis://' . ($paths["$host:$port"] ?? "$host:$port"));
        };

        return Locks::cluster([$this->server->addressOf($this->key)], $connect, ...$settings + Kinds::SETTINGS);
    }

    /** A client that leaves a queue has the full time for each reply: what ends with the connection is not lost. */
    public function testASlowAnswerToWhoLeavesEndsNothing(): void
    {
        $this->server->hold();
        $path = $this->singlePath();
        // Where a stall has ended the connection it is tried again.
        Stage::until(function () use ($path): bool {
            Stage::control("delay $path 0");
            $locks = Kinds::locks(address: $path);
            $ephemeral = $locks->lock($this->key . ':' . bin2hex(random_bytes(4)), ephemeral: true);
            Stage::control("delay $path 220");
            try {
                self::assertNull($locks->tryLock($this->key, 0.5));
            } catch (LockTimeout) {
                return false;
            }

            return !$ephemeral->lost();
        }, 'it has outlived a wait');
    }

    /** A time-out that is nearly over is no reason to end the connection to another node, which is asked who serves what. */
    public function testAMapThatIsAskedForLateEndsNothing(): void
    {
        $this->on('cluster');
        $key = $this->elsewhere();
        $addresses = [$this->server->addressOf($this->key), $this->server->addressOf($key)];
        $paths = array_combine($addresses, array_map(self::path(...), $addresses));
        Stage::control("close {$paths[$addresses[1]]}");
        Stage::until(function () use ($key, $paths, $addresses): bool {
            Stage::control("delay {$paths[$addresses[0]]} 0");
            $locks = $this->locks($paths);
            $ephemeral = $locks->lock($this->key, ephemeral: true);
            Stage::control("delay {$paths[$addresses[0]]} 100");
            for ($i = 0; $i < 5; ++$i) {
                try {
                    $locks->lock($key, 0.3);
                    self::fail('nobody is there');
                } catch (LockTimeout $error) {
                    self::assertInstanceOf(Unanswered::class, $error->getPrevious());
                }
            }

            return !$ephemeral->lost();
        }, 'it has outlived the time-outs');
    }

    /** @return list<array{string}> */
    public static function libraries(): array
    {
        return [['phpredis'], ['predis']];
    }

    /**
     * One key is of another type by now. The server still renews the other hold.
     *
     * @dataProvider libraries
     */
    public function testARefusalOfOneHoldEndsNoOther(string $library): void
    {
        $locks = Kinds::locks(library: $library, lease: 2.0);
        [$broken, $hold] = [$locks->lock("$this->key:broken"), $locks->lock($this->key)];
        $this->server->ask('SET', $broken->key, 'no lock');
        Stage::until(static fn () => $broken->lost(), 'nobody could renew it');
        for ($i = 0; $i < 5; ++$i) {
            $locks->keep(true);
            self::assertFalse($hold->lost(), $hold->reason());
        }
        self::assertSame([$hold->owner], $this->server->owners());
    }

    /** A server that does not answer is asked for one of its holds, and not for each of them. */
    public function testASilentServerIsAwaitedOnce(): void
    {
        [$isSilent, $asked, $token] = [false, 0, 0];
        $locks = new Locks(Connect::fake(new Scripted(static function (array $words) use (&$isSilent, &$asked, &$token): mixed {
            $asked += (int) $isSilent;

            return $isSilent ? new Unanswered('silence') : ($words[0] === 'DLOCK.RENEW' ? $words[3] : [++$token, 1]);
        })));
        for ($i = 0; $i < 20; ++$i) {
            $holds[] = $locks->lock("$this->key:$i");
        }
        $isSilent = true;
        $locks->keep(true);
        self::assertSame(2, $asked, 'on the open connection, and on a new one');
        self::assertCount(20, array_filter($holds, static fn (Hold $hold) => $hold->left() > 0));
        $isSilent = false;
        $locks->keep(true);
    }

    /** A silent server is awaited for no longer than the shortest hold is believed, whichever hold it is asked for. */
    public function testALongHoldDelaysNoLossOfAShortOne(): void
    {
        $awaited = null;
        $locks = new Locks(Connect::fake(new Scripted(static function (array $words, float $timeout) use (&$awaited): mixed {
            if ($words[0] === 'DLOCK.RENEW') {
                $awaited ??= $timeout;

                return new Unanswered('silence');
            }

            return [1, 1];
        })));
        [$long, $short] = [$locks->lock("$this->key:long", lease: 60), $locks->lock("$this->key:short", lease: 0.5)];
        $locks->keep(true);
        self::assertLessThanOrEqual(1.0, $awaited);
        self::assertGreaterThan(0.0, $long->left());
        unset($short);
    }

    /**
     * A signal handler runs in the middle of a wait: its `keep()` leaves that to the wait, and another call is refused.
     *
     * @dataProvider libraries
     */
    public function testASignalHandlerSendsNothingInTheMiddleOfACommand(string $library): void
    {
        $locks = Kinds::locks(library: $library);
        $hold = $locks->lock("$this->key:kept", ephemeral: true);
        $this->server->hold();
        $said = [];
        pcntl_async_signals(true);
        pcntl_signal(SIGALRM, function () use ($locks, &$said): void {
            $locks->keep(true);
            try {
                $said[] = $locks->tryLock("$this->key:free") === null;
            } catch (DlockException $error) {
                $said[] = $error->getMessage();
            }
        });
        pcntl_alarm(1);
        usleep(500_000); // so that the signal comes in the middle of a slice
        try {
            self::assertNull(Stage::timesOut(fn () => $locks->tryLock($this->key, 2.5)));
        } finally {
            pcntl_alarm(0);
            pcntl_signal(SIGALRM, SIG_DFL);
        }
        self::assertSame(['a command is on its way: a signal handler or a destructor cannot send another one'], $said);
        self::assertFalse($hold->lost(), $hold->reason());
        self::assertSame('PONG', $hold->guard('PING'));
        $hold->release();
    }

    /** The client ties them to the new connection one after the other, which takes longer than one call may. */
    public function testManyHoldsAreKeptWhenASlowConnectionWasCut(): void
    {
        $path = $this->singlePath();
        $locks = Kinds::locks(address: $path, lease: 15.0);
        $holds = [];
        for ($i = 0; $i < 30; ++$i) {
            $holds[] = $locks->lock("$this->key:$i");
        }
        Stage::control("delay $path 200");
        Stage::control("cut $path");
        Stage::until(function () use ($holds): bool {
            foreach ($holds as $hold) {
                self::assertFalse($hold->lost(), $hold->reason());
            }
            $last = $this->server->info($holds[29]->key)['holders'][0];

            return $last['held-ms'] > 18000;
        }, 'more than a lease has passed');
        foreach ($holds as $hold) {
            self::assertSame(1, $this->server->info($hold->key)['holders'][0]['auto']);
        }
        Stage::control("delay $path 0");
    }

    /** Forgotten holds at a node that hangs keep no other from being left to its lease, or from being released. */
    public function testWhatAHungNodeDoesNotHearHoldsUpNoOther(): void
    {
        $this->on('cluster');
        $key = $this->elsewhere();
        $path = self::path($this->server->addressOf($key));
        $locks = $this->locks([$this->server->addressOf($key) => $path], lease: 120.0, hangTimeout: 120.0);
        $hung = [$locks->lock($key), $locks->lock("$key:2")];
        $hold = $locks->lock($this->key);
        $released = $locks->lock("$this->key:2");
        Stage::control("silence $path");
        unset($hung);
        unset($hold); // behind both
        Stage::until(function () use ($locks): bool {
            $locks->keep();

            return $this->server->info()['holders'][0]['auto'] === 0;
        }, 'nobody renews it');
        $released->release();
        self::assertSame([], $this->server->owners("$this->key:2"));
        self::assertSame(1, $this->server->info($key)['holders'][0]['auto']);
    }

    /** What was asked for in vain under a name may be left late: that ends nothing that was granted under the name since. */
    public function testWhatIsLeftLateEndsNoLaterHold(): void
    {
        $path = $this->singlePath();
        $locks = Kinds::locks(address: $path, lease: 30.0);
        $this->server->hold();
        Stage::control("delay $path 450");
        try {
            $locks->lock($this->key, 1.5, actor: 'me');
            self::fail('it is taken');
        } catch (LockTimeout) {
            $this->server->handOver();
        }
        Stage::control("delay $path 0"); // a new connection is faster than what the old one has on its way
        $hold = $locks->lock($this->key, actor: 'me');
        $end = microtime(true) + 0.5;
        while (microtime(true) < $end) {
            $locks->keep(true);
            self::assertSame([$hold->owner], $this->server->owners());
        }
        self::assertFalse($hold->lost());
        $hold->release();
        $this->server->awaitGone();
    }

    /** A callback, or a signal's handler, closes the locks in the middle of a wait. */
    public function testNothingIsTakenByAWaitThatWasClosed(): void
    {
        $locks = Kinds::locks();
        $first = $locks->lock($this->key . ':first', onLost: function () use (&$locks): void {
            $locks->close();
            $this->server->handOver();
        });
        $this->server->hold();
        $this->server->ask('DLOCK.FORCERELEASE', $first->key);
        try {
            $locks->lock($this->key, 3 * Stage::patience());
            self::fail('it is closed');
        } catch (Closed) {
            self::assertTrue($first->lost());
            $this->server->awaitGone();
        }
    }

    /** A server that tells no host, as `cluster-preferred-endpoint-type unknown-endpoint` lets it, means its own. */
    public function testARedirectWithoutAHost(): void
    {
        $asked = [];
        $connect = static function (string $host, int $port) use (&$asked): Connect {
            $asked[] = [$host, $port];
            $says = [7000 => 'MOVED 5 :7001', 7001 => 'ASK 5 ::1:7002'];

            return Connect::fake(new Scripted(static fn () => isset($says[$port]) ? ErrorReply::of($says[$port]) : [1, 1]));
        };
        $locks = Locks::cluster(['host:7000'], $connect);
        self::assertSame(1, $locks->tryLock('a')?->token);
        self::assertSame([['host', 7000], ['host', 7001], ['::1', 7002]], $asked);
    }

    /** Each hold takes a round trip: the next call continues where the last one has ended. */
    public function testTwentyHoldsAreTiedAnew(): void
    {
        foreach (['phpredis', 'predis'] as $library) {
            $path = $this->singlePath();
            $locks = Kinds::locks(library: $library, address: $path, lease: 15.0);
            $holds = [];
            for ($i = 0; $i < 20; ++$i) {
                $holds[] = $locks->lock("$this->key:$library:$i");
            }
            Stage::control("delay $path 200");
            Stage::control("cut $path");
            $tied = fn (Hold $hold): bool => $this->server->info($hold->key)['holders'][0]['auto'] === 1;
            Stage::until(function () use ($locks, $holds, $tied): bool {
                $locks->keep();

                return array_filter($holds, static fn (Hold $hold) => !$tied($hold)) === [];
            }, 'all are tied anew');
            Stage::control("delay $path 0");
            self::assertSame([], array_filter($holds, static fn (Hold $hold) => $hold->lost()));
        }
    }

    /** What one server has not answered delays no grant of another by more than half a second. */
    public function testAGrantIsNotDelayedByErrands(): void
    {
        $isSilent = false;
        $awaited = [];
        $locks = new Locks(Connect::fake(new Scripted(static function (array $words, float $timeout) use (&$isSilent, &$awaited): mixed {
            if ($isSilent && $words[0] === 'DLOCK.RENEW') {
                $awaited[] = $timeout;

                return new Unanswered('silence');
            }

            return [1, 1];
        })));
        $hold = $locks->lock("$this->key:forgotten");
        $isSilent = true;
        unset($hold);
        $locks->lock($this->key, 0.2);
        self::assertNotEmpty($awaited);
        self::assertLessThanOrEqual(0.5, max($awaited));
    }

    /** The server may not have seen the end of the connection, and would keep an ephemeral hold. */
    public function testALostEphemeralHoldIsReleased(): void
    {
        $said = [];
        $locks = new Locks(Connect::fake(new Scripted(static function (array $words) use (&$said): mixed {
            $said[] = $words[0];

            return count($said) === 2 ? new Unanswered('it was cut') : ($words[0] === 'DLOCK.RENEW' ? $words[3] : [1, 1]);
        })));
        $hold = $locks->lock($this->key, ephemeral: true);
        $locks->keep(true);
        self::assertSame('closed', $hold->reason());
        self::assertSame('DLOCK.RELEASE', end($said));
    }

    /** The time may end in the pause before another attempt: the error says why that was needed. */
    public function testTheLastFailureIsTold(): void
    {
        $isSilent = false;
        $locks = new Locks(Connect::fake(new Scripted(static function () use (&$isSilent): mixed {
            return $isSilent ? new Unanswered('silence') : [1, 1];
        })), replyTimeout: 0.02); // shorter than a pause
        $hold = $locks->lock($this->key);
        $isSilent = true;
        try {
            $hold->release();
            self::fail('nobody answers');
        } catch (Unanswered $error) {
            self::assertStringContainsString('silence', $error->getMessage());
            self::assertSame('silence', ($error->getPrevious() ?? $error)->getMessage());
        }
    }

    /** The first RELEASE of a hold is not answered, and the next one is NOTHELD: the first one has released it only if it was held. */
    public function testAReleaseHidesNoLossThatCameBefore(): void
    {
        $observer = new class extends Observer {
            /** @var list<string> */
            public array $told = [];

            public function released(string $key, float $seconds): void
            {
                $this->told[] = 'released';
            }

            public function lost(string $key, string $reason): void
            {
                $this->told[] = "lost: $reason";
            }
        };
        $releases = 0;
        $locks = new Locks(Connect::fake(new Scripted(static function (array $words) use (&$releases): mixed {
            if ($words[0] !== 'DLOCK.RELEASE') {
                return [1, 1];
            }

            return ++$releases % 2 === 1 ? new Unanswered('silence') : ErrorReply::of('NOTHELD it is another owner\'s');
        })), observer: $observer);
        $locks->lock($this->key, lease: 60)->release();
        $losses = 0;
        $hold = $locks->lock($this->key, lease: 0.2, onLost: static function () use (&$losses): void {
            ++$losses;
        });
        usleep(200_000);
        try {
            $hold->release();
            self::fail('it was lost');
        } catch (NotHeld) {
            self::assertSame(['released', 'lost: not held any more'], $observer->told);
            self::assertSame([1, 'not held any more'], [$losses, $hold->reason()]);
            self::assertTrue($hold->lost());
        }
    }

    /** The first reply to `releaseAfter()` is lost, and the next one says that nobody holds the lock: it is a loss until its time is over. */
    public function testALockThatWasLeftMayEndBeforeAnAnswer(): void
    {
        $renewals = 0;
        $locks = new Locks(Connect::fake(new Scripted(static function (array $words) use (&$renewals): mixed {
            if ($words[0] !== 'DLOCK.RENEW') {
                return [1, 1];
            }

            return ++$renewals % 2 === 1 ? new Unanswered('silence') : ErrorReply::of('NOTHELD nobody holds it');
        })));
        $hold = $locks->lock($this->key, lease: 60);
        $hold->releaseAfter(0.001);
        self::assertSame([2, 'it was released before'], [$renewals, $hold->reason()]);
        $this->expectException(NotHeld::class);
        $locks->lock($this->key, lease: 60)->releaseAfter(10);
    }

    /** @return array<string, array{string}> */
    public static function slashes(): array
    {
        return ['unix://' => ['unix://'], 'unix:' => ['unix:']];
    }

    /** @dataProvider slashes */
    public function testASocketOfTheFileSystem(string $scheme): void
    {
        $path = sys_get_temp_dir() . '/dlock-' . bin2hex(random_bytes(6));
        $server = stream_socket_server("unix://$path");
        $child = pcntl_fork();
        if ($child === 0) {
            $client = stream_socket_accept($server);
            while ((string) fread($client, 1000) !== '') {
                fwrite($client, "*2\r\n:7\r\n:1\r\n");
            }
            posix_kill((int) getmypid(), SIGKILL); // or it would also run the other tests
        }
        try {
            $locks = new Locks(Connect::url("$scheme$path"));
            self::assertSame(7, $locks->lock($this->key)->token);
            $locks->close();
            pcntl_waitpid($child, $status);
        } finally {
            posix_kill($child, SIGKILL);
            unlink($path);
        }
        try {
            (new Locks(Connect::url("$scheme$path")))->tryLock($this->key);
            self::fail('nobody is there');
        } catch (Unanswered $error) {
            self::assertStringContainsString("$path: ", $error->getMessage());
        }
    }

    /** Each C library has words of its own for it. */
    public function testAnUnknownHostEndsAWait(): void
    {
        foreach (['Name or service not known', 'Name does not resolve'] as $why) {
            $locks = new Locks(static fn () => throw new \RedisException("getaddrinfo for nobody failed: $why"));
            try {
                $locks->lock($this->key);
                self::fail('nobody is there');
            } catch (Refused $error) {
                self::assertStringContainsString($why, $error->getMessage());
            }
        }
    }

    /** The server renews a hold for no longer than the program wants it, from the first command on. */
    public function testMaxHoldBoundsTheServer(): void
    {
        $said = [];
        $locks = new Locks(Connect::fake(new Scripted(static function (array $words) use (&$said): mixed {
            $said[$words[0]] = $words;

            return [1, 1];
        })));
        $locks->lock($this->key, maxHold: 5);
        $said = $said['DLOCK.FAIRACQUIRE'];
        self::assertSame(5000, $said[array_search('AUTO', $said, true) + 1]);
    }

    /** A child of a fork runs nothing under the parent's token. */
    public function testAChildGuardsNothing(): void
    {
        $hold = Kinds::locks()->lock($this->key);
        [$ours, $childs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $child = pcntl_fork();
        if ($child === 0) {
            try {
                $said = $hold->guard('SET', "$this->key:left", 'child');
            } catch (\Throwable $error) {
                $said = $error::class;
            }
            fwrite($childs, "$said\n");
            posix_kill((int) getmypid(), SIGKILL); // or it would also run the other tests
        }
        self::assertSame(Fenced::class, trim((string) fgets($ours)));
        pcntl_waitpid($child, $status);
        self::assertSame('OK', $hold->guard('SET', "$this->key:left", 'parent'));
    }

    /** The client notes its pending commands before it calls the program's logger and observer, which may throw. */
    public function testNothingIsKeptForAForgottenHoldWhoseLogFails(): void
    {
        $logger = new class extends AbstractLogger {
            public function log($level, $message, array $context = []): void
            {
                throw new \DomainException('nobody writes');
            }
        };
        $locks = Kinds::locks(logger: $logger, lease: 2.0);
        $hold = $locks->lock($this->key);
        try {
            unset($hold);
            self::fail('it is thrown');
        } catch (\DomainException) {
            $locks->keep();
            self::assertSame(0, $this->server->info()['holders'][0]['auto']);
        }
        $hold = $locks->lock("$this->key:2", maxHold: 0.5);
        usleep(500_000);
        try {
            $locks->keep();
            self::fail('it is thrown');
        } catch (\DomainException) {
            $locks->keep();
            self::assertSame([], $this->server->owners("$this->key:2"));
        }
    }

    /** Whatever is thrown between the grant and the hold, a signal's handler's exception too, leaves no hold that nobody has. */
    public function testNothingIsHeldByNobodyAfterAGrant(): void
    {
        $observer = new class extends Observer {
            public function granted(string $key, float $seconds): void
            {
                throw new \DomainException('nobody counts');
            }
        };
        $logger = new class extends AbstractLogger {
            public function log($level, $message, array $context = []): void
            {
                throw new \DomainException('nobody writes');
            }
        };
        $locks = Kinds::locks(logger: $logger, observer: $observer);
        try {
            $locks->lock($this->key);
            self::fail('it is thrown');
        } catch (\DomainException) {
            $this->server->awaitGone();
            $this->addToAssertionCount(1);
        }
    }

    /** A watchdog of Symfony's is renewed on the same connection, and hides nothing of what has ended. */
    public function testAWatchdogHidesNothing(): void
    {
        $locks = Kinds::locks();
        $hold = $locks->lock($this->key);
        $client = $this->server->info()['holders'][0]['client'];
        $this->server->ask('CLIENT', 'KILL', 'ID', (string) $client);
        $lock = (new LockFactory(new DlockStore($locks, watchdog: true)))->createLock($this->key . ':other');
        self::assertTrue($lock->acquire());
        Stage::until(function () use ($hold): bool {
            self::assertFalse($hold->lost(), $hold->reason());

            return ($this->server->info()['holders'][0]['auto'] ?? self::fail('it is believed, and not held')) === 1;
        }, 'it is kept');
        unset($lock);
        $hold->release();
    }

    /** After a planned failover the former primary still grants locks for a while: the Sentinels say who is primary now. */
    public function testAFormerPrimaryIsLeft(): void
    {
        [$former, $primary] = Stage::addresses('DLOCK_MASTERS');
        // A Sentinel that is stale answers too late for the short look.
        $named = [$former, $primary];
        $sentinel = Connect::fake(new Scripted(static function (array $words, float $timeout) use (&$named): array {
            return explode(':', $named[$timeout < 0.4 ? 1 : 0]);
        }));
        $locks = new Locks(Connect::sentinel([$sentinel], 'mymaster'));
        $hold = $locks->lock($this->key);
        self::assertNotSame([], (new Server('single', $former))->owners($this->key));
        $named = [$primary, $primary];
        Stage::until(static fn () => $hold->lost(), 'the primary knows nothing of it', 3 + Stage::late());
        $locks->lock("$this->key:2")->release();
        $locks->lock("$this->key:3");
        self::assertNotSame([], (new Server('single', $primary))->owners("$this->key:3"));
    }

    /** The node that serves the lock now reports that it is no longer held. */
    public function testALossIsHeardOverASlotMove(): void
    {
        $this->on('cluster');
        $locks = Kinds::locks('cluster');
        $hold = $locks->lock($this->key);
        Stage::control("move $this->key");
        for ($i = 0; $i < 3; ++$i) {
            $locks->keep(true);
        }
        self::assertFalse($hold->lost());
        $this->server->ask('DLOCK.FORCERELEASE', $this->key);
        $locks->keep(true);
        self::assertTrue($hold->lost());
    }
}

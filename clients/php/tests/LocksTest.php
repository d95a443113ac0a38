<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Exception\Closed;
use Dlock\Exception\Deadlock;
use Dlock\Exception\DlockException;
use Dlock\Exception\LockTimeout;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;
use Dlock\Hold;
use Dlock\Locks;
use Dlock\Observer;
use PHPUnit\Framework\TestCase;

/** The tests that every language has, by the same names: see clients/DESIGN.md. */
final class LocksTest extends TestCase
{
    private Server $server;

    protected function setUp(): void
    {
        $this->on('single');
    }

    private function on(string $place): void
    {
        $this->server = new Server($place);
    }

    /** @param array<string, mixed> $how */
    private function worker(array $how = []): Worker
    {
        return new Worker(['place' => $this->server->place, ...$how]);
    }

    private function key(string $more = ''): string
    {
        return $this->server->key . $more;
    }

    /** @return list<array{string}> */
    public static function everywhere(): array
    {
        return [['single'], ['cluster']];
    }

    /** @return list<array{string, string}> */
    public static function libraries(): array
    {
        return [['single', 'phpredis'], ['single', 'own'], ['single', 'predis'], ['cluster', 'phpredis'], ['cluster', 'predis']];
    }

    /** @dataProvider everywhere */
    public function testCountsToAThousand(string $place): void
    {
        $this->on($place);
        $started = [];
        for ($i = 0; $i < 8; ++$i) {
            $worker = $this->worker();
            $started[] = [$worker, $worker->start('count', place: $place, key: $this->key(), count: 125)];
        }
        foreach ($started as [$worker, $number]) {
            self::assertSame('none', $worker->answer($number, 4 * Stage::patience())['got']);
        }
        self::assertSame('1000', $this->server->node($this->key())->get($this->key(':count')));
        $this->server->awaitGone();
    }

    /** @dataProvider libraries */
    public function testWaitLongerThanTheTimeOut(string $place, string $library): void
    {
        $this->on($place);
        $this->server->hold();
        // A stall neither takes the place away nor keeps the answer from coming in time.
        $first = $this->worker(['replyTimeout' => 2.0, 'queueGrace' => 30.0, 'library' => $library]);
        $number = $first->start('lock', key: $this->key());
        $this->server->awaitQueued(1);
        [$owner] = $this->server->queue();
        $second = $this->worker();
        $second->start('lock', key: $this->key());
        Stage::until(fn () => $this->server->info()['queue'][0]['waited-ms'] > 5000, 'five slices have passed');
        self::assertSame($owner, $this->server->next());
        $answer = $first->answer($number);
        self::assertSame(['hold', $owner], [$answer['got'], $answer['owner']]);
        self::assertSame(1, $this->server->info()['holders'][0]['holds']);
        self::assertSame('none', $first->do('release', id: $answer['id'])['got']);
    }

    public function testCancelledWait(): void
    {
        $this->server->hold();
        $worker = $this->worker(['replyTimeout' => 1.0]);
        $number = $worker->start('lock', key: $this->key());
        $this->server->awaitQueued(1);
        $next = $this->worker();
        $waits = $next->start('lock', key: $this->key());
        $this->server->awaitQueued(2);
        posix_kill($worker->pid(), SIGUSR1);
        self::assertSame('interrupted', $worker->answer($number)['got']);
        $this->server->awaitQueued(1);
        self::assertNotEmpty($this->server->next());
        self::assertSame('hold', $next->answer($waits)['got']);
    }

    public function testCancelAtTheGrant(): void
    {
        $worker = $this->worker(['replyTimeout' => 0.5]);
        $had = 0;
        for ($i = 0; $i < 20; ++$i) {
            $this->server->hold();
            $number = $worker->start('lock', key: $this->key());
            $this->server->awaitQueued(1);
            posix_kill($worker->pid(), SIGUSR1);
            usleep(random_int(0, 300_000));
            $this->server->handOver();
            $answer = $worker->answer($number);
            self::assertContains($answer['got'], ['hold', 'interrupted']);
            if ($answer['got'] === 'hold') {
                ++$had;
                $worker->do('release', id: $answer['id']);
            }
            $this->server->awaitGone();
        }
        self::assertLessThan(20, $had);
    }

    public function testKilledWaiter(): void
    {
        $this->server->hold();
        $first = $this->worker();
        $first->start('lock', key: $this->key());
        $this->server->awaitQueued(1);
        $second = $this->worker();
        $number = $second->start('lock', key: $this->key());
        $this->server->awaitQueued(2);
        $first->kill();
        $this->server->handOver();
        self::assertSame('hold', $second->answer($number)['got']);
    }

    public function testKilledAtTheGrant(): void
    {
        $this->server->hold();
        $first = $this->worker();
        $first->start('lock', key: $this->key());
        $this->server->awaitQueued(1);
        $second = $this->worker();
        $number = $second->start('lock', key: $this->key());
        $this->server->awaitQueued(2);
        posix_kill($first->pid(), SIGSTOP); // the grant is on its way, and nobody reads it
        $this->server->handOver();
        $first->kill();
        self::assertSame('hold', $second->answer($number)['got']);
    }

    /**
     * @testWith [true, "closed"]
     *           [false, "expired"]
     */
    public function testKilledHolder(bool $ephemeral, string $message): void
    {
        $worker = $this->worker();
        $answer = $worker->lock($this->key(), null, ephemeral: $ephemeral);
        $second = $this->worker();
        $number = $second->start('lock', key: $this->key());
        $this->server->awaitQueued(1);
        $told = null;
        $ear = Stage::connect(Stage::addresses('DLOCK_SINGLE')[0]);
        $channel = '__dlock@0__:' . $this->key();
        $raw = stream_socket_client('tcp://' . Stage::addresses('DLOCK_SINGLE')[0]);
        stream_set_timeout($raw, (int) Stage::patience());
        fwrite($raw, "SUBSCRIBE $channel\r\n");
        Stage::until(fn () => ($ear->rawCommand('PUBSUB', 'NUMSUB', $channel)[1] ?? 0) === 1, 'it is heard');
        $worker->kill();
        while ($told === null && ($line = fgets($raw)) !== false) {
            $told = preg_match("/^(\w+) {$answer['token']}/", $line, $match) ? $match[1] : null;
        }
        self::assertSame($message, $told);
        self::assertSame('hold', $second->answer($number)['got']);
    }

    /** A program that is busy for a long time sends no heartbeat. The server still keeps its lock, for `hangTimeout`. */
    public function testIsKeptWithoutASignForAuto(): void
    {
        $locks = Kinds::locks();
        $hold = $locks->lock($this->key(), hangTimeout: 15.0);
        sleep(7); // longer than the lease
        self::assertSame(0.0, $hold->left(), 'nobody has looked');
        self::assertSame([$hold->owner], $this->server->owners());
        self::assertFalse($hold->lost(), 'whoever looks is told that it is still held');
        self::assertGreaterThan(0.0, $hold->left());
        $other = $locks->lock($this->key(':other'), hangTimeout: 4.0);
        self::assertFalse($other->lost());
        // The server keeps a hold without a `hangTimeout` of its own for that of its client.
        $shorter = Kinds::locks(lease: 1.0, hangTimeout: 1.0);
        $hung = $shorter->lock($this->key(':hung'));
        $this->server->awaitGone($this->key(':hung'));
        self::assertTrue($hung->lost());
        self::assertSame('not held any more', $hung->reason());
    }

    public function testAnOwnerBeginsWithHostAndProcess(): void
    {
        $locks = Kinds::locks();
        $hold = $locks->lock($this->key(), actor: 'me');
        self::assertStringStartsWith(gethostname() . '/' . getmypid() . '/me#', $hold->owner);
        self::assertSame([$hold->owner], $this->server->owners());
        $hold->release();
        self::assertNotSame($hold->owner, $locks->lock($this->key(':next'), actor: 'me')->owner, 'no owner is used twice');
        $this->server->awaitGone();
    }

    /** @dataProvider everywhere */
    public function testManyOverSeveralSlots(string $place): void
    {
        $this->on($place);
        $locks = Kinds::locks($place);
        $keys = array_map(static fn (string $word) => $word . bin2hex(random_bytes(4)), ['c', 'a', 'b']);
        $holds = $locks->many($keys, timeout: 5);
        self::assertCount(3, $holds);
        $sorted = $keys;
        sort($sorted);
        self::assertSame($sorted, array_keys(iterator_to_array($holds)));
        self::assertFalse($holds->lost());
        self::assertNull($locks->tryLock($keys[0]));
        try {
            $locks->many([$keys[0], 'free' . $keys[0]], timeout: 0.2);
            self::fail('one is taken');
        } catch (LockTimeout) {
            self::assertSame([$keys[0]], array_values(array_filter([$keys[0], 'free' . $keys[0]], fn (string $key) => (bool)
                $this->server->ask('DLOCK.INFO', $key))));
        }
        $holds->release();
        array_map($this->server->awaitGone(...), $keys);
    }

    /** Who serves it now renews it, for this process. */
    private function awaitTied(Hold $hold): void
    {
        Stage::until(function () use ($hold) {
            self::assertFalse($hold->lost(), $hold->reason());

            return $this->server->info($hold->key)['holders'][0]['auto'] === 1;
        }, 'it is kept');
    }

    public function testHoldOverASlotMove(): void
    {
        $this->on('cluster');
        $locks = Kinds::locks('cluster', lease: 15.0);
        $hold = $locks->lock($this->key());
        $neighbour = $locks->lock('n' . $this->key());
        Stage::control('move ' . $this->key());
        $this->awaitTied($hold);
        $this->awaitTied($neighbour);
        $hold->release();
        $neighbour->release();
    }

    /** A hold that has moved to a silent node keeps none of the others from being tied to a new connection. */
    public function testASilentNodeOverASlotMove(): void
    {
        $this->on('cluster');
        $paths = [];
        foreach (Stage::addresses('DLOCK_CLUSTER') as $address) {
            $paths[$address] = Stage::control("path $address");
        }
        $connect = static function (string $host, int $port) use ($paths): \Dlock\Connect {
            return \Dlock\Connect::url('redis://' . $paths["$host:$port"]);
        };
        $locks = Locks::cluster(array_keys($paths), $connect, lease: 15.0);
        do {
            $key = '{' . bin2hex(random_bytes(6)) . '}lock';
        } while ($this->server->addressOf($key) !== $this->server->addressOf($this->key()));
        $moved = $locks->lock($this->key());
        $hold = $locks->lock($key);
        $source = $this->server->addressOf($key);
        $before = $this->server->info($key)['holders'][0]['client'];
        Stage::control('move ' . $this->key());
        Stage::control("silence {$paths[$this->server->addressOf($this->key())]}");
        Stage::control("cut {$paths[$source]}");
        Stage::until(function () use ($hold, $before): bool {
            self::assertFalse($hold->lost(), $hold->reason());
            $holder = $this->server->info($hold->key)['holders'][0];

            return $holder['client'] !== $before && $holder['auto'] === 1;
        }, 'it is kept by another connection');
        array_map(static fn (string $path) => Stage::control("close $path"), $paths);
        unset($moved);
    }

    /** A reader that wants to write waits for itself. It gets the error at once, and stays a reader. */
    public function testAnUpgradeIsRefusedAtOnce(): void
    {
        $locks = Kinds::locks();
        $outer = $locks->lock($this->key(), shared: true, actor: 'me');
        $locks->lock($this->key(), shared: true, actor: 'me')->release();
        try {
            $locks->lock($this->key(), actor: 'me');
            self::fail('it waits for itself');
        } catch (Deadlock $error) {
            self::assertStringContainsString('release it first', $error->getMessage());
        }
        self::assertFalse($outer->lost());
        $outer->release();
        $this->server->awaitGone();
    }

    /** Instead of two thousand, which one process cannot keep at 200 ms: twenty, taken before the path is slow. */
    public function testTwentyHoldsAt200Ms(): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        $locks = Kinds::locks(address: $path, lease: 8.0);
        $holds = [];
        for ($i = 0; $i < 20; ++$i) {
            $holds[] = $locks->lock($this->key(":$i"));
        }
        Stage::control("delay $path 200");
        $end = microtime(true) + 14;
        while (microtime(true) < $end) {
            foreach ($holds as $hold) {
                self::assertFalse($hold->lost());
            }
            usleep(10_000);
        }
        Stage::control("delay $path 0");
    }

    public function testAChildKeepsWhatItTakes(): void
    {
        $locks = Kinds::locks();
        $hold = $locks->lock($this->key());
        [$ours, $childs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $child = pcntl_fork();
        if ($child === 0) {
            $seen = [$hold->left() > 0.0];
            try {
                $own = $locks->lock($this->key(':child'), 5);
                $seen = [...$seen, $hold->lost(), $hold->reason(), $own->lost(), $locks->tryLock($this->key()) === null];
                try {
                    $hold->release();
                } catch (NotHeld) {
                    $seen[] = 'not held';
                }
                $own->release();
            } catch (\Throwable $error) {
                $seen[] = $error->getMessage();
            }
            fwrite($childs, json_encode($seen) . "\n");
            posix_kill((int) getmypid(), SIGKILL); // or it would also run the other tests
        }
        fclose($childs);
        $seen = json_decode((string) fgets($ours), true);
        pcntl_waitpid($child, $status);
        self::assertSame([false, true, 'it is held by the process that has forked this one', false, true, 'not held'], $seen);
        self::assertFalse($hold->lost());
        $end = microtime(true) + 9; // more than a lease
        while (microtime(true) < $end) {
            self::assertFalse($hold->lost());
            usleep(50_000);
        }
        $hold->release();
    }

    /** Whatever the program has set on the client, the words of a command and its reply are plain. */
    public function testTheClientOfAClosure(): void
    {
        $made = 0;
        $locks = new Locks(static function () use (&$made): \Redis {
            ++$made;
            $redis = Stage::connect(Stage::addresses('DLOCK_SINGLE')[0]);
            $redis->setOption(\Redis::OPT_SERIALIZER, \Redis::SERIALIZER_PHP);
            $redis->setOption(\Redis::OPT_PREFIX, 'application:');

            return $redis;
        }, lease: 6.0);
        $hold = $locks->lock($this->key());
        self::assertSame([$hold->owner], $this->server->owners());
        self::assertSame('OK', $hold->guard('SET', $this->key(':left'), 41));
        self::assertSame('41', $hold->guard('GET', $this->key(':left')));
        $this->server->ask('CLIENT', 'KILL', 'ID', (string) $this->server->info()['holders'][0]['client']);
        $locks->keep(true);
        self::assertFalse($hold->lost());
        self::assertSame(2, $made);
        $hold->release();
    }

    public function testAnUnknownHostIsToldAtOnce(): void
    {
        $locks = new Locks(\Dlock\Connect::url('redis://nobody.invalid'));
        $began = microtime(true);
        try {
            $locks->lock($this->key());
            self::fail('nobody is there');
        } catch (DlockException $error) {
            self::assertNotInstanceOf(Unanswered::class, $error);
            self::assertLessThan(3 + Stage::late(), microtime(true) - $began);
        }
    }

    /** @return array<string, array{string, callable}> */
    public static function mistakes(): array
    {
        return [
            'client' => ['client', static fn () => new Locks(new \stdClass())],
            'cluster' => ['Locks::cluster', static fn () => (new Locks(static fn () => (new \ReflectionClass(\RedisCluster::class))
                ->newInstanceWithoutConstructor()))->lock('x')],
            'new' => ['client must be connected', static fn () => (new Locks(static fn () => new \Redis()))->lock('x')],
            'persistent' => ['persistent', static fn () => (new Locks(static function (): \Redis {
                $redis = new \Redis();
                [$host, $port] = explode(':', Stage::addresses('DLOCK_SINGLE')[0]);
                $redis->pconnect($host, (int) $port, 2.0, 'locks');

                return $redis;
            }))->lock('x')],
            'several servers' => ['Connect::sentinel', static fn () => (new Locks(static fn () => new \Predis\Client(
                ['tcp://127.0.0.1:1?role=master', 'tcp://127.0.0.1:2'],
                ['replication' => true],
            )))->lock('x')],
            'closure' => ['client', static fn () => (new Locks(static fn () => 5))->lock('x')],
            'seeds' => ['seeds', static fn () => Locks::cluster(['localhost'])],
            'url' => ['url', static fn () => \Dlock\Connect::url('localhost:6379')],
            'database' => ['not abc', static fn () => \Dlock\Connect::url('redis://localhost:6379/abc')],
            'lease' => ['lease', static fn () => Kinds::locks(lease: 0.0)],
            'a lease without belief' => ['clockMargin', static fn () => Kinds::locks()->lock('x', lease: 0.1)],
            'replyTimeout' => ['replyTimeout', static fn () => Kinds::locks(replyTimeout: NAN)],
            'hangTimeout' => ['hangTimeout', static fn () => Kinds::locks()->lock('x', hangTimeout: -1)],
            'timeout' => ['timeout', static fn () => Kinds::locks()->lock('x', -1)],
            'actor' => ['actor', static fn () => Kinds::locks()->lock('x', actor: '')],
            'maxHold' => ['maxHold', static fn () => Kinds::locks()->lock('x', maxHold: 0)],
            'shared and limit' => ['limit', static fn () => Kinds::locks()->lock('x', shared: true, limit: 2)],
            'keys' => ['keys', static fn () => Kinds::locks()->many([])],
            'name' => ['name', static fn () => new \Dlock\Election(Kinds::locks(), '', 'id')],
        ];
    }

    /** @dataProvider mistakes */
    public function testABadArgumentIsNamed(string $named, callable $mistake): void
    {
        try {
            $mistake();
            self::fail('it is an error');
        } catch (\InvalidArgumentException | \TypeError $error) {
            self::assertStringContainsString($named, $error->getMessage());
        }
    }

    /** A wait is given up while its connection is silent, and what was sent then is read when its owner has the lock again. */
    public function testWhatIsReadLateEndsNoHold(): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        $at = $path;
        $connect = static function () use (&$at) {
            return \Dlock\Connect::url("redis://$at");
        };
        $locks = new Locks($connect, replyTimeout: 1.0);
        $this->server->hold();
        pcntl_async_signals(true);
        pcntl_signal(SIGALRM, static function () use (&$at, $path): void {
            Stage::control("silence $path");
            $at = Stage::addresses('DLOCK_SINGLE')[0];
            throw new \RuntimeException('enough');
        });
        pcntl_alarm(1);
        try {
            $locks->lock($this->key(), actor: 'me');
            self::fail('it was given up');
        } catch (\RuntimeException $error) {
            self::assertSame('enough', $error->getMessage());
        } finally {
            pcntl_signal(SIGALRM, SIG_DFL);
        }
        $this->server->handOver();
        $hold = $locks->lock($this->key(), timeout: 10, actor: 'me');
        $read = fn (): int => preg_match('/cmdstat_dlock.cancel:calls=(\d+)/i', $this->server->ask('INFO', 'commandstats'), $m)
            ? (int) $m[1]
            : 0;
        $before = $read();
        Stage::control("sound $path");
        Stage::until(static fn () => $read() > $before, 'what was sent late is read');
        self::assertSame([$hold->owner], $this->server->owners());
        $hold->guard('PING');
        $hold->release();
    }

    /** @dataProvider libraries */
    public function testAGuardedCommandHasItsReply(string $place, string $library): void
    {
        $this->on($place);
        $hold = Kinds::locks($place, $library)->lock($this->key());
        self::assertSame('OK', $hold->guard('SET', $this->key(':left'), 41));
        self::assertSame('41', $hold->guard('GET', $this->key(':left')));
        self::assertNull($hold->guard('GET', $this->key(':none')));
        self::assertSame([], $hold->guard('LRANGE', $this->key(':none'), 0, -1));
        self::assertSame(['41', null], $hold->guard('MGET', $this->key(':left'), $this->key(':none')));
        self::assertSame(0, $hold->guard('EXISTS', $this->key(':none')));
        try {
            $hold->guard('INCRBY', $this->key(':left'), 'many');
            self::fail('it is no number');
        } catch (Refused $error) {
            self::assertStringContainsString('not an integer', $error->getMessage());
        }
        self::assertFalse($hold->lost());
        $hold->release();
    }

    public function testAfterClose(): void
    {
        $locks = Kinds::locks();
        $hold = $locks->lock($this->key());
        $locks->close();
        $locks->close();
        self::assertTrue($hold->lost());
        foreach ([fn () => $locks->lock('x'), fn () => $hold->release(), fn () => $hold->guard('PING'), fn () => $locks->keep()] as $call) {
            try {
                $call();
                self::fail('it is closed');
            } catch (Closed) {
                $this->addToAssertionCount(1);
            }
        }
    }

    public function testTheObserverIsTold(): void
    {
        $observer = new class () extends Observer {
            /** @var list<string> */
            public array $told = [];

            public function waiting(string $key): void
            {
                $this->told[] = 'waiting';
            }

            public function waited(string $key): void
            {
                $this->told[] = 'waited';
            }

            public function granted(string $key, float $seconds): void
            {
                $this->told[] = 'granted';
            }

            public function refused(string $key, float $seconds, ?\Throwable $error): void
            {
                $this->told[] = 'refused';
                throw new \LogicException('which is nobody\'s business');
            }

            public function released(string $key, float $seconds): void
            {
                $this->told[] = 'released';
            }

            public function lost(string $key, string $reason): void
            {
                $this->told[] = "lost: $reason";
            }
        };
        $locks = Kinds::locks(observer: $observer);
        $locks->lock($this->key())->release();
        $before = $observer->told;
        $this->server->hold();
        self::assertNull(Stage::timesOut(function () use ($locks, $observer, $before): ?Hold {
            $observer->told = $before;

            return $locks->tryLock($this->key(), 0.05);
        }));
        $this->server->awaitQueued(0);
        $this->server->handOver();
        $hold = $locks->lock($this->key());
        $this->server->ask('DLOCK.FORCERELEASE', $this->key());
        Stage::until(fn () => $hold->lost(), 'it is lost');
        self::assertSame(
            ['granted', 'released', 'waiting', 'waited', 'refused', 'granted', 'lost: not held any more'],
            $observer->told,
        );
    }
}

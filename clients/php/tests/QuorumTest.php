<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Connect;
use Dlock\Exception\Fenced;
use Dlock\Exception\LockTimeout;
use Dlock\Exception\Unanswered;
use Dlock\Exception\Unreachable;
use Dlock\Observer;
use Dlock\Quorum;
use Dlock\QuorumHold;
use PHPUnit\Framework\TestCase;

/** A lock over several masters: the tests that every language has, by the same names. */
final class QuorumTest extends TestCase
{
    private const LEASE = 600;
    private const DEAD = '127.0.0.1:1';

    /** @var list<Server> */
    private array $masters;
    private string $key;
    /** @var resource */
    private $hung;

    protected function setUp(): void
    {
        $this->masters = array_map(static fn (string $one) => new Server('single', $one), Stage::addresses('DLOCK_MASTERS'));
        $this->key = $this->masters[0]->key;
        $this->hung = stream_socket_server('tcp://127.0.0.1:0'); // it accepts, and never answers
    }

    /** @param list<string>|null $addresses */
    private function quorum(?array $addresses = null, ?float $bound = null): Quorum
    {
        return new Quorum(
            array_map(static fn (string $one) => Connect::url("redis://$one"), $addresses ?? Stage::addresses('DLOCK_MASTERS')),
            $bound ?? Stage::late(),
        );
    }

    /** @return array<int, mixed>|null */
    private function held(int $master, string $owner): ?array
    {
        return $this->masters[$master]->ask('DLOCK.HELD', $this->key, $owner) ?: null;
    }

    /** @return list<list<string>> */
    private function owners(): array
    {
        return array_map(fn (Server $one) => $one->owners($this->key), $this->masters);
    }

    /** The client never believes longer than a master. */
    private function checkLeft(QuorumHold $hold, int ...$masters): void
    {
        foreach ($masters as $master) {
            $server = $this->held($master, $hold->owner)[2] / 1000;
            self::assertGreaterThan(0.0, $hold->left());
            self::assertLessThanOrEqual($server, $hold->left()); // asked last, so that no time passes in its favour
        }
    }

    /**
     * @testWith ["the third is dead"]
     *           ["the third hangs"]
     *           ["the first is dead"]
     */
    public function testQuorumAMajorityIsEnough(string $where): void
    {
        [$a, $b] = Stage::addresses('DLOCK_MASTERS');
        $hung = (string) stream_socket_get_name($this->hung, false);
        $three = match ($where) {
            'the third is dead' => [$a, $b, self::DEAD],
            'the third hangs' => [$a, $b, $hung],
            default => [self::DEAD, $a, $b],
        };
        [$client, $other] = [$this->quorum($three), $this->quorum($three)];
        $hold = $client->acquire($this->key, self::LEASE, Stage::patience());
        self::assertNotNull($hold);
        $tokens = [$this->held(0, $hold->owner)[0], $this->held(1, $hold->owner)[0]];
        self::assertSame($where === 'the first is dead' ? [null, ...$tokens] : [...$tokens, null], $hold->tokens());
        $this->checkLeft($hold, 0, 1);
        self::assertNull($other->acquire($this->key, self::LEASE));
        try {
            $other->lock($this->key, self::LEASE);
            self::fail('it is taken');
        } catch (LockTimeout) {
            self::assertSame([[$hold->owner], [$hold->owner], []], $this->owners());
        }
        $hold->release();
        self::assertSame(0.0, $hold->left());
        self::assertFalse($hold->renew(self::LEASE));
        $second = $other->lock($this->key, self::LEASE, Stage::patience());
        self::assertSame([[$second->owner], [$second->owner], []], $this->owners());
        $second->release();
        self::assertSame([[], [], []], $this->owners());
    }

    /** Its work may still run: the client reports it lost, and it stays taken until its leases end. */
    public function testQuorumAForgottenHoldIsLeftToItsLeases(): void
    {
        $observer = new class extends Observer {
            /** @var list<string> */
            public array $lost = [];

            public function lost(string $key, string $reason): void
            {
                $this->lost[] = "$key $reason";
            }
        };
        $masters = array_map(static fn (string $one) => Connect::url("redis://$one"), Stage::addresses('DLOCK_MASTERS'));
        $quorum = new Quorum($masters, Stage::late(), observer: $observer);
        $hold = $quorum->lock($this->key, 6, Stage::patience());
        $owner = $hold->owner;
        unset($hold);
        self::assertSame(["$this->key forgotten"], $observer->lost);
        self::assertSame([[$owner], [$owner], [$owner]], $this->owners());
        $quorum->lock($this->key, self::LEASE, Stage::patience())->release();
        self::assertSame([[], [], []], $this->owners());
        self::assertCount(1, $observer->lost);
    }

    public function testQuorumAMinorityIsNot(): void
    {
        [$a] = Stage::addresses('DLOCK_MASTERS');
        try {
            $this->quorum([$a, self::DEAD, '127.0.0.1:2'])->acquire($this->key, self::LEASE);
            self::fail('two are dead');
        } catch (Unreachable $error) {
            self::assertStringContainsString('refused', $error->getMessage());
        }
        $this->masters[0]->awaitGone($this->key);
        $this->masters[1]->hold('other', $this->key);
        $this->masters[2]->hold('other', $this->key);
        self::assertNull($this->quorum()->acquire($this->key, self::LEASE, 1));
        self::assertSame([[], ['other'], ['other']], $this->owners());
        foreach ([1, 2] as $one) { // who refuses has no vote either, and says why
            $this->masters[$one]->node('')->set($this->key, 'no lock');
        }
        $this->expectException(Unreachable::class);
        $this->expectExceptionMessageMatches('/WRONGTYPE.*WRONGTYPE/');
        $this->quorum()->acquire($this->key, self::LEASE);
    }

    public function testQuorumWaitsInOneQueue(): void
    {
        $hold = $this->quorum()->acquire($this->key, self::LEASE, Stage::patience());
        self::assertNotNull($hold);
        $children = [];
        for ($i = 1; $i <= 2; ++$i) {
            $children[] = $this->child(function (): void {
                $hold = $this->quorum()->lock($this->key, self::LEASE, 2 * Stage::patience());
                $this->masters[0]->node('')->rPush("$this->key:order", $hold->owner);
                $hold->release();
            });
            $this->masters[0]->awaitQueued($i, $this->key);
        }
        $line = $this->masters[0]->queue($this->key);
        self::assertSame([[], []], [$this->masters[1]->queue($this->key), $this->masters[2]->queue($this->key)]);
        Stage::until(
            fn () => $this->masters[0]->info($this->key)['queue'][1]['waited-ms'] > 2000,
            'the second has waited for several slices',
        );
        self::assertSame($line, $this->masters[0]->queue($this->key));
        $hold->release();
        foreach ($children as $child) {
            pcntl_waitpid($child, $status);
            self::assertSame(0, pcntl_wexitstatus($status));
        }
        self::assertSame($line, $this->masters[0]->node('')->lRange("$this->key:order", 0, -1));
        self::assertSame([[], [], []], $this->owners());
    }

    public function testQuorumRenewsAndNoticesTheLoss(): void
    {
        $hold = $this->quorum()->acquire($this->key, 6, Stage::patience());
        self::assertNotNull($hold);
        $tokens = $hold->tokens();
        for ($i = 0; $i < 4; ++$i) {
            Stage::until(static fn () => $hold->left() < 4, 'a third of the lease has passed');
            self::assertTrue($hold->renew(6));
        }
        self::assertTrue($hold->renew(self::LEASE));
        self::assertSame($tokens, $hold->tokens());
        $this->checkLeft($hold, 0, 1, 2);
        foreach ([1, 2] as $one) {
            $this->masters[$one]->ask('DLOCK.FORCERELEASE', $this->key);
        }
        $before = $hold->left();
        self::assertFalse($hold->renew(2 * self::LEASE));
        self::assertLessThanOrEqual($before, $hold->left());
        $locks = Kinds::locks(address: Stage::addresses('DLOCK_MASTERS')[1]);
        $this->assertFenced($locks, $tokens[1]);
        self::assertFalse($hold->renew(self::LEASE / 10));
        $this->checkLeft($hold, 0);
        $hold->release();
        self::assertSame([[], [], []], $this->owners());
    }

    private function assertFenced(\Dlock\Locks $locks, int $token): void
    {
        try {
            $locks->core->servers->insist($this->key, ['DLOCK.GUARD', $this->key, $token, 'SET', "$this->key:x", 1]);
            self::fail('it is fenced');
        } catch (Fenced) {
            $this->addToAssertionCount(1);
        }
    }

    public function testQuorumIsLeftWhenCancelled(): void
    {
        $hold = $this->quorum()->acquire($this->key, self::LEASE, Stage::patience());
        self::assertNotNull($hold);
        $cancelled = $this->child(function (): void {
            pcntl_async_signals(true);
            pcntl_signal(SIGUSR1, static fn () => throw new \RuntimeException('cancelled'));
            $quorum = $this->quorum(); // its connections do not end
            try {
                $quorum->acquire($this->key, self::LEASE, 2 * Stage::patience());
                exit(1);
            } catch (\RuntimeException $error) {
                self::assertSame('cancelled', $error->getMessage());
            }
            self::assertCount(1, $this->masters[0]->queue($this->key)); // the next
        });
        $this->masters[0]->awaitQueued(1, $this->key);
        $next = $this->child(function (): void {
            $hold = $this->quorum()->lock($this->key, self::LEASE, 2 * Stage::patience());
            self::assertSame([[$hold->owner], [$hold->owner], [$hold->owner]], $this->owners());
            $hold->release();
        });
        $this->masters[0]->awaitQueued(2, $this->key);
        posix_kill($cancelled, SIGUSR1);
        pcntl_waitpid($cancelled, $status);
        self::assertSame(0, pcntl_wexitstatus($status));
        $this->masters[0]->awaitQueued(1, $this->key);
        $hold->release();
        pcntl_waitpid($next, $status);
        self::assertSame(0, pcntl_wexitstatus($status));
        self::assertSame([[], [], []], $this->owners());
    }

    /**
     * A master does not answer in time, and continues: it grants a lock that no caller waits for, for three seconds at most.
     *
     * @testWith [0]
     *           [1]
     */
    public function testQuorumGivesBackWhereNobodyAnswered(int $silent): void
    {
        $addresses = Stage::addresses('DLOCK_MASTERS');
        $path = Stage::control("path $addresses[$silent]");
        foreach ([0, 1, 2] as $number) {
            if ($number > $silent) {
                $this->masters[$number]->hold('other', $this->key);
            }
        }
        $three = $addresses;
        $three[$silent] = $path;
        $quorum = $this->quorum($three, 0.3);
        Stage::control("silence $path");
        try {
            self::assertNull($quorum->acquire($this->key, self::LEASE, 1));
        } catch (Unreachable) {
            $this->addToAssertionCount(1); // on a busy machine others may also be silent
        }
        Stage::control("sound $path");
        foreach ([0, 1, 2] as $number) {
            if ($number > $silent) {
                $this->masters[$number]->handOver('other', $this->key);
            }
        }
        foreach ($this->masters as $one) {
            $one->awaitGone($this->key);
        }
        Stage::control("close $path");
    }

    /** It may be slow, and grant the lock to nobody. */
    public function testQuorumGivesBackWhatWasNotAnswered(): void
    {
        $asked = [];
        $says = static function (array $words) use (&$asked): mixed {
            $asked[] = "$words[0] $words[2]";

            return match ($words[0]) {
                'DLOCK.HELD' => null,
                'DLOCK.RENEW' => $words[3],
                default => count(preg_grep('/FAIRACQUIRE/', $asked)) === 1 ? new Unanswered('silence') : [7, 1],
            };
        };
        $quorum = new Quorum([Connect::fake(new Scripted($says))]);
        try {
            $quorum->acquire($this->key);
            self::fail('nobody answers');
        } catch (Unreachable) {
            $owner = explode(' ', end($asked))[1];
        }
        $quorum->lock($this->key)->release();
        self::assertContains("DLOCK.CANCEL $owner", $asked);
        self::assertContains("DLOCK.RELEASE $owner", $asked);
        self::assertSame(1, array_count_values($asked)["DLOCK.FAIRACQUIRE $owner"]);
    }

    /** A server, or what is on the way to it, ends what is idle. */
    public function testQuorumOutlivesItsIdleConnections(): void
    {
        $paths = array_map(static fn (string $one) => Stage::control("path $one"), Stage::addresses('DLOCK_MASTERS'));
        $quorum = $this->quorum($paths);
        $cut = static fn () => array_map(static fn (string $path) => Stage::control("cut $path"), $paths);
        $quorum->lock($this->key, self::LEASE, Stage::patience())->release();
        $cut();
        $hold = $quorum->acquire($this->key, self::LEASE);
        self::assertNotNull($hold);
        self::assertNotContains(null, $hold->tokens());
        $cut();
        self::assertTrue($hold->renew(self::LEASE));
        self::assertNotContains(null, $hold->tokens());
        $cut();
        $hold->release();
        self::assertSame([[], [], []], $this->owners());
    }

    public function testQuorumAsksTheSilentOneLast(): void
    {
        [, $b, $c] = Stage::addresses('DLOCK_MASTERS');
        $quorum = $this->quorum([(string) stream_socket_get_name($this->hung, false), $b, $c], 0.5);
        [$told, $tells] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $child = $this->child(function () use ($tells): void {
            // Who holds it at the others when the silent one is asked.
            for ($kept = []; $kept[] = stream_socket_accept($this->hung, 2 * Stage::patience());) {
                fwrite($tells, json_encode(array_slice($this->owners(), 1)) . "\n");
            }
        });
        stream_set_timeout($told, (int) Stage::patience());
        Stage::until(function () use ($quorum, $told): bool {
            $quorum->lock($this->key, self::LEASE, Stage::patience())->release();
            $hold = $quorum->lock($this->key, self::LEASE, Stage::patience()); // within a second, if the machine is quick
            $owner = $hold->owner;
            $hold->release();
            stream_set_blocking($told, false);
            $seen = explode("\n", trim((string) stream_get_contents($told)));

            return end($seen) === json_encode([[$owner], [$owner]]);
        }, 'the others have granted it when the silent one is asked');
        posix_kill($child, SIGKILL);
        pcntl_waitpid($child, $status);
        self::assertSame([[], [], []], $this->owners());
    }

    private function child(callable $work): int
    {
        $child = pcntl_fork();
        if ($child === 0) {
            $status = 1;
            try {
                foreach (Stage::addresses('DLOCK_MASTERS') as $number => $address) {
                    $this->masters[$number] = new Server('single', $address); // with connections of its own
                }
                $work();
                $status = 0;
            } catch (\Throwable $error) {
                fwrite(STDERR, "$error\n");
            }
            pcntl_exec('/bin/sh', ['-c', "exit $status"]);
        }

        return $child;
    }
}

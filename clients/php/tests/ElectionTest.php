<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Election;
use Dlock\Exception\NotHeld;
use PHPUnit\Framework\TestCase;

final class ElectionTest extends TestCase
{
    private Server $server;

    protected function setUp(): void
    {
        $this->server = new Server();
    }

    public function testOneLeads(): void
    {
        $one = new Election(Kinds::locks(), $this->server->key, 'one');
        $two = new Election(Kinds::locks(), $this->server->key, 'two');
        self::assertNull($two->leader());
        self::assertTrue($one->campaign(10));
        self::assertTrue($one->campaign(10), 'it leads already');
        self::assertFalse(Stage::timesOut(static fn () => $two->campaign(0.2)));
        self::assertTrue($one->isLeader());
        self::assertFalse($two->isLeader());
        self::assertSame(['id' => 'one', 'term' => $one->term()], $two->leader());
        self::assertSame('OK', $one->guard('SET', $this->server->key . ':value', 1));
        $before = $one->term();
        $one->resign();
        self::assertNull($one->term());
        self::assertTrue($two->campaign(10));
        self::assertGreaterThan($before, $two->term());
        $this->expectException(NotHeld::class);
        $one->guard('SET', $this->server->key . ':value', 1);
    }

    /** Candidates of all languages can lead in turn: the owner is the name and a new word for each campaign. */
    public function testCandidatesOfOtherLanguagesAreSeen(): void
    {
        $election = new Election(Kinds::locks(), $this->server->key, 'one#first');
        self::assertTrue($election->campaign(10));
        self::assertMatchesRegularExpression('~^[^/]+/' . getmypid() . '/one#first#[0-9a-f]+$~', $this->server->owners()[0]);
        self::assertSame('one#first', $election->leader()['id'] ?? null);
        $election->resign();
        $this->server->hold('go-1#XYZ');
        self::assertSame('go-1', $election->leader()['id'] ?? null);
    }

    public function testChangesAreSeen(): void
    {
        $one = new Election(Kinds::locks(), $this->server->key, 'one');
        $two = new Election(Kinds::locks(), $this->server->key, 'two');
        $seen = [];
        $one->observe(static function (?array $leader) use (&$seen, $one, $two): bool {
            $seen[] = $leader['id'] ?? null;
            match (count($seen)) {
                1 => $two->campaign(10),
                2 => $two->resign(),
                3 => $one->campaign(10),
                default => null,
            };

            return count($seen) < 4;
        }, Stage::patience(), 0.01);
        self::assertSame([null, 'two', null, 'one'], $seen);
    }

    /** The first call that checks learns of the loss, and all that share the hold know it. */
    public function testTheTermEndsWithTheLoss(): void
    {
        $locks = Kinds::locks();
        $election = new Election($locks, $this->server->key, 'me');
        self::assertTrue($election->campaign());
        self::assertNotNull($election->term());
        $this->server->ask('DLOCK.FORCERELEASE', $this->server->key);
        $locks->keep(true);
        self::assertNull($election->term());
    }

    /** @return list<array{string}> */
    public static function faults(): array
    {
        return [['kill'], ['stop'], ['cut']];
    }

    /**
     * Both write their term, guarded, as long as they believe that they lead: no term comes after a later one.
     *
     * @dataProvider faults
     */
    public function testNoTwoLeadersWrite(string $fault): void
    {
        $path = Stage::control('path ' . Stage::addresses('DLOCK_SINGLE')[0]);
        $how = ['lease' => 6.0, 'hangTimeout' => 6.0]; // a leader that steps down after a stall does not campaign again
        $terms = fn () => $this->server->node($this->server->key)->lRange($this->server->key . ':terms', 0, -1);
        $first = new Worker([...$how, 'address' => $path]);
        $first->start('lead', name: $this->server->key, id: 'first');
        Stage::until(fn () => $first->seen('leads') === 1, 'the first leads');
        Stage::until(fn () => $terms() !== [], 'the first writes');
        $second = new Worker($how);
        $second->start('lead', name: $this->server->key, id: 'second');
        $this->server->awaitQueued(1);
        match ($fault) {
            'kill' => $first->kill(),
            'stop' => posix_kill($first->pid(), SIGSTOP), // the server renews it for `auto`
            'cut' => Stage::control("silence $path"),
        };
        Stage::until(fn () => $second->seen('leads') === 1, 'the second leads');
        if ($fault !== 'kill') {
            $fault === 'stop' ? posix_kill($first->pid(), SIGCONT) : Stage::control("sound $path");
            Stage::until(fn () => $first->seen('leads no more') === 1, 'the first knows');
        }
        $count = count($terms());
        Stage::until(fn () => count($terms()) > $count + 5, 'the second writes');
        $written = $terms();
        self::assertCount(2, array_unique($written));
        $sorted = $written;
        sort($sorted, SORT_NUMERIC);
        self::assertSame($sorted, $written);
    }
}

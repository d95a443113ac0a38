<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Connect;
use Dlock\Election;
use Dlock\Exception\NotHeld;
use Dlock\FakeLocks;
use Dlock\Hold;
use Dlock\Locks;
use Dlock\Observer;
use PHPUnit\Framework\TestCase;
use Redis;

/** The code that the documents show. */
final class ExamplesTest extends TestCase
{
    private string $stock;
    private string $url;

    protected function setUp(): void
    {
        $this->stock = (new Server())->key;
        $this->url = 'redis://' . Stage::addresses('DLOCK_SINGLE')[0];
    }

    public function testTenLines(): void
    {
        [$stock, $url] = [$this->stock, $this->url];
        $print = static fn (mixed $line) => self::assertNotEmpty($line);
        // The document's.
        $locks = new Locks(Connect::url($url));
        $locks->with($stock, function (Hold $hold) use ($stock) {
            $hold->guard('SET', "$stock:left", 41); // runs only while the lock is held: else Fenced
        }, timeout: 5); // LockTimeout after 5 s
        if ($hold = $locks->tryLock($stock, shared: true)) { // null if it is taken
            $print($hold->token);
            $hold->release();
        }
        // Until here.
        self::assertSame('41', (new Server())->ask('GET', "$stock:left"));
    }

    public function testAClosure(): void
    {
        [$host, $port] = explode(':', Stage::addresses('DLOCK_SINGLE')[0]);
        $port = (int) $port;
        // The document's.
        $locks = new Locks(function (float $within) use ($host, $port): Redis {
            $redis = new Redis();
            $redis->connect($host, $port, $within, null, 0, $within); // then auth() and select() as you need

            return $redis;
        });
        // Until here.
        $hold = $locks->lock($this->stock);
        self::assertSame([$hold->owner], (new Server())->owners($this->stock));
        $hold->release();
    }

    public function testLongWork(): void
    {
        [$stock, $locks, $orders] = [$this->stock, Kinds::locks(), [1, 2, 3]];
        $done = [];
        $work = static function (int $order) use (&$done): void {
            $done[] = $order;
        };
        $hold = $locks->lock($stock);
        foreach ($orders as $order) {
            $hold->keep(); // NotHeld if it was lost; asks the server once a second at most
            $work($order);
        }
        $hold->release();
        self::assertSame($orders, $done);
        $this->expectException(NotHeld::class);
        $hold->keep();
    }

    public function testACounter(): void
    {
        $counter = new class () extends Observer {
            /** @var array<string, int> */
            public array $counts = [];

            public function granted(string $key, float $seconds): void
            {
                $this->counts['granted'] = ($this->counts['granted'] ?? 0) + 1;
            }

            public function lost(string $key, string $reason): void
            {
                $this->counts["lost: $reason"] = ($this->counts["lost: $reason"] ?? 0) + 1;
            }
        };
        $locks = new Locks(Connect::url($this->url), observer: $counter);
        $locks->lock($this->stock)->release();
        self::assertSame(['granted' => 1], $counter->counts);
    }

    public function testWithoutAServer(): void
    {
        $print = static fn (mixed $line) => self::assertTrue($line);
        $locks = new FakeLocks();
        $hold = $locks->lock('stock');
        $hold->guard('SET', 'stock:left', 41);
        $locks->lose('stock');
        $print($hold->lost());
        self::assertSame([['SET', 'stock:left', '41']], $locks->commands());
    }

    public function testALeader(): void
    {
        [$name, $locks] = [$this->stock, Kinds::locks()];
        $steps = 3;
        $work = static function () use (&$steps): bool {
            return --$steps > 0;
        };
        $election = new Election($locks, $name, 'web-3');
        if ($election->campaign(timeout: 60)) {
            while ($election->isLeader() && $work()) {
                $election->guard('SET', "$name:term", $election->term()); // Fenced if there is another leader
            }
            $election->resign();
        }
        self::assertSame(0, $steps);
        self::assertNull($election->leader());
    }
}

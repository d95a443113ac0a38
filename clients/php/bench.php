<?php

// SPDX-License-Identifier: MIT

// Measures dlock next to Symfony's and Laravel's locks, on one server in one run. Prints Markdown.
//
// A PHP process does one thing at a time, so workers are processes, each with its own connection. A thousand of them would take a gigabyte
// to show that once more. What held locks cost is not measured: nothing keeps them in the background.

declare(strict_types=1);

use Dlock\Connect;
use Dlock\Locks;
use Illuminate\Cache\RedisStore as LaravelStore;
use Illuminate\Container\Container;
use Illuminate\Redis\RedisManager;
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\RedisStore as SymfonyStore;

require getenv('DLOCK_CLIENT_TARGET') . '/bench/vendor/autoload.php';
require 'Predis/autoload.php';
require 'Symfony/Component/Lock/autoload.php';
require 'Illuminate/autoload.php';

error_reporting(E_ALL & ~E_DEPRECATED); // the distribution's older libraries have some of PHP 8.2's

const PAIRS = 2000;
const ROUNDS = 5;
const SECONDS = 6;
const LEASE = 10; // seconds

define('ADDRESS', getenv('DLOCK_SINGLE'));
define('SERVER', array_combine(['host', 'port'], explode(':', ADDRESS)));

/** Makes a new connection each time: a forked process must not have its parent's connection. */
function server(): Redis
{
    $redis = new Redis();
    $redis->connect(SERVER['host'], (int) SERVER['port']);

    return $redis;
}

/** @return array<string, Closure(): Closure(string, Closure): mixed> each connects, to take a lock, do the work and give it back */
function kinds(): array
{
    return [
        'dlock, phpredis' => static fn () => (new Locks(Connect::url('redis://' . ADDRESS)))->with(...),
        'dlock, Predis' => static fn () => (new Locks(static fn () => new Predis\Client(SERVER)))->with(...),
        "Symfony's RedisStore" => static function (): Closure {
            $factory = new LockFactory(new SymfonyStore(server()));

            return static function (string $key, Closure $work) use ($factory): void {
                $lock = $factory->createLock($key, LEASE);
                $lock->acquire(true);
                $work();
                $lock->release();
            };
        },
        "Laravel's cache lock" => static function (): Closure {
            $store = new LaravelStore(new RedisManager(new Container(), 'phpredis', ['default' => SERVER + ['database' => 0]]));

            return static fn (string $key, Closure $work) => $store->lock($key, LEASE)->block(3600, $work);
        },
    ];
}

function name(): string
{
    return 'bench:' . bin2hex(random_bytes(16));
}

/** Seconds since any moment, the same for all processes. */
function now(): float
{
    return hrtime(true) / 1e9;
}

/** @return float microseconds of the processor that this process has used */
function used(): float
{
    $usage = getrusage();

    return 1e6 * ($usage['ru_utime.tv_sec'] + $usage['ru_stime.tv_sec']) + $usage['ru_utime.tv_usec'] + $usage['ru_stime.tv_usec'];
}

/** @return float those that the server has used */
function usedByServer(): float
{
    $cpu = server()->info('cpu');

    return 1e6 * ((float) $cpu['used_cpu_user'] + (float) $cpu['used_cpu_sys']);
}

/** @return array{rate: float, client: float, server: float} pairs a second, and microseconds of the processor for each */
function uncontended(Closure $kind): array
{
    [$pair, $key, $work] = [$kind(), name(), static fn () => null];
    $pair($key, $work);
    [$server, $client, $began] = [usedByServer(), used(), now()];
    for ($i = 0; $i < PAIRS; ++$i) {
        $pair($key, $work);
    }
    [$took, $client] = [now() - $began, used() - $client];

    return ['rate' => PAIRS / $took, 'client' => $client / PAIRS, 'server' => (usedByServer() - $server) / PAIRS];
}

/** A process that waits for `start()`, works, and returns a result. */
final class Worker
{
    private readonly int $pid;
    /** @var resource */
    private $line;

    /** @param Closure(float): mixed $work */
    public function __construct(Closure $work)
    {
        [$this->line, $theirs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $this->pid = pcntl_fork();
        if ($this->pid === 0) {
            fwrite($theirs, json_encode($work((float) fgets($theirs))) . "\n");
            exit;
        }
        fclose($theirs);
    }

    public function start(float $until): void
    {
        fwrite($this->line, "$until\n");
    }

    public function result(): mixed
    {
        $result = fgets($this->line);
        pcntl_waitpid($this->pid, $status);

        return $result === false ? throw new RuntimeException('a worker has failed') : json_decode($result, true);
    }

    /** @return list<self> */
    public static function several(int $count, Closure $work): array
    {
        return array_map(static fn () => new self($work), range(1, $count));
    }
}

/**
 * Waits that outlast the time also count.
 *
 * @return array{list<float>, list<int>} waits in milliseconds, the shortest first, and the turns of each worker within the time
 */
function contended(Closure $kind, int $count): array
{
    $key = name();
    $workers = Worker::several($count, static function (float $until) use ($kind, $key): array {
        [$pair, $waits, $turns] = [$kind(), [], 0];
        while (($asked = now()) < $until) {
            $pair($key, static function () use ($asked, $until, &$waits, &$turns): void {
                $waits[] = 1000 * (now() - $asked);
                $turns += (int) (now() < $until);
            });
        }

        return [$waits, $turns];
    });
    $until = now() + SECONDS;
    array_walk($workers, static fn (Worker $worker) => $worker->start($until));
    $results = array_map(static fn (Worker $worker) => $worker->result(), $workers);
    $waits = array_merge(...array_column($results, 0));
    sort($waits);

    return [$waits, array_column($results, 1)];
}

/** Connections while this many processes wait for one held lock. They take it in turn in the end. */
function waiting(Closure $kind, int $count): int
{
    $key = name();
    $workers = Worker::several($count, static fn () => $kind()($key, static fn () => null));
    // The lock is taken after they are forked: none of them inherits it.
    $seen = $kind()($key, static function () use ($workers, $count): int {
        $server = server();
        $before = count($server->client('list'));
        array_walk($workers, static fn (Worker $worker) => $worker->start(0));
        while ($server->info('dlock')['dlock_places_queued'] < $count) {
            usleep(10_000);
        }

        return count($server->client('list')) - $before;
    });
    array_walk($workers, static fn (Worker $worker) => $worker->result());

    return $seen;
}

/** @param list<float> $sorted */
function part(array $sorted, float $part): float
{
    return $sorted[min(count($sorted) - 1, (int) (count($sorted) * $part))];
}

/**
 * @param list<array{rate: float, client: float, server: float}> $rounds
 *
 * @return list<float> one figure of all rounds, the smallest first
 */
function figures(array $rounds, string $figure): array
{
    $figures = array_column($rounds, $figure);
    sort($figures);

    return $figures;
}

printf("\n%s, PHP %s; medians of %d interleaved rounds\n\n", getenv('DLOCK_SERVER'), PHP_VERSION, ROUNDS);
$kinds = kinds();
$rounds = array_fill_keys(array_keys($kinds), []);
for ($round = 0; $round < ROUNDS; ++$round) {
    foreach ($kinds as $title => $kind) {
        $rounds[$title][] = uncontended($kind);
    }
}
$middle = intdiv(ROUNDS, 2);
$theirs = figures($rounds["Symfony's RedisStore"], 'rate')[$middle];
echo "| uncontended | pairs a second | least, most | of Symfony's | client µs a pair | server µs a pair |\n|---|---|---|---|---|---|\n";
foreach ($rounds as $title => $seen) {
    $rates = figures($seen, 'rate');
    [$client, $server] = [figures($seen, 'client')[$middle], figures($seen, 'server')[$middle]];
    vprintf(
        "| %s | %.0f | %.0f, %.0f | %.2f | %.0f | %.1f |\n",
        [$title, $rates[$middle], $rates[0], end($rates), $rates[$middle] / $theirs, $client, $server],
    );
}
echo "\n| workers on one lock | | turns a second | wait p50 ms | p99 ms | p99.9 ms | longest ms | fewest and most turns |\n";
echo "|---|---|---|---|---|---|---|---|\n";
foreach ([16, 100] as $count) {
    foreach ($kinds as $title => $kind) {
        [$waits, $turns] = contended($kind, $count);
        $figures = array_map(static fn (float $part) => part($waits, $part), [0.5, 0.99, 0.999, 1.0]);
        vprintf(
            "| %d | %s | %.0f | %.1f | %.1f | %.1f | %.1f | %d, %d |\n",
            [$count, $title, array_sum($turns) / SECONDS, ...$figures, min($turns), max($turns)],
        );
    }
}
echo "\n| tasks that wait for one held lock | | connections |\n|---|---|---|\n";
foreach ([1, 100] as $count) {
    foreach (array_slice($kinds, 0, 2) as $title => $kind) {
        sleep(1); // the connections of the last ones end
        printf("| %d | %s | %d |\n", $count, $title, waiting($kind, $count));
    }
}

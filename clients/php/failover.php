<?php

// A program of a run of failovers: `failover.php phpredis`.
//
// It takes locks in turn until stdin ends, and keeps none: PHP does one thing at a time. Each grant and release is a line on stdout, with
// the machine's monotonic clock in microseconds: so others can judge who has held what at the same time.

declare(strict_types=1);

use Dlock\Connect;
use Dlock\Hold;
use Dlock\Locks;

require getenv('DLOCK_CLIENT_TARGET') . '/failover/vendor/autoload.php';

const AFTER_AN_ERROR = 100_000; // microseconds, like all times here
const AFTER_OWN = 20_000;
const TO_END = 2_000_000;

/** Is thrown by a signal, also in the middle of a wait. */
final class Ended extends Exception
{
}

function tell(string $what, Hold $hold): void
{
    $now = intdiv(hrtime(true), 1000);
    fwrite(STDOUT, "$what $hold->key $hold->token $now\n");
}

function turn(Locks $locks, string $key, int $shortest, int $longest): void
{
    $hold = $locks->lock($key);
    try {
        tell('have', $hold);
        usleep(random_int($shortest, $longest));
    } finally {
        tell('free', $hold);
        $hold->release();
    }
}

/** Does it again after an error. */
function insist(Closure $work): void
{
    while (true) {
        try {
            $work();

            return;
        } catch (Ended $end) {
            throw $end;
        } catch (Throwable $error) {
            fwrite(STDERR, preg_replace('/\s+/', ' ', $error::class . ": {$error->getMessage()}") . "\n");
            usleep(AFTER_AN_ERROR);
        }
    }
}

function work(int $parent): void
{
    $addresses = explode(',', getenv('DLOCK_SENTINELS') ?: getenv('DLOCK_CLUSTER'));
    $connect = getenv('DLOCK_SENTINELS') ? Connect::sentinel($addresses, 'locks') : Connect::cluster($addresses);
    $locks = new Locks($connect, lease: getenv('DLOCK_LEASE_MS') / 1000, hangTimeout: 20.0);
    $tag = '{' . getenv('DLOCK_TAG') . '}';
    for ($turns = 0; posix_getppid() === $parent; ++$turns) {
        insist(fn () => turn($locks, "{$tag}turn:" . random_int(0, 2), 5_000, 15_000));
        if ($turns === 0) {
            fwrite(STDOUT, "ready\n");
        }
        insist(fn () => turn($locks, "{$tag}own:php", 5_000, 5_000));
        usleep(AFTER_OWN);
    }
}

// A child works: nobody can bound its wait, nor how long a server does not answer.
pcntl_async_signals(true);
pcntl_signal(SIGTERM, static fn () => throw new Ended());
$parent = getmypid();
$child = pcntl_fork();
if ($child === 0) {
    try {
        work($parent);
    } catch (Ended) {
    }
    exit;
}
pcntl_signal(SIGTERM, SIG_DFL);
while (!feof(STDIN)) {
    [$read, $none] = [[STDIN], null];
    if (stream_select($read, $none, $none, 0, 100_000)) {
        fread(STDIN, 4096);
    }
    if (pcntl_waitpid($child, $status, WNOHANG) !== 0) {
        exit(1); // it has said why
    }
}
posix_kill($child, SIGTERM);
fwrite(STDOUT, "end\n");
$until = hrtime(true) + 1000 * TO_END;
while (pcntl_waitpid($child, $status, WNOHANG) === 0) {
    if (hrtime(true) > $until) {
        posix_kill($child, SIGKILL);
    }
    usleep(10_000);
}

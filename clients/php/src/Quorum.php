<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\LockTimeout;
use Dlock\Exception\Unreachable;
use Psr\Log\LoggerInterface;

/**
 * A lock over several masters that know nothing of each other.
 *
 *     $quorum = new Quorum([Connect::url('redis://one'), Connect::url('redis://two'), Connect::url('redis://three')]);
 *     $hold = $quorum->lock('stock', lease: 10, wait: 5); // LockTimeout after 5 s, Unreachable if no majority votes
 *     while ($hold->left() > 1 && $work()) {
 *         $hold->renew(10);
 *     }
 *     $hold->release();
 *
 * A client holds the lock if it holds it at a majority. Every client names the masters in the same order. The recipe and its
 * reasons are in docs/cluster.md of dlock. Times are in seconds.
 */
final class Quorum
{
    /** @var list<QuorumMaster> */
    private readonly array $masters;

    /**
     * @param array<Connect|\Closure> $masters as for Locks; a connection for each
     * @param float                                          $replyTimeout how long a master may take to connect and to answer
     */
    public function __construct(
        array $masters,
        float $replyTimeout = 0.3,
        private readonly ?LoggerInterface $logger = null,
        private readonly ?Observer $observer = null,
    ) {
        if ($masters === []) {
            throw new \InvalidArgumentException('masters must not be empty');
        }
        $settings = new Settings(3.0, 3.0, 2.0, $replyTimeout, 0.0);
        $this->masters = array_map(static fn (Connect|\Closure $one) => new QuorumMaster($one, $settings), array_values($masters));
    }

    /** A hold, or null after `wait` (0: one try). Whatever interrupts it, nothing is left behind that outlasts three seconds. */
    public function acquire(string $key, int|float $lease = 10.0, int|float $wait = 0.0): ?QuorumHold
    {
        $lease = Settings::positive('lease', $lease);
        $end = Clock::now() + (Settings::seconds('wait', $wait) ?? throw new \InvalidArgumentException('wait must be finite'));
        do {
            $hold = new QuorumHold($this->masters, $key, $this->logger, $this->observer);
            try {
                if ($hold->take($lease, $end)) {
                    return $hold;
                }
            } catch (\Throwable $error) { // of a signal's handler: nobody has what was granted
                $hold->release();
                throw $error;
            }
            $errors = array_filter(array_map(static fn (QuorumMaster $master) => $master->error, $this->masters));
            $hold->release();
            $pause = random_int(20, 200) / 1000; // or those who have split the votes would do it again
            $again = Clock::now() + $pause < $end;
            Clock::sleep($again ? $pause : 0.0);
        } while ($again);
        if (2 * count($errors) >= count($this->masters)) {
            throw new Unreachable('no majority of the masters has voted: ' . implode('; ', $errors));
        }

        return null;
    }

    /** The same, but LockTimeout instead of null. */
    public function lock(string $key, int|float $lease = 10.0, int|float $wait = 0.0): QuorumHold
    {
        return $this->acquire($key, $lease, $wait) ?? throw new LockTimeout("$key was not granted within $wait s");
    }
}

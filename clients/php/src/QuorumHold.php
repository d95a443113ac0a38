<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Psr\Log\LoggerInterface;

/**
 * A lock that is held at a majority of masters, until `release()`. When nothing refers to it any longer it is reported lost, and
 * its leases end it.
 */
final class QuorumHold
{
    private const EARLIER = 0.005; // the leases at the others end this much before the first one's
    private const DRIFT = 100; // no clock is faster than another by a hundredth

    /** The name under which it is held. Each try has its own: a command that reaches a master late affects no other hold. */
    public readonly string $owner;
    private readonly Request $request;
    /** @var array<int, int> by the master's number */
    private array $tokens = [];
    private int $first = 0;
    private float $deadline = -INF;
    private readonly int $process;
    /** @var array<int, true> who has been asked for something that may be granted */
    private array $asked = [];

    /**
     * @internal
     *
     * @param list<QuorumMaster> $masters
     */
    public function __construct(
        private readonly array $masters,
        public readonly string $key,
        private readonly ?LoggerInterface $logger,
        private readonly ?Observer $observer,
    ) {
        // Its lease is that of a grant whose reply the client has not received.
        $this->request = new Request(new Settings(3.0, 3.0, 2.0, 1.0, 0.0), $key, lease: 3.0);
        $this->owner = $this->request->owner;
        $this->process = (int) getmypid();
    }

    public function __destruct()
    {
        if ($this->left() === 0.0) { // it was released, or has ended, or belongs to another process
            return;
        }
        $this->logger?->warning('lock {key} of {owner} is lost: nothing refers to its hold, and it was not released', [
            'key' => $this->key,
            'owner' => $this->owner,
        ]);
        try {
            $this->observer?->lost($this->key, 'forgotten');
        } catch (\Throwable $error) {
            $this->logger?->error('the observer has failed: {error}', ['error' => $error->getMessage()]);
        }
    }

    /** Returns for how many seconds it is surely held. */
    public function left(): float
    {
        return $this->process === getmypid() ? max(0.0, $this->deadline - Clock::now()) : 0.0;
    }

    /**
     * Each master's fencing token, or null. Those of one master can be compared.
     *
     * @return list<?int>
     */
    public function tokens(): array
    {
        return array_map(fn (int $number) => $this->tokens[$number] ?? null, array_keys($this->masters));
    }

    /** Makes all leases new, the first master's last. False when no majority agrees: it is held as long as before, or shorter. */
    public function renew(int|float $lease = 10.0): bool
    {
        $lease = Settings::positive('lease', $lease);
        $order = [...array_diff($this->inOrder(), [$this->first]), $this->first];

        return $this->vote(array_values(array_intersect($order, array_keys($this->tokens))), $lease);
    }

    /** Gives the lock back at all masters that were asked, at the first one last. What has ended before is no error. */
    public function release(): void
    {
        [$this->tokens, $this->deadline] = [[], -INF];
        foreach ([...array_diff($this->inOrder(), [$this->first]), $this->first] as $number) {
            if (isset($this->asked[$number])) {
                $this->masters[$number]->leave($this->request);
            }
        }
        $this->asked = [];
    }

    /** @internal waits at the first master that is there, then asks the others */
    public function take(float $lease, float $end): bool
    {
        foreach ($this->masters as $master) {
            $master->error = null;
        }
        foreach ($this->inOrder() as $number) {
            $this->first = $number;
            if (!$this->masters[$number]->reach($this->request)) {
                continue;
            }
            $this->asked[$number] = true;
            $token = $this->masters[$number]->wait($this->request, $end);
            if ($token !== null) {
                $this->tokens = [$number => $token];

                return $this->vote([$number, ...array_diff($this->inOrder(), [$number])], $lease);
            }
            if ($this->masters[$number]->error === null) {
                return false;
            }
        }

        return false;
    }

    /** @return list<int> the masters' numbers: those that were silent a moment ago come last */
    private function inOrder(): array
    {
        return array_map(
            fn (QuorumMaster $one) => (int) array_search($one, $this->masters, true),
            QuorumMaster::silentLast($this->masters),
        );
    }

    /**
     * Takes it where there is no token, and makes the leases new: a renewal is a request whose time is known.
     *
     * @param array<int> $numbers
     */
    private function vote(array $numbers, float $lease): bool
    {
        $begun = Clock::now();
        $deadline = INF;
        $votes = [];
        foreach ($numbers as $number) {
            $master = $this->masters[$number];
            if (!isset($this->tokens[$number])) {
                if (!$master->reach($this->request)) {
                    continue;
                }
                $this->asked[$number] = true;
            }
            $token = $this->tokens[$number] ?? $master->take($this->request);
            if ($token === null) {
                continue;
            }
            $sent = Clock::now();
            $length = $number === $this->first ? $lease : max(0.001, $lease - self::EARLIER - ($sent - $begun));
            $left = $master->renew($this->request, $token, $length);
            // Without an answer it may be as short as was asked for.
            $length = min($length, $left ?? $length); // dlock.max-hold-ms may have cut it
            $deadline = min($deadline, $sent + $length - Settings::ROUNDING - $length / self::DRIFT);
            if ($left !== null) {
                $votes[$number] = $token;
                $lease = $number === $this->first ? $length : $lease;
            }
        }
        if (2 * count($votes) > count($this->masters) && Clock::now() < $deadline) {
            [$this->tokens, $this->deadline] = [$votes, $deadline];

            return true;
        }
        $this->deadline = min($this->deadline, $deadline); // some masters have received a lease that may be shorter

        return false;
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\NotHeld;
use Dlock\Exception\Unanswered;

/**
 * One leader of many candidates. The fencing token is the term: it is higher than that of every leader before.
 *
 *     $election = new Election($locks, 'cleaner', 'web-3');
 *     if ($election->campaign(timeout: 60)) {
 *         while ($election->isLeader() && $work()) {
 *             $election->guard('SET', '{cleaner}:at', $at); // Fenced if there is another leader by now
 *         }
 *         $election->resign();
 *     }
 */
final class Election
{
    private ?Hold $hold = null;
    private readonly float $margin;

    /**
     * @param string $name   what is to be led: the lock's name
     * @param string $id     who this candidate is, for those who observe
     * @param ?\Closure(Hold): void $onLost is called when a call finds that this is no longer the leader
     * @param ?float $margin how long before the believed end of its lease the leader steps down; a tenth of the lease unless set
     */
    public function __construct(
        private readonly Locks $locks,
        private readonly string $name,
        private readonly string $id,
        ?float $margin = null,
        private readonly ?\Closure $onLost = null,
    ) {
        if ($name === '') {
            throw new \InvalidArgumentException('name must not be empty');
        }
        if ($id === '' || strlen($id) > 900) {
            throw new \InvalidArgumentException('id must have 1 to 900 bytes');
        }
        $this->margin = $margin === null
            ? $locks->core->settings->lease / 10
            : (float) Settings::seconds('margin', $margin);
    }

    /** Waits until this is the leader; false if it is not within the time-out. */
    public function campaign(int|float|null $timeout = null): bool
    {
        if (!$this->isLeader()) {
            // Two candidates of one name are two.
            $settings = $this->locks->core->settings;
            $owner = Request::owner($this->id);
            $request = new Request($settings, $this->name, $owner, hangTimeout: $settings->hangTimeout);
            $this->hold = $this->locks->core->hold($request, Settings::seconds('timeout', $timeout), $this->onLost);
        }

        return $this->hold !== null;
    }

    /** True as long as nobody else can be the leader. Asks the server once a second at most: call it before each step of work. */
    public function isLeader(): bool
    {
        if ($this->hold !== null && ($this->hold->lost() || $this->hold->left() <= $this->margin)) {
            [$hold, $this->hold] = [$this->hold, null];
            $this->locks->core->giveUp($hold, 'nobody has confirmed it in time');
            $this->locks->core->doErrands();
        }

        return $this->hold !== null;
    }

    /** Returns the term of this leader, or null. Sends nothing. */
    public function term(): ?int
    {
        return $this->hold !== null && $this->hold->left() > $this->margin ? $this->hold->token : null;
    }

    /**
     * Returns the leader and the term since which it leads, or null. The term may be over when the program reads this.
     *
     * @return ?array{id: string, term: int}
     */
    public function leader(): ?array
    {
        $held = $this->locks->core->servers->insist($this->name, ['DLOCK.HELD', $this->name]);

        // The name is what stands between machine and process, and the word that each campaign adds.
        return $held ? ['id' => preg_replace('~^[^/]+/\d+/|#[^#]*$~D', '', $held[3]), 'term' => $held[0]] : null;
    }

    /**
     * Calls it with who leads (see leader()), now and whenever that has changed, until it returns false or the time is up.
     *
     * @param callable(?array{id: string, term: int}): mixed $seen
     */
    public function observe(callable $seen, int|float|null $timeout = null, float $interval = 1.0): void
    {
        $end = Clock::now() + (Settings::seconds('timeout', $timeout) ?? INF);
        $interval = Settings::positive('interval', $interval);
        for ($last = false;;) {
            try {
                $leader = $this->leader();
                if ($leader !== $last && $seen($last = $leader) === false) {
                    return;
                }
            } catch (Unanswered) {
                // Nobody says who leads. That is no change.
            }
            $left = $end - Clock::now();
            if ($left <= 0) {
                return;
            }
            Clock::sleep(min($interval, $left));
        }
    }

    /** Runs a command if, and only if, this is still the leader: see Hold::guard(). */
    public function guard(string $command, string|int|float ...$arguments): mixed
    {
        return ($this->hold ?? throw new NotHeld("NOTHELD $this->id does not lead $this->name"))->guard($command, ...$arguments);
    }

    /** Releases the leadership. */
    public function resign(): void
    {
        $hold = $this->hold;
        $this->hold = null;
        try {
            $hold?->release();
        } catch (NotHeld) {
            // It was over.
        }
    }
}

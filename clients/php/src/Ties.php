<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * What is held at the nodes: what is believed of each hold, and who is told that it is lost.
 *
 * @internal
 */
final class Ties
{
    private const ROUNDING = 0.002;

    /** False: the server renews for these connections what is not known here, too. */
    public bool $alone = true;

    public function __construct(
        private readonly Servers $servers,
        private readonly float $allowance,
        private readonly Report $report,
    ) {
    }

    /** Another node's token may be the same. */
    public function find(string $key, int $token): ?Tie
    {
        foreach ($this->servers->nodes as $node) {
            if (isset($node->ties[$token]) && $node->ties[$token]->request->key === $key) {
                return $node->ties[$token];
            }
        }

        return null;
    }

    /** It is tied to this node's connection, and to no other. */
    public function put(Tie $tie, Node $node): void
    {
        $this->remove($tie);
        $node->ties[$tie->token] = $tie;
    }

    /** It is tied, and held for so long from when that was asked for. */
    public function believe(Tie $tie, float $sent, float $lease): void
    {
        $tie->tied = true;
        $tie->until = max($tie->until, $this->end($sent, $lease));
    }

    /** Perhaps it is held for that long only. */
    public function doubt(Tie $tie, float $sent, float $lease): void
    {
        $tie->until = min($tie->until, $this->end($sent, $lease));
    }

    /** The connection has ended: RENEW will tell what has become of them. What ends with it is lost. */
    public function loosen(Node $node): void
    {
        foreach ($node->ties as $tie) {
            $tie->tied = false;
            if ($tie->request->session) {
                $this->lose($tie, 'session');
            }
        }
    }

    /**
     * It is not held any more, and the program is told.
     *
     * @return list<Hold> for whom that is news
     */
    public function lose(Tie $tie, string $reason, bool $warns = true): array
    {
        $this->remove($tie);
        $told = [];
        foreach ($tie->holds as $one) {
            $hold = $one->get();
            if ($hold === null || !$hold->end($reason)) {
                continue;
            }
            $told[] = $hold;
            if ($warns) {
                $this->report->warn('lock {key} of {owner} is lost: {reason}', [
                    'key' => $hold->key,
                    'owner' => $hold->owner,
                    'reason' => $reason,
                ]);
            }
            $this->report->tell(static fn (Observer $observer) => $observer->lost($hold->key, $reason));
            $hold->told();
        }

        return $told;
    }

    private function remove(Tie $tie): void
    {
        foreach ($this->servers->nodes as $node) {
            if (($node->ties[$tie->token] ?? null) === $tie) {
                unset($node->ties[$tie->token]);
            }
        }
    }

    private function end(float $sent, float $lease): float
    {
        return $sent + $lease - self::ROUNDING - $this->allowance;
    }
}

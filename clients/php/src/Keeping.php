<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\NoAck;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * Signs of life: KEEP moves the believed end of all that is tied to a connection, and tells what was lost; RENEW ties anew
 * what was tied to a connection that has ended.
 *
 * @internal
 */
final class Keeping
{
    private const TRIES = 3;
    /** The hold goes on, and is tied no more: to another server, under another name, by another connection, by a replica. */
    private const LOOSE = ['moved', 'renamed', 'taken', 'demoted'];

    public function __construct(
        private readonly Servers $servers,
        private readonly Router $router,
        private readonly Ties $ties,
        private readonly Leaving $leaving,
        private readonly Settings $settings,
        private readonly Report $report,
    ) {
    }

    /**
     * A sign of life to each node that has not had one for a while, or of which a hold is not believed any more.
     *
     * @return list<Hold> what was found lost
     */
    public function keep(bool $now): array
    {
        $lost = [];
        foreach ($this->servers->nodes as $node) {
            $at = Clock::now();
            $first = $node->ties === [] ? INF : min(array_map(static fn (Tie $tie) => $tie->until, $node->ties));
            if ($first < INF && ($now || $at >= $first || $at - $node->keptAt >= $this->settings->interval)) {
                $node->keptAt = $at;
                // A silent node costs no more than the bound, and keeps nobody in the belief that a lock is still held; but
                // who looks at the last moment waits for an answer, too.
                $until = $at + $this->settings->bound;
                $until = $first > $at ? min($until, max($first, $at + $this->settings->interval)) : $until;
                $lost = [...$lost, ...$this->look($node, $until), ...$this->expire($node)];
            }
        }
        $this->leaving->depart();

        return $lost;
    }

    /** @return list<Hold> */
    private function look(Node $node, float $until): array
    {
        $lost = [];
        for ($try = 1; $try <= self::TRIES; ++$try) {
            try {
                array_push($lost, ...$this->sign($node, $until));
                array_push($lost, ...$this->tieAnew($node, $until));
                break;
            } catch (Unanswered | Refused $error) {
                $this->report->note('node {node}: {error}', ['node' => $node->name, 'error' => $error->getMessage()]);
                $this->router->lookAround(Clock::now() + 1); // what is not kept here may be kept elsewhere, now
                if ($error instanceof NoAck || Clock::now() >= $until) {
                    break;
                }
            }
        }

        return $lost;
    }

    /**
     * What is not believed any more is lost, and given back if somebody answers later.
     *
     * @return list<Hold>
     */
    private function expire(Node $node): array
    {
        $lost = [];
        foreach ($node->ties as $tie) {
            if ($tie->until <= Clock::now()) {
                array_push($lost, ...$this->ties->lose($tie, 'nobody has confirmed it before its end'));
                $this->leaving->owe($tie->request, $tie->token);
            }
        }

        return $lost;
    }

    /** @return list<Hold> */
    private function sign(Node $node, float $until): array
    {
        $tied = array_filter($node->ties, static fn (Tie $tie) => $tie->tied);
        if ($tied === []) {
            return [];
        }
        if (!$this->ties->alone || $node->connection?->isShared()) {
            // The count hides that the library has opened another connection, if others have tied theirs to that one since:
            // so each hold is asked for.
            self::loosen($tied);

            return [];
        }
        $lost = [];
        $sent = Clock::now();
        [$count, $left, $ended] = $this->router->ask($node, ['DLOCK.KEEP', Settings::ms($this->settings->auto)], $until);
        foreach ($ended ?? [] as [, $token, $reason]) {
            $tie = $tied[$token] ?? null;
            unset($tied[$token]);
            if ($tie !== null && in_array($reason, self::LOOSE, true)) {
                $tie->tied = false;
            } elseif ($tie !== null) {
                array_push($lost, ...$this->ties->lose($tie, $reason));
            }
        }
        // Fewer than we know of: the connection is another one by now, and nobody has told us. SESSION has ended with it.
        if ($ended !== null && $count < count($tied)) {
            self::loosen($tied);
            foreach ($tied as $tie) {
                array_push($lost, ...($tie->request->session ? $this->ties->lose($tie, 'session') : []));
            }
        } elseif ($ended === null) { // more than the server can tell have ended
            self::loosen($tied);
        } elseif (is_int($left)) {
            foreach ($tied as $tie) {
                $this->ties->believe($tie, $sent, $left / 1000);
            }
            // It is the least of all. Where one hold may not last (dlock.max-hold-ms), each is asked for its own.
            if ($left / 1000 < $this->settings->lease / 2) {
                $near = Clock::now() + $this->settings->lease / 2;
                self::loosen(array_filter($tied, static fn (Tie $tie) => $tie->until < $near));
            }
        }

        return $lost;
    }

    /** @param array<Tie> $tied */
    private static function loosen(array $tied): void
    {
        foreach ($tied as $tie) {
            $tie->tied = false;
        }
    }

    /** @return list<Hold> */
    private function tieAnew(Node $node, float $until): array
    {
        $this->renewAll($node, $until);
        $lost = [];
        foreach ($node->ties as $tie) {
            $now = Clock::now();
            // When the time is up the others come with the next look; but none is lost without having been asked for.
            if ($tie->tied || ($now >= $until && $tie->until > $now)) {
                continue;
            }
            try {
                array_push($lost, ...$this->renew($tie, max($until, $now + Router::GRACE)));
            } catch (Unanswered | Refused $error) {
                if (isset($node->ties[$tie->token])) { // behind the others: they may be of another node, which answers
                    $this->ties->put($tie, $node);
                }
                throw $error;
            }
        }

        return $lost;
    }

    /** Those of each server in one go. What it refuses is asked for once more, by itself: then it is known why. */
    private function renewAll(Node $node, float $until): void
    {
        $groups = [];
        foreach ($node->ties as $tie) {
            if (!$tie->tied && self::isHad($tie)) {
                $groups[$this->servers->of($tie->request->key)->name][] = $tie;
            }
        }
        foreach ($groups as $name => $ties) {
            if (count($ties) === 1 || Clock::now() >= $until) {
                continue;
            }
            $target = $this->servers->nodes[$name];
            $sent = Clock::now();
            $commands = array_map(static fn (Tie $tie) => $tie->request->renew($tie->token), $ties);
            try {
                $replies = $this->router->askAll($target, $commands, $until);
            } catch (Unanswered | Refused $error) {
                $this->report->note('node {node}: {error}', ['node' => $name, 'error' => $error->getMessage()]);
                $this->router->lookAround(Clock::now() + 1);
                foreach ($ties as $tie) { // behind the others: they may be of another node, which answers
                    isset($node->ties[$tie->token]) && $this->ties->put($tie, $node);
                }
                continue;
            }
            foreach ($replies as $i => $left) {
                if (is_int($left)) {
                    $this->ties->believe($ties[$i], $sent, $left / 1000);
                    $this->ties->put($ties[$i], $target);
                }
            }
        }
    }

    private static function isHad(Tie $tie): bool
    {
        return array_filter($tie->holds, static fn (\WeakReference $one) => $one->get() !== null) !== [];
    }

    /** @return list<Hold> */
    private function renew(Tie $tie, float $until): array
    {
        if (!self::isHad($tie)) {
            return $this->ties->lose($tie, 'forgotten');
        }
        $sent = Clock::now();
        try {
            [$left, $node] = $this->router->call($tie->request->key, $tie->request->renew($tie->token), $until);
            $this->ties->believe($tie, $sent, $left / 1000);
            $this->ties->put($tie, $node);
        } catch (NotHeld) {
            return $this->ties->lose($tie, 'not held any more');
        } catch (NoAck) { // perhaps it has been cut to that
            $this->ties->doubt($tie, $sent, $tie->request->seconds());
        } catch (Refused $error) {
            if ($error->passes()) {
                throw $error;
            }
            $this->report->warn('lock {key} cannot be renewed: {error}', [
                'key' => $tie->request->key,
                'error' => $error->getMessage(),
            ]);
        }

        return [];
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * One owner's request for one lock, as words of commands; and what the server has granted to it.
 *
 * @internal
 */
final class Request
{
    public readonly string $owner;
    /** How many of the limit its hold takes. */
    public readonly int $permits;
    public readonly float $lease;
    /** Something may be granted, or a place kept, that nobody has. */
    public bool $asked = false;
    public bool $queued = false;
    /** Whether a command was not answered, and may reach the server late. */
    public bool $isUnheard = false;

    /** The fencing token of what was granted. */
    public int $token = 0;
    /** By the clock it is ours until then. */
    public float $until = 0.0;
    /** Whether the program has released it. */
    public float $last = INF;
    /** When the server was asked for it last. */
    public float $askedAt = -INF;
    /** The address of the server to whose connection it is tied. */
    public string $at = '';
    /** @var ?\WeakReference<Hold> the program's */
    public ?\WeakReference $hold = null;

    /**
     * @param ?float $hangTimeout so long the server renews the hold while the connection lives; null: it does not
     * @param ?float $maxHold     the program wants the hold for so long at most
     */
    public function __construct(
        public readonly Settings $settings,
        public readonly string $key,
        ?string $owner = null,
        public readonly bool $shared = false,
        public readonly ?int $limit = null,
        ?int $permits = null,
        public readonly bool $ephemeral = false,
        public readonly ?float $hangTimeout = null,
        ?float $lease = null,
        public readonly ?float $maxHold = null,
        /** RENEW and the clock look after it; else the caller does. */
        public readonly bool $tracked = true,
        /** The caller may ask again under this owner: what is given back is named by its token. */
        public readonly bool $reused = false,
        public readonly ?string $actor = null,
    ) {
        if ($key === '') {
            throw new \InvalidArgumentException('key must not be empty');
        }
        if ($limit !== null && ($limit < 1 || $shared)) {
            throw new \InvalidArgumentException("limit must be at least 1, and not beside shared, not $limit");
        }
        if ($permits !== null && $limit === null) {
            throw new \InvalidArgumentException("permits must be given with limit, not $permits alone");
        }
        if ($permits !== null && ($permits < 1 || $permits > $limit)) {
            throw new \InvalidArgumentException("permits must be at least 1, and at most limit, which is $limit, not $permits");
        }
        if ($actor !== null && ($actor === '' || strlen($actor) > 900)) {
            throw new \InvalidArgumentException('actor must have 1 to 900 bytes');
        }
        $this->permits = $permits ?? 1;
        $this->lease = $lease ?? $settings->lease;
        $this->owner = $owner ?? self::owner($actor);
    }

    /** An owner that nobody has used: of the machine, of this process, and of the actor, by which an operator finds it. */
    public static function owner(?string $actor = null): string
    {
        $place = (gethostname() ?: 'localhost') . '/' . getmypid() . '/';

        return $place . ($actor === null ? '' : "$actor#") . bin2hex(random_bytes(11));
    }

    /** Returns true if the other one, of the same actor, would wait for this one's hold. */
    public function blocks(self $other): bool
    {
        $strictest = min($this->bound(), $other->bound());

        return $this->actor !== null && $this->actor === $other->actor && $this->key === $other->key
            && $this->permits + $other->permits > $strictest;
    }

    private function bound(): float
    {
        return $this->shared ? INF : ($this->limit ?? 1);
    }

    /** It was granted by a command that was sent then. */
    public function grant(int $token, string $at): void
    {
        [$this->token, $this->at] = [$token, $at];
        $this->last = $this->maxHold === null ? INF : Clock::now() + $this->maxHold;
    }

    /** It is held for so long from when that was asked for. */
    public function believe(float $sent, float $lease): void
    {
        $this->askedAt = $sent;
        $this->until = min($this->last, max($this->until, $this->end($sent, $lease)));
    }

    /** Whether it may be held for the lease only. */
    public function doubt(float $sent): void
    {
        $this->until = min($this->until, $this->end($sent, $this->lease));
    }

    private function end(float $sent, float $lease): float
    {
        return $sent + $lease - 0.002 - $this->settings->clockMargin; // the server counts whole milliseconds
    }

    /** @return list<int|string> */
    public function words(string $name, int|string ...$rest): array
    {
        return ["DLOCK.$name", $this->key, $this->owner, ...array_values($rest)];
    }

    /** @return list<int|string> */
    public function take(bool $atOnce): array
    {
        $rest = [Settings::ms($this->lease), 'HOLDS', 1, ...$this->limits(), ...$this->ties()];

        return $atOnce ? $this->words('ACQUIRE', ...$rest) : $this->words('FAIRACQUIRE', ...$rest, ...$this->claim());
    }

    /** @return list<int|string> */
    public function wait(float $slice): array
    {
        return [...$this->take(false), 'BLOCK', Settings::ms($slice)];
    }

    /** @return list<int|string> */
    public function renew(?int $token = null): array
    {
        return $this->words('RENEW', Settings::ms($this->lease), ...($token !== null ? ['TOKEN', $token] : []), ...$this->ties());
    }

    /**
     * Leaves it to a lease. One that was ephemeral ends with its connection all the same, unless it outlasts that.
     *
     * @return list<int|string>
     */
    public function untie(float $lease, bool $outlasts = false): array
    {
        $rest = $outlasts && $this->ephemeral ? ['AUTO', 1] : []; // this tie is the only one then, and renews nothing

        return $this->words('RENEW', Settings::ms($lease), 'TOKEN', $this->token, ...$rest);
    }

    /** @return list<int|string> */
    public function release(): array
    {
        return $this->words('RELEASE', 'HOLDS', 0, ...($this->token !== 0 ? ['TOKEN', $this->token] : []));
    }

    /** @return list<int|string> */
    private function claim(): array
    {
        return ['CLAIM', Settings::ms($this->settings->queueGrace)];
    }

    /** @return list<int|string> */
    private function limits(): array
    {
        return [
            ...($this->shared ? ['SHARED'] : []),
            ...($this->limit !== null ? ['LIMIT', $this->limit] : []),
            // Older servers do not know the word.
            ...($this->permits > 1 ? ['PERMITS', $this->permits] : []),
        ];
    }

    /** @return list<int|string> */
    private function ties(): array
    {
        $auto = $this->hangTimeout === null ? null : min($this->hangTimeout, $this->last - Clock::now());

        return [
            ...($this->ephemeral ? ['EPHEMERAL'] : []),
            ...($auto !== null ? ['AUTO', Settings::ms($auto)] : []),
        ];
    }
}

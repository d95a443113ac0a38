<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * One owner's request for one lock, as words of commands. What was granted to it is a Hold.
 *
 * @internal
 */
final class Request
{
    public readonly string $owner;
    /** How many of the limit its hold takes. */
    public readonly int $permits;
    public readonly float $lease;

    /**
     * @param ?float $hangTimeout so long the server renews the hold while the connection lives; null: it does not
     * @param ?float $maxHold     the program wants the hold for so long at most
     * @param bool   $isReused    the caller may hold the lock under this owner: a cancelled request must not release that
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
        public readonly ?string $actor = null,
        public readonly bool $isReused = false,
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

    /** Returns an owner that nobody has used, by which an operator finds the process: `host/pid/actor#random`. */
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

    /** @return list<int|string> */
    public function words(string $name, int|string ...$rest): array
    {
        return ["DLOCK.$name", $this->key, $this->owner, ...array_values($rest)];
    }

    /**
     * Takes the lock, and waits in the queue for this many seconds; null: a try.
     *
     * @return list<int|string>
     */
    public function take(?float $slice): array
    {
        $rest = [Settings::ms($this->lease), 'HOLDS', 1, ...$this->limits(), ...$this->ties(INF)];
        $claim = ['CLAIM', Settings::ms($this->settings->queueGrace)];

        return $slice === null
            ? $this->words('ACQUIRE', ...$rest)
            : $this->words('FAIRACQUIRE', ...$rest, ...$claim, ...['BLOCK', Settings::ms($slice)]);
    }

    /**
     * Renews the hold for a lease, and ties it to this connection.
     *
     * @param float $most the longest time, in seconds, for which the server renews the hold by itself
     *
     * @return list<int|string>
     */
    public function renew(?int $token, float $most = INF): array
    {
        return $this->words('RENEW', Settings::ms($this->lease), ...self::token($token), ...$this->ties($most));
    }

    /**
     * Leaves the hold to a lease. One that was ephemeral ends with its connection all the same, unless it outlasts that.
     *
     * @return list<int|string>
     */
    public function untie(int $token, float $lease, bool $outlasts = false): array
    {
        $rest = $outlasts && $this->ephemeral ? ['AUTO', 1] : []; // this tie is the only one then, and renews nothing

        return $this->words('RENEW', Settings::ms($lease), 'TOKEN', $token, ...$rest);
    }

    /** @return list<int|string> */
    public function release(?int $token): array
    {
        return $this->words('RELEASE', 'HOLDS', 0, ...self::token($token));
    }

    /** @return list<int|string> */
    private static function token(?int $token): array
    {
        return $token === null ? [] : ['TOKEN', $token];
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
    private function ties(float $most): array
    {
        $auto = $this->hangTimeout === null ? null : min($this->hangTimeout, $this->maxHold ?? INF, $most);

        return [
            ...($this->ephemeral ? ['EPHEMERAL'] : []),
            ...($auto !== null ? ['AUTO', Settings::ms($auto)] : []),
        ];
    }
}

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
    /** Something may be granted, or a place kept, that nobody has. */
    public bool $asked = false;
    public bool $queued = false;
    /** The RELEASE that took it back is not answered: it may be read late, and end what is held under the same name by then. */
    public bool $isLeftLate = false;

    /** The fencing token of what was granted. */
    public int $token = 0;
    /** By the clock it is ours until then. */
    public float $until = 0.0;
    /** False: the connection has ended, or the server renews it no more. RENEW tells what has become of it. */
    public bool $renewed = false;
    public ?Node $node = null;
    /** @var list<\WeakReference<Hold>> the program's holds: a second one under the same name is one more */
    public array $holds = [];

    /**
     * @param ?float $hangTimeout so long the server renews the hold while the connection lives; null: it does not
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
        public readonly ?float $lease = null,
        /** KEEP and the clock look after it; else the caller does. */
        public readonly bool $tracked = true,
        /** Others use this name, or the caller will again: what is given back under it is named by its token. */
        public readonly bool $reused = false,
        /** What its owner is known by if the program has named it: it may re-enter. */
        private readonly ?string $name = null,
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
        $this->permits = $permits ?? 1;
        $this->owner = $owner ?? self::owner(self::uuid());
    }

    /** The name of an owner in this process, by which the server's operator finds it. */
    public static function owner(string $name): string
    {
        return (gethostname() ?: 'localhost') . '/' . getmypid() . "/$name";
    }

    public static function uuid(): string
    {
        $bytes = random_bytes(16);
        $bytes[6] = chr(ord($bytes[6]) & 0x0F | 0x40);
        $bytes[8] = chr(ord($bytes[8]) & 0x3F | 0x80);

        return vsprintf('%s%s-%s-%s-%s-%s%s%s', str_split(bin2hex($bytes), 4));
    }

    public function id(): string
    {
        return self::at($this->key, $this->name ?? $this->owner);
    }

    public static function at(string $key, string $owner): string
    {
        return strlen($key) . " $key $owner";
    }

    /** Returns true if the program may ask for the lock again under the same name. */
    public function isNamed(): bool
    {
        return $this->name !== null;
    }

    /** Returns true if what was granted to it is enough for the other one, too. */
    public function covers(self $other): bool
    {
        $limit = static fn (self $one): float => $one->shared ? INF : ($one->limit ?? 1);

        return $limit($this) <= $limit($other);
    }

    /** Returns true if a hold of the program refers to it. */
    public function isHad(): bool
    {
        return array_filter($this->holds, static fn (\WeakReference $one) => $one->get()?->isOver() === false) !== [];
    }

    /** It is held for so long from when that was asked for. */
    public function believe(float $sent, float $lease): void
    {
        $this->renewed = true;
        $this->until = max($this->until, $this->end($sent, $lease));
    }

    /** Perhaps it is held for that long only. */
    public function doubt(float $sent, float $lease): void
    {
        $this->until = min($this->until, $this->end($sent, $lease));
    }

    private function end(float $sent, float $lease): float
    {
        return $sent + $lease - 0.002 - $this->settings->clockMargin; // the server counts whole milliseconds
    }

    public function seconds(): float
    {
        return $this->lease ?? $this->settings->lease;
    }

    /** @return list<int|string> */
    public function words(string $name, int|string ...$rest): array
    {
        return ["DLOCK.$name", $this->key, $this->owner, ...array_values($rest)];
    }

    /** @return list<int|string> */
    public function take(bool $atOnce): array
    {
        $rest = [...$this->renewal(), 'HOLDS', 1, ...$this->limits()];

        return $atOnce
            ? $this->words('ACQUIRE', $this->leaseMs(), ...$rest)
            : $this->words('FAIRACQUIRE', $this->leaseMs(), ...$rest, ...$this->claim());
    }

    /** @return list<int|string> */
    public function wait(float $slice): array
    {
        $first = Settings::ms(min($this->settings->first, $this->seconds()));
        $rest = ['BLOCK', Settings::ms($slice), 'HOLDS', 1, ...$this->limits(), ...$this->claim()];

        return $this->words('FAIRACQUIRE', $first, ...$rest);
    }

    /** @return list<int|string> */
    public function renew(?int $token = null): array
    {
        return $this->words('RENEW', $this->leaseMs(), ...($token !== null ? ['TOKEN', $token] : []), ...$this->renewal());
    }

    /**
     * Renews it for the last time: from then on its lease ends it.
     *
     * @return list<int|string>
     */
    public function untie(): array
    {
        return $this->words('RENEW', $this->leaseMs(), 'TOKEN', $this->token);
    }

    /** @return list<int|string> */
    public function release(int|string ...$token): array
    {
        return $this->words('RELEASE', 'HOLDS', 0, ...$token);
    }

    private function leaseMs(): int
    {
        return Settings::ms($this->seconds());
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
    private function renewal(): array
    {
        return [
            ...($this->ephemeral ? ['EPHEMERAL'] : []),
            ...($this->hangTimeout !== null ? ['AUTO', Settings::ms($this->hangTimeout)] : []),
        ];
    }
}

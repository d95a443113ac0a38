<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * One owner's wish for one lock, as words of commands.
 *
 * @internal
 */
final class Request
{
    public readonly string $owner;
    /** The owner has been asked for what it held before: that is not ours to give back. */
    public bool $looked;
    /** The token and the count of what the owner held before. */
    public int $outer = 0;
    public int $before = 0;
    /** Something may be granted, or a place kept, that nobody has. */
    public bool $asked = false;
    public bool $queued = false;
    public ?Tie $tie = null;

    /**
     * @param ?float $auto so long the server renews the hold while the connection lives; null: it does not
     */
    public function __construct(
        public readonly Settings $settings,
        public readonly string $key,
        ?string $owner = null,
        public readonly bool $shared = false,
        public readonly ?int $limit = null,
        public readonly bool $session = false,
        public readonly ?float $auto = null,
        public readonly ?float $lease = null,
        /** KEEP and the clock look after it; else whoever has asked does. */
        public readonly bool $tracked = true,
    ) {
        if ($key === '') {
            throw new \InvalidArgumentException('key must not be empty');
        }
        if ($owner === '' || strlen($owner ?? '') > 1024) {
            throw new \InvalidArgumentException('owner must have 1 to 1,024 bytes');
        }
        if ($limit !== null && ($limit < 1 || $shared)) {
            throw new \InvalidArgumentException("limit must be at least 1, and not beside shared, not $limit");
        }
        $this->owner = $owner ?? self::uuid();
        $this->looked = $owner === null;
    }

    public static function uuid(): string
    {
        $bytes = random_bytes(16);
        $bytes[6] = chr(ord($bytes[6]) & 0x0F | 0x40);
        $bytes[8] = chr(ord($bytes[8]) & 0x3F | 0x80);

        return vsprintf('%s%s-%s-%s-%s-%s%s%s', str_split(bin2hex($bytes), 4));
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
        $rest = [...$this->tying(), 'HOLDS', $this->before + 1, ...$this->limits()];

        return $atOnce
            ? $this->words('ACQUIRE', $this->leaseMs(), ...$rest)
            : $this->words('FAIRACQUIRE', $this->leaseMs(), ...$rest, ...$this->claim());
    }

    /** @return list<int|string> */
    public function wait(float $slice): array
    {
        $first = Settings::ms(min($this->settings->first, $this->seconds()));
        $rest = ['BLOCK', Settings::ms($slice), 'HOLDS', $this->before + 1, ...$this->limits(), ...$this->claim()];

        return $this->words('FAIRACQUIRE', $first, ...$rest);
    }

    /** @return list<int|string> */
    public function renew(?int $token = null): array
    {
        return $this->words('RENEW', $this->leaseMs(), ...($token !== null ? ['TOKEN', $token] : []), ...$this->tying());
    }

    /** @return list<int|string> */
    public function untie(int $token): array
    {
        return $this->words('RENEW', $this->leaseMs(), 'TOKEN', $token);
    }

    /** @return list<int|string> */
    public function release(int|string ...$token): array
    {
        return $this->words('RELEASE', 'HOLDS', $this->before, ...$token);
    }

    private function leaseMs(): int
    {
        return Settings::ms($this->seconds());
    }

    /** @return list<int|string> */
    private function claim(): array
    {
        return ['CLAIM', Settings::ms($this->settings->claim)];
    }

    /** @return list<int|string> */
    private function limits(): array
    {
        return $this->shared ? ['SHARED'] : ($this->limit !== null ? ['LIMIT', $this->limit] : []);
    }

    /** @return list<int|string> */
    private function tying(): array
    {
        return [
            ...($this->session ? ['SESSION'] : []),
            ...($this->auto !== null ? ['AUTO', Settings::ms($this->auto)] : []),
        ];
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** The server said no. The message is the server's own words. */
class Refused extends DlockException
{
    private const TYPES = [
        'NOTHELD' => NotHeld::class,
        'FENCED' => Fenced::class,
        'DEADLOCK' => Deadlock::class,
        'REPLACED' => Replaced::class,
    ];

    /** What a little time, or another connection, can end. UNBLOCKED: it has become a replica while it let us wait. */
    private const PASSING = [
        'NOACK', 'UNBLOCKED', 'TRYAGAIN', 'CLUSTERDOWN', 'MASTERDOWN', 'LOADING', 'BUSY', 'NOREPLICAS', 'MISCONF', 'READONLY',
        'MOVED', 'ASK', 'QUARANTINE',
    ];

    final public function __construct(string $text, ?\Throwable $previous = null)
    {
        parent::__construct($text, 0, $previous);
    }

    /** The server's error as a type. */
    public static function by(string $text, ?\Throwable $previous = null): self
    {
        $type = self::TYPES[self::wordOf($text)] ?? self::class;

        return new $type($text, $previous);
    }

    /** The first word, by which the server tells its errors apart. */
    public function word(): string
    {
        return self::wordOf($this->getMessage());
    }

    public function passes(): bool
    {
        return in_array($this->word(), self::PASSING, true)
            || str_starts_with($this->getMessage(), 'ERR max number of clients');
    }

    private static function wordOf(string $text): string
    {
        return rtrim(strtok($text, ' ') ?: '', ':');
    }
}

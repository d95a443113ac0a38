<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** The server said no. The message is the server's own words. */
class Refused extends DlockException
{
    /** What a little time, or another connection, can end. UNBLOCKED: it has become a replica while it let us wait. */
    private const PASSING = [
        'NOACK', 'UNBLOCKED', 'TRYAGAIN', 'CLUSTERDOWN', 'MASTERDOWN', 'LOADING', 'BUSY', 'NOREPLICAS', 'MISCONF', 'READONLY',
        'MOVED', 'ASK', 'QUARANTINE',
    ];

    final public function __construct(string $text, ?\Throwable $previous = null)
    {
        parent::__construct($text, 0, $previous);
    }

    /** The first word, by which the server tells its errors apart. */
    public function word(): string
    {
        return rtrim(strtok($this->getMessage(), ' ') ?: '', ':');
    }

    public function passes(): bool
    {
        return in_array($this->word(), self::PASSING, true)
            || str_starts_with($this->getMessage(), 'ERR max number of clients');
    }
}

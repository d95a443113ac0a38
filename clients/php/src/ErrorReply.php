<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Deadlock;
use Dlock\Exception\Fenced;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Replaced;

/**
 * What a server says instead of a reply.
 *
 * @internal
 */
final class ErrorReply
{
    private const TYPES = [
        'NOTHELD' => NotHeld::class,
        'FENCED' => Fenced::class,
        'DEADLOCK' => Deadlock::class,
        'REPLACED' => Replaced::class,
    ];

    /** Returns it as an exception of its type. */
    public static function of(string $text, ?\Throwable $previous = null): Refused
    {
        $refused = new Refused($text, $previous);
        $type = self::TYPES[$refused->word()] ?? null;

        return $type === null ? $refused : new $type($text, $previous);
    }
}

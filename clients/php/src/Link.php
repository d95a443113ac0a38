<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * One connection to one server, made by a library. Whoever gets an Unanswered closes it: the late reply must not be taken for that
 * of the next command.
 *
 * @internal
 */
interface Link
{
    /**
     * Returns the reply to one command.
     *
     * @param list<int|string> $words
     *
     * @throws Refused    the server says no
     * @throws Unanswered there is no reply in time
     */
    public function ask(array $words, float $timeout): mixed;

    /**
     * Returns the replies to many commands that may be sent twice, in one go. A refusal is among them as a Refused.
     *
     * @param non-empty-list<list<int|string>> $commands
     *
     * @return list<mixed>
     */
    public function askAll(array $commands, float $timeout): array;

    public function isOpen(): bool;

    public function close(): void;
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Connection;

/** One connection to one server, by whatever library. */
interface Connection
{
    /**
     * The reply: a string, a number, a list, or null. What was not answered in time ends the connection: a reply that comes
     * later is no other command's.
     *
     * @param list<int|string> $words
     * @param float            $bound the seconds that the reply may take
     *
     * @throws \Dlock\Exception\Refused    the server says no
     * @throws \Dlock\Exception\Unanswered nobody says anything
     */
    public function call(array $words, float $bound): mixed;

    /**
     * The same for many, in one go. Null stands for what was refused, if the library tells which.
     *
     * @param list<list<int|string>> $commands
     *
     * @return list<mixed>
     *
     * @throws \Dlock\Exception\Refused    the server says no to one of them
     * @throws \Dlock\Exception\Unanswered nobody says anything
     */
    public function callAll(array $commands, float $bound): array;

    public function close(): void;

    /** True if others of this program may tie locks to it, too: then their number tells nothing. */
    public function isShared(): bool;
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * One connection to one server, made by a library. Whoever gets an Unanswered closes it: the late reply must not be taken for that
 * of the next command.
 *
 * @internal
 */
interface Link
{
    /**
     * Returns the replies to commands, in one go. What the server refuses is among them as a Refused. Several commands may be sent
     * twice.
     *
     * @param non-empty-list<list<int|string>> $commands
     *
     * @return non-empty-list<mixed>
     *
     * @throws Exception\Unanswered there is no reply in time
     */
    public function ask(array $commands, float $timeout): array;

    public function isOpen(): bool;

    public function close(): void;
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * One connection to one server, made by a library. The caller closes it after an Unanswered: the next command must not read the
 * late reply.
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

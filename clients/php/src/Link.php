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
     * Sends a command and returns its reply; null is the server's null.
     *
     * @param list<int|string> $words
     *
     * @throws Exception\Refused    the server's error
     * @throws Exception\Unanswered no reply came in time
     */
    public function ask(array $words, float $timeout): mixed;

    public function isOpen(): bool;

    public function close(): void;
}

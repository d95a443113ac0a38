<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** Whatever goes wrong with a lock. */
class DlockException extends \RuntimeException
{
    /** Returns true if a little time, or another connection, can end the failure. */
    public function passes(): bool
    {
        return false;
    }
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** Not granted in time. getPrevious() is what the server failed to do, if it was not just taken. */
class LockTimeout extends DlockException
{
    /** Returns true if the lock was taken, and false if nobody could say so. */
    public function taken(): bool
    {
        return $this->getPrevious() === null;
    }
}

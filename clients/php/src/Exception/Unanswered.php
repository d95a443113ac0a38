<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** Nobody has said anything: no connection, or no reply in time. What was asked may have been done. */
class Unanswered extends DlockException
{
    public function passes(): bool
    {
        return true;
    }
}

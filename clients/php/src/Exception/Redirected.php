<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** Another node of the cluster serves the key. */
class Redirected extends Refused
{
    public function address(): string
    {
        return explode(' ', $this->getMessage())[2] ?? '';
    }

    /** Only this command: the slot is on its way. */
    public function once(): bool
    {
        return $this->word() === 'ASK';
    }
}

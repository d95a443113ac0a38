<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** The lock is not, or no longer, held under this name and token. */
class NotHeld extends Refused
{
}

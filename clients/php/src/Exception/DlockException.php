<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** Whatever goes wrong with a lock. */
class DlockException extends \RuntimeException
{
}

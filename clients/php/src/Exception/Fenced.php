<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** A guarded command was not run: the lock is not held under this token. */
class Fenced extends Refused
{
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** The wait could never end. */
class Deadlock extends Refused
{
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** One of the server's caps on places and holders is reached. */
class QueueFull extends Refused
{
}

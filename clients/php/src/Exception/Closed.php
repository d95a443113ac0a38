<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** These locks are closed, or belong to the process that has forked this one. */
class Closed extends DlockException
{
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** The server grants nothing for now, and this request may not wait. */
class Quarantine extends Refused
{
}

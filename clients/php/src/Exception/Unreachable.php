<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** No majority of a quorum's masters could vote at the last try. The text has the error of each that could not. */
class Unreachable extends Unanswered
{
}

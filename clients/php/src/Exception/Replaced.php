<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** Another request under the same owner's name has taken the place of this one. The client never repeats it by itself. */
class Replaced extends Refused
{
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** Somebody else asked under the same owner's name and has taken the place. Never asked again by itself. */
class Replaced extends Refused
{
}

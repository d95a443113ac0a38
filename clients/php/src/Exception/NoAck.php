<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Exception;

/** Too few replicas have confirmed: as after a lost reply, what was asked may be in force. */
class NoAck extends Refused
{
}

<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * A hold that the server renews for a connection of ours.
 *
 * @internal
 */
final class Tie
{
    /** By the clock it is ours until then. */
    public float $until = 0.0;
    /** False: the connection has ended, or the server has let go of it. RENEW tells what has become of it. */
    public bool $tied = false;
    /** @var list<\WeakReference<Hold>> */
    public array $holds = [];

    public function __construct(public readonly Request $request, public readonly int $token)
    {
    }
}

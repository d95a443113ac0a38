<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

/**
 * Locks without a server, for unit tests. They know the locks of one process. Guarded commands are noted, and not run: their
 * reply is null, or what replyWith() says. A hold is renewed as a server renews it, for `hangTimeout`
 * after the last heartbeat. A wait for a lock that is held lasts until the hold ends, or is in vain.
 */
final class FakeLocks extends Locks
{
    private readonly FakeServer $server;

    /** @param mixed ...$settings those of Locks, by name */
    public function __construct(mixed ...$settings)
    {
        $this->server = new FakeServer();
        parent::__construct(Connect::fake($this->server), ...$settings);
    }

    /** Takes all holds of the lock away, and reports them lost, as after a failure. */
    public function lose(string $key): void
    {
        $this->server->lose($key);
        $this->keep(true);
    }

    /** Sets what answers the commands that are guarded from now on: it gets their words. */
    public function replyWith(callable $reply): void
    {
        $this->server->reply = $reply(...);
    }

    /**
     * Returns what was guarded while its lock was held.
     *
     * @return list<list<string>>
     */
    public function commands(): array
    {
        return $this->server->commands;
    }
}

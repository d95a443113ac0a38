// SPDX-License-Identifier: MIT
package net.javacrumbs.shedlock.support;

import java.time.Duration;
import java.util.concurrent.ScheduledExecutorService;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockProvider;

/** The public one has half a minute at least. */
public final class ShortKeepAlive {
    private ShortKeepAlive() {}

    public static LockProvider of(ExtensibleLockProvider provider, ScheduledExecutorService executor) {
        return new KeepAliveLockProvider(provider, executor, Duration.ofMillis(10));
    }
}

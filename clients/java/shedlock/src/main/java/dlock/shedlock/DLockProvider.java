// SPDX-License-Identifier: MIT
package dlock.shedlock;

import dlock.DLockException;
import dlock.DLocks;
import dlock.Lease;
import java.time.Duration;
import java.util.Optional;
import java.util.function.Supplier;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;
import net.javacrumbs.shedlock.support.Utils;

/**
 * ShedLock's provider, by locks of dlock. A lock lasts for {@code lockAtMostFor}, and ends then even if its program lives; it can
 * be extended, so {@code KeepAliveLockProvider} can be put around it. The server measures the time, by its own clock.
 */
public final class DLockProvider implements ExtensibleLockProvider {
    private final DLocks locks;
    private final String prefix;

    /** Its locks are {@code shedlock:} and the name. */
    public DLockProvider(DLocks locks) {
        this(locks, "shedlock:");
    }

    /** Its locks are this prefix and the name. */
    public DLockProvider(DLocks locks, String prefix) {
        if (locks == null) {
            throw new IllegalArgumentException("locks must not be null");
        }
        if (prefix == null) {
            throw new IllegalArgumentException("prefix must not be null");
        }
        this.locks = locks;
        this.prefix = prefix;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration wanted) {
        Lease lease = said(() -> locks.lease(prefix + wanted.getName(), Utils.getHostname(), wanted.getLockAtMostFor()));
        return lease == null ? Optional.empty() : Optional.of(new Lock(lease, wanted));
    }

    private static <T> T said(Supplier<T> asked) {
        try {
            return asked.get();
        } catch (DLockException error) {
            throw new LockException(error.getMessage(), error);
        }
    }

    private static final class Lock extends AbstractSimpleLock {
        private final Lease lease;

        Lock(Lease lease, LockConfiguration wanted) {
            super(wanted);
            this.lease = lease;
        }

        @Override
        protected void doUnlock() {
            said(() -> {
                Duration left = Duration.between(ClockProvider.now(), lockConfiguration.getLockAtLeastUntil());
                if (left.toMillis() > 0) {
                    lease.extend(left);
                } else {
                    lease.release();
                }
                return null;
            });
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration wanted) {
            return said(() -> lease.extend(wanted.getLockAtMostFor())) ? Optional.of(new Lock(lease, wanted)) : Optional.empty();
        }
    }
}

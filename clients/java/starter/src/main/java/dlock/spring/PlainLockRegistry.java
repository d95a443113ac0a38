// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLocks;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.LockRegistry;

/** Locks for Spring Integration 6, which knows no {@code DistributedLock}. */
@SuppressWarnings("rawtypes") // there it has no type parameter
public class PlainLockRegistry implements LockRegistry {
    private final DLocks locks;
    private final String prefix;

    /** Makes locks whose names begin with the prefix. */
    public PlainLockRegistry(DLocks locks, String prefix) {
        this.locks = locks;
        this.prefix = prefix;
    }

    @Override
    public Lock obtain(Object lockKey) {
        return locks.lock(prefix + lockKey);
    }
}

// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLocks;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.LockRegistry;

/** The locks as Spring Integration wants them: for aggregators, leader election and so on. */
public class DLockRegistry implements LockRegistry {
    private final DLocks locks;
    private final String prefix;

    public DLockRegistry(DLocks locks, String prefix) {
        this.locks = locks;
        this.prefix = prefix;
    }

    @Override
    public Lock obtain(Object lockKey) {
        return locks.lock(prefix + lockKey);
    }
}

// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLock;
import dlock.DLocks;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.LockRegistry;

/** The locks as Spring Integration wants them: for aggregators, leader election and so on. */
public class DLockRegistry implements LockRegistry<DistributedLock> {
    private final DLocks locks;
    private final String prefix;

    /** Locks whose names begin like this. */
    public DLockRegistry(DLocks locks, String prefix) {
        this.locks = locks;
        this.prefix = prefix;
    }

    @Override
    public DistributedLock obtain(Object lockKey) {
        return new Distributed(locks.lock(prefix + lockKey));
    }

    /** With a time to live the lock ends then at the latest; without one the server renews it while the program lives. */
    private record Distributed(DLock of) implements DistributedLock {
        @Override
        public void lock() {
            of.lock();
        }

        @Override
        public void lock(Duration ttl) {
            of.lock(ttl);
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            of.lockInterruptibly();
        }

        @Override
        public boolean tryLock() {
            return of.tryLock();
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            return of.tryLock(time, unit);
        }

        @Override
        public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
            return of.tryLock(waitTime, ttl);
        }

        @Override
        public void unlock() {
            of.unlock();
        }

        @Override
        public Condition newCondition() {
            return of.newCondition();
        }
    }
}

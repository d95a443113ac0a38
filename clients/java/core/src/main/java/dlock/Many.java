// SPDX-License-Identifier: MIT
package dlock;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/** Several locks in their order: all of them, or none. */
final class Many implements Lock {
    private interface Step {
        boolean lock(DLock one) throws InterruptedException;
    }

    private final List<DLock> locks;

    Many(List<DLock> locks) {
        this.locks = locks;
    }

    private boolean all(Step step) throws InterruptedException {
        Deque<DLock> taken = new ArrayDeque<>();
        boolean done = false;
        try {
            for (DLock one : locks) {
                if (!step.lock(one)) {
                    return false;
                }
                taken.push(one);
            }
            done = true;
            return true;
        } finally {
            if (!done) {
                release(taken);
            }
        }
    }

    /** All of them, whatever becomes of one. */
    private static void release(Deque<DLock> taken) {
        while (!taken.isEmpty()) {
            try {
                taken.pop().unlock();
            } catch (RuntimeException lost) {
                Core.LOG.log(System.Logger.Level.DEBUG, "a lock of several was lost", lost);
            }
        }
    }

    @Override
    public void lock() {
        try {
            all(one -> {
                one.lock();
                return true;
            });
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        all(one -> {
            one.lockInterruptibly();
            return true;
        });
    }

    @Override
    public boolean tryLock() {
        try {
            return all(DLock::tryLock);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        long end = System.nanoTime() + unit.toNanos(time);
        return all(one -> one.tryLock(Math.max(0, end - System.nanoTime()), TimeUnit.NANOSECONDS));
    }

    /** In reverse. {@link NotHeld} if one of them was lost; the others are given back all the same. */
    @Override
    public void unlock() {
        RuntimeException first = null;
        for (int i = locks.size() - 1; i >= 0; i--) {
            try {
                locks.get(i).unlock();
            } catch (RuntimeException error) {
                first = first == null ? error : first;
            }
        }
        if (first != null) {
            throw first;
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("locks of several programs have no conditions");
    }
}

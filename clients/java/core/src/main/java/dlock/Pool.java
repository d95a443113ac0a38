// SPDX-License-Identifier: MIT
package dlock;

import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Threads for what may block. A burst of two thousand grants shares 32: as many threads would hold up the rest. Where none
 * of them has ended its task for a tenth of a second while others wait for a thread, they wait themselves, perhaps for what
 * is queued: there come 32 more. (A fork-join pool that says so, too, runs nothing more on Java 17 once its spare threads
 * have gone.)
 */
final class Pool implements Executor {
    private static final int THREADS = 32;
    private static final long PATIENCE_MS = 100;

    private final ScheduledExecutorService timer;
    private final ThreadPoolExecutor threads;
    private final AtomicBoolean watched = new AtomicBoolean();

    /** The timer looks whether there are enough threads; it must not block. */
    Pool(String name, ScheduledExecutorService timer) {
        this.timer = timer;
        threads = new ThreadPoolExecutor(THREADS, Integer.MAX_VALUE, 5, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), task -> {
            Thread thread = daemon(task, name);
            // Else it is that of whoever came first.
            thread.setContextClassLoader(Pool.class.getClassLoader());
            return thread;
        });
        threads.allowCoreThreadTimeOut(true);
    }

    static Thread daemon(Runnable task, String name) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }

    @Override
    public void execute(Runnable task) {
        threads.execute(task);
        if (timer.isShutdown()) {
            threads.setCorePoolSize(threads.getPoolSize() + 1); // nobody looks any more
        } else if (!threads.getQueue().isEmpty() && watched.compareAndSet(false, true)) {
            watch(threads.getCompletedTaskCount());
        }
    }

    private void watch(long before) {
        timer.schedule(() -> {
            if (threads.getQueue().isEmpty()) {
                watched.set(false);
                if (threads.getQueue().isEmpty() || !watched.compareAndSet(false, true)) {
                    return;
                }
            }
            long now = threads.getCompletedTaskCount();
            try {
                if (timer.isShutdown()) {
                    threads.setCorePoolSize(threads.getPoolSize() + threads.getQueue().size());
                } else if (now == before) {
                    threads.setCorePoolSize(threads.getPoolSize() + THREADS);
                }
            } finally { // there may be no more threads to be had
                watch(now);
            }
        }, PATIENCE_MS, TimeUnit.MILLISECONDS);
    }
}

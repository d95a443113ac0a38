// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;

/**
 * Locks that the dlock module keeps in Redis or Valkey. Make one for a program: all of its threads share one connection to
 * each node, and a second one for messages where somebody waits.
 *
 * <pre>{@code
 * DLocks locks = new DLocks(new LettuceConnector(client, uri));
 * Lock lock = locks.lock("stock");              // its owner is the thread
 * try (Hold hold = locks.ask("stock").hold()) { // its owner is nobody but the hold
 *     hold.guard("SET", "stock:left", 41);      // runs only while the lock is held
 * }
 * }</pre>
 */
public final class DLocks implements AutoCloseable {
    /** What one thread holds, and the name under which it does. A thread that holds nothing takes a new name. */
    static final class Mine {
        String owner;
        /** How many RELEASEs under this name are not answered yet: they may be read late. */
        AtomicInteger unanswered = new AtomicInteger();
        final Map<String, DLock.Held> held = new HashMap<>();
    }

    /** A lock of one writer or many readers. */
    public record ReadWrite(DLock readLock, DLock writeLock) implements ReadWriteLock {}

    final Core core;
    final ThreadLocal<Mine> mine = ThreadLocal.withInitial(Mine::new);
    private final AtomicLong owners = new AtomicLong();

    /** With the default settings. */
    public DLocks(Connector connector) {
        this(connector, Settings.DEFAULT);
    }

    /** With these settings. */
    public DLocks(Connector connector, Settings settings) {
        if (connector == null) {
            throw new IllegalArgumentException("connector must not be null");
        }
        if (settings == null) {
            throw new IllegalArgumentException("settings must not be null");
        }
        core = new Core(connector, settings);
    }

    /** A lock of one thread at a time. */
    public DLock lock(String key) {
        return new DLock(this, key, 1);
    }

    /** A lock of one writer or many readers. A writer may read; a reader may become the writer when it is alone. */
    public ReadWrite readWrite(String key) {
        return new ReadWrite(new DLock(this, key, Request.SHARED), new DLock(this, key, 1));
    }

    /** A lock of so many threads at a time; or of fewer, if some take several permits. */
    public DSemaphore semaphore(String key, int limit) {
        return new DSemaphore(this, key, limit);
    }

    /** A lock whose hold belongs to no thread. */
    public Asking ask(String key) {
        return new Asking(this, key);
    }

    /**
     * Takes the lock for a time that is known before: nobody renews it. Null if it is taken; it does not wait.
     *
     * @param who is to be seen as the owner, with something behind it that nobody else has
     */
    public Lease lease(String key, String who, Duration length) {
        core.check();
        if (who == null || who.isEmpty()) {
            throw new IllegalArgumentException("who must not be empty");
        }
        return Lease.take(core, key, Request.PROCESS + who + "#" + UUID.randomUUID(), length);
    }

    /**
     * Several locks as one, of any slots and servers: taken in one fixed order, given back in reverse. The server sees
     * no circle that goes over several nodes: it is the order that prevents them, so whoever takes several of these
     * locks should take them this way.
     */
    public static Lock all(DLock... locks) {
        List<DLock> sorted = new ArrayList<>(List.of(locks));
        sorted.sort(Comparator.comparing(DLock::server).thenComparing(DLock::key));
        return new Many(sorted);
    }

    /** Ends everything: what is held is told lost and lives on until its lease, and every call is an error. */
    @Override
    public void close() {
        core.close();
    }

    String owner() {
        Mine now = mine.get();
        if (now.held.isEmpty() || now.unanswered.get() > 0) {
            now.unanswered = new AtomicInteger();
            now.owner = Request.PROCESS + "thread-" + owners.incrementAndGet() + "#" + core.id;
        }
        return now.owner;
    }

    /** Waits in this thread for the renewal; null if the lock is taken. */
    static Renewal await(Take take, boolean interruptible) throws InterruptedException {
        boolean interrupted = false;
        long limit = take.limit();
        long end = System.nanoTime() + limit;
        try {
            while (true) {
                try {
                    return limit < 0 ? take.done.get() : take.done.get(end - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (TimeoutException late) {
                    take.expire(); // then it is done
                    end = Long.MAX_VALUE / 2 + System.nanoTime();
                } catch (InterruptedException now) {
                    if (!interruptible) {
                        interrupted = true;
                        continue;
                    }
                    take.abandon(new DLockException.Unavailable("interrupted", now));
                    if (!take.done.isCompletedExceptionally() && take.done.join() != null) {
                        take.unwanted(take.done.join()); // the grant came first
                    }
                    throw now;
                } catch (ExecutionException failed) {
                    throw DLockException.of(failed.getCause());
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

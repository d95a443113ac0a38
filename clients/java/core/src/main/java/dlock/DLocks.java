// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;

/**
 * Locks that the dlock module keeps in Redis or Valkey. Make one for a program: all of its threads share its connections.
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
    /** What one thread holds, by key, and its name in the search for deadlocks. */
    static final class Mine {
        final String actor = actor(Thread.currentThread().getId());
        final Map<String, Deque<DLock.Held>> held = new HashMap<>();

        static String actor(long threadId) {
            return "thread-" + threadId;
        }

        /** Returns the thread's last hold of this lock, or null. */
        DLock.Held last(String key) {
            Deque<DLock.Held> holds = held.get(key);
            return holds == null ? null : holds.peek();
        }

        /** Notes a hold, and forgets those that the thread knows to be over: it may never unlock them. */
        void push(String key, DLock.Held one) {
            held.values().removeIf(holds -> holds.removeIf(DLock.Held::isToldOver) && holds.isEmpty());
            held.computeIfAbsent(key, none -> new ArrayDeque<>(2)).push(one);
        }

        void pop(String key) {
            Deque<DLock.Held> holds = held.get(key);
            holds.pop();
            if (holds.isEmpty()) {
                held.remove(key);
            }
        }
    }

    /** A lock of one writer or many readers. */
    public record ReadWrite(DLock readLock, DLock writeLock) implements ReadWriteLock {}

    final Sessions sessions;
    final String servers;
    final ThreadLocal<Mine> mine = ThreadLocal.withInitial(Mine::new);

    /** Makes one with the default settings. */
    public DLocks(Connector connector) {
        this(connector, Settings.DEFAULT);
    }

    /** Makes one with these settings. */
    public DLocks(Connector connector, Settings settings) {
        if (connector == null) {
            throw new IllegalArgumentException("connector must not be null");
        }
        if (settings == null) {
            throw new IllegalArgumentException("settings must not be null");
        }
        servers = connector.toString();
        sessions = new Sessions(connector, settings);
    }

    /** Returns a lock of one thread at a time. */
    public DLock lock(String key) {
        return new DLock(this, key, 1, true);
    }

    /** Returns a lock of one writer or many readers. A writer may read; a reader cannot become the writer. */
    public ReadWrite readWrite(String key) {
        return new ReadWrite(new DLock(this, key, Request.SHARED, true), lock(key));
    }

    /** Returns a lock that as many may hold at once as it has permits; fewer, if some take several. */
    public DSemaphore semaphore(String key, int limit) {
        return new DSemaphore(this, key, limit);
    }

    /** Asks for a lock whose hold belongs to no thread. */
    public Asking ask(String key) {
        return new Asking(this, key);
    }

    /**
     * Takes the lock for a time that is known before: nobody renews it. Null if it is taken; it does not wait.
     *
     * @param who is to be seen as the owner, with something behind it that nobody else has
     */
    public Lease lease(String key, String who, Duration length) {
        sessions.check();
        Request.checkKey(key);
        if (who == null || who.isEmpty()) {
            throw new IllegalArgumentException("who must not be empty");
        }
        return Lease.take(sessions, key, sessions.name + "/" + who + "#" + UUID.randomUUID(), length);
    }

    /**
     * Returns several locks as one, of any slots and servers. Those of a slot are taken in one step, and slots in one fixed order. The
     * server sees no circle that goes over several nodes: it is the order that prevents them, so whoever takes several of these
     * locks should take them this way.
     */
    public static Lock all(DLock... locks) {
        return new Many(List.of(locks));
    }

    /** Ends everything: what is held is reported lost and lives on until its lease, and every call is an error. */
    @Override
    public void close() {
        sessions.close();
    }

    /** Waits in this thread for the holds; null if others hold the locks. */
    List<Hold> take(Request request, long wait, boolean isInterruptible) throws InterruptedException {
        if (isInterruptible && Thread.interrupted()) {
            throw new InterruptedException();
        }
        Take take = new Take(sessions, request, wait).start();
        try {
            List<Belief> holds = isInterruptible ? take.done.get() : Hold.await(take.done);
            return holds == null ? null : holds.stream().map(hold -> Hold.of(sessions, hold)).toList();
        } catch (ExecutionException failed) {
            throw DLockException.here(failed.getCause());
        } catch (InterruptedException now) {
            take.leave(new DLockException.Unavailable("interrupted", now));
            List<Belief> granted = take.done.exceptionally(why -> null).join();
            if (granted != null) { // the grant came first
                granted.forEach(sessions::unwanted);
            }
            throw now;
        }
    }

    /** Returns the reply to HELD. */
    CompletableFuture<Object> heldBy(String key) {
        return sessions.ask(key, "DLOCK.HELD", key);
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * Locks of the dlock module as {@link Lock}s. Copy this file, and the connector for your library.
 *
 * <pre>{@code
 * DLocks locks = new DLocks(new LettuceConnector(client, RedisURI.create("redis://localhost")));
 * try (DLocks.Hold hold = locks.lock("stock").hold()) {
 *     hold.guard("SET", "stock:left", 41);   // runs only while the lock is held: else Fenced
 * }
 * }</pre>
 *
 * The owner of a lock is the thread, as with {@link java.util.concurrent.locks.ReentrantLock}. All threads share one
 * connection to each server, and a second one on which they are told of their grants (NOTIFY).
 */
public final class DLocks implements AutoCloseable {

    /** What is needed of a client library. */
    public interface Connector {
        /** {@code host:port} of one server, of nodes of a cluster, or of a primary and its replicas. */
        List<String> seeds();

        /**
         * Opens a connection that nobody else uses, and one that listens to the channel. Neither reconnects.
         *
         * @param ended called when one of the two has ended
         */
        Wire open(String host, int port, String channel, Consumer<byte[]> messages, Runnable ended);
    }

    /** A connection to one server. */
    public interface Wire {
        /** The reply: Long, byte[], List or null. Fails with a {@link ServerError} for an error of the server. */
        CompletableFuture<Object> send(List<byte[]> words);

        void close();
    }

    /** An error reply, as the server has sent it. */
    public static final class ServerError extends RuntimeException {
        public ServerError(String message) {
            super(message);
        }
    }

    /** Whatever goes wrong with a lock, but {@link NotHeld}. */
    public static class DLockException extends RuntimeException {
        DLockException(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** The lock is not, or no longer, held by this thread. */
    public static final class NotHeld extends IllegalMonitorStateException {
        NotHeld(String message) {
            super(message);
        }
    }

    /** A guarded command was not run: the lock is not held under this token. */
    public static final class Fenced extends DLockException {
        Fenced(String message) {
            super(message, null);
        }
    }

    /** The wait could never end; the message names the circle. */
    public static final class Deadlock extends DLockException {
        Deadlock(String message) {
            super(message, null);
        }
    }

    /** Somebody else asked under the same owner's name and has the place. Never asked again by itself. */
    public static final class Replaced extends DLockException {
        Replaced(String message) {
            super(message, null);
        }
    }

    /** What a reconnection, another node or a little time can mend. */
    public static final class Unavailable extends DLockException {
        /** Whether the command may have been executed all the same. */
        private final boolean unsure;

        Unavailable(String message, Throwable cause, boolean unsure) {
            super(message, cause);
            this.unsure = unsure;
        }
    }

    /**
     * How long things last.
     *
     * @param lease what a lock has left when this program dies or loses the server
     * @param auto how long a program that hangs, its connection open, keeps its locks
     * @param claim how long a place in the queue is kept while the connection is lost
     */
    public record Settings(Duration lease, Duration auto, Duration claim) {
        public Settings() {
            this(Duration.ofSeconds(10), Duration.ofSeconds(60), Duration.ofSeconds(5));
        }

        /** The lease until a grant is confirmed. */
        private Duration first() {
            return lease.compareTo(Duration.ofSeconds(3)) < 0 ? lease : Duration.ofSeconds(3);
        }
    }

    /** So long we wait for a connection, and for a reply. */
    private static final Duration REPLY = Duration.ofSeconds(3);
    /** So long a caller who has given up waits for the answer, and an attempt for a server. */
    private static final Duration GRACE = Duration.ofMillis(500);

    private static final int SHARED = Integer.MAX_VALUE;
    /** What came over the channel for a wait: what has happened, the token, the number of the wait. */
    private record News(String word, long token, long number) {}
    private record Waiter(String key, String owner) {}
    private static final String REPLACED = "another request of the same owner has taken the place";
    private static final News ASK_AGAIN = new News("again", 0, 0);

    private final Connector connector;
    private final Settings settings;
    private final String id = UUID.randomUUID().toString();
    private final AtomicLong threads = new AtomicLong();
    private final ThreadLocal<String> owner = ThreadLocal.withInitial(() -> id + ":" + threads.incrementAndGet());
    private final ThreadLocal<Map<String, Held>> mine = ThreadLocal.withInitial(HashMap::new);
    private final Map<String, Node> nodes = new ConcurrentHashMap<>();
    /** Which node serves which slot, as far as errors have told. */
    private final Map<Integer, String> slots = new ConcurrentHashMap<>();
    /** Where to begin with a slot of which nothing is known. */
    private final AtomicInteger first = new AtomicInteger();
    private final Map<Waiter, BlockingQueue<News>> waiting = new ConcurrentHashMap<>();
    /** Whose earlier request is on its way out. What it says last must not meet the next one. */
    private final Map<Waiter, CompletableFuture<Void>> leaving = new ConcurrentHashMap<>();
    /** Tells when it is time, and waits for nobody. */
    private final ScheduledThreadPoolExecutor clock = new ScheduledThreadPoolExecutor(1, DLocks::daemon);
    /** For whatever may take long. */
    private final ExecutorService background = Executors.newCachedThreadPool(DLocks::daemon);
    private volatile boolean closed;

    public DLocks(Connector connector) {
        this(connector, new Settings());
    }

    public DLocks(Connector connector, Settings settings) {
        this.connector = connector;
        this.settings = settings;
        clock.setRemoveOnCancelPolicy(true);
    }

    private static Thread daemon(Runnable task) {
        Thread thread = new Thread(task, "dlock");
        thread.setDaemon(true);
        return thread;
    }

    /** A lock of one thread at a time. */
    public DLock lock(String key) {
        return new DLock(key, 1);
    }

    /** A lock of one writer or many readers. A writer may read; a reader may become the writer when it is alone. */
    public ReadWrite readWrite(String key) {
        return new ReadWrite(new DLock(key, SHARED), new DLock(key, 1));
    }

    /** A lock of so many threads at a time. */
    public DLock semaphore(String key, int permits) {
        return new DLock(key, permits);
    }

    public record ReadWrite(DLock readLock, DLock writeLock) implements ReadWriteLock {}

    /**
     * Several locks as one, of any slots and servers: taken in one fixed order, given back in reverse. The server sees
     * no circle that goes over several nodes: it is the order that prevents them, so whoever takes several of these
     * locks should take them this way.
     */
    public static Lock all(DLock... locks) {
        List<DLock> sorted = new ArrayList<>(List.of(locks));
        sorted.sort(Comparator.comparing(DLock::server).thenComparing(DLock::key));
        return new All(sorted);
    }

    /** The name under which the current thread holds and waits. */
    public String owner() {
        return owner.get();
    }

    /** Ends the connections. What is still held lives on until its lease, and is told as lost then. */
    @Override
    public void close() {
        closed = true;
        clock.shutdown(); // the ends of the leases are still told
        nodes.values().forEach(Node::close);
    }

    private static DLockException closed() {
        return new DLockException("these locks are closed", null);
    }

    /** A lock for {@code try (Hold hold = lock.hold())}: an error in the block is never hidden by one of the release. */
    public static final class Hold implements AutoCloseable {
        private final DLock lock;

        private Hold(DLock lock) {
            this.lock = lock;
        }

        /** The fencing token. */
        public long token() {
            return lock.token();
        }

        /** Runs a command in one step with the look whether the lock is still held under this token. */
        public Object guard(Object... words) {
            return lock.guard(words);
        }

        /** Gives back what was granted here. {@link NotHeld} if it was lost. */
        @Override
        public void close() {
            lock.unlock();
        }
    }

    /** A lock; whichever object of one name a thread uses, it is the same lock. */
    public final class DLock implements Lock {
        private final String key;
        private final int limit;
        private boolean session;
        private Consumer<Long> onLost = token -> {};

        private DLock(String key, int limit) {
            this.key = key;
            this.limit = limit;
        }

        /** The hold ends with this program's connection, at once, whatever has cut it. */
        public DLock session() {
            session = true;
            return this;
        }

        /** Called with the token, by another thread, when a hold that was granted to this object is lost. */
        public DLock onLost(Consumer<Long> onLost) {
            this.onLost = onLost;
            return this;
        }

        public String key() {
            return key;
        }

        private String server() {
            return connector.seeds().get(0);
        }

        /** Waits for the lock, over every reconnection and interrupt. */
        @Override
        public void lock() {
            try {
                take(null, false, false);
            } catch (InterruptedException never) {
                throw new AssertionError(never);
            }
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            take(null, false, true);
        }

        /** Never overtakes who waits. */
        @Override
        public boolean tryLock() {
            try {
                return take(System.nanoTime(), true, false);
            } catch (InterruptedException never) {
                throw new AssertionError(never);
            }
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            return take(end(time, unit), time <= 0, true);
        }

        /** Locks, and unlocks by {@link Hold#close}. */
        public Hold hold() {
            lock();
            return new Hold(this);
        }

        /** The same with a time-out; null if it passes, which {@code try (…)} takes for nothing to close. */
        public Hold tryHold(long time, TimeUnit unit) throws InterruptedException {
            return tryLock(time, unit) ? new Hold(this) : null;
        }

        /** @throws NotHeld if this thread does not hold it, or has lost it */
        @Override
        public void unlock() {
            Held held = mine.get().get(key);
            Integer count = held == null ? null : held.counts.get(limit);
            if (count == null) {
                throw new NotHeld("this thread has not locked " + key);
            }
            if (count > 1) {
                held.counts.put(limit, count - 1);
                return;
            }
            held.counts.remove(limit);
            if (held.counts.isEmpty()) {
                mine.get().remove(key);
                held.release();
            } else if (held.limit < held.counts.firstKey()) {
                held.downgrade(held.counts.firstKey());
            }
        }

        @Override
        public Condition newCondition() {
            throw new UnsupportedOperationException("a lock of several programs has no conditions");
        }

        /** The fencing token of this thread's hold. */
        public long token() {
            return held().token;
        }

        /** Runs a command in one step with the look whether the lock is still held under this thread's token. */
        public Object guard(Object... words) {
            List<Object> guarded = new ArrayList<>(List.of("DLOCK.GUARD", key, held().token));
            guarded.addAll(List.of(words));
            return call(key, channel -> guarded);
        }

        /** Whether this thread's hold is known to be lost. */
        public boolean isLost() {
            return held().lost;
        }

        public boolean isHeldByCurrentThread() {
            return getHoldCount() > 0;
        }

        public int getHoldCount() {
            Held held = mine.get().get(key);
            return held == null ? 0 : held.counts.getOrDefault(limit, 0);
        }

        /** Whether anybody holds it. */
        public boolean isLocked() {
            return call(key, channel -> List.of("DLOCK.HELD", key)) != null;
        }

        private Held held() {
            Held held = mine.get().get(key);
            if (held == null) {
                throw new NotHeld("this thread has not locked " + key);
            }
            return held;
        }

        private boolean take(Long end, boolean atOnce, boolean interruptible) throws InterruptedException {
            if (interruptible && Thread.interrupted()) {
                throw new InterruptedException();
            }
            Held held = mine.get().get(key);
            if (held != null && held.lost) {
                throw new NotHeld(key + " was lost");
            }
            if (held == null || held.limit > limit) {
                Wait wait = new Wait(this, held, end, atOnce, interruptible);
                if (!wait.run()) {
                    return false;
                }
                held = mine.get().get(key);
            }
            held.counts.merge(limit, 1, Integer::sum);
            return true;
        }
    }

    /** One request of the current thread, from the question to the confirmed grant or to having left for good. */
    private final class Wait {
        private final DLock lock;
        private final String key;
        private final String owner = DLocks.this.owner.get();
        /** A hold with a weaker limit, which this request is to upgrade. */
        private final Held outer;
        private final Long end;
        private final boolean atOnce;
        private final boolean interruptible;
        private final BlockingQueue<News> news = new LinkedBlockingQueue<>();
        /** The wait that the server knows of; 0: none of which we know. */
        private long number;
        private boolean interrupted;

        private Wait(DLock lock, Held outer, Long end, boolean atOnce, boolean interruptible) {
            this.lock = lock;
            this.key = lock.key;
            this.outer = outer;
            this.end = end;
            this.atOnce = atOnce;
            this.interruptible = interruptible;
        }

        private boolean run() throws InterruptedException {
            CompletableFuture<Void> before = leaving.get(new Waiter(key, owner));
            if (before != null && !ends(before, atOnce ? Duration.ZERO : patience())) {
                if (atOnce) {
                    throw new Unavailable("an earlier request of this thread is still on its way out", null, false);
                }
                return false;
            }
            waiting.put(new Waiter(key, owner), news);
            if (outer != null) {
                outer.upgrading = true;
            }
            boolean leave = true;
            try {
                while (true) {
                    try {
                        boolean granted = ask();
                        if (granted || atOnce) {
                            leave = false;
                            return granted;
                        }
                    } catch (NotHeld tooLate) {
                        // Slower than the first lease; or the hold that was to be upgraded has ended.
                        if (outer != null) {
                            leave = false;
                            outer.lose();
                            throw tooLate;
                        }
                    } catch (Replaced final_) {
                        leave = false; // the place is somebody else's
                        throw final_;
                    } catch (Unavailable passing) {
                        if (atOnce && System.nanoTime() - end > GRACE.toNanos()) {
                            throw passing;
                        }
                        interrupted |= pause();
                    }
                    if (interruptible && interrupted) {
                        interrupted = false;
                        throw new InterruptedException();
                    }
                    if (!atOnce && end != null && System.nanoTime() - end >= 0) {
                        return false;
                    }
                }
            } finally {
                if (leave) {
                    // It goes on without the caller where nobody answers.
                    var left = CompletableFuture.runAsync(this::leave, background);
                    leaving.put(new Waiter(key, owner), left);
                    left.whenComplete((done, failed) -> leaving.remove(new Waiter(key, owner), left));
                    ends(left, end == null || atOnce ? GRACE : patience());
                }
                waiting.remove(new Waiter(key, owner));
                if (outer != null) {
                    outer.upgrading = false;
                }
                if (interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        /** How long this thread may wait for an answer. */
        private Duration patience() {
            return end == null || atOnce ? FOREVER : Duration.ofNanos(Math.max(0, end + GRACE.toNanos() - System.nanoTime()));
        }

        /** Asks once, waits a slice for the message, and confirms the grant. */
        private boolean ask() throws InterruptedException {
            for (News one = news.poll(); one != null; one = news.poll()) {
                if (one.number == number && one.word.equals("replaced")) {
                    throw new Replaced(REPLACED); // it came with the end of the slice
                }
            }
            number = 0; // what comes from now on may be said of our own asking
            Object reply = answer(send(key, channel -> {
                List<Object> words = command(atOnce ? "ACQUIRE" : "FAIRACQUIRE", key, owner);
                words.add(settings.first());
                if (!atOnce) {
                    words.addAll(List.of("NOTIFY", channel, "CLAIM", settings.claim()));
                }
                // The same answer and no second hold, however often it is asked.
                words.addAll(List.of("HOLDS", 1));
                words.addAll(limit(lock.limit));
                if (lock.session) {
                    words.add("SESSION");
                }
                return words;
            }), patience());
            if (!(reply instanceof List<?> list)) {
                return false;
            }
            long token = (Long) list.get(0);
            if (token == 0) {
                number = (Long) list.get(2);
                token = await();
                if (token == 0) {
                    return false;
                }
            }
            long confirmed = System.nanoTime();
            answer(renew(key, owner, token, lock.session), patience());
            if (outer != null) {
                outer.until = confirmed + settings.lease.toNanos();
                outer.token = token;
                outer.limit = lock.limit;
            } else {
                mine.get().put(key, new Held(lock, owner, token, confirmed));
            }
            return true;
        }

        /** The token, if it comes so soon; else 0: ask again. A message that was lost costs no more than that. */
        private long await() throws InterruptedException {
            long until = System.nanoTime() + settings.first().toNanos() / 2;
            if (end != null && end - until < 0) {
                until = end;
            }
            while (true) {
                News one;
                try {
                    one = news.poll(until - System.nanoTime(), NANOSECONDS);
                } catch (InterruptedException now) {
                    if (interruptible) {
                        throw now;
                    }
                    interrupted = true;
                    continue;
                }
                if (one == null || one == ASK_AGAIN) {
                    return 0;
                }
                if (one.number != number) {
                    continue; // of an earlier asking of ours
                }
                switch (one.word) {
                    case "granted":
                        return one.token;
                    case "replaced":
                        throw new Replaced(REPLACED);
                    case "deadlock":
                        throw new Deadlock("a wait that could never end");
                    case "notheld":
                        throw new NotHeld("the hold has ended while its upgrade waited");
                    case "wrongtype", "refused":
                        throw new DLockException("the wait was refused: " + one.word, null);
                    default: // moved, gone, cancelled
                        return 0;
                }
            }
        }

        /** No place, and no hold beyond that of before. On the connection that asked, so after all that was asked. */
        private void leave() {
            if (attempt(command("CANCEL", key, owner)) instanceof Long removed && removed == 1) {
                return;
            }
            if (outer == null) {
                attempt(with(command("RELEASE", key, owner), "HOLDS", 0));
                return;
            }
            attempt(with(command("DOWNGRADE", key, owner), limit(outer.limit).toArray()));
            if (attempt(command("HELD", key, owner)) instanceof List<?> held) {
                outer.token = (Long) held.get(0); // a new one, if the grant came first
            }
        }

        private Object attempt(List<Object> words) {
            for (int i = 0; i < 3; i++) {
                try {
                    return call(key, channel -> words);
                } catch (Unavailable passing) {
                    pause();
                } catch (NotHeld | DLockException nothing) {
                    return null;
                }
            }
            return null; // the server's own rules end what is left: the claim, and the first lease
        }
    }

    /** What one thread holds under one key. */
    private final class Held {
        private final DLock lock;
        private final String owner;
        private final Thread thread = Thread.currentThread();
        /** How often it is locked with which limit. The strictest one is that of the hold. Its thread's alone. */
        private final TreeMap<Integer, Integer> counts = new TreeMap<>();
        private int limit;
        private volatile long token;
        private volatile long until;
        private volatile boolean upgrading;
        private volatile boolean lost;
        private volatile boolean over;
        private volatile Future<?> end;

        private Held(DLock lock, String owner, long token, long confirmed) {
            this.lock = lock;
            this.owner = owner;
            this.token = token;
            this.limit = lock.limit;
            this.until = confirmed + settings.lease.toNanos();
            try {
                end();
            } catch (RejectedExecutionException closing) {
                throw closed();
            }
            keepIn(settings.lease.toMillis() / 3);
        }

        private void keepIn(long ms) {
            try {
                clock.schedule(() -> background.execute(this::keep), ms, MILLISECONDS);
            } catch (RejectedExecutionException closing) {
                // Nobody keeps it any more, and its end is told.
            }
        }

        /** The end of what is believed is told by the clock, whoever is stuck. */
        private void end() {
            long left = until - System.nanoTime();
            if (left <= 0) {
                lose();
            } else if (!over) {
                end = clock.schedule(this::end, left, NANOSECONDS);
            }
        }

        /** Says it again in time: so a new connection is tied to the hold when one is lost, and a loss is noticed. */
        private void keep() {
            if (over) {
                return;
            }
            if (!thread.isAlive()) {
                try {
                    release(); // nobody can unlock it any more
                } catch (RuntimeException gone) {
                    // Nobody can be told.
                }
                return;
            }
            long now = System.nanoTime();
            long known = token;
            renew(lock.key, owner, known, lock.session).whenComplete((done, failed) -> {
                if (failed == null) {
                    until = now + settings.lease.toNanos();
                    keepIn(settings.lease.toMillis() / 3);
                } else if (!(failed instanceof NotHeld) && !(failed.getCause() instanceof NotHeld)) {
                    if (!over) {
                        keepIn(ThreadLocalRandom.current().nextLong(20, 100));
                    }
                } else if (upgrading || token != known) {
                    keepIn(10); // of the token before the upgrade; the request hears of a loss itself
                } else {
                    lose();
                }
            });
        }

        private void lose() {
            synchronized (this) {
                if (over) {
                    return;
                }
                over = true;
                lost = true;
            }
            background.execute(() -> {
                try {
                    lock.onLost.accept(token);
                } catch (RuntimeException failed) {
                    System.getLogger("dlock").log(System.Logger.Level.ERROR, "onLost has failed", failed);
                }
            });
        }

        private void release() {
            synchronized (this) {
                over = true;
            }
            end.cancel(false);
            if (lost) {
                throw new NotHeld(lock.key + " was lost");
            }
            boolean unsure = false;
            while (true) {
                try {
                    call(lock.key, channel -> with(command("RELEASE", lock.key, owner), "HOLDS", 0, "TOKEN", token));
                    return;
                } catch (NotHeld gone) {
                    if (!unsure) { // else an earlier one may have been heard
                        throw gone;
                    }
                    return;
                } catch (Unavailable passing) {
                    if (System.nanoTime() - until > 0) {
                        throw passing;
                    }
                    unsure |= passing.unsure;
                }
                if (pause()) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        private void downgrade(int weaker) {
            if (!lost) {
                call(lock.key, channel -> with(command("DOWNGRADE", lock.key, owner), limit(weaker).toArray()));
                limit = weaker;
            }
        }
    }

    private record All(List<DLock> locks) implements Lock {
        @Override
        public void lock() {
            each(lock -> {
                lock.lock();
                return true;
            });
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            tryLock(Long.MAX_VALUE, NANOSECONDS);
        }

        @Override
        public boolean tryLock() {
            return each(DLock::tryLock);
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            long end = end(time, unit);
            return each(lock -> lock.tryLock(end - System.nanoTime(), NANOSECONDS));
        }

        @Override
        public void unlock() {
            release(locks.size(), null);
        }

        @Override
        public Condition newCondition() {
            throw new UnsupportedOperationException("several locks have no conditions");
        }

        private interface Taking<E extends Exception> {
            boolean take(DLock lock) throws E;
        }

        private <E extends Exception> boolean each(Taking<E> taking) throws E {
            int taken = 0;
            Throwable failed = null;
            try {
                while (taken < locks.size() && taking.take(locks.get(taken))) {
                    taken++;
                }
                return taken == locks.size();
            } catch (Throwable error) {
                failed = error;
                throw error;
            } finally {
                if (taken < locks.size()) {
                    release(taken, failed);
                }
            }
        }

        /** The last one first. The first error is reported when all are given back, and hides no other. */
        private void release(int taken, Throwable before) {
            RuntimeException failed = null;
            while (taken-- > 0) {
                try {
                    locks.get(taken).unlock();
                } catch (RuntimeException error) {
                    failed = failed == null ? error : failed;
                }
            }
            if (failed != null && before != null) {
                before.addSuppressed(failed);
            } else if (failed != null) {
                throw failed;
            }
        }
    }

    private static long end(long time, TimeUnit unit) {
        return System.nanoTime() + Math.min(unit.toNanos(time), Long.MAX_VALUE / 2);
    }

    /** The full lease, and from now on the server renews it as long as our connection is there. */
    private CompletableFuture<Object> renew(String key, String owner, long token, boolean session) {
        Duration auto = settings.auto.compareTo(settings.lease) < 0 ? settings.lease : settings.auto;
        List<Object> words = with(command("RENEW", key, owner), settings.lease, "TOKEN", token, "AUTO", auto);
        return send(key, channel -> session ? with(words, "SESSION") : words);
    }

    private static List<Object> command(String name, String key, String owner) {
        return new ArrayList<>(List.of("DLOCK." + name, key, owner));
    }

    private static List<Object> with(List<Object> words, Object... more) {
        List<Object> all = new ArrayList<>(words);
        all.addAll(List.of(more));
        return all;
    }

    private static List<Object> limit(int limit) {
        return limit == SHARED ? List.of("SHARED") : limit == 1 ? List.of() : List.of("LIMIT", limit);
    }

    // ---- servers ----------------------------------------------------------------------------------------------------

    /** A connection to a server, with the name of the channel that belongs to it. */
    private final class Node {
        // A channel for each connection: a message of a cluster goes to all nodes, and is to be heard once.
        private final String channel = "dlock:" + UUID.randomUUID();
        private final CompletableFuture<Wire> wire = new CompletableFuture<>();
        private final AtomicBoolean over = new AtomicBoolean();

        /** It is opened by a thread of its own: nobody waits for a connection but who wants it, and he can stop waiting. */
        private Node(String address) {
            int colon = address.lastIndexOf(':');
            String host = address.substring(0, colon);
            int port = Integer.parseInt(address.substring(colon + 1));
            wire.orTimeout(REPLY.toMillis(), MILLISECONDS);
            background.execute(() -> {
                try {
                    Wire opened = connector.open(host, port, channel, DLocks.this::dispatch, this::close);
                    if (!wire.complete(opened)) {
                        opened.close(); // too late
                    }
                } catch (RuntimeException | Error failed) {
                    wire.completeExceptionally(failed);
                }
            });
        }

        /** Several words at once stay together. */
        private CompletableFuture<Object> ask(List<List<Object>> commands) {
            return wire.thenCompose(wire -> {
                CompletableFuture<Object> reply = null;
                synchronized (this) {
                    for (List<Object> words : commands) {
                        reply = wire.send(words.stream().map(DLocks::bytes).toList());
                    }
                }
                return reply.orTimeout(REPLY.toMillis(), MILLISECONDS);
            });
        }

        /** Messages may have been lost: all ask again. */
        private void close() {
            if (over.compareAndSet(false, true)) {
                waiting.values().forEach(news -> news.add(ASK_AGAIN));
                wire.thenAccept(Wire::close);
            }
        }
    }

    private static byte[] bytes(Object word) {
        if (word instanceof byte[] bytes) {
            return bytes;
        }
        return (word instanceof Duration time ? Long.toString(time.toMillis()) : word.toString()).getBytes(UTF_8);
    }

    private static final Duration FOREVER = Duration.ofDays(365);

    /** Whether it ends within this time. */
    private static boolean ends(CompletableFuture<?> work, Duration limit) {
        try {
            work.copy().orTimeout(limit.toNanos(), NANOSECONDS).join();
            return true;
        } catch (CompletionException failed) {
            return work.isDone();
        }
    }

    /** The reply, whoever interrupts. Every answer comes within the bounds of {@link #send}. */
    private static Object answer(CompletableFuture<Object> reply, Duration limit) {
        if (!ends(reply, limit)) {
            throw new Unavailable("no answer in time", null, true);
        }
        try {
            return reply.join();
        } catch (CompletionException failed) {
            throw failed.getCause() instanceof RuntimeException cause ? cause : failed;
        }
    }

    private Object call(String key, Function<String, List<Object>> words) {
        return answer(send(key, words), FOREVER);
    }

    /** The reply, from whoever serves the key. What was not executed is sent on to where the server says. */
    private CompletableFuture<Object> send(String key, Function<String, List<Object>> words) {
        return send(slot(key.getBytes(UTF_8)), words, null, 0);
    }

    private CompletableFuture<Object> send(
            int slot, Function<String, List<Object>> words, String asked, int redirections) {
        if (closed) {
            return CompletableFuture.failedFuture(closed());
        }
        String address = asked != null ? asked
                : slots.getOrDefault(slot, connector.seeds().get(Math.floorMod(first.get(), connector.seeds().size())));
        Node node = node(address);
        List<Object> command = words.apply(node.channel);
        return node.ask(asked != null ? List.of(List.of("ASKING"), command) : List.of(command))
                .exceptionallyComposeAsync(failed -> {
                    String to = elsewhere(slot, node, failed, redirections);
                    return send(slot, words, to.isEmpty() ? null : to, redirections + 1);
                }, background);
    }

    /** Whom to ask instead: an address, or empty for whoever serves the slot. Or throws. */
    private String elsewhere(int slot, Node node, Throwable failed, int redirections) {
        Throwable cause = failed;
        while (!(cause instanceof ServerError) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        String text = cause.getMessage() != null ? cause.getMessage() : cause.toString();
        String[] parts = text.split(" ");
        if (!(cause instanceof ServerError)) {
            forget(slot, node);
            throw new Unavailable(text, cause, true);
        }
        if (node.wire.isCompletedExceptionally()) {
            node.close(); // it has not let us in
        }
        switch (parts[0].replace(":", "")) {
            case "MOVED", "ASK" -> {
                if (redirections == 5) {
                    throw new Unavailable(text, cause, false);
                }
                if (parts[0].equals("ASK")) {
                    return parts[2];
                }
                slots.put(slot, parts[2]);
                return "";
            }
            case "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN" -> {
                forget(slot, node); // another one will be asked
                throw new Unavailable(text, cause, false);
            }
            case "TRYAGAIN", "UNBLOCKED", "NOREPLICAS", "MISCONF", "QUARANTINE" ->
                throw new Unavailable(text, cause, false);
            case "NOTHELD" -> throw new NotHeld(text);
            case "FENCED" -> throw new Fenced(text);
            case "DEADLOCK" -> throw new Deadlock(text);
            case "REPLACED" -> throw new Replaced(text);
            default -> throw new DLockException(text, cause);
        }
    }

    private Node node(String address) {
        Node node = nodes.get(address);
        return node != null && !node.over.get() ? node
                : nodes.compute(address, (name, old) -> old != null && !old.over.get() ? old : new Node(name));
    }

    private void forget(int slot, Node node) {
        slots.remove(slot);
        first.incrementAndGet();
        node.close();
    }

    /** {@code word token keylen:key ownerlen:owner number} */
    private void dispatch(byte[] message) {
        String text = new String(message, UTF_8);
        String[] start = text.split(" ", 3);
        byte[] rest = start[2].getBytes(UTF_8);
        String[] names = new String[2];
        int at = 0;
        for (int i = 0; i < 2; i++) {
            int length = 0;
            for (; rest[at] != ':'; at++) {
                length = length * 10 + rest[at] - '0';
            }
            names[i] = new String(rest, at + 1, length, UTF_8);
            at += length + 2;
        }
        BlockingQueue<News> news = waiting.get(new Waiter(names[0], names[1]));
        if (news != null) {
            long number = Long.parseLong(new String(rest, at, rest.length - at, UTF_8));
            news.add(new News(start[0], Long.parseLong(start[1]), number));
        }
    }

    /** Waits a little, and says whether it was interrupted meanwhile. */
    private static boolean pause() {
        try {
            Thread.sleep(ThreadLocalRandom.current().nextLong(20, 100));
            return false;
        } catch (InterruptedException interrupted) {
            return true;
        }
    }

    /** The cluster's slot of a key: CRC-16 of the first non-empty {@code {…}} in it, or of all of it. */
    private static int slot(byte[] key) {
        int from = 0;
        int to = key.length;
        int open = indexOf(key, '{', 0);
        int close = open < 0 ? -1 : indexOf(key, '}', open + 1);
        if (close > open + 1) {
            from = open + 1;
            to = close;
        }
        int crc = 0;
        for (int i = from; i < to; i++) {
            crc ^= (key[i] & 0xff) << 8;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc << 1) ^ ((crc & 0x8000) == 0 ? 0 : 0x1021);
            }
            crc &= 0xffff;
        }
        return crc % 16384;
    }

    private static int indexOf(byte[] key, char wanted, int from) {
        for (int i = from; i < key.length; i++) {
            if (key[i] == wanted) {
                return i;
            }
        }
        return -1;
    }
}

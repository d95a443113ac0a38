// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.INFO;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;

/**
 * One leader among the candidates of a name: the one that holds its lock. It steps down before its lease ends, since a hold
 * is believed for less long. The fencing token is the term: what a leader writes it writes by {@link Hold#guard}.
 */
public final class Leader implements AutoCloseable {
    /** The leader, as the server sees it: its id, and the term, which rises with each election. */
    public record Leading(String id, long term) {}

    /** Looks until it is closed. */
    public interface Watch extends AutoCloseable {
        @Override
        void close();
    }

    private final DLocks locks;
    private final String name;
    private final String id;
    /** One campaign at a time. It is not the sessions' guard: to ask may wait for a socket. */
    private final ReentrantLock standing = new ReentrantLock();
    private volatile CompletableFuture<Hold> campaign;

    /** A candidate, known to the others by this id. */
    public Leader(DLocks locks, String name, String id) {
        if (locks == null) {
            throw new IllegalArgumentException("locks must not be null");
        }
        this.locks = locks;
        this.name = name;
        this.id = id;
        locks.ask(name).actor(id); // a mistake fails where it is made
    }

    /**
     * Stands for election, until it is leader. The hold says when that is over ({@link Hold#lost}); then it may stand again.
     * One campaign at a time.
     */
    public CompletableFuture<Hold> campaign() {
        standing.lock();
        try {
            if (campaign != null && (!campaign.isDone() || isLeader())) {
                return campaign;
            }
            Hold last = hold();
            if (last != null) {
                last.expire(); // after a stall it may still hold the lock, and a new request would wait behind it
            }
            String actor = id + "#" + UUID.randomUUID(); // two of one name are two
            return campaign = locks.ask(name).actor(actor).holdAsync();
        } finally {
            standing.unlock();
        }
    }

    /** What the campaign has brought, or null. */
    private Hold hold() {
        CompletableFuture<Hold> now = campaign;
        return now != null && now.isDone() && !now.isCompletedExceptionally() ? now.join() : null;
    }

    /** Whether it leads, for sure. */
    public boolean isLeader() {
        return term().isPresent();
    }

    /** The term in which it leads. */
    public OptionalLong term() {
        Hold now = hold();
        return now != null && !now.left().isZero() ? OptionalLong.of(now.token()) : OptionalLong.empty();
    }

    /** Runs a command under the term; {@link DLockException.Fenced} if another one leads, {@link NotHeld} if it knows that. */
    public Object guard(Object... words) {
        Hold now = hold();
        if (now == null || now.left().isZero()) {
            throw new NotHeld("NOTHELD " + id + " does not lead " + name);
        }
        return now.guard(words);
    }

    /** Returns the leader, as the server sees it now. */
    public Optional<Leading> who() {
        return Hold.await(ask());
    }

    /** Reports who leads, now and after each change, as a check in each interval sees it. A check that fails reports nothing. */
    public Watch observe(Duration interval, Consumer<Optional<Leading>> then) {
        if (interval == null || interval.toMillis() < 1) {
            throw new IllegalArgumentException("interval must be at least 1 ms, not " + interval);
        }
        if (then == null) {
            throw new IllegalArgumentException("then must not be null");
        }
        Watching watching = new Watching(Asking.nanos(interval), then);
        watching.look();
        return watching::close;
    }

    private final class Watching {
        private final long interval;
        private final Consumer<Optional<Leading>> then;
        private Optional<Leading> before; // null: nothing is known yet
        private volatile boolean closed;
        private volatile Future<?> next;

        Watching(long interval, Consumer<Optional<Leading>> then) {
            this.interval = interval;
            this.then = then;
        }

        private void look() {
            ask().whenCompleteAsync((now, why) -> {
                if (closed || locks.sessions.isClosed) {
                    return;
                }
                try {
                    if (why == null && !now.equals(before)) {
                        before = now;
                        then.accept(now);
                    }
                } catch (RuntimeException error) {
                    Sessions.LOG.log(INFO, "who observes has failed", error);
                } finally {
                    next = locks.sessions.timer.schedule(this::look, interval, TimeUnit.NANOSECONDS);
                }
            }, locks.sessions.callbacks);
        }

        private void close() {
            closed = true;
            Future<?> now = next;
            if (now != null) {
                now.cancel(false);
            }
        }
    }

    private CompletableFuture<Optional<Leading>> ask() {
        return locks.heldBy(name).thenApply(reply -> {
            if (reply == null) {
                return Optional.empty();
            }
            List<?> held = (List<?>) reply;
            String owner = new String((byte[]) held.get(3), StandardCharsets.UTF_8);
            return Optional.of(new Leading(nameOf(owner), (Long) held.get(0)));
        });
    }

    /** Returns the candidate's name in an owner's: {@code host/pid/session/name#campaign#number}. */
    private static String nameOf(String owner) {
        String[] words = owner.split("/", 4);
        String name = words.length == 4 && words[1].matches("[0-9]+") ? words[3] : owner;
        for (int i = 0; i < 2; i++) {
            name = name.substring(0, Math.max(0, name.lastIndexOf('#')));
        }
        return name;
    }

    /** Waits until it leads, does the work, and resigns. The work looks at the hold, or guards what it writes. */
    public void lead(Consumer<Hold> work) {
        Hold term = Hold.await(campaign());
        try (this) {
            work.accept(term);
        }
    }

    /** Leads no more, and stands no more. What was lost is no error. */
    public void resign() {
        CompletableFuture<Hold> begun;
        standing.lock();
        try {
            begun = campaign;
            campaign = null;
        } finally {
            standing.unlock();
        }
        if (begun == null || begun.cancel(false)) {
            return;
        }
        Hold now = begun.isCompletedExceptionally() ? null : begun.join();
        if (now != null && now.isHeld()) {
            try {
                now.release();
            } catch (NotHeld lost) {
                // It leads no more: that is what was asked for.
            }
        }
    }

    @Override
    public void close() {
        resign();
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.MS;
import static dlock.Clock.NEVER;
import static java.lang.System.Logger.Level.WARNING;

import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/**
 * How a lock is asked for whose hold belongs to no thread. Each hold has an owner's name of its own.
 *
 * <pre>{@code
 * try (Hold hold = locks.ask("stock").hold()) { … }
 * locks.ask("stock").shared().tryHoldAsync(Duration.ofSeconds(5)).thenCompose(hold -> …);
 * }</pre>
 */
public final class Asking {
    private final DLocks locks;
    private final String key;
    private long lease;
    private long maxHold = NEVER;
    /** Null: nothing was said. */
    private Integer limit;
    private Integer permits;
    private String actor;
    private Consumer<Hold> onLost;

    Asking(DLocks locks, String key) {
        Request.checkKey(key); // a mistake fails where it is made
        this.locks = locks;
        this.key = key;
        lease = locks.sessions.settings.lease().toNanos();
    }

    /** Shares the lock with all others who share it. */
    public Asking shared() {
        limit = Request.SHARED;
        return this;
    }

    /** Sets how many may hold it at once. */
    public Asking limit(int limit) {
        this.limit = limit;
        return this;
    }

    /** Takes that many of the {@link #limit}, all at once, and releases them together. One unless set. */
    public Asking permits(int permits) {
        this.permits = permits;
        return this;
    }

    /** Sets how long this lock lasts after the program dies or loses the server, instead of that of the {@link Settings}. */
    public Asking lease(Duration lease) {
        this.lease = atLeastOneMs("lease", lease);
        return this;
    }

    /** Sets how long the lock may be held: then the client reports it lost, and releases it. */
    public Asking maxHold(Duration maxHold) {
        this.maxHold = atLeastOneMs("maxHold", maxHold);
        return this;
    }

    /**
     * Names who takes several locks, as a task with nested locks does. The server sees that two actors wait for each other, and that one
     * waits for what it holds itself ({@link DLockException.Deadlock}). The name is this {@link DLocks}' own.
     */
    public Asking actor(String name) {
        if (name == null || name.isEmpty()) {
            throw new IllegalArgumentException("actor must not be empty");
        }
        actor = name;
        return this;
    }

    /**
     * Does what {@link #actor} does.
     *
     * @deprecated call that
     */
    @Deprecated
    public Asking owner(String name) {
        Sessions.LOG.log(WARNING, "owner(…) is called actor(…) now");
        return actor(name);
    }

    /** Has this called once, by a thread of its own, when the hold is lost. */
    public Asking onLost(Consumer<Hold> onLost) {
        if (onLost == null) {
            throw new IllegalArgumentException("onLost must not be null");
        }
        this.onLost = onLost;
        return this;
    }

    /** Waits for the lock. Cancelling the stage leaves. */
    public CompletableFuture<Hold> holdAsync() {
        return start(NEVER);
    }

    /** Waits so long (zero: one try); null if it is taken. An error if nobody can say so. */
    public CompletableFuture<Hold> tryHoldAsync(Duration timeout) {
        return start(nanos(timeout));
    }

    /** Waits for the lock in this thread, over interrupts. */
    public Hold hold() {
        try {
            return locks.take(request(), NEVER, false).get(0);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    /** Waits so long in this thread (zero: one try); null if it is taken. */
    public Hold tryHold(Duration timeout) throws InterruptedException {
        List<Hold> holds = locks.take(request(), nanos(timeout), true);
        return holds == null ? null : holds.get(0);
    }

    static long nanos(Duration timeout) {
        if (timeout == null || timeout.isNegative()) {
            throw new IllegalArgumentException("timeout must not be null or negative, but is " + timeout);
        }
        return timeout.compareTo(Duration.ofNanos(NEVER)) < 0 ? timeout.toNanos() : NEVER;
    }

    static long atLeastOneMs(String name, Duration time) {
        if (time == null || time.compareTo(Duration.ofMillis(1)) < 0) {
            throw new IllegalArgumentException(name + " must be at least 1 ms, not " + time);
        }
        return nanos(time) / MS * MS;
    }

    private Request request() {
        if (permits != null && (limit == null || limit == Request.SHARED)) {
            throw new IllegalArgumentException("permits must be given with limit, not " + permits + " alone");
        }
        return new Request(List.of(key), lease, maxHold, actor, limit == null ? 1 : limit, permits == null ? 1 : permits,
                Collections.singletonList(onLost));
    }

    private CompletableFuture<Hold> start(long wait) {
        Sessions s = locks.sessions;
        Take take = new Take(s, request(), wait);
        CompletableFuture<Hold> done = new CompletableFuture<>();
        take.done.whenCompleteAsync((holds, why) -> {
            if (why != null) {
                done.completeExceptionally(why);
            } else if (holds == null) {
                done.complete(null);
            } else if (!done.complete(Hold.of(s, holds.get(0)))) {
                s.unwanted(holds.get(0)); // it was completed otherwise as the grant came
            }
        }, s.callbacks);
        // A caller that completes it (cancel, orTimeout, complete) no longer waits. If it is the grant, the request is over before.
        done.whenComplete((hold, why) -> take.leave(new DLockException.Unavailable("cancelled", null)));
        take.start();
        return done;
    }
}

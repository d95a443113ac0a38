// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;
import java.util.UUID;
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
    // 0: nothing was said.
    private int limit;
    private int permits;
    private boolean ephemeral;
    private String owner;
    private Consumer<Hold> onLost = hold -> {};

    Asking(DLocks locks, String key) {
        this.locks = locks;
        this.key = key;
        new Request(locks.core.settings, key, "-", 1, false, null); // what is wrong with the key is told at once
    }

    /** Together with others who share. */
    public Asking shared() {
        limit = Request.SHARED;
        return this;
    }

    /** Together with so many others, less one. */
    public Asking limit(int limit) {
        if (limit < 1) {
            throw new IllegalArgumentException("limit must be at least 1, not " + limit);
        }
        this.limit = limit;
        return this;
    }

    /** Takes so many of the {@link #limit}, all at once, and gives them back together. One unless set. */
    public Asking permits(int permits) {
        if (permits < 1) {
            throw new IllegalArgumentException("permits must be at least 1, not " + permits);
        }
        this.permits = permits;
        return this;
    }

    /** The hold ends at once when the connection does, whatever has cut it. */
    public Asking ephemeral() {
        ephemeral = true;
        return this;
    }

    /** Names the owner for others: {@code host/pid/name#…}. */
    public Asking owner(String name) {
        if (name == null || name.isEmpty()) {
            throw new IllegalArgumentException("owner must not be empty");
        }
        owner = name;
        return this;
    }

    /** Called once, by a thread of its own, when the hold is lost. */
    public Asking onLost(Consumer<Hold> onLost) {
        if (onLost == null) {
            throw new IllegalArgumentException("onLost must not be null");
        }
        this.onLost = onLost;
        return this;
    }

    /** Waits for the lock. Cancelling the stage leaves. */
    public CompletableFuture<Hold> holdAsync() {
        return start(-1);
    }

    /** Waits so long (zero: one try); null if it is taken. An error if nobody can say so. */
    public CompletableFuture<Hold> tryHoldAsync(Duration timeout) {
        return start(nanos(timeout));
    }

    /** Waits for the lock in this thread, over interrupts. */
    public Hold hold() {
        try {
            return hold(take(-1, false));
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    /** Waits so long in this thread (zero: one try); null if it is taken. */
    public Hold tryHold(Duration timeout) throws InterruptedException {
        Take take = take(nanos(timeout), true);
        return take == null ? null : hold(take);
    }

    static long nanos(Duration timeout) {
        if (timeout == null || timeout.isNegative()) {
            throw new IllegalArgumentException("timeout must not be null or negative, but is " + timeout);
        }
        try {
            return Math.min(timeout.toNanos(), Long.MAX_VALUE / 4);
        } catch (ArithmeticException long_) {
            return Long.MAX_VALUE / 4;
        }
    }

    private Request request() {
        locks.core.check();
        if (permits > 0 && (limit == 0 || limit == Request.SHARED)) {
            throw new IllegalArgumentException("permits must be given with limit, not " + permits + " alone");
        }
        String name = Request.PROCESS + (owner == null ? "" : owner + "#") + UUID.randomUUID();
        return new Request(locks.core.settings, key, name, Math.max(1, limit), Math.max(1, permits), ephemeral, null);
    }

    private Hold hold(Take take) {
        return new Hold(locks.core, take.request, onLost);
    }

    private Take take(long timeout, boolean interruptible) throws InterruptedException {
        Take take = new Take(locks.core, request(), timeout).start(false);
        return DLocks.await(take, interruptible) == null ? null : take;
    }

    private CompletableFuture<Hold> start(long timeout) {
        Take take = new Take(locks.core, request(), timeout);
        CompletableFuture<Hold> done = new CompletableFuture<>();
        take.done.whenCompleteAsync((renewal, why) -> {
            if (why != null) {
                done.completeExceptionally(why);
            } else if (renewal == null) {
                done.complete(null);
            } else {
                Hold hold = hold(take);
                if (!done.complete(hold)) {
                    hold.releaseAsync(); // it was completed otherwise as the grant came
                }
            }
        }, locks.core.callbacks);
        // Whoever completes it (cancel, orTimeout, complete) waits no more. If it is the grant, the request is over before.
        done.whenComplete((hold, why) -> take.abandon(new DLockException.Unavailable("cancelled", null)));
        take.start(true);
        return done;
    }
}

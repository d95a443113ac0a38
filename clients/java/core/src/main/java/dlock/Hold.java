// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.MS;

import dlock.DLockException.Fenced;
import dlock.DLockException.Unavailable;
import java.lang.ref.Cleaner;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * A lock that is held, by no thread in particular: any thread may give it back. Keep the Hold while the work runs: a Hold that the
 * collector finds is a bug of the program. It is reported lost, with a warning, and the lock stays taken until its lease ends.
 */
public final class Hold implements AutoCloseable {
    private static final Cleaner CLEANER = Cleaner.create();

    private final Sessions s;
    private final Belief belief;
    private Cleaner.Cleanable found = () -> {};

    /** Makes a view of a hold, which the collector may find. */
    Hold(Sessions s, Belief belief) {
        this.s = s;
        this.belief = belief;
    }

    /** Returns what the program has of a hold. */
    static Hold of(Sessions s, Belief belief) {
        Hold hold = new Hold(s, belief);
        hold.found = CLEANER.register(hold, () -> s.forget(belief));
        return hold;
    }

    /** Returns the lock's name. */
    public String key() {
        return belief.key;
    }

    /** Returns the name of the party that holds it: {@code host/pid/…}. */
    public String owner() {
        return belief.owner;
    }

    /** Returns the fencing token: greater than that of every hold before. */
    public long token() {
        return belief.token;
    }

    /** Returns how long the lock is certainly held if the server is silent from now on. */
    public Duration left() {
        return s.under(() -> belief.isOver ? Duration.ZERO : Duration.ofNanos(Math.max(0, belief.until() - Clock.now())));
    }

    /** Returns whether the lock is known to be lost. */
    public boolean isLost() {
        return belief.isOver && !belief.isReleased;
    }

    /** Returns whether the lock is held, as far as is known. */
    public boolean isHeld() {
        return !belief.isOver;
    }

    /** Returns a stage that completes, with the reason, when the lock is lost. It does not keep the Hold. */
    public CompletionStage<String> lost() {
        return belief.lost.minimalCompletionStage();
    }

    /**
     * Runs a command if the lock is still held under this token, in one step of the server. {@link DLockException.Fenced}: it did
     * not run, and the lock is lost. The command is sent once: after {@link DLockException.Unavailable} it may have run.
     */
    public CompletionStage<Object> guardAsync(Object... words) {
        return guarded(words).whenCompleteAsync((reply, why) -> {}, s.callbacks);
    }

    /** Does what {@link #guardAsync} does, and waits for the reply: Long, byte[], List or null. */
    public Object guard(Object... words) {
        return await(guarded(words));
    }

    private CompletableFuture<Object> guarded(Object... words) {
        s.check();
        if (words.length == 0) {
            throw new IllegalArgumentException("words must not be empty");
        }
        List<Object> all = new ArrayList<>(List.of("DLOCK.GUARD", key(), token()));
        all.addAll(Arrays.asList(words));
        byte[][] command = Request.bytes(all);
        return s.library.call(key(), command, s.settings.replyNanos(), false).exceptionallyCompose(
                // A replica has not run it, and another server may be known by now.
                why -> DLockException.code(DLockException.of(why)).equals("READONLY")
                        ? s.library.call(key(), command, s.settings.replyNanos(), false) : CompletableFuture.failedFuture(why))
                .whenComplete((reply, why) -> {
                    if (why != null && DLockException.of(why) instanceof Fenced) {
                        s.under(() -> s.lose(belief, "fenced"));
                    }
                });
    }

    /**
     * Releases what was granted here, and nothing else. {@link NotHeld} if it was lost. A release that no server answers within the time
     * for a reply continues in the background.
     */
    public CompletionStage<Void> releaseAsync() {
        return end(0, "it was given back before").whenCompleteAsync((nothing, why) -> {}, s.callbacks);
    }

    /** Does what {@link #releaseAsync} does, and waits for it. */
    public void release() {
        await(end(0, "it was given back before"));
    }

    /** Does what {@link #release} does, and nothing if the program has given it back already. {@link NotHeld} if it was lost. */
    @Override
    public void close() {
        if (!belief.isReleased) {
            release();
        }
    }

    /**
     * Gives the lock back at that time from now, by the server's clock: it stays taken until then, whether or not this program lives,
     * and nobody renews it. For work that is due once in a period. {@link NotHeld} if it was lost.
     */
    public void releaseAfter(Duration time) {
        if (time == null || time.toMillis() < 1) {
            throw new IllegalArgumentException("time must be at least 1 ms, not " + time);
        }
        await(end(time.toMillis() * MS, "it was left to its lease"));
    }

    private CompletableFuture<Void> end(long nanos, String reason) {
        if (s.isClosed) {
            return CompletableFuture.failedFuture(Sessions.closedError());
        }
        long from = Clock.now();
        Errand errand = s.under(() -> belief.isOver ? null : s.end(belief, reason, false, nanos));
        if (errand == null) {
            return CompletableFuture.failedFuture(new NotHeld("NOTHELD lock " + key() + ": " + belief.reason));
        }
        CompletableFuture<Void> done = new CompletableFuture<>();
        var bound = s.timer.schedule(() -> done.completeExceptionally(errand.why()), s.settings.replyNanos(), TimeUnit.NANOSECONDS);
        errand.whenComplete((reply, why) -> {
            bound.cancel(false);
            // An earlier one may have ended it, and its answer is lost.
            if (why == null || why instanceof NotHeld && errand.tries > 1 && Clock.now() - from >= nanos) {
                done.complete(null);
            } else {
                done.completeExceptionally(why);
            }
        });
        s.tell(observer -> observer.released(key(), Sessions.since(belief.since)));
        found.clean();
        return done;
    }

    /** Reports the loss, as the clock would, and releases what the server may still have: for an election after a stall. */
    void expire() {
        s.under(() -> {
            if (!belief.isOver) {
                s.expire(belief);
            }
        });
    }

    /** Returns the value, or throws the error. The future always completes: each call has a bound. An interrupt is kept. */
    static <T> T await(CompletableFuture<T> future) {
        boolean isInterrupted = false;
        try {
            while (true) {
                try {
                    return future.get();
                } catch (InterruptedException again) {
                    isInterrupted = true;
                } catch (ExecutionException failed) {
                    throw DLockException.here(failed.getCause());
                } catch (CancellationException ended) {
                    throw new Unavailable("the call was cancelled", ended);
                }
            }
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

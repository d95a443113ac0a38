// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.DEBUG;
import static java.lang.System.Logger.Level.ERROR;
import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.Unavailable;
import java.time.Duration;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * A lock that is held, by no thread in particular: any thread may give it back. A hold that nobody refers to any more is
 * given back when the collector finds it.
 */
public final class Hold implements AutoCloseable {
    private enum State { HELD, LOST, RELEASED }

    final Core core;
    final Request request;
    private volatile Tie tie;
    private final long since = BootClock.now();
    private final AtomicReference<State> state = new AtomicReference<>(State.HELD);
    private final Consumer<Hold> onLost;
    private final CompletableFuture<String> lost = new CompletableFuture<>();
    private volatile String reason = "";

    Hold(Core core, Request request, Consumer<Hold> onLost) {
        this.core = core;
        this.request = request;
        this.tie = request.tie;
        this.onLost = onLost;
        core.adopt(request, this);
    }

    Tie tie() {
        return tie;
    }

    void tie(Tie tie) {
        this.tie = tie;
    }

    /** The lock's name. */
    public String key() {
        return request.key;
    }

    /** The name under which it is held. */
    public String owner() {
        return request.owner;
    }

    /** The fencing token: greater than that of every hold before. */
    public long token() {
        return tie.token;
    }

    /** So long it is ours for sure, if nothing is heard of the server any more. */
    public Duration left() {
        BootClock.look();
        core.guard.lock();
        try {
            return state.get() != State.HELD ? Duration.ZERO : Duration.ofNanos(Math.max(0, tie.end() - BootClock.now()));
        } finally {
            core.guard.unlock();
        }
    }

    /** Whether it is known to be lost. */
    public boolean isLost() {
        return state.get() == State.LOST;
    }

    /** Whether it is held still, as far as we know. */
    public boolean isHeld() {
        return state.get() == State.HELD;
    }

    /** Is done, with the reason, when the lock is lost. */
    public CompletionStage<String> lost() {
        return lost.minimalCompletionStage();
    }

    void tellLost(String why) {
        if (!state.compareAndSet(State.HELD, State.LOST)) {
            return;
        }
        reason = why;
        var level = core.closed ? DEBUG : WARNING;
        core.tell(observer -> observer.lost(request.key, why));
        core.callbacks.execute(() -> { // whoever finds it lost may have the guard, and loggers may block
            Core.LOG.log(level, "lock {0} of {1} is lost: {2}", request.key, request.owner, why);
            lost.complete(why);
            try {
                onLost.accept(this);
            } catch (RuntimeException error) {
                Core.LOG.log(ERROR, "onLost has failed", error);
            }
        });
    }

    /** Runs a command in one step with the look whether the lock is still held under this token. */
    public CompletionStage<Object> guardAsync(Object... words) {
        return guarded(words).whenCompleteAsync((reply, why) -> {}, core.callbacks);
    }

    /** The same, and waits for the reply: Long, byte[], List or null. */
    public Object guard(Object... words) {
        return await(guarded(words), 2 * core.boundNanos);
    }

    private CompletableFuture<Object> guarded(Object... words) {
        core.check();
        if (words.length == 0) {
            throw new IllegalArgumentException("words must not be empty");
        }
        Object[] guarded = new Object[words.length + 3];
        guarded[0] = "DLOCK.GUARD";
        guarded[1] = request.key;
        guarded[2] = tie.token;
        System.arraycopy(words, 0, guarded, 3, words.length);
        return core.routes.ask(request, Request.words(guarded));
    }

    /** Gives back what was granted here, and nothing else. {@link NotHeld} if it was lost. */
    public CompletionStage<Void> releaseAsync() {
        return giveBack().whenCompleteAsync((nothing, why) -> {}, core.callbacks);
    }

    /** The same, and waits for it. */
    public void release() {
        await(giveBack(), 2 * core.boundNanos);
    }

    /** The same as {@link #release}. */
    @Override
    public void close() {
        release();
    }

    private CompletableFuture<Void> giveBack() {
        core.check();
        if (!state.compareAndSet(State.HELD, State.RELEASED)) {
            String why = reason.isEmpty() ? "it was given back before" : reason;
            return CompletableFuture.failedFuture(new NotHeld("NOTHELD lock " + request.key + " was lost: " + why));
        }
        return core.leaving.release(request, tie).thenRun(
                () -> core.tell(observer -> observer.released(request.key, Core.since(since))));
    }

    /** The value, or the error itself. An interrupt is kept for whoever asks for it. */
    static <T> T await(CompletableFuture<T> future, long nanos) {
        boolean interrupted = false;
        long end = System.nanoTime() + nanos;
        try {
            while (true) {
                try {
                    return future.get(end - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException again) {
                    interrupted = true;
                } catch (ExecutionException failed) {
                    throw DLockException.of(failed.getCause());
                } catch (TimeoutException | CancellationException late) {
                    throw new Unavailable("the server does not answer", late);
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

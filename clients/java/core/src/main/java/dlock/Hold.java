// SPDX-License-Identifier: MIT
package dlock;

import dlock.DLockException.Fenced;
import dlock.DLockException.Unavailable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;

/**
 * A lock that is held, by no thread in particular: any thread may give it back. Keep the Hold, or the stage of {@link #lost},
 * while the work runs: a Hold that the collector finds is a bug of the program. It is reported lost, with a warning, and the
 * lock stays taken until its lease ends.
 */
public final class Hold implements AutoCloseable {
    final HoldState state;

    Hold(Core core, Request request, Consumer<Hold> onLost) {
        this(new HoldState(core, request, onLost));
        core.attach(request, this);
    }

    /** A view of a hold that is lost. */
    Hold(HoldState state) {
        this.state = state;
    }

    Renewal renewal() {
        return state.renewal;
    }

    void renewal(Renewal renewal) {
        state.renewal = renewal;
    }

    /** Returns the lock's name. */
    public String key() {
        return state.request.key;
    }

    /** Returns the name of the party that holds it: {@code host/pid/…}. */
    public String owner() {
        return state.request.owner;
    }

    /** Returns the fencing token: greater than that of every hold before. */
    public long token() {
        return state.renewal.token;
    }

    /** Returns how long the lock is certainly held if the server is silent from now on. */
    public Duration left() {
        Core core = state.core;
        core.guard.lock();
        try {
            return isHeld() ? Duration.ofNanos(Math.max(0, state.renewal.end() - BootClock.now())) : Duration.ZERO;
        } finally {
            core.guard.unlock();
        }
    }

    /** Returns whether the lock is known to be lost. */
    public boolean isLost() {
        return state.phase.get() == HoldState.Phase.LOST;
    }

    /** Returns whether the lock is held, as far as is known. */
    public boolean isHeld() {
        return state.phase.get() == HoldState.Phase.HELD;
    }

    /** Returns a stage that completes, with the reason, when the lock is lost. It refers to the Hold. */
    @SuppressWarnings("unchecked")
    public CompletionStage<String> lost() {
        CompletionStage<String> stage = state.lost.minimalCompletionStage();
        Hold self = this; // the core refers to the stage below, and not to this one: so it does not refer to the Hold
        return (CompletionStage<String>) Proxy.newProxyInstance(Hold.class.getClassLoader(), new Class<?>[] {CompletionStage.class},
                (proxy, method, arguments) -> {
                    try {
                        return method.getDeclaringClass() != Object.class ? method.invoke(stage, arguments)
                                : switch (method.getName()) {
                                    case "equals" -> proxy == arguments[0];
                                    case "hashCode" -> System.identityHashCode(proxy);
                                    default -> "lost " + self.key();
                                };
                    } catch (InvocationTargetException error) {
                        throw error.getCause();
                    }
                });
    }

    /**
     * Runs a command if the lock is still held under this token, in one step of the server. {@link DLockException.Fenced}: it did
     * not run, and the lock is lost. The command is sent once: after {@link DLockException.Unavailable} it may have run.
     */
    public CompletionStage<Object> guardAsync(Object... words) {
        return guarded(words).whenCompleteAsync((reply, why) -> {}, state.core.callbacks);
    }

    /** Does what {@link #guardAsync} does, and waits for the reply: Long, byte[], List or null. */
    public Object guard(Object... words) {
        return await(guarded(words), state.core.replyNanos + Take.GRACE);
    }

    private CompletableFuture<Object> guarded(Object... words) {
        Core core = state.core;
        core.check();
        if (words.length == 0) {
            throw new IllegalArgumentException("words must not be empty");
        }
        Object[] guarded = new Object[words.length + 3];
        guarded[0] = "DLOCK.GUARD";
        guarded[1] = key();
        guarded[2] = token();
        System.arraycopy(words, 0, guarded, 3, words.length);
        Renewal renewal = state.renewal;
        return core.routes.ask(state.request, Request.words(guarded)).whenComplete((reply, why) -> {
            if (why != null && DLockException.of(why) instanceof Fenced) {
                core.lose(renewal.request.node, renewal, "fenced");
            }
        });
    }

    /** Gives back what was granted here, and nothing else. {@link NotHeld} if it was lost. */
    public CompletionStage<Void> releaseAsync() {
        return giveBack().whenCompleteAsync((nothing, why) -> {}, state.core.callbacks);
    }

    /** Does what {@link #releaseAsync} does, and waits for it. */
    public void release() {
        await(giveBack(), 2 * state.core.replyNanos);
    }

    /** Does what {@link #release} does. */
    @Override
    public void close() {
        release();
    }

    private CompletableFuture<Void> giveBack() {
        Core core = state.core;
        if (core.closed) {
            return CompletableFuture.failedFuture(new Unavailable("these locks are closed", null));
        }
        if (!state.phase.compareAndSet(HoldState.Phase.HELD, HoldState.Phase.RELEASED)) {
            String why = state.reason.isEmpty() ? "it was given back before" : state.reason;
            return CompletableFuture.failedFuture(new NotHeld("NOTHELD lock " + key() + " was lost: " + why));
        }
        return core.releases.release(state.request, state.renewal).thenRun(
                () -> core.tell(observer -> observer.released(key(), Core.since(state.since))));
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

// SPDX-License-Identifier: MIT
package dlock;

import dlock.DLockException.Unavailable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/**
 * A command that is said again until the server has answered it, or until it means nothing any longer. It ends with the answer, or
 * with an error that is as good as one.
 */
final class Errand extends CompletableFuture<Object> {
    private final Sessions s;
    private final String key;
    private final byte[][] words;
    private volatile long until;
    private final Predicate<RuntimeException> ends;
    /** When the command was sent that was answered. */
    volatile long sent;
    volatile int tries;
    private volatile RuntimeException error = new Unavailable("the server does not answer", null);

    Errand(Sessions s, String key, byte[][] words, long until, Predicate<RuntimeException> ends) {
        this.s = s;
        this.key = key;
        this.words = words;
        this.until = until;
        this.ends = ends;
    }

    /** Returns the last failure. */
    RuntimeException why() {
        return error;
    }

    /** Says it no more. An attempt that is under way may still be answered, unless the client is closed. */
    void stop() {
        until = Clock.now();
        if (s.isClosed) {
            cancel(false);
        }
    }

    void say() {
        if (isDone()) {
            return;
        }
        if (s.isClosed || until <= Clock.now()) {
            completeExceptionally(s.isClosed ? Sessions.closedError() : error);
            return;
        }
        Library.Reply reply = s.library.call(key, words, s.settings.replyNanos(), false);
        reply.whenComplete((value, why) -> {
            tries++;
            sent = reply.sent;
            if (why == null) {
                complete(value);
                return;
            }
            error = DLockException.of(why);
            if (ends.test(error)) {
                completeExceptionally(error);
            } else {
                s.timer.schedule(this::say, 100, TimeUnit.MILLISECONDS);
            }
        });
    }
}

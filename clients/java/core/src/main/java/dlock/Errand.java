// SPDX-License-Identifier: MIT
package dlock;

import dlock.DLockException.Unavailable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * A command that is said again until the server has answered it, or has refused it for good, or until it means nothing any longer. It
 * ends with the answer.
 */
final class Errand extends CompletableFuture<Object> {
    private final Sessions s;
    private final String key;
    private final byte[][] words;
    private final long until;
    /** When the command was sent that was answered. */
    volatile long sent;
    volatile int tries;
    private volatile RuntimeException error = new Unavailable("the server does not answer", null);

    Errand(Sessions s, String key, byte[][] words, long until) {
        this.s = s;
        this.key = key;
        this.words = words;
        this.until = until;
    }

    /** Returns the last failure. */
    RuntimeException why() {
        return error;
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
            if (DLockException.passes(error)) {
                s.timer.schedule(this::say, 100, TimeUnit.MILLISECONDS);
            } else {
                completeExceptionally(error);
            }
        });
    }
}

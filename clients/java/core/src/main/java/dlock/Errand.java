// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.MS;

import dlock.DLockException.Unavailable;
import java.util.concurrent.CompletableFuture;
import java.util.function.BooleanSupplier;

/** A command that is said again until the server has answered it, or until it means nothing any longer. */
final class Errand implements Job {
    /** Reads the answer, or a refusal that no time can mend. */
    interface Then {
        void answered(long sent, Object reply, RuntimeException error);
    }

    /** Ends with the answer: {@code NOTHELD} to what was said before is one, too. */
    final CompletableFuture<Object> done = new CompletableFuture<>();
    private final Sessions s;
    private final String key;
    private final byte[][] words;
    private final long until;
    private final BooleanSupplier isNeeded;
    private final Then then;
    private int tries;
    private long notBefore;
    private RuntimeException error;

    Errand(Sessions s, String key, byte[][] words, long until, BooleanSupplier isNeeded, Then then) {
        this.s = s;
        this.key = key;
        this.words = words;
        this.until = until;
        this.isNeeded = isNeeded;
        this.then = then;
    }

    int tries() {
        return tries;
    }

    /** Returns the last failure. */
    RuntimeException why() {
        return error != null ? error : new Unavailable("the server does not answer", null);
    }

    @Override
    public Step next() {
        long now = Clock.now();
        if (done.isDone() || s.isClosed || until <= now || !isNeeded.getAsBoolean()) {
            done.completeExceptionally(s.isClosed ? Sessions.closedError() : why());
            return null;
        }
        return notBefore > now ? Step.pause(notBefore - now) : new Step(key, words, s.settings.replyNanos(), false);
    }

    @Override
    public void answered(long sent, Object reply, RuntimeException why) {
        tries++;
        error = why;
        notBefore = Clock.now() + 100 * MS;
        if (why == null || !DLockException.passes(why)) {
            then.answered(sent, reply, why);
            if (why == null) {
                done.complete(reply);
            } else {
                done.completeExceptionally(why);
            }
        }
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A lock for a time that is known before: nobody renews it, and it ends at that time, whether or not the program lives. What
 * schedulers ask for.
 */
public final class Lease {
    private final Core core;
    private final Request request;
    private long token;

    private Lease(Core core, Request request) {
        this.core = core;
        this.request = request;
    }

    /** Null: it is taken. */
    static Lease take(Core core, String key, String owner, Duration length) {
        Request request = new Request(core.settings, key, owner, 1, false, null);
        Lease lease = new Lease(core, request);
        Object reply;
        try {
            reply = lease.ask(Request.words("DLOCK.ACQUIRE", key, owner, millis(length), "HOLDS", 1));
        } catch (DLockException error) {
            if (DLockException.passes(error)) {
                lease.leave(); // what was asked may have been granted
            }
            throw error;
        }
        if (reply == null) {
            return null;
        }
        lease.token = (Long) ((List<?>) reply).get(0);
        return lease;
    }

    private void leave() {
        core.routes.ask(request, request.release(0));
    }

    private static long millis(Duration length) {
        if (length == null || length.toMillis() < 1) {
            throw new IllegalArgumentException("length must be at least 1 ms, not " + length);
        }
        return length.toMillis();
    }

    /** The fencing token. */
    public long token() {
        return token;
    }

    /** It ends so long from now, be that later or earlier than before. False: it has ended already. */
    public boolean extend(Duration length) {
        try {
            ask(Request.words("DLOCK.RENEW", request.key, request.owner, millis(length), "TOKEN", token));
            return true;
        } catch (NotHeld ended) {
            return false;
        }
    }

    /** Gives it back. That it has ended is no error. */
    public void release() {
        try {
            ask(request.release(token));
        } catch (NotHeld ended) {
            // So it is as it should be.
        }
    }

    /** All of these may be asked twice: what passes is asked again until the bound has passed. */
    private Object ask(byte[]... words) {
        core.check();
        CompletableFuture<Object> done = new CompletableFuture<>();
        ask(words, done, BootClock.now() + core.replyNanos);
        return Hold.await(done, 2 * core.replyNanos + Take.GRACE);
    }

    private void ask(byte[][] words, CompletableFuture<Object> done, long until) {
        core.routes.ask(request, words).whenComplete((reply, why) -> {
            if (DLockException.passes(why) && !DLockException.silent(why) && !core.closed && BootClock.now() < until) {
                core.routes.refreshAfterError();
                core.later(Take.pause(), () -> ask(words, done, until));
            } else {
                Link.settle(done, reply, why);
            }
        });
    }
}

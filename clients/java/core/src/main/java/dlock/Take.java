// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.LockTimeout;
import dlock.DLockException.NoAck;
import dlock.DLockException.Unavailable;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * One request, from the question to the tie or to having left; the wait between is in {@link Wait}. It waits in no thread: each
 * reply or message begins what comes next. {@code done} has the tie, or null if the lock is taken.
 */
final class Take {
    /** So much longer a caller whose time is up waits for a reply that is on its way. */
    static final long GRACE = 500_000_000L;
    private static final long WARN_EVERY = 10_000_000_000L;

    final Core core;
    final Request request;
    /** Nanoseconds to wait; 0: a try; negative: without bound. */
    final long timeout;
    private final long began = BootClock.now();
    final CompletableFuture<Tie> done = new CompletableFuture<>();
    /** It waits, or is about to. */
    private volatile boolean queued;
    private volatile boolean placed;
    private volatile RuntimeException failure;
    private long warnedAt = began - WARN_EVERY;
    private final Wait wait;

    Take(Core core, Request request, long timeout) {
        this.core = core;
        this.request = request;
        this.timeout = timeout;
        wait = new Wait(this);
    }

    /** How long anybody waits for the end of it. Negative: without bound. */
    long limit() {
        return timeout == 0 ? core.boundNanos : timeout < 0 ? -1 : timeout + GRACE;
    }

    /** Begins. {@code alone}: nobody waits who would say that the time is up. */
    Take start(boolean alone) {
        if (alone && timeout >= 0) {
            var limit = core.later(limit(), this::expire);
            done.whenComplete((tie, why) -> limit.cancel(false));
        }
        attempt();
        return this;
    }

    /** Nanoseconds that are left of its time. */
    long left() {
        return timeout < 0 ? Long.MAX_VALUE : (timeout == 0 ? core.boundNanos : timeout) - (BootClock.now() - began);
    }

    private void attempt() {
        if (done.isDone()) {
            return;
        }
        try {
            core.check();
            CompletableFuture<Void> before = core.leaving.unanswered(request);
            if (before != null) {
                before.whenCompleteAsync((done, why) -> attempt(), core.background);
                return;
            }
            if (core.leaving.has(request)) {
                throw new Unavailable("this owner's last wait is still to be left", null);
            }
            request.asked = true;
            Node crowded = queued || timeout == 0 ? null : core.routes.of(request.slot);
            if (crowded != null && crowded.ear.hasWaits(request.key)) {
                begin(crowded); // to be told that it is taken would be a round trip for nothing
            }
            if (queued) {
                wait.begin();
                return;
            }
            core.routes.call(request, request.take(timeout == 0), (node, link, sent, reply, why) -> {
                if (why != null) {
                    failed(why);
                } else if (reply instanceof List<?> grant) {
                    core.tie(request, node, link, (Long) grant.get(0), sent, request.settings.lease().toMillis());
                    finish(request.tie, null);
                } else if (timeout == 0) {
                    finish(null, null);
                } else {
                    placed();
                    begin(node);
                    wait.begin();
                }
            });
        } catch (RuntimeException error) {
            failed(error);
        }
    }

    private void begin(Node node) {
        request.node = node;
        queued = true;
        core.tell(observer -> observer.waiting(request.key));
    }

    /** The server knows that we wait. */
    void placed() {
        placed = true;
        failure = null;
    }

    /** Granted by a message or in a slice: it is ours when the link has tied it. */
    void confirm(long token) {
        if (done.isDone()) {
            unwanted(token);
            return;
        }
        core.routes.call(request, request.renew(token), (node, link, sent, reply, why) -> {
            if (why != null) {
                failed(why);
            } else {
                core.tie(request, node, link, token, sent, (Long) reply);
                finish(request.tie, null);
            }
        });
    }

    /** What can pass is asked again until the time is up. */
    void failed(RuntimeException why) {
        wait.deafen();
        boolean gone = why instanceof NotHeld && !request.upgrade; // the grant has ended before it was confirmed
        boolean tried = timeout == 0 && (why instanceof NoAck || DLockException.silent(why));
        if (!gone && (!DLockException.passes(why) || core.closed || tried)) {
            finish(null, why);
            return;
        }
        failure = why;
        long now = BootClock.now();
        if (now - warnedAt >= WARN_EVERY && !done.isDone()) {
            warnedAt = now;
            Core.LOG.log(WARNING, "still waiting for lock {0}: {1}", request.key, why.getMessage());
        }
        if (left() <= 0) {
            expire();
            return;
        }
        core.routes.lookAround();
        core.later(pause(), this::attempt);
    }

    /** Between two tries. */
    static long pause() {
        return TimeUnit.MILLISECONDS.toNanos(ThreadLocalRandom.current().nextLong(20, 100));
    }

    /** The time is up. */
    void expire() {
        RuntimeException why = failure;
        if (why == null && !placed) {
            why = new Unavailable("the server does not answer", null);
        }
        if (why == null) {
            finish(null, null);
        } else if (timeout == 0) {
            finish(null, why);
        } else {
            finish(null, new LockTimeout(request.key + " was not granted in time: " + why.getMessage(), why));
        }
    }

    /** The caller waits no more. */
    void abandon(RuntimeException why) {
        finish(null, why);
    }

    /** Nobody waits for the grant any more. Of an upgrade it is not given back: it is made a reader's again. */
    void unwanted(long token) {
        core.leaving.drop(request, request.upgrade ? 0 : token);
    }

    void finish(Tie tie, RuntimeException why) {
        boolean first = why == null ? done.complete(tie) : done.completeExceptionally(why);
        if (!first) {
            if (tie != null && (done.isCompletedExceptionally() || done.join() != tie)) {
                unwanted(tie.token);
            }
            return;
        }
        wait.deafen();
        if (tie == null && request.asked && !(why instanceof DLockException.Replaced) && (why != null || timeout != 0)) {
            core.leaving.leave(request);
        }
        if (queued) {
            core.tell(observer -> observer.waited(request.key));
        }
        if (tie != null) {
            core.tell(observer -> observer.granted(request.key, Core.since(began)));
        } else {
            core.tell(observer -> observer.refused(request.key, Core.since(began), why));
        }
    }
}

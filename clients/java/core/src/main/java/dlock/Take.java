// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.LockTimeout;
import dlock.DLockException.NoAck;
import dlock.DLockException.Refused;
import dlock.DLockException.Unavailable;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * One request, from the question to the tie or to having left. It waits in no thread: each reply or message begins what
 * comes next. {@code done} has the tie, or null if the lock is taken.
 */
final class Take {
    /** So much longer a caller whose time is up waits for a reply that is on its way. */
    static final long GRACE = 500_000_000L;
    private static final long WARN_EVERY = 10_000_000_000L;

    private record News(String word, long token, long number) {}

    final Core core;
    final Request request;
    /** Nanoseconds to wait; 0: a try; negative: without bound. */
    private final long timeout;
    private final long began = BootClock.now();
    final CompletableFuture<Tie> done = new CompletableFuture<>();
    private volatile boolean queued;
    private volatile RuntimeException failure;
    private long warnedAt = began - WARN_EVERY;
    /** The wait that the server knows of; -1: its number is still to come. By the guard, as the early messages are. */
    private long number;
    private List<News> early;
    private Node heard;

    Take(Core core, Request request, long timeout) {
        this.core = core;
        this.request = request;
        this.timeout = timeout;
    }

    /** How long anybody waits for the end of it. Negative: without bound. */
    long limit() {
        return timeout == 0 ? core.boundNanos : timeout < 0 ? -1 : timeout + GRACE;
    }

    /** Begins. {@code alone}: nobody waits who would say that the time is up. */
    Take start(boolean alone) {
        if (alone && timeout >= 0) {
            var limit = core.timer.schedule(this::expire, limit(), TimeUnit.NANOSECONDS);
            done.whenComplete((tie, why) -> limit.cancel(false));
        }
        attempt();
        return this;
    }

    private long left() {
        return timeout < 0 ? Long.MAX_VALUE : (timeout == 0 ? core.boundNanos : timeout) - (BootClock.now() - began);
    }

    private void attempt() {
        if (done.isDone()) {
            return;
        }
        try {
            core.check();
            if (core.isLeaving(request)) {
                throw new Unavailable("this owner's last wait is still to be left", null);
            }
            if (queued) {
                queue();
                return;
            }
            request.asked = true;
            core.call(request, request.take(timeout == 0), (node, link, sent, reply, why) -> {
                if (why != null) {
                    failed(why);
                } else if (reply instanceof List<?> grant) {
                    core.tie(request, node, link, (Long) grant.get(0), sent, request.settings.lease().toMillis());
                    finish(request.tie, null);
                } else if (timeout == 0) {
                    finish(null, null);
                } else {
                    request.node = node;
                    queued = true;
                    core.tell(observer -> observer.waiting(request.key));
                    failure = null;
                    queue();
                }
            });
        } catch (RuntimeException error) {
            failed(error);
        }
    }

    /** Waits by NOTIFY. */
    private void queue() {
        Node node = core.route(request.slot);
        if (node == null) {
            node = request.node;
        }
        if (node.deaf) {
            block(node);
            return;
        }
        if (node.hears()) {
            ask(node);
            return;
        }
        Node at = node;
        node.listen().whenComplete((ear, error) -> {
            RuntimeException why = error == null ? null : DLockException.of(error);
            if (why == null) {
                ask(at);
            } else if (why instanceof Refused && !DLockException.passes(why)) {
                if (!at.deaf) {
                    at.deaf = true;
                    Core.LOG.log(WARNING, "waits block on connections of their own, since messages cannot be heard: {0}",
                            why.getMessage());
                }
                block(at);
            } else if (core.closed) {
                failed(why);
            } else {
                block(at); // the others' commands come through, perhaps
            }
        });
    }

    private void ask(Node node) {
        core.guard.lock();
        try {
            heard = node;
            number = -1;
            early = new ArrayList<>(1);
        } finally {
            core.guard.unlock();
        }
        node.addWait(this);
        if (!node.hears()) { // it has ended as we came
            failed(new Unavailable("messages are not heard", null));
            return;
        }
        long left = left();
        byte[][] words = timeout < 0 ? request.await("NOTIFY", core.channel)
                : request.await("NOTIFY", core.channel, "BLOCK", Math.max(1, left / 1_000_000));
        core.call(request, words, (at, link, sent, reply, why) -> {
            if (why == null && at != node) {
                why = new Unavailable("the slot has moved", null);
            }
            if (why != null) {
                failed(why);
            } else if (reply == null) {
                finish(null, null);
            } else {
                List<?> place = (List<?>) reply;
                request.node = at;
                failure = null;
                if ((Long) place.get(0) != 0) {
                    confirm((Long) place.get(0));
                } else {
                    numbered((Long) place.get(2));
                }
            }
        });
    }

    private void numbered(long mine) {
        List<News> news;
        core.guard.lock();
        try {
            number = mine;
            news = early;
            early = null;
        } finally {
            core.guard.unlock();
        }
        for (News one : news == null ? List.<News>of() : news) {
            told(one.word, one.token, one.number);
        }
    }

    /** A message of our place. */
    void told(String word, long token, long of) {
        core.guard.lock();
        try {
            if (heard == null) {
                return;
            }
            if (early != null) {
                early.add(new News(word, token, of)); // which wait is ours is still on its way
                return;
            }
            if (of != 0 && of != number) {
                return; // of an earlier asking of ours
            }
        } finally {
            core.guard.unlock();
        }
        switch (word) {
            case "granted" -> confirm(token);
            case "timeout" -> finish(null, null);
            case "deadlock", "replaced", "notheld", "wrongtype", "refused" ->
                failed(DLockException.of(new Connector.ServerError(word.toUpperCase() + " (told by a message)")));
            default -> failed(new Unavailable("the wait has ended: " + word, null)); // moved, gone, cancelled, again
        }
    }

    /** Nothing is heard for this place any more. True for the one who says so first. */
    private void deafen() {
        Node node;
        core.guard.lock();
        try {
            node = heard;
            heard = null;
            early = null;
        } finally {
            core.guard.unlock();
        }
        if (node != null) {
            node.removeWait(this);
        }
    }

    /** Waits by BLOCK in slices, on a connection of its own. */
    private void block(Node node) {
        request.node = node;
        node.open().whenComplete((link, why) -> {
            if (why != null) {
                failed(DLockException.of(why));
            } else {
                done.whenComplete((tie, end) -> link.die(new Unavailable("the wait is over", null)));
                slice(link);
            }
        });
    }

    private void slice(Link link) {
        long part = Math.max(1_000_000, Math.min(core.boundNanos / 2, left()));
        link.post(request.await("BLOCK", part / 1_000_000), part + core.boundNanos, (reply, why) -> {
            if (done.isDone()) {
                return; // who has given up leaves on the link, behind this
            }
            if (core.closed) {
                link.die(new Unavailable("these locks are closed", null));
                failed(link.error);
                return;
            }
            if (why != null) {
                link.die(new Unavailable("the wait is over", null));
                failed(why);
            } else if (reply instanceof List<?> grant) {
                confirm((Long) grant.get(0));
            } else if (left() <= 0) {
                finish(null, null);
            } else {
                slice(link);
            }
        });
    }

    private void confirm(long token) {
        deafen();
        if (done.isDone()) {
            return;
        }
        core.call(request, request.renew(token), (node, link, sent, reply, why) -> {
            if (why != null) {
                failed(why);
            } else {
                core.tie(request, node, link, token, sent, (Long) reply);
                finish(request.tie, null);
            }
        });
    }

    /** What can pass is asked again until the time is up. */
    private void failed(RuntimeException why) {
        deafen();
        boolean gone = why instanceof NotHeld && request.outer == null; // the grant has ended before it was confirmed
        boolean silent = why instanceof Unavailable && why.getMessage().contains("does not answer");
        if (!gone && (!DLockException.passes(why) || core.closed || timeout == 0 && (why instanceof NoAck || silent))) {
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
        core.lookAround(why);
        core.later(ThreadLocalRandom.current().nextLong(20, 100), this::attempt);
    }

    /** The time is up. */
    void expire() {
        RuntimeException why = failure;
        if (why == null && !queued) {
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

    private void finish(Tie tie, RuntimeException why) {
        boolean first = why == null ? done.complete(tie) : done.completeExceptionally(why);
        if (!first) {
            return; // a grant that nobody waits for is given back by the words behind it
        }
        deafen();
        if (tie == null && request.asked && !(why instanceof DLockException.Replaced) && (why != null || timeout != 0)) {
            core.leave(request);
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

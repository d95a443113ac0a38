// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.LockTimeout;
import dlock.DLockException.Unavailable;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;

/**
 * One request, from the question to the renewal or to having left; the wait between is in {@link Wait}. It waits in no thread: each
 * reply or message begins what comes next. {@code done} has the renewal, or null if the lock is taken.
 *
 * <p>Whatever is begun is a {@link #step}, which asks first whether the request is over; and it is not over in the middle of one.
 * So what was sent last is known when it is left, and nothing is sent after that.
 */
final class Take {
    /** After its time a caller waits this much longer for a reply that is on its way. */
    static final long GRACE = 500_000_000L;
    private static final long WARN_EVERY = 10_000_000_000L;

    final Core core;
    final Request request;
    /** Nanoseconds to wait; 0: a try, which is one attempt; negative: without bound. */
    final long timeout;
    private final long began = BootClock.now();
    final CompletableFuture<Renewal> done = new CompletableFuture<>();
    private final ReentrantLock turn = new ReentrantLock();
    /** It has ended, and perhaps nobody has been told so yet. By the turn. */
    private boolean over;
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

    /** Returns how long anybody waits for the end of it. Negative: without bound. */
    long limit() {
        return timeout == 0 ? core.replyNanos : timeout < 0 ? -1 : timeout + GRACE;
    }

    /** Begins. {@code alone}: nobody waits who would say that the time is up. */
    Take start(boolean alone) {
        if (alone && timeout >= 0) {
            var limit = core.later(limit(), this::expire);
            done.whenComplete((renewal, why) -> limit.cancel(false));
        }
        attempt();
        return this;
    }

    /** Returns the nanoseconds that are left of its time. */
    long left() {
        return timeout < 0 ? Long.MAX_VALUE : (timeout == 0 ? core.replyNanos : timeout) - (BootClock.now() - began);
    }

    /** Does what comes next, unless the request is over. */
    void step(Runnable next) {
        turn.lock();
        try {
            if (!over) {
                next.run();
            }
        } catch (RuntimeException | LinkageError error) {
            failed(DLockException.of(error));
        } finally {
            turn.unlock();
        }
    }

    /** Asks whoever serves the key. The reply is a step of its own, but for a grant, which is noted in any case. */
    void ask(byte[][] words, Routes.Told then) {
        core.routes.call(request, words, this, then);
    }

    private void attempt() {
        step(() -> {
            core.check();
            Node node = core.routes.of(request.slot);
            if (node != null && node.refused) { // what is taken could not be kept
                ask(node.keeper.words(), (at, link, sent, reply, why) -> {
                    if (why == null) {
                        at.note(null);
                    }
                    step(() -> {
                        if (why != null) {
                            failed(why);
                        } else {
                            acquire(node);
                        }
                    });
                });
            } else {
                acquire(node);
            }
        });
    }

    private void acquire(Node node) {
        if (!queued && timeout != 0 && node != null && node.subscriber.hasWaits(request.key)) {
            begin(node); // to be told that it is taken would be a command for nothing
        }
        if (queued) {
            wait.begin();
        } else {
            askNow();
        }
    }

    /** Asks without waiting. If it is taken, and this is no try, a ticket keeps the place. */
    private void askNow() {
        askFor(node -> {
            if (timeout == 0) {
                finish(null, null);
            } else {
                placed();
                begin(node);
                wait.begin();
            }
        });
    }

    /** Asks by the ticket, since no messages can be had. */
    void poll() {
        askFor(node -> {
            if (left() <= 0) {
                finish(null, null);
            } else {
                placed();
                core.later(Math.min(TimeUnit.MILLISECONDS.toNanos(250), left()), () -> step(this::poll));
            }
        });
    }

    private void askFor(Consumer<Node> taken) {
        // If a reply was lost, the server may have granted it then. How much is left (dlock.max-hold-ms) RENEW says.
        boolean again = request.link != null;
        ask(request.take(timeout == 0), (node, link, sent, reply, why) -> {
            long token = reply instanceof List<?> grant ? (Long) grant.get(0) : 0;
            if (token != 0 && !again) {
                core.granted(request, node, link, token, sent, request.leaseMs());
            }
            step(() -> {
                if (why != null) {
                    failed(why);
                } else if (token == 0) {
                    taken.accept(node);
                } else if (again) {
                    confirm(token);
                } else {
                    finish(request.renewal, null);
                }
            });
        });
    }

    private void begin(Node node) {
        request.node = node;
        if (!queued) {
            queued = true;
            core.tell(observer -> observer.waiting(request.key));
        }
    }

    /** The server knows that we wait. */
    void placed() {
        placed = true;
        failure = null;
    }

    /** Confirms a grant: it is ours when the link has tied it. */
    void confirm(long token) {
        ask(request.renew(token), (node, link, sent, reply, why) -> {
            if (why == null) {
                core.granted(request, node, link, token, sent, (Long) reply);
            }
            step(() -> {
                if (why != null) {
                    failed(why);
                } else {
                    finish(request.renewal, null);
                }
            });
        });
    }

    /** What can pass is asked again until the time is up. A try is one attempt. */
    void failed(RuntimeException why) {
        step(() -> {
            wait.unsubscribe();
            boolean gone = why instanceof NotHeld && !request.upgrade; // the grant has ended before it was confirmed
            if (DLockException.passes(why)) {
                core.routes.refreshAfterError();
            } else if (!gone || core.closed) {
                finish(null, why);
                return;
            }
            if (timeout == 0 || core.closed) {
                finish(null, why);
                return;
            }
            failure = why;
            long now = BootClock.now();
            if (now - warnedAt >= WARN_EVERY) {
                warnedAt = now;
                Core.LOG.log(WARNING, "still waiting for lock {0}: {1}", request.key, why.getMessage());
            }
            if (left() <= 0) {
                expire();
            } else {
                core.later(pause(), this::attempt);
            }
        });
    }

    /** Returns the time between two attempts. */
    static long pause() {
        return TimeUnit.MILLISECONDS.toNanos(ThreadLocalRandom.current().nextLong(20, 100));
    }

    /** The time is up. */
    void expire() {
        RuntimeException why = failure;
        if (why == null && !placed) {
            Node node = core.routes.of(request.slot);
            Link link = node == null ? null : node.live;
            boolean connected = link != null && link.error == null;
            why = new Unavailable("the server does not answer" + (connected ? "" : ": no connection yet"), null);
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

    /** Gives back a grant that nobody waits for any more. Of an upgrade it is made a reader's again. */
    void unwanted(Renewal renewal) {
        if (request.upgrade) {
            Upgrade.leave(core, request);
        } else {
            Releases.retire(request);
            core.releases.abandon(renewal);
        }
    }

    void finish(Renewal renewal, RuntimeException why) {
        turn.lock();
        try {
            if (over) {
                return;
            }
            over = true;
            wait.unsubscribe();
            if (renewal == null && !(why instanceof DLockException.Replaced) && (why != null || timeout != 0)) {
                core.releases.abandon(request); // first: the caller may ask again at once
            }
            Link.settle(done, renewal, why);
        } finally {
            turn.unlock();
        }
        if (queued) {
            core.tell(observer -> observer.waited(request.key));
        }
        if (renewal != null) {
            core.tell(observer -> observer.granted(request.key, Core.since(began)));
        } else {
            core.tell(observer -> observer.refused(request.key, Core.since(began), why));
        }
    }
}

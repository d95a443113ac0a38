// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.ERROR;
import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.Unavailable;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;

/**
 * What all locks of one program share: threads, the guard, what is held, and the clock that tells what is lost. Who serves
 * what is in {@link Routes}, how a lock is taken in {@link Take}, kept in {@link Keeper} and given back in {@link Releases}.
 *
 * <p>What a reply changes is changed where it is read, in the order of replies, whether or not anybody still waits. The
 * guard is held for that only, never while anything is waited for. The timer waits for nothing, no socket either; what may
 * block runs in the background; the program's own code has threads apart, so that nothing of ours waits for it.
 */
final class Core {
    static final System.Logger LOG = System.getLogger("dlock");
    static final long SECOND = 1_000_000_000L;
    /** The clock is later than this if the process was stopped, or the machine. */
    private static final long HUNG = 250_000_000L;

    final Connector connector;
    final Settings settings;
    final long replyNanos;
    final long clockMarginNanos;
    final String id = UUID.randomUUID().toString();
    final String channel = "dlock:" + id;
    final ReentrantLock guard = new ReentrantLock();
    private final ScheduledThreadPoolExecutor timer;
    /** For our own steps: connections, and what is tried again. They wait for nothing that the program does. */
    final Executor background;
    /** For the program's own code: what it has said is to be done then. */
    final Executor callbacks;
    final Routes routes = new Routes(this);
    final Releases releases = new Releases(this);
    private long alarm = Long.MAX_VALUE; // by the guard
    private Future<?> alarmed;
    volatile boolean closed;

    Core(Connector connector, Settings settings) {
        this.connector = connector;
        this.settings = settings;
        replyNanos = settings.replyTimeout().toNanos();
        clockMarginNanos = settings.clockMargin().toNanos();
        timer = new ScheduledThreadPoolExecutor(1, task -> daemon(task, "dlock-clock"));
        timer.setRemoveOnCancelPolicy(true);
        timer.setExecuteExistingDelayedTasksAfterShutdownPolicy(true); // whoever waits is told that it is over
        timer.setRejectedExecutionHandler(new ThreadPoolExecutor.DiscardPolicy()); // after the end nothing rings any more
        background = new Pool("dlock", timer);
        callbacks = new Pool("dlock-callbacks", timer);
    }

    static Thread daemon(Runnable task, String name) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }

    void check() {
        if (closed) {
            throw new Unavailable("these locks are closed", null);
        }
    }

    /** In the background, so long from now; after the end at once. */
    Future<?> later(long nanos, Runnable work) {
        Future<?> then = timer.schedule(() -> background.execute(work), nanos, TimeUnit.NANOSECONDS);
        if (timer.isShutdown() && !then.isDone() && then.cancel(false)) {
            background.execute(work); // it would come too late, or never
        }
        return then;
    }

    /** Runs what may block where it can be given up. What comes too late is thrown away. */
    <T> CompletableFuture<T> bounded(Callable<T> work, Consumer<T> late) {
        if (closed) {
            return CompletableFuture.failedFuture(new Unavailable("these locks are closed", null));
        }
        CompletableFuture<T> done = new CompletableFuture<>();
        Future<?> limit = later(replyNanos, () -> done.completeExceptionally(
                new Unavailable("no connection within " + settings.replyTimeout().toMillis() + " ms", null)));
        background.execute(() -> {
            if (done.isDone()) {
                return; // given up before there was a thread for it
            }
            try {
                T value = work.call();
                if (!done.complete(value)) {
                    late.accept(value);
                }
            } catch (Throwable error) { // whoever waits for it is to hear of it, whatever it is
                done.completeExceptionally(DLockException.of(error));
            } finally {
                limit.cancel(false);
            }
        });
        return done;
    }

    /** Whoever counts may fail, and nothing else does. */
    void tell(Consumer<Observer> what) {
        try {
            what.accept(settings.observer());
        } catch (RuntimeException | Error error) { // of a library that does not fit, too
            LOG.log(ERROR, "the observer has failed", error);
        }
    }

    static Duration since(long began) {
        return Duration.ofNanos(Math.max(0, BootClock.now() - began));
    }

    /** Until when so many milliseconds are believed, counted from the sending. Two of them are the server's rounding. */
    long end(long sent, long leftMs) {
        return sent + (leftMs - 2) * 1_000_000 - clockMarginNanos;
    }

    // ---- what is held -----------------------------------------------------------------------------------------------

    /** A grant that the server renews for this link, where the reply is read. */
    void granted(Request request, Node node, Link link, long token, long sent, long leftMs) {
        guard.lock();
        try {
            Renewal renewal = node.renewals.computeIfAbsent(token, one -> new Renewal(request, one));
            if (request.outer != null) { // the upgrade has ended the hold that it is of
                Renewal before = request.outer.renewal();
                if (before != renewal && node.renewals.remove(before.token, before)) {
                    before.detach();
                }
            }
            renewal.attach(link, end(sent, leftMs));
            request.renewal = renewal;
            request.node = node;
        } finally {
            guard.unlock();
        }
    }

    /** Somebody has it now. */
    void attach(Request request, Hold hold) {
        Node node;
        Renewal renewal;
        long end;
        guard.lock();
        try {
            node = request.node;
            renewal = request.renewal;
            renewal.hold = new Renewal.Ref(hold, renewal, node.forgotten);
            renewal.state = hold.state;
            node.renewals.putIfAbsent(renewal.token, renewal);
            end = renewal.end();
        } finally {
            guard.unlock();
        }
        node.keeper.wake();
        ring(end);
        if (closed) {
            lose(node, renewal, "closed"); // nobody keeps it any more, and no clock rings
        }
    }

    /** Looks at the believed ends at this time. Timers may stand still with the machine: they sleep a second at most. */
    private void ring(long at) {
        guard.lock();
        try {
            if (at < alarm) {
                alarm = at;
                if (alarmed != null) {
                    alarmed.cancel(false);
                }
                if (!closed) {
                    long wait = Math.max(0, Math.min(SECOND, at - BootClock.now()));
                    alarmed = timer.schedule(this::expire, wait, TimeUnit.NANOSECONDS);
                }
            }
        } finally {
            guard.unlock();
        }
    }

    private void expire() {
        BootClock.look();
        long now = BootClock.now();
        long next = Long.MAX_VALUE;
        guard.lock();
        try {
            long due = alarm;
            alarm = Long.MAX_VALUE;
            if (due > now) {
                next = due;
            } else {
                for (Node node : routes.nodes()) {
                    for (Renewal renewal : node.renewalsNow()) {
                        next = Math.min(next, look(node, renewal, now));
                    }
                }
            }
        } finally {
            guard.unlock();
        }
        if (next != Long.MAX_VALUE) {
            ring(next);
        }
    }

    /**
     * Ends what has ended; returns when to look at it again. After a pause of this process nobody could have been told in time,
     * so the server is asked first: what it still holds under its token is not lost.
     */
    private long look(Node node, Renewal renewal, long now) {
        long end = renewal.end();
        if (end > now) {
            return end;
        }
        if (renewal.askedUntil > now) {
            return renewal.askedUntil;
        }
        boolean late = now - end > Math.max(HUNG, clockMarginNanos) && renewal.askedUntil == Long.MIN_VALUE;
        if (late && renewal.request.fixed == null && renewal.hold() != null) {
            renewal.askedUntil = now + Math.min(SECOND, replyNanos);
            renewal.detach();
            node.keeper.rouse();
            return renewal.askedUntil;
        }
        RuntimeException why = renewal.refusal != null ? renewal.refusal : node.trouble;
        if (renewal.request.fixed == null) {
            Releases.retire(renewal.request); // first: the caller may ask again at once
        }
        lose(node, renewal, renewal.request.fixed != null ? "its time is up"
                : "nobody has confirmed it before its end" + (why == null ? "" : ": " + why.getMessage()));
        if (renewal.request.fixed == null) {
            background.execute(() -> releases.abandon(renewal));
        }
        return Long.MAX_VALUE;
    }

    /** Reports a hold that the collector has found. Its lease ends it: the work may be running, and needs that time to stop. */
    void forget(Node node, Renewal renewal) {
        if (renewal.state != null && renewal.state.phase.get() == HoldState.Phase.HELD) {
            renewal.state.lose("forgotten: the program no longer refers to its Hold, and has not released it");
            releases.untie(node, renewal);
        }
    }

    /** Ends a renewal, and reports the loss. */
    void lose(Node node, Renewal renewal, String reason) {
        HoldState hold = null;
        guard.lock();
        try {
            Node at = renewal.request.node == null ? node : renewal.request.node;
            if (at.renewals.remove(renewal.token, renewal) || node != null && node.renewals.remove(renewal.token, renewal)) {
                renewal.detach();
                hold = renewal.state;
            }
        } finally {
            guard.unlock();
        }
        if (hold != null) {
            hold.lose(reason);
        }
    }

    /** Everything ends: what is held is told lost, and lives on until its lease. */
    void close() {
        if (closed) {
            return;
        }
        closed = true;
        long held = routes.nodes().stream().mapToLong(node -> node.renewalsNow().size()).sum();
        if (held > 0) {
            LOG.log(WARNING, "closed with {0} locks held: they are lost", held);
        }
        for (Node node : routes.nodes()) {
            node.renewalsNow().forEach(renewal -> lose(node, renewal, "closed"));
            node.subscriber.tellAll("closed");
            node.subscriber.end("closed");
            Link link = node.live;
            if (link != null) {
                link.die(new Unavailable("closed", null));
            }
            node.keeper.rouse();
        }
        timer.shutdown();
        background.execute(connector::close);
    }
}

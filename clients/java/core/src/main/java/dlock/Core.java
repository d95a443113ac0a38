// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.DEBUG;
import static java.lang.System.Logger.Level.ERROR;
import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.NoAck;
import dlock.DLockException.Refused;
import dlock.DLockException.Unavailable;
import java.time.Duration;
import java.util.Collection;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;

/**
 * All that the locks of one program have: nodes, and what is done with them.
 *
 * <p>What a reply changes is changed where it is read, in the order of replies, whether or not anybody still waits. The
 * guard is held for that only, never while anything is waited for. The timer waits for nothing; what may block runs in
 * the background; the program's own code has threads apart, so that nothing of ours waits for it.
 */
final class Core {
    /** Hears a reply: who has said it, on which link, and when it was asked. */
    interface Told {
        void told(Node node, Link link, long sent, Object reply, RuntimeException why);
    }

    static final System.Logger LOG = System.getLogger("dlock");
    private static final long SECOND = 1_000_000_000L;

    final Connector connector;
    final Settings settings;
    final long boundNanos;
    final long leaseNanos;
    final long allowanceNanos;
    final String channel = "dlock:" + UUID.randomUUID();
    final ReentrantLock guard = new ReentrantLock();
    final ScheduledThreadPoolExecutor timer;
    /** For our own steps: connections, and what is tried again. They wait for nothing that the program does. */
    final Executor background;
    /** For the program's own code: what it has said is to be done then. */
    final Executor callbacks;
    private final Map<String, Node> nodes = new ConcurrentHashMap<>();
    private final Map<Integer, String> moved = new ConcurrentHashMap<>();
    private CompletableFuture<Void> refreshing; // by the guard, as the alarm is
    private long refreshedAt = BootClock.now() - SECOND;
    private long alarm = Long.MAX_VALUE;
    private Future<?> alarmed;
    volatile boolean closed;

    Core(Connector connector, Settings settings) {
        this.connector = connector;
        this.settings = settings;
        boundNanos = settings.bound().toNanos();
        leaseNanos = settings.lease().toNanos();
        allowanceNanos = settings.allowance().toNanos();
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

    /** Runs what may block where it can be given up. What comes too late is thrown away. */
    <T> CompletableFuture<T> bounded(Callable<T> work, Consumer<T> late) {
        if (closed) {
            return CompletableFuture.failedFuture(new Unavailable("these locks are closed", null));
        }
        CompletableFuture<T> done = new CompletableFuture<>();
        Future<?> limit = timer.schedule(() -> done.completeExceptionally(
                new Unavailable("no connection within " + settings.bound().toMillis() + " ms", null)), boundNanos,
                TimeUnit.NANOSECONDS);
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
        } catch (RuntimeException error) {
            LOG.log(ERROR, "the observer has failed", error);
        }
    }

    static Duration since(long began) {
        return Duration.ofNanos(Math.max(0, BootClock.now() - began));
    }

    long end(long sent, long leftMs) {
        return sent + (leftMs - 2) * 1_000_000 - allowanceNanos;
    }

    // ---- where ------------------------------------------------------------------------------------------------------

    Node node(String name) {
        Node node = nodes.get(name);
        return node != null ? node : nodes.computeIfAbsent(name, one -> new Node(this, one));
    }

    Collection<Node> nodes() {
        return nodes.values();
    }

    /** Who serves the slot, as far as we know; else null. */
    Node route(int slot) {
        String name = connector.cluster() ? moved.getOrDefault(slot, null) : "";
        name = name != null ? name : connector.node(slot);
        return name == null ? null : node(name);
    }

    /** The node that the error names, or null. It is remembered until the map has been asked for anew. */
    String redirected(Refused error) {
        String[] words = error.getMessage().split(" ");
        if (words.length < 3 || !(words[0].equals("MOVED") || words[0].equals("ASK"))) {
            return null;
        }
        if (words[0].equals("MOVED")) {
            moved.put(Integer.valueOf(words[1]), words[2]);
        }
        return words[2];
    }

    /** Asks whoever serves the request's key, by up to four redirections. */
    void call(Request request, byte[][] words, Told then) {
        Node node = route(request.slot);
        if (node != null) {
            call(node, words, then, 4, false);
            return;
        }
        refresh().whenComplete((done, why) -> {
            Node found = why == null ? route(request.slot) : null;
            if (found == null) {
                then.told(null, null, 0, null, why != null ? DLockException.of(why)
                        : new Unavailable("nobody serves the slot " + request.slot, null));
            } else {
                call(found, words, then, 4, false);
            }
        });
    }

    CompletableFuture<Object> ask(Request request, byte[][] words) {
        CompletableFuture<Object> done = new CompletableFuture<>();
        call(request, words, (node, link, sent, reply, why) -> {
            if (why == null) {
                done.complete(reply);
            } else {
                done.completeExceptionally(why);
            }
        });
        return done;
    }

    private void call(Node node, byte[][] words, Told then, int left, boolean asking) {
        node.link().whenComplete((link, why) -> {
            if (why != null) {
                then.told(node, null, 0, null, DLockException.of(why));
                return;
            }
            long sent = BootClock.now();
            if (asking) {
                link.post(Request.words("ASKING"), (reply, no) -> {});
            }
            link.post(words, (reply, error) -> {
                String target = error instanceof Refused refused && left > 0 ? redirected(refused) : null;
                if (target != null) {
                    boolean ask = ((Refused) error).code().equals("ASK");
                    background.execute(() -> call(node(target), words, then, left - 1, ask));
                } else {
                    then.told(node, link, sent, reply, error);
                }
            });
        });
    }

    /** After an error that passes. */
    void lookAround(RuntimeException error) {
        if (error instanceof Refused refused && refused.code().equals("READONLY")) {
            for (Node node : nodes()) {
                Link link = node.live; // it has become a replica: who is primary now is found by connecting
                if (link != null) {
                    link.die(new Unavailable(error.getMessage(), error));
                }
            }
        }
        if (connector.cluster()) {
            refresh();
        }
    }

    private CompletableFuture<Void> refresh() {
        CompletableFuture<Void> mine;
        guard.lock();
        try {
            if (refreshing != null && (!refreshing.isDone() || BootClock.now() - refreshedAt < SECOND / 10)) {
                return refreshing;
            }
            refreshedAt = BootClock.now();
            mine = refreshing = new CompletableFuture<>();
        } finally {
            guard.unlock();
        }
        this.<Void>bounded(() -> {
            connector.refresh();
            moved.clear();
            return null;
        }, late -> {}).whenComplete((done, why) -> {
            if (why == null) {
                mine.complete(null);
            } else {
                LOG.log(DEBUG, "the cluster does not say who serves what: {0}", why.getMessage());
                mine.completeExceptionally(why);
            }
        });
        return mine;
    }

    // ---- what is held -----------------------------------------------------------------------------------------------

    /** A grant that the server renews for this link, where the reply is read. */
    void tie(Request request, Node node, Link link, long token, long sent, long leftMs) {
        guard.lock();
        try {
            Tie tie = node.ties.computeIfAbsent(token, one -> new Tie(request, one));
            if (request.outer != null) { // the upgrade has ended the hold that it is of
                Tie before = request.outer.tie();
                if (before != tie && node.ties.remove(before.token, before)) {
                    before.detach();
                }
            }
            tie.attach(link, end(sent, leftMs));
            request.tie = tie;
            request.node = node;
        } finally {
            guard.unlock();
        }
    }

    /** Somebody has it now. */
    void adopt(Request request, Hold hold) {
        Node node = request.node;
        long end;
        guard.lock();
        try {
            Tie tie = request.tie;
            tie.hold = new Tie.Ref(hold, tie, node.forgotten);
            node.ties.putIfAbsent(tie.token, tie);
            end = tie.end();
        } finally {
            guard.unlock();
        }
        node.keeper.wake();
        ring(end);
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
                for (Node node : nodes()) {
                    for (Tie tie : node.tiesNow()) {
                        if (tie.end() <= now) {
                            lose(node, tie, "nobody has confirmed it before its end");
                            drop(tie.request, tie.token);
                        } else {
                            next = Math.min(next, tie.end());
                        }
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

    /** It is ours no more. */
    void lose(Node node, Tie tie, String reason) {
        Hold hold = null;
        guard.lock();
        try {
            Node at = tie.request.node == null ? node : tie.request.node;
            if (at.ties.remove(tie.token, tie) || node.ties.remove(tie.token, tie)) {
                tie.detach();
                hold = tie.hold();
            }
        } finally {
            guard.unlock();
        }
        if (hold != null) {
            hold.tellLost(reason);
        }
    }

    // ---- giving back ------------------------------------------------------------------------------------------------

    /** Gives back what was granted, and nothing else; again after a lost reply, until the bound has passed. */
    CompletableFuture<Void> release(Request request, Tie tie) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        release(request, tie, done, BootClock.now() + boundNanos, true);
        return done;
    }

    private void release(Request request, Tie tie, CompletableFuture<Void> done, long until, boolean heard) {
        call(request, request.release(tie.token), (node, link, sent, reply, why) -> {
            if (why == null || why instanceof NotHeld) {
                if (why != null || Long.valueOf(0).equals(reply)) {
                    lose(node, tie, "released");
                }
                if (why == null || !heard) { // the first one has given it back
                    done.complete(null);
                } else {
                    done.completeExceptionally(why);
                }
            } else if (!DLockException.passes(why) || BootClock.now() >= until || closed) {
                drop(request, tie.token);
                done.completeExceptionally(why);
            } else {
                lookAround(why);
                later(20, () -> release(request, tie, done, until, heard && why instanceof Refused));
            }
        });
    }

    void later(long ms, Runnable work) {
        Future<?> then = timer.schedule(() -> background.execute(work), ms, TimeUnit.MILLISECONDS);
        if (timer.isShutdown() && !then.isDone() && then.cancel(false)) {
            background.execute(work); // it would come too late, or never
        }
    }

    /** Leaves for good, in the background. Without a token it is the wait that is left. */
    void drop(Request request, long token) {
        Node node = request.node;
        if (node != null && !closed) {
            long most = Math.max(leaseNanos, settings.claim().toNanos());
            node.leaving.add(new Node.Leaving(BootClock.now() + most, request, token));
            node.keeper.rouse();
        }
    }

    /** Leaves on the link, if it lives: behind all that was asked. */
    void leave(Request request) {
        Node node = request.node != null ? request.node : route(request.slot);
        request.node = node;
        if (!request.asked || node == null || closed) {
            return;
        }
        request.asked = false;
        Link link = node.live;
        if (link == null || link.error != null || request.outer != null) {
            drop(request, 0);
            return;
        }
        link.post(request.cancel(), (reply, why) -> {});
        link.post(request.release(0), (reply, why) -> {
            Tie tie = request.tie;
            if (tie != null && (why instanceof NotHeld || Long.valueOf(0).equals(reply))) {
                lose(node, tie, "left");
            } else if (why != null && DLockException.passes(why) && !(why instanceof NoAck)) {
                drop(request, 0);
            }
        });
    }

    /** Whether an earlier wait of this owner is still to be left. */
    boolean isLeaving(Request request) {
        for (Node node : nodes()) {
            for (Node.Leaving one : node.leaving) {
                Request other = one.request();
                if (other != request && other.owner.equals(request.owner) && other.key.equals(request.key)) {
                    return true;
                }
            }
        }
        return false;
    }

    /** Everything ends: what is held is told lost, and lives on until its lease. */
    void close() {
        if (closed) {
            return;
        }
        closed = true;
        long held = nodes().stream().mapToLong(node -> node.tiesNow().size()).sum();
        if (held > 0) {
            LOG.log(WARNING, "closed with {0} locks held: they are lost", held);
        }
        for (Node node : nodes()) {
            node.tiesNow().forEach(tie -> lose(node, tie, "closed"));
            node.tellAll("closed");
            node.deafen("closed");
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

// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.INFO;
import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.NoAck;
import dlock.DLockException.Refused;
import dlock.DLockException.Unavailable;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The thread that keeps a node's holds. It does nothing else, and waits for no other node. */
final class Keeper {
    private static final Set<String> LOOSE = Set.of("moved", "renamed", "taken", "demoted");
    private static final long IDLE_SECONDS = 5; // so often it looks for holds that the collector has found

    private final Core core;
    private final Node node;
    private final Semaphore rousing = new Semaphore(0);
    private volatile boolean awake;
    private Thread thread; // by the guard

    Keeper(Core core, Node node) {
        this.core = core;
        this.node = node;
    }

    /** There is something to keep. */
    void wake() {
        if (!awake) {
            awake = true;
            rouse();
        }
    }

    /** There is something to do at once. */
    void rouse() {
        core.guard.lock();
        try {
            if (thread == null && !core.closed) {
                thread = Core.daemon(this::run, "dlock-keeper");
                thread.start();
            }
        } finally {
            core.guard.unlock();
        }
        rousing.release();
    }

    private void run() {
        while (!core.closed) {
            try {
                boolean roused = awake ? rousing.tryAcquire(core.settings.intervalNanos(), TimeUnit.NANOSECONDS)
                        : rousing.tryAcquire(IDLE_SECONDS, TimeUnit.SECONDS);
                rousing.drainPermits();
                collect();
                if (!roused && !node.busy()) {
                    awake = false;
                    if (!node.busy()) {
                        continue;
                    }
                }
                awake = true;
                if (!core.closed) {
                    round();
                }
            } catch (InterruptedException never) {
                // Nobody does it.
            } catch (RuntimeException | LinkageError failed) {
                RuntimeException error = DLockException.of(failed);
                node.note(error);
                Core.LOG.log(INFO, "node {0}: {1}", node.name, error.getMessage());
                if (!(error instanceof NoAck)) { // that moves nothing
                    core.routes.refreshAfterError();
                    reroute();
                }
            }
        }
    }

    /** What nobody refers to any more can be given back by nobody else. */
    private void collect() {
        for (Object one = node.forgotten.poll(); one != null; one = node.forgotten.poll()) {
            Renewal renewal = ((Renewal.Ref) one).renewal;
            if (renewal.hold == one) {
                core.forget(node, renewal);
            }
        }
    }

    private void round() {
        Link link = get(node.link());
        List<Renewal> loose = node.renewalsNow().stream().filter(renewal -> renewal.link != link && renewal.request.fixed == null).toList();
        if (!loose.isEmpty()) {
            renewAll(link, loose);
        }
        Link current = link;
        if (link.surplus > 1) { // two in a row: it has renewals that nobody knows of
            Core.LOG.log(WARNING, "the connection to {0} keeps holds that nobody has: it is replaced", node.name);
            current = get(node.open());
            if (!node.replace(link, current)) {
                current.die(new Unavailable("there is another one already", null));
                return;
            }
            renewAll(current, List.copyOf(node.renewalsNow()));
            link.die(new Unavailable("replaced", null));
        }
        node.subscriber.ask();
        if (node.busy()) {
            keep(current);
        }
        if (current.brief) {
            renewAll(current, near(current));
        }
    }

    /** What is here and has less than half of a lease left. */
    private List<Renewal> near(Link link) {
        long near = BootClock.now() + core.settings.lease().toNanos() / 2;
        core.guard.lock();
        try {
            return node.renewals.values().stream().filter(renewal -> renewal.link == link && renewal.end() < near).toList();
        } finally {
            core.guard.unlock();
        }
    }

    private void keep(Link link) {
        long sent = BootClock.now();
        CompletableFuture<Object> done = new CompletableFuture<>();
        link.post(words(), (reply, why) -> {
            if (why == null) {
                kept(link, sent, (List<?>) reply);
            }
            Link.settle(done, reply, why);
        });
        get(done);
    }

    byte[][] words() {
        return Request.words("DLOCK.KEEP", core.settings.hangTimeout().toMillis());
    }

    private void kept(Link link, long sent, List<?> reply) {
        node.note(null);
        long count = (Long) reply.get(0);
        List<?> lost = (List<?>) reply.get(2);
        boolean again = false;
        core.guard.lock();
        try {
            if (reply.get(1) instanceof Long left) {
                link.believed = sent + left * 1_000_000 - core.clockMarginNanos;
                link.kept = link.serial;
                // It renews at two thirds. Where one hold may not last (dlock.max-hold-ms), each is asked for its own.
                link.brief = left < core.settings.lease().toMillis() / 2;
            }
            for (Object one : lost == null ? List.of() : lost) {
                List<?> row = (List<?>) one;
                Renewal renewal = node.renewals.get((Long) row.get(1));
                String reason = new String((byte[]) row.get(2), java.nio.charset.StandardCharsets.UTF_8);
                if (renewal == null || renewal.link != link) {
                    continue;
                }
                if (LOOSE.contains(reason)) {
                    renewal.detach(); // RENEW tells what has become of it
                    again = true;
                } else {
                    core.lose(node, renewal, reason);
                }
            }
            link.surplus = count > link.renewals ? link.surplus + 1 : 0;
            if (lost == null || count < link.renewals) {
                node.renewals.values().forEach(Renewal::detach);
                again = true;
            }
        } finally {
            core.guard.unlock();
        }
        if (again) {
            rousing.release();
        }
    }

    /** Ties our holds to this link, all in one go. */
    private void renewAll(Link link, List<Renewal> renewals) {
        record Asked(Renewal renewal, CompletableFuture<Object> reply) {}
        Queue<Asked> asked = new ArrayDeque<>();
        for (Renewal renewal : renewals) {
            boolean asking;
            core.guard.lock();
            try {
                if (renewal.hold() == null) {
                    if (renewal.state != null) {
                        renewal.state.lose("forgotten: the program no longer refers to its Hold, and has not released it");
                    }
                    node.renewals.remove(renewal.token, renewal);
                    renewal.detach();
                    continue;
                }
                asking = renewal.asking;
            } finally {
                core.guard.unlock();
            }
            CompletableFuture<Object> done = new CompletableFuture<>();
            long sent = BootClock.now();
            link.post(renewal.request.renew(renewal.token), asking, (reply, why) -> {
                core.guard.lock();
                try {
                    if (reply instanceof Long left && node.renewals.get(renewal.token) == renewal) {
                        renewal.attach(link, core.end(sent, left));
                    }
                } finally {
                    core.guard.unlock();
                }
                if (why instanceof NotHeld) {
                    core.lose(node, renewal, "not held any more");
                }
                Link.settle(done, reply, why);
            });
            asked.add(new Asked(renewal, done));
        }
        for (Asked one : asked) {
            try {
                get(one.reply);
            } catch (NotHeld | NoAck told) {
                // It is told; or it is as it was.
            } catch (Refused refused) {
                Node target = core.routes.redirected(node, refused);
                if (target != null) {
                    move(one.renewal, target, refused.code().equals("ASK"));
                } else if (refused.code().equals("READONLY")) {
                    throw refused;
                } else {
                    one.renewal.refusal = refused;
                    Core.LOG.log(WARNING, "lock {0} cannot be renewed: {1}", one.renewal.request.key, refused.getMessage());
                }
            }
        }
    }

    private void move(Renewal renewal, Node target, boolean asking) {
        if (target == node) {
            return;
        }
        core.guard.lock();
        try {
            if (node.renewals.remove(renewal.token, renewal)) {
                renewal.detach();
                Hold hold = renewal.hold();
                renewal.hold = hold == null ? null : new Renewal.Ref(hold, renewal, target.forgotten);
                renewal.asking = asking;
                target.renewals.put(renewal.token, renewal);
                renewal.request.node = target;
            }
        } finally {
            core.guard.unlock();
        }
        target.keeper.awake = true;
        target.keeper.rouse();
    }

    /** What another node serves by now is that one's to keep. */
    void reroute() {
        if (!core.connector.cluster()) {
            return;
        }
        for (Renewal renewal : node.renewalsNow()) {
            Node target = core.routes.of(renewal.request.slot);
            if (target != null) {
                move(renewal, target, false);
            }
        }
        node.subscriber.tellMoved();
    }

    /** What has come, for the only thread that may wait here. */
    private <T> T get(CompletableFuture<T> reply) {
        try {
            return reply.get(2 * core.replyNanos, TimeUnit.NANOSECONDS);
        } catch (ExecutionException failed) {
            throw DLockException.of(failed.getCause());
        } catch (TimeoutException | InterruptedException late) {
            throw new Unavailable("the server does not answer", late);
        }
    }
}

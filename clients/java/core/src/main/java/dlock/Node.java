// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.Unavailable;
import java.lang.ref.ReferenceQueue;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/** A server that we talk to: the link to it, and what it keeps for us. */
final class Node {
    private static final long ANOTHER = 1_000_000_000; // a connect or a reply that takes longer may be that of a former primary
    private static final long LOOK = 100_000_000; // so often a request that waits for a link looks at the routes
    private static final long AGAIN = 50_000_000; // a server that ends each connection is not asked without a break

    final Core core;
    final String name;
    final Map<Long, Renewal> renewals = new HashMap<>(); // by the guard
    final ReferenceQueue<Hold> forgotten = new ReferenceQueue<>();
    final Keeper keeper;
    final Subscriber subscriber;
    private final AtomicBoolean probing = new AtomicBoolean();
    /** Why the last KEEP has failed, or null; and whether it was refused for good. */
    volatile RuntimeException trouble;
    volatile boolean refused;
    /** The link, if there is one. It may have died. */
    volatile Link live;
    /** Who waits for the link that is being opened, if one is. By the guard. */
    private Deque<CompletableFuture<Link>> coming;

    Node(Core core, String name) {
        this.core = core;
        this.name = name;
        keeper = new Keeper(core, this);
        subscriber = new Subscriber(core, this);
    }

    /** The link, opened if there is none. Whoever comes meanwhile gets the same one, in turn: what is asked keeps its order. */
    CompletableFuture<Link> link() {
        Link now = live;
        if (now != null && now.error == null) {
            return CompletableFuture.completedFuture(now);
        }
        CompletableFuture<Link> mine = new CompletableFuture<>();
        core.guard.lock();
        try {
            if (live != null && live.error == null) {
                return CompletableFuture.completedFuture(live);
            }
            if (coming != null) {
                coming.add(mine);
                return mine;
            }
            coming = new ArrayDeque<>(List.of(mine));
        } finally {
            core.guard.unlock();
        }
        open().whenComplete((fresh, why) -> {
            if (fresh != null) {
                subscriber.end("the link is new"); // messages come from where it goes, and that may be another server
            }
            for (var one = next(fresh); one != null; one = next(fresh)) {
                Link.settle(one, fresh, why);
            }
            endIfClosed(fresh);
        });
        return mine;
    }

    /** Returns this node's link; or that of the node which serves the slot by then, if this one's takes long. */
    CompletableFuture<Link> link(int slot) {
        CompletableFuture<Link> here = link();
        if (here.isDone() || !core.connector.cluster()) {
            return here;
        }
        CompletableFuture<Link> first = new CompletableFuture<>();
        here.whenComplete((link, why) -> Link.settle(first, link, why));
        look(slot, first);
        return first;
    }

    private void look(int slot, CompletableFuture<Link> first) {
        core.later(LOOK, () -> {
            Node target = core.routes.of(slot);
            if (first.isDone()) {
                return;
            }
            if (target == null || target == this) {
                look(slot, first);
            } else {
                target.link(slot).whenComplete((link, why) -> Link.settle(first, link, why));
            }
        });
    }

    /** Who gets the link next. After the last one whoever comes has it at once. */
    private CompletableFuture<Link> next(Link fresh) {
        core.guard.lock();
        try {
            CompletableFuture<Link> one = coming.poll();
            if (one == null) {
                coming = null;
                live = fresh != null ? fresh : live;
            }
            return one;
        } finally {
            core.guard.unlock();
        }
    }

    /** This is the link from now on; false if it is not that one any more which it is to replace. */
    boolean replace(Link old, Link fresh) {
        core.guard.lock();
        try {
            if (live != old || coming != null) {
                return false;
            }
            live = fresh;
        } finally {
            core.guard.unlock();
        }
        subscriber.end("the link is new");
        endIfClosed(fresh);
        return true;
    }

    private void endIfClosed(Link fresh) {
        if (fresh != null && core.closed) {
            fresh.die(new Unavailable("closed", null));
        }
    }

    /**
     * Opens a connection of our own, within the bound. While it hangs another is begun each second, which asks the Sentinels or the
     * map of slots anew; the first one that is there wins.
     */
    CompletableFuture<Link> open() {
        CompletableFuture<Link> done = new CompletableFuture<>();
        AtomicInteger running = new AtomicInteger(1);
        attempt(done, running);
        again(done, running, BootClock.now() + core.replyNanos);
        return done;
    }

    private void attempt(CompletableFuture<Link> done, AtomicInteger running) {
        Link fresh = new Link(core, this);
        core.bounded(() -> {
            Connector.Wire wire = core.connector.open(name, core.settings.replyTimeout(), null, null, why -> ended(fresh, why));
            fresh.begin(wire);
            return fresh;
        }, late -> late.die(new Unavailable("too late", null))).whenComplete((link, why) -> {
            int left = running.decrementAndGet();
            if (link != null && !done.complete(link)) {
                link.die(new Unavailable("another one was faster", null));
            } else if (link == null && (left == 0 || !DLockException.passes(DLockException.of(why)))) {
                done.completeExceptionally(why);
            }
        });
    }

    private void again(CompletableFuture<Link> done, AtomicInteger running, long until) {
        var next = core.later(ANOTHER, () -> {
            if (done.isDone() || core.closed) {
                return;
            }
            if (BootClock.now() >= until) {
                done.completeExceptionally(new Unavailable("the server does not answer: no connection yet", null));
                return;
            }
            core.routes.refreshAfterError();
            running.incrementAndGet();
            attempt(done, running);
            keeper.reroute();
            again(done, running, until);
        });
        done.whenComplete((link, why) -> next.cancel(false));
    }

    /**
     * A reply takes long: the server may be no primary any more, and hang. So Sentinel, or the map of slots, is asked anew. Another
     * connection replaces the link if it leads to another server.
     */
    void overdue(Link link) {
        core.routes.refreshAfterError();
        if (core.connector.cluster()) {
            core.later(ANOTHER / 10, keeper::reroute);
            return;
        }
        if (live != link || link.error != null || !probing.compareAndSet(false, true)) {
            return;
        }
        open().whenComplete((fresh, why) -> {
            probing.set(false);
            if (fresh == null) {
                return;
            }
            if (fresh.address().isEmpty() || fresh.address().equals(link.address()) || !replace(link, fresh)) {
                fresh.die(new Unavailable("it is not needed", null));
                return;
            }
            link.die(new Unavailable("the server does not answer", null));
            keeper.rouse();
        });
    }

    /** Remembers why holds are not kept: it is the reason of a loss. While the server refuses for good nothing is taken. */
    void note(RuntimeException error) {
        boolean before = refused;
        trouble = error;
        refused = error != null && !DLockException.passes(error) && !(error instanceof NotHeld);
        if (refused && !before) {
            Core.LOG.log(WARNING, "the server {0} refuses to keep locks: {1}", name, error.getMessage());
        }
    }

    /** What it kept needs another link at once, and not only at the next round. */
    private void ended(Link which, Throwable why) {
        which.die(new Unavailable("the connection has ended", why));
        core.guard.lock();
        try {
            renewalsNow().stream().filter(renewal -> renewal.request.ephemeral && renewal.link == which)
                    .forEach(renewal -> core.lose(this, renewal, "closed")); // they have ended with it
        } finally {
            core.guard.unlock();
        }
        if (which == live && !core.closed && busy()) {
            core.later(AGAIN, keeper::rouse);
        }
    }

    /** Whether there is anything to keep. */
    boolean busy() {
        core.guard.lock();
        try {
            return !renewals.isEmpty() || subscriber.hasWaits();
        } finally {
            core.guard.unlock();
        }
    }

    Deque<Renewal> renewalsNow() {
        core.guard.lock();
        try {
            return new ArrayDeque<>(renewals.values());
        } finally {
            core.guard.unlock();
        }
    }
}

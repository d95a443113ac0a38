// SPDX-License-Identifier: MIT
package dlock;

import dlock.DLockException.Unavailable;
import java.lang.ref.ReferenceQueue;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** A server that we talk to: the link to it, and what it keeps for us. */
final class Node {
    private static final long AGAIN = 50_000_000; // a server that ends each connection is not asked without a break

    final Core core;
    final String name;
    final Map<Long, Tie> ties = new HashMap<>(); // by the guard
    final ReferenceQueue<Hold> forgotten = new ReferenceQueue<>();
    final Keeper keeper;
    final Ear ear;
    /** The link, if there is one. It may have died. */
    volatile Link live;
    /** Who waits for the link that is being opened, if one is. By the guard. */
    private Deque<CompletableFuture<Link>> coming;

    Node(Core core, String name) {
        this.core = core;
        this.name = name;
        keeper = new Keeper(core, this);
        ear = new Ear(core, this);
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
                ear.end("the link is new"); // messages come from where it goes, and that may be another server
            }
            for (var one = next(fresh); one != null; one = next(fresh)) {
                Link.settle(one, fresh, why);
            }
            endIfClosed(fresh);
        });
        return mine;
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
        ear.end("the link is new");
        endIfClosed(fresh);
        return true;
    }

    private void endIfClosed(Link fresh) {
        if (fresh != null && core.closed) {
            fresh.die(new Unavailable("closed", null));
        }
    }

    /** A connection of our own, within the bound. */
    CompletableFuture<Link> open() {
        Link fresh = new Link(core);
        return core.bounded(() -> {
            Connector.Wire wire = core.connector.open(name, core.settings.bound(), null, null,
                    why -> ended(fresh, why));
            fresh.begin(wire);
            return fresh;
        }, late -> late.die(new Unavailable("too late", null)));
    }

    /** What it kept needs another link at once, and not only at the next round. */
    private void ended(Link which, Throwable why) {
        which.die(new Unavailable("the connection has ended", why));
        core.guard.lock();
        try {
            tiesNow().stream().filter(tie -> tie.request.session && tie.link == which)
                    .forEach(tie -> core.lose(this, tie, "session")); // they have ended with it
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
            return !ties.isEmpty() || ear.hasWaits();
        } finally {
            core.guard.unlock();
        }
    }

    Deque<Tie> tiesNow() {
        core.guard.lock();
        try {
            return new ArrayDeque<>(ties.values());
        } finally {
            core.guard.unlock();
        }
    }
}

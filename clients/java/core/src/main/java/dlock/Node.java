// SPDX-License-Identifier: MIT
package dlock;

import dlock.DLockException.Unavailable;
import java.lang.ref.ReferenceQueue;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.TimeUnit;

/** A server that we talk to: its two connections, what it keeps for us, and who waits there. */
final class Node {
    /** What is to be given back, until its lease has ended anyhow. Without a token it is the wait that is left. */
    record Leaving(long until, Request request, long token) {}

    private static final long AGAIN_MS = 50; // a server that ends each connection is not asked without a break

    private record Names(String key, String owner) {}

    final Core core;
    final String name;
    final Map<Long, Tie> ties = new HashMap<>(); // by the guard, as the waits are
    private final Map<Names, List<Take>> waits = new HashMap<>();
    final Deque<Leaving> leaving = new ConcurrentLinkedDeque<>();
    final ReferenceQueue<Hold> forgotten = new ReferenceQueue<>();
    final Keeper keeper;
    volatile boolean deaf; // it may not subscribe
    private CompletableFuture<Link> link;
    volatile Link live;
    private CompletableFuture<Connector.Wire> ear;
    private volatile long heardAt;
    private volatile boolean pinged;

    Node(Core core, String name) {
        this.core = core;
        this.name = name;
        keeper = new Keeper(core, this);
    }

    /** The link, opened if there is none. Whoever comes meanwhile waits for the same one. */
    CompletableFuture<Link> link() {
        Link now = live;
        if (now != null && now.error == null) {
            return CompletableFuture.completedFuture(now);
        }
        CompletableFuture<Link> mine;
        core.guard.lock();
        try {
            if (link != null && !(link.isDone() && (link.isCompletedExceptionally() || link.join().error != null))) {
                return link;
            }
            mine = link = new CompletableFuture<>();
        } finally {
            core.guard.unlock();
        }
        open().whenComplete((fresh, why) -> {
            if (why != null) {
                mine.completeExceptionally(why);
            } else {
                linked(fresh);
                mine.complete(fresh);
            }
        });
        return mine;
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
        if (which == live && !core.closed && (hasTies() || hasWaits())) {
            core.timer.schedule(keeper::rouse, AGAIN_MS, TimeUnit.MILLISECONDS);
        }
    }

    /** The link from now on. Where it goes the messages come from: it may be another server. */
    void linked(Link fresh) {
        live = fresh;
        core.guard.lock();
        try {
            link = CompletableFuture.completedFuture(fresh);
        } finally {
            core.guard.unlock();
        }
        deafen("the link is new");
        if (core.closed) {
            fresh.die(new Unavailable("closed", null));
        }
    }

    // ---- messages ---------------------------------------------------------------------------------------------------

    /** Done when messages come. */
    CompletableFuture<?> listen() {
        CompletableFuture<Connector.Wire> mine;
        core.guard.lock();
        try {
            if (ear != null && !ear.isCompletedExceptionally()) {
                return ear;
            }
            mine = ear = new CompletableFuture<>();
        } finally {
            core.guard.unlock();
        }
        CompletableFuture<Connector.Wire> opened = core.bounded(
                () -> core.connector.open(name, core.settings.bound(), core.channel, this::heard, why -> ended(mine, why)),
                Connector.Wire::close);
        opened.whenComplete((wire, why) -> {
            heardAt = BootClock.now();
            pinged = false;
            if (why != null) {
                mine.completeExceptionally(why);
            } else if (!mine.complete(wire)) {
                wire.close(); // it has ended as it came
            }
        });
        return mine;
    }

    boolean hears() {
        CompletableFuture<?> now = ear;
        return now != null && now.isDone() && !now.isCompletedExceptionally();
    }

    private void ended(CompletableFuture<Connector.Wire> which, Throwable why) {
        which.completeExceptionally(new Unavailable("messages are not heard", why));
        core.guard.lock();
        try {
            if (ear != which) {
                return;
            }
            ear = null;
        } finally {
            core.guard.unlock();
        }
        tellAll("again");
    }

    void deafen(String why) {
        CompletableFuture<Connector.Wire> now;
        core.guard.lock();
        try {
            now = ear;
            ear = null;
        } finally {
            core.guard.unlock();
        }
        if (now != null) {
            now.whenComplete((wire, error) -> {
                if (wire != null) {
                    wire.close();
                }
            });
            now.completeExceptionally(new Unavailable(why, null));
            tellAll("again");
        }
    }

    /** A path that has fallen silent loses messages without a word: it is asked once a second while somebody waits. */
    void askEar() {
        CompletableFuture<Connector.Wire> now = ear;
        if (now == null || !hears() || !hasWaits()) {
            pinged = false;
        } else if (!pinged) {
            heardAt = BootClock.now();
            pinged = true;
            now.join().ping();
        } else if (BootClock.now() - heardAt > core.boundNanos) {
            deafen("no messages come any more");
        }
    }

    private void heard(byte[] message) {
        pinged = false;
        if (message == null) {
            return;
        }
        String text = new String(message, StandardCharsets.ISO_8859_1);
        int first = text.indexOf(' ');
        int second = text.indexOf(' ', first + 1);
        String[] names = new String[2];
        int at = second + 1;
        for (int i = 0; i < 2; i++) {
            int colon = text.indexOf(':', at);
            int end = colon + 1 + Integer.parseInt(text.substring(at, colon));
            names[i] = new String(message, colon + 1, end - colon - 1, StandardCharsets.UTF_8);
            at = end + 1;
        }
        long token = Long.parseLong(text.substring(first + 1, second));
        long number = Long.parseLong(text.substring(at));
        for (Take one : waitsOf(new Names(names[0], names[1]))) {
            one.told(text.substring(0, first), token, number);
        }
    }

    private List<Take> waitsOf(Names names) {
        core.guard.lock();
        try {
            return List.copyOf(waits.getOrDefault(names, List.of()));
        } finally {
            core.guard.unlock();
        }
    }

    void tellAll(String word) {
        List<Take> all = new ArrayList<>();
        core.guard.lock();
        try {
            waits.values().forEach(all::addAll);
        } finally {
            core.guard.unlock();
        }
        all.forEach(one -> one.told(word, 0, 0));
    }

    void addWait(Take take) {
        core.guard.lock();
        try {
            waits.computeIfAbsent(new Names(take.request.key, take.request.owner), names -> new ArrayList<>(1)).add(take);
        } finally {
            core.guard.unlock();
        }
        keeper.wake();
    }

    void removeWait(Take take) {
        Names names = new Names(take.request.key, take.request.owner);
        core.guard.lock();
        try {
            List<Take> there = waits.get(names);
            if (there != null && there.remove(take) && there.isEmpty()) {
                waits.remove(names);
            }
        } finally {
            core.guard.unlock();
        }
    }

    boolean hasWaits() {
        core.guard.lock();
        try {
            return !waits.isEmpty();
        } finally {
            core.guard.unlock();
        }
    }

    boolean hasTies() {
        core.guard.lock();
        try {
            return !ties.isEmpty();
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

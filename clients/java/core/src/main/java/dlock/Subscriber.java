// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.DEBUG;

import dlock.DLockException.Unavailable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** A node's second connection, for messages, and who waits for one of them. It is made when somebody waits for the first time. */
final class Subscriber {
    private final Core core;
    private final Node node;
    /** By key, in the order of arrival. By the guard. */
    private final Map<String, List<Wait>> waits = new HashMap<>();
    private volatile CompletableFuture<Connector.Wire> wire;
    private volatile long heardAt;
    private volatile boolean pinged;
    volatile boolean subscribeDenied; // it may not subscribe

    Subscriber(Core core, Node node) {
        this.core = core;
        this.node = node;
    }

    /** Done when messages come. */
    CompletableFuture<?> listen() {
        CompletableFuture<Connector.Wire> mine;
        core.guard.lock();
        try {
            if (wire != null && !wire.isCompletedExceptionally()) {
                return wire;
            }
            mine = wire = new CompletableFuture<>();
        } finally {
            core.guard.unlock();
        }
        CompletableFuture<Connector.Wire> opened = core.bounded(() -> core.connector.open(node.name, core.settings.replyTimeout(),
                core.channel, this::heard, why -> end(mine, "messages are not heard", why)), Connector.Wire::close);
        opened.whenComplete((fresh, why) -> {
            heardAt = BootClock.now();
            pinged = false;
            if (why != null) {
                mine.completeExceptionally(why);
            } else if (!mine.complete(fresh)) {
                fresh.close(); // it has ended as it came
            }
        });
        return mine;
    }

    boolean hears() {
        CompletableFuture<?> now = wire;
        return now != null && now.isDone() && !now.isCompletedExceptionally();
    }

    /** Messages come no more: whoever waits for one asks again. */
    void end(String why) {
        CompletableFuture<Connector.Wire> now = wire;
        if (now != null) {
            end(now, why, null);
        }
    }

    private void end(CompletableFuture<Connector.Wire> which, String why, Throwable cause) {
        which.whenComplete((fresh, error) -> {
            if (fresh != null) {
                fresh.close();
            }
        });
        which.completeExceptionally(new Unavailable(why, cause));
        core.guard.lock();
        try {
            if (wire != which) {
                return;
            }
            wire = null;
        } finally {
            core.guard.unlock();
        }
        tellAll("again");
    }

    /** A path that has fallen silent loses messages without a word: it is asked once a second while somebody waits. */
    void ask() {
        CompletableFuture<Connector.Wire> now = wire;
        if (!hears() || !hasWaits()) {
            pinged = false;
        } else if (!pinged) {
            heardAt = BootClock.now();
            pinged = true;
            now.join().ping();
        } else if (BootClock.now() - heardAt > core.replyNanos) {
            end("no messages come any more");
        }
    }

    private void heard(byte[] message) {
        pinged = false;
        if (message == null) {
            return;
        }
        try {
            tell(message);
        } catch (IndexOutOfBoundsException | NumberFormatException strange) {
            Core.LOG.log(DEBUG, "what was published on {0} is no message", core.channel);
        }
    }

    private void tell(byte[] message) {
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
        Wait wait = wait(names[0], names[1]);
        if (wait != null) {
            wait.told(text.substring(0, first), token, number);
        }
    }

    // ---- who waits --------------------------------------------------------------------------------------------------

    private Wait wait(String key, String owner) {
        core.guard.lock();
        try {
            return waits.getOrDefault(key, List.of()).stream().filter(one -> one.request.owner.equals(owner)).findFirst()
                    .orElse(null);
        } finally {
            core.guard.unlock();
        }
    }

    void tellAll(String word) {
        List<Wait> all = new ArrayList<>();
        core.guard.lock();
        try {
            waits.values().forEach(all::addAll);
        } finally {
            core.guard.unlock();
        }
        all.forEach(one -> one.told(word, 0, 0));
    }

    /** Whoever waits here for what another node serves by now asks there. */
    void tellMoved() {
        List<Wait> all = new ArrayList<>();
        core.guard.lock();
        try {
            waits.values().forEach(all::addAll);
        } finally {
            core.guard.unlock();
        }
        for (Wait one : all) {
            Node target = core.routes.of(one.request.slot);
            if (target != null && target != node) {
                one.told("moved", 0, 0);
            }
        }
    }

    void add(Wait wait) {
        core.guard.lock();
        try {
            waits.computeIfAbsent(wait.request.key, key -> new ArrayList<>(1)).add(wait);
        } finally {
            core.guard.unlock();
        }
        node.keeper.wake();
    }

    void remove(Wait wait) {
        core.guard.lock();
        try {
            List<Wait> there = waits.get(wait.request.key);
            if (there != null && there.remove(wait) && there.isEmpty()) {
                waits.remove(wait.request.key);
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

    /** Whether others of this program wait for the lock, and would hear of it. */
    boolean hasWaits(String key) {
        core.guard.lock();
        try {
            return waits.containsKey(key) && hears();
        } finally {
            core.guard.unlock();
        }
    }
}

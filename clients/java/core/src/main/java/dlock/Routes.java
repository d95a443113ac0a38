// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.DEBUG;

import dlock.DLockException.Refused;
import dlock.DLockException.Unavailable;
import java.util.Collection;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/** Who serves what: the connector's map of slots, and what redirections have said since. And asking whoever it is. */
final class Routes {
    /** Hears a reply: who has said it, on which link, and when it was asked. */
    interface Told {
        void told(Node node, Link link, long sent, Object reply, RuntimeException why);
    }

    private final Core core;
    private final Map<String, Node> nodes = new ConcurrentHashMap<>();
    private final Map<Integer, String> moved = new ConcurrentHashMap<>();
    private CompletableFuture<Void> refreshing; // by the guard, as its time is
    private long refreshedAt = BootClock.now() - Core.SECOND;

    Routes(Core core) {
        this.core = core;
    }

    Node node(String name) {
        Node node = nodes.get(name);
        return node != null ? node : nodes.computeIfAbsent(name, one -> new Node(core, one));
    }

    Collection<Node> nodes() {
        return nodes.values();
    }

    /** Who serves the slot, as far as we know; else null. */
    Node of(int slot) {
        String name = core.connector.cluster() ? moved.get(slot) : "";
        name = name != null ? name : core.connector.node(slot);
        return name == null ? null : node(name);
    }

    /** The node that the error of this one names, or null. It is remembered until the map has been asked for anew. */
    Node redirected(Node from, Refused error) {
        String[] words = error.getMessage().split(" ");
        if (words.length < 3 || !(words[0].equals("MOVED") || words[0].equals("ASK"))) {
            return null;
        }
        String name = words[2].lastIndexOf(':') > 0 ? words[2] // or it does not know its own host
                : from.name.substring(0, Math.max(0, from.name.lastIndexOf(':'))) + words[2];
        if (words[0].equals("MOVED")) {
            moved.put(Integer.valueOf(words[1]), name);
        }
        return node(name);
    }

    /** Asks whoever serves the request's key, by up to four redirections. */
    void call(Request request, byte[][] words, Told then) {
        call(request, words, null, then);
    }

    /** Asks for a take: nothing is sent when that is over, and what was sent is noted. */
    void call(Request request, byte[][] words, Take take, Told then) {
        Node node = of(request.slot);
        if (node != null) {
            call(request, node, words, take, then, 4, false);
            return;
        }
        refresh().whenComplete((done, why) -> {
            Node found = why == null ? of(request.slot) : null;
            if (found == null) {
                then.told(null, null, 0, null, why != null ? DLockException.of(why)
                        : new Unavailable("nobody serves the slot " + request.slot, null));
            } else {
                call(request, found, words, take, then, 4, false);
            }
        });
    }

    CompletableFuture<Object> ask(Request request, byte[][] words) {
        CompletableFuture<Object> done = new CompletableFuture<>();
        call(request, words, (node, link, sent, reply, why) -> Link.settle(done, reply, why));
        return done;
    }

    private void call(Request request, Node node, byte[][] words, Take take, Told then, int left, boolean asking) {
        node.link(request.slot).whenComplete((link, why) -> {
            if (why != null) {
                then.told(node, null, 0, null, DLockException.of(why));
            } else if (link.node != node) { // another one serves it by now
                call(request, link.node, words, take, then, left, asking);
            } else if (take == null) {
                post(request, link, words, null, then, left, asking);
            } else {
                take.step(() -> {
                    request.link = link;
                    request.node = node;
                    post(request, link, words, take, then, left, asking);
                });
            }
        });
    }

    private void post(Request request, Link link, byte[][] words, Take take, Told then, int left, boolean asking) {
        long sent = BootClock.now();
        link.post(words, asking, (reply, error) -> {
            Node target = error instanceof Refused refused && left > 0 ? redirected(link.node, refused) : null;
            if (target != null) {
                boolean ask = ((Refused) error).code().equals("ASK");
                core.background.execute(() -> call(request, target, words, take, then, left - 1, ask));
            } else {
                then.told(link.node, link, sent, reply, error);
            }
        });
    }

    /** After an error that passes: others may serve it now. */
    void refreshAfterError() {
        if (core.connector.cluster()) {
            refresh();
        }
    }

    private CompletableFuture<Void> refresh() {
        CompletableFuture<Void> mine;
        core.guard.lock();
        try {
            if (refreshing != null && (!refreshing.isDone() || BootClock.now() - refreshedAt < Core.SECOND / 10)) {
                return refreshing;
            }
            refreshedAt = BootClock.now();
            mine = refreshing = new CompletableFuture<>();
        } finally {
            core.guard.unlock();
        }
        core.<Void>bounded(() -> {
            core.connector.refresh();
            moved.clear();
            return null;
        }, late -> {}).whenComplete((done, why) -> {
            if (why != null) {
                Core.LOG.log(DEBUG, "the cluster does not say who serves what: {0}", why.getMessage());
            }
            Link.settle(mine, done, why);
        });
        return mine;
    }
}

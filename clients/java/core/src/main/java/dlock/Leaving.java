// SPDX-License-Identifier: MIT
package dlock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import dlock.DLockException.NoAck;
import dlock.DLockException.Refused;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/** Giving back: what the program gives back, and, in the background, what nobody waits for or refers to any more. */
final class Leaving {
    private record Names(String key, String owner) {}

    private final Core core;
    /** So many things of these names are still to be left. */
    private final Map<Names, Integer> left = new ConcurrentHashMap<>();
    /** What was said on a link about a wait of these names is still to be answered. */
    private final Map<Names, CompletableFuture<Void>> unanswered = new ConcurrentHashMap<>();

    Leaving(Core core) {
        this.core = core;
    }

    /** Asks once for a hold's end. A token of 0 is whatever the owner holds. */
    private CompletableFuture<Object> giveBack(Request request, long token) {
        CompletableFuture<Object> done = new CompletableFuture<>();
        core.routes.call(request, request.release(token), (node, link, sent, reply, why) -> {
            released(node, request.tie, reply, why);
            Link.settle(done, reply, why);
        });
        return done;
    }

    private void released(Node node, Tie tie, Object reply, RuntimeException why) {
        if (tie != null && (why instanceof NotHeld || Long.valueOf(0).equals(reply))) {
            core.lose(node, tie, "released");
        } else if (tie != null && why instanceof Refused && !DLockException.passes(why)) {
            untie(tie); // it may not be given back: its lease is to end it
        }
    }

    private void untie(Tie tie) {
        core.routes.call(tie.request, tie.request.untie(tie.token), (node, link, sent, reply, why) -> {
            if (node != null && !DLockException.passes(why)) {
                core.lose(node, tie, "released"); // if it may not even be untied, the link has one too many, and is replaced
            }
        });
    }

    /** Gives back what was granted, and nothing else; again after a lost reply, until the bound has passed. */
    CompletableFuture<Void> release(Request request, Tie tie) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        release(request, tie, done, BootClock.now() + core.boundNanos, true);
        return done;
    }

    private void release(Request request, Tie tie, CompletableFuture<Void> done, long until, boolean heard) {
        core.routes.call(request, request.release(tie.token), (node, link, sent, reply, why) -> {
            released(node, tie, reply, why);
            if (why == null || why instanceof NotHeld && !heard) { // the first one has given it back
                done.complete(null);
            } else if (DLockException.passes(why) && BootClock.now() < until && !core.closed) {
                core.routes.lookAround();
                core.later(MILLISECONDS.toNanos(20), () -> release(request, tie, done, until, heard && why instanceof Refused));
            } else {
                if (!(why instanceof NotHeld)) {
                    drop(tie.request, tie.token);
                }
                done.completeExceptionally(why);
            }
        });
    }

    /** Leaves a wait on the link, if it lives: behind all that was asked. */
    void leave(Request request) {
        Node node = request.node != null ? request.node : core.routes.of(request.slot);
        if (!request.asked || node == null || core.closed) {
            return;
        }
        request.asked = false;
        Link link = node.live;
        if (link == null || link.error != null || request.upgrade) {
            drop(request, 0);
            return;
        }
        Names names = new Names(request.key, request.owner);
        CompletableFuture<Void> answered = new CompletableFuture<>();
        unanswered.put(names, answered);
        link.post(request.cancel(), (reply, why) -> {});
        link.post(request.release(0), (reply, why) -> {
            released(node, request.tie, reply, why);
            if (DLockException.passes(why) && !(why instanceof NoAck)) {
                drop(request, 0);
            }
            unanswered.remove(names, answered);
            answered.complete(null);
        });
    }

    /** Leaves for good, in the background. Without a token it is the wait that is left. */
    void drop(Request request, long token) {
        Names names = new Names(request.key, request.owner);
        left.merge(names, 1, Integer::sum);
        long most = Math.max(core.settings.lease().toNanos(), core.settings.claim().toNanos());
        drop(request, token, names, BootClock.now() + most);
    }

    /** Again as long as nobody answers, until the lease has ended anyhow. */
    private void drop(Request request, long token, Names names, long until) {
        CompletableFuture<?> done = token != 0 ? giveBack(request, token)
                : request.upgrade ? Upgrade.leave(core, request)
                : core.routes.ask(request, request.cancel()).thenCompose(reply -> giveBack(request, 0));
        done.whenComplete((reply, error) -> {
            RuntimeException why = error == null ? null : DLockException.of(error);
            if (DLockException.passes(why) && BootClock.now() < until && !core.closed) {
                core.routes.lookAround();
                core.later(core.settings.intervalNanos(), () -> drop(request, token, names, until));
            } else {
                left.computeIfPresent(names, (same, count) -> count == 1 ? null : count - 1);
            }
        });
    }

    /** An earlier wait of this owner is left, and nobody has said yet whether it is; else null. To ask now could be undone. */
    CompletableFuture<Void> unanswered(Request request) {
        return unanswered.get(new Names(request.key, request.owner));
    }

    /** Whether an earlier wait of this owner is still to be left. */
    boolean has(Request request) {
        return left.containsKey(new Names(request.key, request.owner));
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import dlock.DLockException.Refused;
import java.util.concurrent.CompletableFuture;

/** Release, and what nobody waits for any more. */
final class Leaving {
    private final Core core;

    Leaving(Core core) {
        this.core = core;
    }

    private void released(Node node, Tie tie, Object reply, RuntimeException why) {
        if (tie == null || node == null) {
            return;
        }
        if (why instanceof NotHeld || Long.valueOf(0).equals(reply)) {
            core.lose(node, tie, "released");
        } else if (why instanceof Refused && !DLockException.passes(why)) {
            untie(node, tie); // it may not be given back: its lease is to end it
        }
    }

    /** Leaves a hold to its lease: nobody renews it any more. */
    void untie(Node node, Tie tie) {
        Link link = node.live;
        if (link == null || link.error != null) {
            core.lose(node, tie, "released");
            return;
        }
        link.post(tie.request.untie(tie.token), tie.asking, (reply, why) -> {
            if (!DLockException.passes(why)) {
                core.lose(node, tie, "released"); // if it may not even be untied, the link has one too many, and is replaced
            }
        });
    }

    /** Gives back what was granted, and nothing else; asks again after a lost reply, until the bound has passed. */
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
                core.routes.refreshAfterError();
                core.later(MILLISECONDS.toNanos(20), () -> release(request, tie, done, until, heard && why instanceof Refused));
            } else {
                if (!(why instanceof NotHeld) && tie.request.node != null) {
                    core.lose(tie.request.node, tie, "it cannot be given back"); // KEEP's count finds it, if it is there
                }
                done.completeExceptionally(why);
            }
        });
    }

    /**
     * Leaves a wait, and what it was granted, on the link where it was asked for, behind that. Nothing is waited for and nothing is
     * said again: if the link ends, the place and the first lease end by themselves.
     */
    void abandon(Request request) {
        Link link = request.link;
        Node node = request.node;
        if (link == null || link.error != null || core.closed) {
            return;
        }
        if (request.upgrade) {
            Upgrade.leave(core, request);
            return;
        }
        link.post(request.cancel(), (reply, why) -> {});
        link.post(request.release(0), (reply, why) -> released(node, request.tie, reply, why));
    }

    /** Gives back what was granted to nobody, or is believed to be over. */
    void abandon(Tie tie) {
        Node node = tie.request.node;
        Link link = node == null ? null : node.live;
        if (link != null && link.error == null && !core.closed) {
            link.post(tie.request.release(tie.token), tie.asking, (reply, why) -> released(node, tie, reply, why));
        }
    }
}

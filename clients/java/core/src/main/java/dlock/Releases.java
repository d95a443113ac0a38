// SPDX-License-Identifier: MIT
package dlock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import dlock.DLockException.Refused;
import java.util.concurrent.CompletableFuture;

/** Release, and what nobody waits for any more. */
final class Releases {
    private final Core core;

    Releases(Core core) {
        this.core = core;
    }

    private void released(Node node, Renewal renewal, Object reply, RuntimeException why) {
        if (renewal == null || node == null) {
            return;
        }
        if (why instanceof NotHeld || Long.valueOf(0).equals(reply)) {
            core.lose(node, renewal, "released");
        } else if (why instanceof Refused && !DLockException.passes(why)) {
            untie(node, renewal); // it may not be given back: its lease is to end it
        }
    }

    /** Leaves a hold to its lease: nobody renews it any more. */
    void untie(Node node, Renewal renewal) {
        Link link = node.live;
        if (link == null || link.error != null) {
            core.lose(node, renewal, "released");
            return;
        }
        link.post(renewal.request.untie(renewal.token), renewal.asking, (reply, why) -> {
            if (!DLockException.passes(why)) {
                core.lose(node, renewal, "released"); // if it may not even be untied, the link has one too many, and is replaced
            }
        });
    }

    /**
     * Takes a thread's name out of use, before a RELEASE is sent that ends what it has. Until that is {@link #answered} it may be
     * read late, and must end nothing that the thread is granted later, perhaps by another link.
     */
    static void retire(Request request) {
        if (request.unanswered != null) {
            request.unanswered.incrementAndGet();
        }
    }

    /** The server has read it, or has refused it. */
    private static void answered(Request request, Throwable why) {
        if (request.unanswered != null && (why == null || why instanceof NotHeld || why instanceof Refused)) {
            request.unanswered.decrementAndGet();
        }
    }

    /** Gives back what was granted, and nothing else; asks again after a lost reply, until the bound has passed. */
    CompletableFuture<Void> release(Request request, Renewal renewal) {
        retire(request);
        CompletableFuture<Void> done = new CompletableFuture<>();
        release(request, renewal, done, BootClock.now() + core.replyNanos, true);
        return done;
    }

    private void release(Request request, Renewal renewal, CompletableFuture<Void> done, long until, boolean heard) {
        core.routes.call(request, request.release(renewal.token), (node, link, sent, reply, why) -> {
            released(node, renewal, reply, why);
            if (why == null || !DLockException.passes(why)) {
                answered(request, why);
            }
            if (why == null || why instanceof NotHeld && !heard) { // the first one has given it back
                done.complete(null);
            } else if (DLockException.passes(why) && BootClock.now() < until && !core.closed) {
                core.routes.refreshAfterError();
                core.later(MILLISECONDS.toNanos(20), () -> release(request, renewal, done, until, heard && why instanceof Refused));
            } else {
                if (!(why instanceof NotHeld) && renewal.request.node != null) {
                    core.lose(renewal.request.node, renewal, "it cannot be given back"); // KEEP's count finds it, if it is there
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
        if (link != null) {
            retire(request);
        }
        if (link == null || link.error != null || core.closed) {
            return;
        }
        if (request.upgrade) {
            Upgrade.leave(core, request);
            return;
        }
        link.post(request.cancel(), (reply, why) -> {});
        link.post(request.release(0), (reply, why) -> {
            released(node, request.renewal, reply, why);
            answered(request, why);
        });
    }

    /** Gives back what was granted to nobody, or is believed to be over. Its owner's name is out of use. */
    void abandon(Renewal renewal) {
        Node node = renewal.request.node;
        Link link = node == null ? null : node.live;
        if (link != null && link.error == null && !core.closed) {
            link.post(renewal.request.release(renewal.token), renewal.asking, (reply, why) -> {
                released(node, renewal, reply, why);
                answered(renewal.request, why);
            });
        }
    }
}

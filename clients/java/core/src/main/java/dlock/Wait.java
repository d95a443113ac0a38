// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.Refused;
import dlock.DLockException.Unavailable;
import java.util.ArrayList;
import java.util.List;

/** A place in the queue: by NOTIFY, so that a message tells of its end, or by BLOCK on a connection of its own. */
final class Wait {
    private record News(String word, long token, long number) {}

    private final Take take;
    private final Core core;
    final Request request;
    /** The wait that the server knows of; -1: its number is still to come. By the guard, as the early messages are. */
    private long number;
    private List<News> early;
    private Node heard;

    Wait(Take take) {
        this.take = take;
        core = take.core;
        request = take.request;
    }

    /** Waits by NOTIFY; where no messages can be had, by BLOCK. */
    void begin() {
        Node now = core.routes.of(request.slot);
        Node node = now != null ? now : request.node;
        if (node.ear.deaf) {
            block(node);
            return;
        }
        if (node.ear.hears()) {
            ask(node);
            return;
        }
        node.link().whenComplete((link, why) -> { // first, since messages come from where it goes
            if (why != null) {
                take.failed(DLockException.of(why));
                return;
            }
            node.ear.listen().whenComplete((ear, error) -> {
                if (error == null) {
                    ask(node);
                } else {
                    unheard(node, link, DLockException.of(error));
                }
            });
        });
    }

    private void unheard(Node node, Link link, RuntimeException why) {
        if (why instanceof Refused refused && !DLockException.passes(why)) {
            boolean lacks = refused.code().equals("NOPERM"); // and is not just refused for a moment, as by a wrong password
            if (!node.ear.deaf && lacks) {
                node.ear.deaf = true;
                Core.LOG.log(WARNING, "waits block on connections of their own, since messages cannot be heard: {0}",
                        why.getMessage());
            }
            block(node);
        } else if (core.closed || link.error != null) {
            take.failed(why); // not only the messages: all who wait would open connections of their own
        } else {
            block(node);
        }
    }

    private void ask(Node node) {
        core.guard.lock();
        try {
            heard = node;
            number = -1;
            early = new ArrayList<>(1);
        } finally {
            core.guard.unlock();
        }
        node.ear.add(this);
        if (!node.ear.hears()) { // it has ended as we came
            take.failed(new Unavailable("messages are not heard", null));
            return;
        }
        long left = take.left();
        byte[][] words = take.timeout < 0 ? request.await("NOTIFY", core.channel)
                : request.await("NOTIFY", core.channel, "BLOCK", Math.max(1, left / 1_000_000));
        core.routes.call(request, words, (at, link, sent, reply, why) -> {
            if (why == null && at != node) {
                why = new Unavailable("the slot has moved", null);
            }
            if (why != null) {
                take.failed(why);
            } else if (reply == null) {
                take.finish(null, null);
            } else {
                List<?> place = (List<?>) reply;
                request.node = at;
                take.placed();
                if ((Long) place.get(0) != 0) {
                    take.confirm((Long) place.get(0));
                } else {
                    numbered((Long) place.get(2));
                }
            }
        });
    }

    private void numbered(long mine) {
        List<News> news;
        core.guard.lock();
        try {
            number = mine;
            news = early;
            early = null;
        } finally {
            core.guard.unlock();
        }
        for (News one : news == null ? List.<News>of() : news) {
            told(one.word, one.token, one.number);
        }
    }

    /** A message of our place. The first one ends the wait; others may come at the same time. */
    void told(String word, long token, long of) {
        core.guard.lock();
        try {
            if (heard == null) {
                return;
            }
            if (early != null) {
                early.add(new News(word, token, of)); // which wait is ours is still on its way
                return;
            }
            if (of != 0 && of != number) {
                return; // of an earlier asking of ours
            }
            deafen();
        } finally {
            core.guard.unlock();
        }
        switch (word) {
            case "granted" -> take.confirm(token);
            case "timeout" -> take.finish(null, null);
            case "deadlock", "replaced", "notheld", "wrongtype", "refused" ->
                take.failed(DLockException.of(new Connector.ServerError(word.toUpperCase() + " (told by a message)")));
            default -> take.failed(new Unavailable("the wait has ended: " + word, null)); // moved, gone, cancelled, again
        }
    }

    /** Nothing is heard for this place any more. */
    void deafen() {
        core.guard.lock();
        try {
            if (heard != null) {
                heard.ear.remove(this);
            }
            heard = null;
            early = null;
        } finally {
            core.guard.unlock();
        }
    }

    /** Waits by BLOCK in slices, on a connection of its own. */
    private void block(Node node) {
        request.node = node;
        node.open().whenComplete((link, why) -> {
            if (why != null) {
                take.failed(DLockException.of(why));
            } else {
                take.done.whenComplete((tie, end) -> link.die(new Unavailable("the wait is over", null)));
                slice(link);
            }
        });
    }

    private void slice(Link link) {
        long part = Math.max(1_000_000, Math.min(core.boundNanos / 2, take.left()));
        link.post(request.await("BLOCK", part / 1_000_000), part + core.boundNanos, (reply, why) -> {
            if (take.done.isDone()) {
                return; // who has given up leaves on the link, behind this
            }
            if (core.closed) {
                link.die(new Unavailable("these locks are closed", null));
                take.failed(link.error);
                return;
            }
            if (why != null) {
                link.die(new Unavailable("the wait is over", null));
                take.failed(why);
            } else if (reply instanceof List<?> grant) {
                take.confirm((Long) grant.get(0));
            } else if (take.left() <= 0) {
                take.finish(null, null);
            } else {
                slice(link);
            }
        });
    }
}

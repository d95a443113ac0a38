// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.Refused;
import dlock.DLockException.Unavailable;
import java.util.ArrayList;
import java.util.List;

/** A place in the queue: by NOTIFY, so that a message tells of its end, where messages come, and else by asking again. */
final class Wait {
    private record Notification(String word, long token, long number) {}

    private final Take take;
    private final Core core;
    final Request request;
    /** The wait that the server knows of; -1: its number is still to come. By the guard, as the early messages are. */
    private long number;
    private List<Notification> early;
    private Node heard;

    Wait(Take take) {
        this.take = take;
        core = take.core;
        request = take.request;
    }

    /** Waits by NOTIFY; where no messages can be had, by asking again. */
    void begin() {
        Node now = core.routes.of(request.slot);
        Node node = now != null ? now : request.node;
        if (node.subscriber.subscribeDenied) {
            take.poll();
        } else if (node.subscriber.hears()) {
            ask(node);
        } else {
            node.link(request.slot).whenComplete((link, why) -> { // first, since messages come from where it goes
                if (why != null) {
                    take.failed(DLockException.of(why));
                } else {
                    link.node.subscriber.listen().whenComplete((subscriber, error) -> take.step(() -> {
                        if (error == null) {
                            ask(link.node);
                        } else {
                            unheard(link.node, link, DLockException.of(error));
                        }
                    }));
                }
            });
        }
    }

    private void unheard(Node node, Link link, RuntimeException why) {
        boolean denied = why instanceof Refused refused && refused.code().equals("NOPERM"); // and not for a moment, as by a wrong password
        if (denied && !node.subscriber.subscribeDenied) {
            node.subscriber.subscribeDenied = true;
            Core.LOG.log(WARNING, "messages cannot be heard: each wait asks four times a second: {0}", why.getMessage());
        }
        if (denied) {
            take.poll();
        } else {
            take.failed(why);
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
        node.subscriber.add(this);
        if (!node.subscriber.hears()) { // it has ended meanwhile
            take.failed(new Unavailable("messages are not heard", null));
            return;
        }
        long left = take.left();
        byte[][] words = take.timeout < 0 ? request.await("NOTIFY", core.channel)
                : request.await("NOTIFY", core.channel, "BLOCK", Math.max(1, left / 1_000_000));
        take.ask(words, (at, link, sent, reply, error) -> take.step(() -> {
            RuntimeException why = error == null && at != node ? new Unavailable("the slot has moved", null) : error;
            if (why != null) {
                take.failed(why);
            } else if (reply == null) {
                take.finish(null, null);
            } else {
                List<?> place = (List<?>) reply;
                take.placed();
                if ((Long) place.get(0) != 0) {
                    take.confirm((Long) place.get(0));
                } else {
                    numbered((Long) place.get(2));
                }
            }
        }));
    }

    private void numbered(long mine) {
        List<Notification> news;
        core.guard.lock();
        try {
            number = mine;
            news = early;
            early = null;
        } finally {
            core.guard.unlock();
        }
        for (Notification one : news == null ? List.<Notification>of() : news) {
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
                early.add(new Notification(word, token, of)); // which wait is ours is still on its way
                return;
            }
            if (of != 0 && of != number) {
                return; // of an earlier asking of ours
            }
            unsubscribe();
        } finally {
            core.guard.unlock();
        }
        take.step(() -> {
            switch (word) {
                case "granted" -> take.confirm(token);
                case "timeout" -> take.finish(null, null);
                case "deadlock", "replaced", "notheld", "wrongtype", "refused", "noack" ->
                    take.failed(DLockException.of(new Connector.ServerError(word.toUpperCase() + " (told by a message)")));
                default -> take.failed(new Unavailable("the place in the queue was lost: " + word, null)); // moved, gone, again
            }
        });
    }

    /** Nothing is heard for this place any more. */
    void unsubscribe() {
        core.guard.lock();
        try {
            if (heard != null) {
                heard.subscriber.remove(this);
            }
            heard = null;
            early = null;
        } finally {
            core.guard.unlock();
        }
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import dlock.DLockException.Refused;
import dlock.DLockException.Unavailable;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BiConsumer;

/** One connection that everybody shares. A reply that is missing for its bound ends it. */
final class Link {
    private record Entry(BiConsumer<Object, RuntimeException> then, long sent, long until, AtomicBoolean done) {
        void tell(Object reply, RuntimeException error) {
            if (done.compareAndSet(false, true)) {
                then.accept(reply, error);
            }
        }
    }

    private static final long OVERDUE = 1_000_000_000L;
    /** A link outlives its bound by this: whoever has given up leaves behind what was sent, in case the server only hangs. */
    private static final long LAST_WORDS = 100_000_000L;

    private final Core core;
    final Node node;
    private final Queue<Entry> pending = new ConcurrentLinkedQueue<>();
    private final AtomicBoolean watched = new AtomicBoolean();
    private volatile Connector.Wire wire;
    volatile RuntimeException error;
    /** The renewals here, the number of the last one, and that number at the last KEEP with its believed end. By the guard. */
    int renewals;
    long serial;
    long kept;
    long believed = Long.MIN_VALUE;
    int surplus;
    boolean brief; // by the last KEEP a hold here has less left than any that is renewed in time

    Link(Core core, Node node) {
        this.core = core;
        this.node = node;
    }

    /** Returns the server's address, as far as the library says it. */
    String address() {
        Connector.Wire now = wire;
        return now == null ? "" : now.address();
    }

    void begin(Connector.Wire wire) {
        this.wire = wire;
        if (error != null) {
            wire.close();
        }
    }

    /** The future has what a reply or its lack says. */
    static <T> void settle(CompletableFuture<T> done, T reply, Throwable why) {
        if (why == null) {
            done.complete(reply);
        } else {
            done.completeExceptionally(why);
        }
    }

    void post(byte[][] words, BiConsumer<Object, RuntimeException> then) {
        post(words, core.replyNanos, then);
    }

    /** {@code asking}: the key's slot is on its way to this node, which answers only who says that it knows. */
    void post(byte[][] words, boolean asking, BiConsumer<Object, RuntimeException> then) {
        if (asking) {
            post(Request.words("ASKING"), (reply, why) -> {});
        }
        post(words, then);
    }

    /** Sends a command and waits for nothing. {@code then} hears the reply where it is read, or why there is none. */
    void post(byte[][] words, long nanos, BiConsumer<Object, RuntimeException> then) {
        long now = System.nanoTime();
        Entry entry = new Entry(then, now, now + nanos + LAST_WORDS, new AtomicBoolean());
        pending.add(entry);
        if (error != null) {
            pending.remove(entry);
            entry.tell(null, error);
            return;
        }
        if (watched.compareAndSet(false, true)) {
            watch(Math.min(nanos, OVERDUE));
        }
        try {
            wire.send(words, (reply, why) -> {
                if (pending.peek() == entry) {
                    pending.poll(); // replies come in order
                } else {
                    pending.remove(entry);
                }
                RuntimeException no = why == null ? null : DLockException.of(why);
                if (no instanceof Refused refused && refused.code().equals("READONLY")) {
                    // A replica by now: who is primary is found by connecting. First, since whoever hears it may ask again at once.
                    die(new Unavailable(no.getMessage(), no));
                }
                entry.tell(reply, no);
            });
        } catch (RuntimeException | LinkageError failed) {
            die(failed);
        }
    }

    private void watch(long nanos) {
        core.later(nanos, () -> {
            Entry oldest = pending.peek();
            if (oldest == null) {
                watched.set(false);
                if ((oldest = pending.peek()) == null || !watched.compareAndSet(false, true)) {
                    return;
                }
            }
            long now = System.nanoTime();
            long left = oldest.until - now;
            if (left <= 0 || core.closed) { // after the end nobody would look again
                die(new Unavailable("the server does not answer", null));
                return;
            }
            long age = now - oldest.sent;
            if (age >= OVERDUE) {
                node.overdue(this);
            }
            watch(Math.min(left, age < OVERDUE ? OVERDUE - age : OVERDUE));
        });
    }

    /** Fails all that was asked, and whatever is asked from now on. */
    void die(Throwable why) {
        if (error == null) {
            error = why instanceof Unavailable one ? one : new Unavailable("the connection has ended: " + why.getMessage(), why);
            if (wire != null) {
                wire.close(); // First, since a blocked write would delay the callbacks below.
            }
        }
        for (Entry one = pending.poll(); one != null; one = pending.poll()) {
            one.tell(null, error);
        }
    }
}

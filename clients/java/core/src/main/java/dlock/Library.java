// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.US_ASCII;

import dlock.Connector.Line;
import dlock.DLockException.Unavailable;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/**
 * Calls by the connections of the program's library, each bounded by a clock of ours. To each server lead two ways: for the loops,
 * which block there, and for all else. After a call without an answer its way is given up, and another one opened. What one server
 * does not answer holds up no call to another.
 */
final class Library {
    /** A reply, with the time when its command was sent, which is later than the call if a connection had to be opened. */
    static final class Reply extends CompletableFuture<Object> {
        volatile long sent = Clock.now();
        /** Where it was asked last. */
        private volatile Way way;
    }

    private record Way(String node, boolean isOfLoops) {}

    private static final byte[][] ASKING = {"ASKING".getBytes(US_ASCII)};

    final Connector connector;
    private final Settings settings;
    private final ScheduledExecutorService timer;
    /** Runs what blocks: connecting, and asking who serves what. */
    private final Executor background;
    // By this object's monitor, under which nothing is waited for.
    private final Map<Way, CompletableFuture<Line>> lines = new HashMap<>();
    /** The nodes that have been given up since the last look ended: the library may name another one after this look. */
    private final Set<String> doubted = new HashSet<>();
    private CompletableFuture<Void> look = CompletableFuture.completedFuture(null);
    private long lookedAt = -Clock.NEVER;
    private boolean isClosed;

    Library(Connector connector, Settings settings, ScheduledExecutorService timer, Executor background) {
        this.connector = connector;
        this.settings = settings;
        this.timer = timer;
        this.background = background;
    }

    /** Returns the reply of whoever serves the key: within that time, and within that of a reply. */
    Reply call(String key, byte[][] words, long nanos, boolean isOfLoops) {
        Reply reply = new Reply();
        long bound = Math.max(0, Math.min(nanos, settings.replyNanos()));
        var end = timer.schedule(() -> reply.completeExceptionally(new Unavailable("the server does not answer", null)), bound,
                TimeUnit.NANOSECONDS);
        reply.whenComplete((value, why) -> end.cancel(false));
        int slot = connector.slot(key);
        locate(slot).handle((nothing, why) -> {
            String node = connector.node(slot);
            if (node != null) {
                send(new Way(node, isOfLoops), List.<byte[][]>of(words), reply, bound, true);
            } else {
                reply.completeExceptionally(why == null ? new Unavailable("nobody serves slot " + slot, null) : errorOf(why));
            }
            return null;
        }).whenComplete((nothing, strange) -> { // of the connector, since all else is in the reply
            if (strange != null) {
                reply.completeExceptionally(DLockException.of(strange));
            }
        });
        return reply;
    }

    /** Ends when it is known who serves the slot, or nobody can say so. */
    private CompletableFuture<Void> locate(int slot) {
        try {
            String node = connector.node(slot);
            if (node == null) {
                return look();
            }
            CompletableFuture<Void> before;
            synchronized (this) {
                before = look;
                if (!connector.isWatched()) {
                    return !doubted.contains(node) ? CompletableFuture.completedFuture(null) : look.<Void>handle((nothing, why) -> null)
                            .completeOnTimeout(null, settings.replyNanos() / 2, TimeUnit.NANOSECONDS);
                }
                if (Clock.now() - lookedAt < Clock.SECOND) {
                    return CompletableFuture.completedFuture(null);
                }
            }
            CompletableFuture<Void> now = look();
            // The caller that finds that a Sentinel hangs waits for it, and no other after that.
            return before.isDone() && !before.isCompletedExceptionally()
                    ? now.copy().orTimeout(settings.replyNanos() / 6, TimeUnit.NANOSECONDS) : CompletableFuture.completedFuture(null);
        } catch (RuntimeException | Error strange) {
            return CompletableFuture.failedFuture(strange);
        }
    }

    private void send(Way way, List<byte[][]> commands, Reply reply, long bound, boolean mayFollow) {
        reply.way = way;
        CompletableFuture<Line> line = line(way);
        if (way.isOfLoops || bound >= settings.replyNanos()) { // a caller's own time says nothing of the server
            reply.whenComplete((value, why) -> {
                // A loop whose time is shorter than that of a connect leaves the connection to be opened.
                if (why instanceof Unavailable && reply.way == way && (line.isDone() || bound >= settings.replyNanos())) {
                    leave(way, line);
                }
            });
        }
        line.thenCompose(one -> {
            reply.sent = Clock.now();
            if (reply.isDone()) { // the caller has given up in the meantime: it asks for nothing
                return reply;
            }
            CompletionStage<Object> sending = one.send(commands);
            reply.whenComplete((value, why) -> sending.toCompletableFuture().cancel(false)); // nor later, if it waits for a thread
            return sending;
        }).handle((value, why) -> {
            if (reply.isDone()) {
                return null;
            }
            RuntimeException error = why == null ? null : errorOf(why);
            String code = DLockException.code(error);
            if (mayFollow && (code.equals("MOVED") || code.equals("ASK"))) {
                String address = error.getMessage().substring(error.getMessage().lastIndexOf(' ') + 1);
                String host = address.startsWith(":") ? way.node.substring(0, Math.max(0, way.node.lastIndexOf(':'))) : ""; // it has said so
                byte[][] words = commands.get(0);
                Way other = new Way(host + address, way.isOfLoops);
                send(other, code.equals("ASK") ? List.of(ASKING, words) : commands, reply, bound, false);
                if (code.equals("MOVED")) {
                    look();
                }
            } else if (error == null) {
                reply.complete(value);
            } else {
                if (code.equals("READONLY") || !DLockException.isSaid(error)) {
                    leave(way, line);
                }
                reply.completeExceptionally(error);
            }
            return null;
        }).whenComplete((nothing, strange) -> {
            if (strange != null) {
                reply.completeExceptionally(DLockException.of(strange));
            }
        });
    }

    private RuntimeException errorOf(Throwable why) {
        String said = connector.said(why);
        return said == null ? DLockException.of(why) : DLockException.said(said);
    }

    private synchronized CompletableFuture<Line> line(Way way) {
        CompletableFuture<Line> line = lines.get(way);
        if (isClosed) {
            return CompletableFuture.failedFuture(Sessions.closedError());
        }
        if (line != null && (!line.isDone() || !line.isCompletedExceptionally() && line.join().isOpen())) {
            return line;
        }
        if (line != null) {
            end(line);
        }
        CompletableFuture<Line> opening = inBackground(() -> connector.open(way.node, settings.replyTimeout()));
        lines.put(way, opening);
        return opening;
    }

    /** Runs what may block. The future reports whatever goes wrong, also that there is no thread for the work. */
    private <T> CompletableFuture<T> inBackground(Callable<T> work) {
        CompletableFuture<T> done = new CompletableFuture<>();
        try {
            background.execute(() -> {
                try {
                    done.complete(work.call());
                } catch (Throwable error) {
                    done.completeExceptionally(error);
                }
            });
        } catch (Throwable error) {
            done.completeExceptionally(error);
        }
        return done;
    }

    /** Gives up a way. The library may know of another server by now. */
    private void leave(Way way, CompletableFuture<Line> line) {
        boolean isLeft;
        synchronized (this) {
            isLeft = lines.remove(way, line);
            if (isLeft) {
                doubted.add(way.node);
            }
        }
        if (isLeft) {
            end(line);
            look();
        }
    }

    private static void end(CompletableFuture<Line> line) {
        line.thenAccept(Line::close);
    }

    /** Has the library find out who serves what: one look at a time, and not again at once. */
    private synchronized CompletableFuture<Void> look() {
        if (look.isDone() && Clock.now() - lookedAt > 100 * Clock.MS && !isClosed) {
            lookedAt = Clock.now();
            look = inBackground(() -> {
                try {
                    connector.refresh(settings.replyTimeout());
                } finally {
                    synchronized (this) {
                        doubted.clear();
                    }
                }
                leaveFormer();
                return null;
            });
        }
        return look;
    }

    /** Closes the connections to a former primary, which may still grant locks. */
    private void leaveFormer() {
        String primary = connector.isWatched() ? connector.node(0) : null;
        if (primary != null) {
            end(way -> !way.node.equals(primary));
        }
    }

    void close() {
        synchronized (this) {
            isClosed = true;
        }
        end(way -> true);
        timer.shutdown(); // what bounds a call is still to come
        inBackground(() -> {
            connector.close();
            return null;
        });
    }

    private void end(Predicate<Way> which) {
        List<CompletableFuture<Line>> some;
        synchronized (this) {
            some = lines.entrySet().stream().filter(one -> which.test(one.getKey())).map(Map.Entry::getValue).toList();
            lines.keySet().removeIf(which);
        }
        some.forEach(Library::end); // a caller that learns of it may call again
    }
}

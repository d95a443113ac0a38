// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.stream.Stream;

/**
 * Locks without a server, for unit tests: give the program {@link #locks}. They know the locks of one process, and have a fair queue.
 * Guarded commands are noted, and not run: their reply is null, unless {@link #replyWith} says more.
 */
public final class FakeLocks implements AutoCloseable {
    private final Server server = new Server();
    private final DLocks locks;

    /** Makes locks with the default settings. */
    public FakeLocks() {
        this(Settings.DEFAULT);
    }

    /** Makes locks with these settings: the program's observer receives their events. */
    public FakeLocks(Settings settings) {
        locks = new DLocks(server, settings);
    }

    /** Returns the locks, of which nobody holds any at first. */
    public DLocks locks() {
        return locks;
    }

    /** Takes all holds of the lock away, and reports them lost, as after a failure. */
    public void lose(String key) {
        server.release(hold -> hold.key.equals(key));
        locks.sessions.under(() -> List.copyOf(locks.sessions.held.values()).stream().filter(hold -> hold.key.equals(key))
                .forEach(hold -> locks.sessions.lose(hold, "forced")));
    }

    /** Returns what was guarded while its lock was held. */
    public List<List<String>> commands() {
        synchronized (server) {
            return List.copyOf(server.commands);
        }
    }

    /** Sets what answers the commands that are guarded from now on: with a Long, byte[], List or null. */
    public void replyWith(Function<List<String>, Object> reply) {
        synchronized (server) {
            server.reply = reply;
        }
    }

    @Override
    public void close() {
        locks.close();
    }

    /** In the session its lease, of that many milliseconds, begins again with each request, and its end is never. */
    private record Held(String key, String owner, long token, int limit, int permits, long lease, long end) {
        long left() {
            return end == Clock.NEVER ? lease : Math.max(0, (end - Clock.now()) / Clock.MS);
        }
    }

    private record Place(List<String> keys, String owner, int limit, int permits, long lease, long end) {
        boolean shares(Place other) {
            return !Collections.disjoint(keys, other.keys);
        }
    }

    /** What the server would refuse. */
    private static final class Refusal extends RuntimeException {
        Refusal(String text) {
            super(text);
        }
    }

    /** Answers the commands of this package, with one session whose id is 1. */
    private static final class Server implements Connector, Connector.Line {
        private final List<Held> holds = new ArrayList<>();
        private final List<Place> queue = new ArrayList<>();
        private final List<List<Object>> rows = new ArrayList<>();
        private final List<List<String>> commands = new ArrayList<>();
        private Function<List<String>, Object> reply = command -> null;
        private long token;

        @Override
        public Line open(String node, Duration within) {
            return this;
        }

        @Override
        public String said(Throwable error) {
            return Connector.messageOf(error, Refusal.class);
        }

        @Override
        public void close() {}

        @Override
        public CompletionStage<Object> send(List<byte[][]> all) {
            List<String> words = Stream.of(all.get(all.size() - 1)).map(word -> new String(word, UTF_8)).toList();
            CompletableFuture<Object> reply = new CompletableFuture<>();
            long block = words.get(0).equals("DLOCK.SESSION") ? number(words, "BLOCK", 0) : 0;
            answer(words, Clock.now() + block * Clock.MS, reply);
            return reply;
        }

        private synchronized void answer(List<String> words, long until, CompletableFuture<Object> reply) {
            try {
                settle();
                Object answer = answer(words);
                settle();
                boolean isSession = words.get(0).equals("DLOCK.SESSION");
                if (isSession && ((List<?>) ((List<?>) answer).get(3)).isEmpty() && Clock.now() < until) {
                    CompletableFuture.delayedExecutor(1, MILLISECONDS).execute(() -> answer(words, until, reply));
                } else {
                    reply.complete(answer);
                }
            } catch (Refusal no) {
                reply.completeExceptionally(no);
            }
        }

        /** Returns the number behind a word of the command. */
        private static long number(List<String> words, String name, long usual) {
            int at = words.indexOf(name);
            return at < 0 ? usual : Long.parseLong(words.get(at + 1));
        }

        private Object answer(List<String> words) {
            String key = words.get(1);
            long named = words.get(0).equals("DLOCK.GUARD") ? Long.parseLong(words.get(2)) : number(words, "TOKEN", 0);
            Held hold = holds.stream().filter(one -> one.key.equals(key) && (one.token == named || named == 0)).findFirst().orElse(null);
            switch (words.get(0)) {
                case "DLOCK.SESSION":
                    long seen = number(words, "SEEN", 0) == 1 ? Long.parseLong(words.get(words.indexOf("SEEN") + 2)) : 0;
                    Long left = holds.stream().filter(one -> one.end == Clock.NEVER).map(Held::lease).min(Long::compare).orElse(null);
                    return Arrays.asList(1L, (long) rows.size(), left, rows.stream().filter(row -> (Long) row.get(0) > seen).toList());
                case "DLOCK.CANCEL":
                    return queue.removeIf(place -> place.owner.equals(words.get(2))) ? 1L : 0L;
                case "DLOCK.HELD":
                    long last = holds.stream().filter(one -> one.key.equals(key)).mapToLong(Held::left).max().orElse(0);
                    return hold == null ? null : List.of(hold.token, 1L, last, hold.owner.getBytes(UTF_8));
                case "DLOCK.GUARD":
                    if (hold == null) {
                        throw new Refusal("FENCED the lock is not held under this token");
                    }
                    List<String> command = words.subList(3, words.size());
                    commands.add(command);
                    return reply.apply(command);
                case "DLOCK.RELEASE", "DLOCK.RENEW", "DLOCK.DOWNGRADE":
                    if (hold == null) {
                        throw new Refusal("NOTHELD the owner does not hold this lock (under this token)");
                    }
                    holds.remove(hold);
                    if (words.get(0).equals("DLOCK.RELEASE")) {
                        return 0L;
                    }
                    if (words.get(0).equals("DLOCK.DOWNGRADE")) {
                        holds.add(new Held(key, hold.owner, hold.token, limit(words), hold.permits, hold.lease, hold.end));
                        return 1L;
                    }
                    long lease = Long.parseLong(words.get(3));
                    boolean isKept = words.contains("IN");
                    long end = isKept ? Clock.NEVER : Clock.now() + lease * Clock.MS;
                    holds.add(new Held(key, hold.owner, hold.token, hold.limit, hold.permits, lease, end));
                    return isKept ? List.of(lease, 1L) : (Object) lease;
                default:
                    return take(words);
            }
        }

        private static int limit(List<String> words) {
            return words.contains("SHARED") ? Integer.MAX_VALUE : (int) number(words, "LIMIT", 1);
        }

        private Object take(List<String> words) {
            boolean isInSession = words.contains("IN");
            int owner = isInSession ? words.indexOf("IN") - 2 : 2;
            List<String> keys = words.subList(words.get(0).equals("DLOCK.MACQUIRE") ? 2 : 1, owner);
            long block = number(words, "BLOCK", -1);
            Place place = new Place(keys, words.get(owner), limit(words), (int) number(words, "PERMITS", 1),
                    Long.parseLong(words.get(owner + 1)), block > 0 ? Clock.now() + block * Clock.MS : Clock.NEVER);
            if (queue.stream().noneMatch(place::shares) && fits(place)) {
                long end = isInSession ? Clock.NEVER : Clock.now() + place.lease * Clock.MS;
                List<Long> tokens = keys.stream().map(key -> grant(key, place, end)).toList();
                return List.of(tokens.size() > 1 ? tokens : tokens.get(0), 1L);
            }
            if (block < 0) {
                return null;
            }
            queue.add(place);
            return List.of(0L, (long) queue.size(), 1L);
        }

        private boolean fits(Place place) {
            return place.keys.stream().allMatch(key -> {
                List<Held> its = holds.stream().filter(hold -> hold.key.equals(key)).toList();
                long permits = place.permits + its.stream().mapToLong(Held::permits).sum();
                return permits <= place.limit && its.stream().allMatch(hold -> permits <= hold.limit);
            });
        }

        private long grant(String key, Place place, long end) {
            token++;
            holds.add(new Held(key, place.owner, token, place.limit, place.permits, place.lease, end));
            return token;
        }

        private synchronized void release(Predicate<Held> which) {
            holds.removeIf(which);
            settle();
        }

        /** Ends what has ended, and grants what can be granted, in order. */
        private void settle() {
            holds.removeIf(hold -> hold.end <= Clock.now());
            List<Place> before = new ArrayList<>();
            for (Place place : queue) {
                if (before.stream().noneMatch(place::shares) && fits(place)) {
                    place.keys.forEach(key -> row("granted", key, place, grant(key, place, Clock.NEVER)));
                } else if (place.end <= Clock.now()) {
                    row("timeout", place.keys.get(0), place, 0);
                } else {
                    before.add(place);
                }
            }
            queue.clear();
            queue.addAll(before);
        }

        private void row(String word, String key, Place place, long number) {
            rows.add(List.of(rows.size() + 1L, word.getBytes(UTF_8), key.getBytes(UTF_8), place.owner.getBytes(UTF_8), number, place.lease));
        }
    }
}

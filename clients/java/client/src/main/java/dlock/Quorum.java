// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import dlock.DLocks.ServerError;
import dlock.DLocks.Wire;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * One lock over three or five servers that know nothing of each other: whoever has it at most of them holds it. Copy
 * this file, {@link DLocks} and the connector for your library; the reasons are in dlock's docs/quorum.md.
 *
 * <pre>{@code
 * Quorum quorum = new Quorum(new JedisConnector(config, a, b, c)); // in the same order for every client
 * try (Quorum.Hold hold = quorum.acquire("stock", Duration.ofSeconds(10), Duration.ofSeconds(5))) {
 *     if (hold != null) { // null: not within 5 s
 *         work(hold.tokens());
 *     }
 * }
 * }</pre>
 *
 * It is for any number of threads: each acquire has an owner of its own, and re-enters nothing. They share a connection
 * to each master. A second one tells them of their grants (NOTIFY), so no library's time-out for replies ends a wait.
 */
public final class Quorum implements AutoCloseable {
    /** So many masters did not say yes or no. The message has each one's error. */
    public static final class Unreachable extends DLocks.DLockException {
        private Unreachable(String errors) {
            super("no majority of the masters answers: " + errors, null);
        }
    }

    private final DLocks.Connector connector;
    private final List<String> masters;
    private final Link[] links;
    private final long bound;
    /** Who has been silent so lately is asked last. */
    private static final long SILENCE = MILLISECONDS.toNanos(1000);
    /** Until when each master is asked last. */
    private final AtomicLongArray silent;

    /** The seeds of the connector are the masters. */
    public Quorum(DLocks.Connector connector) {
        this(connector, Duration.ofMillis(300));
    }

    /** @param bound so long a master may take to connect, and to answer what it need not wait for */
    public Quorum(DLocks.Connector connector, Duration bound) {
        this.connector = connector;
        this.bound = bound.toNanos();
        masters = connector.seeds();
        links = new Link[masters.size()];
        silent = new AtomicLongArray(masters.size());
        for (int n = 0; n < masters.size(); n++) {
            silent.set(n, System.nanoTime());
        }
    }

    /** They keep their order else. */
    private List<Integer> silentLast(List<Integer> order) {
        long now = System.nanoTime();
        List<Integer> last = new ArrayList<>(order);
        last.sort(Comparator.comparing(n -> silent.get(n) - now > 0));
        return last;
    }

    /** Ends the connections. What is still held lives on until its lease. */
    @Override
    public synchronized void close() {
        Stream.of(links).filter(link -> link != null).forEach(Link::end);
    }

    private synchronized Link link(int n) {
        return links[n] = links[n] == null || links[n].over ? new Link(n) : links[n];
    }

    /**
     * Waits at the first master that can be reached, and then asks the others. Without a majority it gives back
     * everything, and tries again while {@code wait} lasts (zero: once). Interrupted, it gives back everything, too.
     *
     * @return null if others had it, or the votes were split, until the time was up
     */
    public Hold acquire(String lock, Duration lease, Duration wait) throws InterruptedException {
        long end = System.nanoTime() + wait.toNanos();
        while (true) {
            // Of each try its own owner: what one leaves behind may come late, and is not to give back what the next is granted.
            Hold hold = new Hold(lock);
            if (hold.attempt(lease.toNanos(), end)) {
                return hold;
            }
            long pause = MILLISECONDS.toNanos(ThreadLocalRandom.current().nextLong(20, 200));
            if (end - System.nanoTime() < pause) {
                hold.throwIfUnreachable();
                return null;
            }
            NANOSECONDS.sleep(pause);
        }
    }

    /** A lock that is held at a majority until its deadline. */
    public final class Hold implements AutoCloseable {
        private final String lock;
        private final String owner = UUID.randomUUID().toString();
        /** What the masters said last: an answer, null, or the exception that came instead. */
        private final Object[] said = new Object[masters.size()];
        /** Where something of ours may be. */
        private final boolean[] left = new boolean[masters.size()];
        /** Where the queue is. */
        private int first;
        private volatile Long[] tokens = {};
        private volatile long deadline;

        private Hold(String lock) {
            this.lock = lock;
        }

        public String owner() {
            return owner;
        }

        /** Each master's fencing token, or null. Compare those of one master only. */
        public List<Long> tokens() {
            return Arrays.asList(tokens.clone());
        }

        /** Until when it is held for sure, by {@link System#nanoTime}. Look before each write. */
        public long deadline() {
            return deadline;
        }

        public Duration left() {
            return Duration.ofNanos(Math.max(0, deadline - System.nanoTime()));
        }

        /**
         * Makes the leases new. When no majority agrees in time it is false, and the old deadline stays, or the new one
         * if that is earlier.
         */
        public synchronized boolean renew(Duration lease) throws InterruptedException {
            return collect(lease.toNanos(), tokens.clone(), false);
        }

        /** Gives it back at all masters. */
        public synchronized void release() {
            deadline = System.nanoTime();
            tokens = new Long[masters.size()];
            giveBack(false);
        }

        @Override
        public void close() {
            release();
        }

        private boolean attempt(long lease, long end) throws InterruptedException {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            Arrays.fill(said, null);
            Long[] asked = new Long[masters.size()];
            boolean held = false;
            try {
                for (int n : silentLast(IntStream.range(0, masters.size()).boxed().toList())) {
                    first = n;
                    said[n] = queue(lease, end);
                    if (said[n] instanceof List<?> grant) {
                        // The reply to a wait does not say when the lease began. So it is renewed, at a known time.
                        asked[n] = (Long) grant.get(0);
                        return held = collect(lease, asked, true);
                    }
                    if (said[n] == null) {
                        left[n] = false;
                        return false;
                    }
                }
                return false;
            } finally {
                if (!held) {
                    giveBack(true);
                }
            }
        }

        private Object queue(long lease, long end) throws InterruptedException {
            Link link = link(first);
            CompletableFuture<Object> told = new CompletableFuture<>();
            link.waits.put(owner, told);
            left[first] = true;
            try {
                long block = ms(end - System.nanoTime()); // BLOCK 0 would be without bound
                Object answer = link.ask(this, words("ACQUIRE", ms(lease), "BLOCK", block, "NOTIFY", link.channel));
                boolean queued = answer instanceof List<?> list && (Long) list.get(0) == 0;
                return queued ? link.awaitFor(this, told, MILLISECONDS.toNanos(block) + bound) : answer;
            } finally {
                link.waits.remove(owner);
            }
        }

        /** Renews where there is a token, acquires where there is none if that is wanted, and counts. */
        private boolean collect(long lease, Long[] tokens, boolean acquire) throws InterruptedException {
            long begun = System.nanoTime();
            long deadline = begun + lease;
            int agreed = 0;
            for (int n : order(acquire)) {
                if (tokens[n] == null && !acquire) {
                    continue;
                }
                Link link = link(n);
                Object opened = link.await(link.wire, bound); // first, or its lease would end so much later
                long sent = System.nanoTime();
                // Elsewhere it ends earlier: whoever is the next at the first one finds the others free.
                long length = n == first ? lease : lease - (sent - begun) - MILLISECONDS.toNanos(5);
                // It may hear of a shorter lease, whatever comes of it.
                this.deadline = earlier(this.deadline, sure(sent, length));
                left[n] |= opened instanceof Wire;
                said[n] = !(opened instanceof Wire) ? opened : link.ask(this, tokens[n] == null
                        ? words("ACQUIRE", ms(length)) : words("RENEW", ms(length), "TOKEN", tokens[n]));
                if (said[n] instanceof Long left) {
                    length = Math.min(length, MILLISECONDS.toNanos(left)); // dlock.max-hold-ms may have cut it
                } else {
                    tokens[n] = said[n] instanceof List<?> grant ? (Long) grant.get(0) : null;
                }
                agreed += tokens[n] != null ? 1 : 0;
                deadline = earlier(deadline, sure(sent, length));
            }
            boolean held = agreed > masters.size() / 2 && System.nanoTime() - deadline < 0;
            if (held) {
                this.tokens = tokens;
                this.deadline = deadline;
            }
            return held;
        }

        /** No place and no hold. */
        private List<List<Object>> lastWords() {
            return List.of(words("CANCEL"), words("RELEASE", "HOLDS", 0));
        }

        /** Asks all that were asked, also those that did not answer. NOTHELD is as good. */
        private void giveBack(boolean cancel) {
            boolean interrupted = false;
            for (List<Integer> all = order(false); !all.isEmpty(); ) {
                int n = all.get(0);
                try {
                    if (left[n]) {
                        List<List<Object>> words = lastWords();
                        // A wait without an answer may still stand.
                        Link link = link(n);
                        Object answer = link.askAll(this, cancel ? words : words.subList(1, 2));
                        link.asking.remove(this);
                        left[n] = answer instanceof Throwable && !(answer instanceof ServerError);
                    }
                    all.remove(0);
                } catch (InterruptedException later) {
                    interrupted = true;
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        /** The first one last, so that the next in its queue finds the others free. Or at once, to have the queue. */
        private List<Integer> order(boolean firstAtOnce) {
            List<Integer> order = new ArrayList<>();
            IntStream.range(0, said.length).filter(n -> n != first).forEach(order::add);
            order.add(firstAtOnce ? 0 : order.size(), first);
            return silentLast(order);
        }

        private List<Object> words(String name, Object... rest) {
            return Stream.concat(Stream.of("DLOCK." + name, lock, owner), Stream.of(rest)).toList();
        }

        private void throwIfUnreachable() {
            List<String> errors = IntStream.range(0, said.length).filter(n -> said[n] instanceof Throwable)
                    .mapToObj(n -> masters.get(n) + ": " + ((Throwable) said[n]).getMessage()).toList();
            if (said.length - errors.size() <= said.length / 2) {
                throw new Unreachable(String.join("; ", errors));
            }
        }
    }

    /** A server counts whole milliseconds, and no clock runs faster than another by more than a hundredth. */
    private static long sure(long sent, long lease) {
        return sent + lease - MILLISECONDS.toNanos(2) - lease / 100;
    }

    private static long earlier(long one, long other) {
        return one - other < 0 ? one : other;
    }

    private static long ms(long nanos) {
        return Math.max(1, NANOSECONDS.toMillis(nanos));
    }

    /** A connection to a master, and those who wait by it. Whoever gets no answer in time ends it. */
    private final class Link {
        private final String channel = "dlock:" + UUID.randomUUID();
        private final Map<String, CompletableFuture<Object>> waits = new ConcurrentHashMap<>();
        private final CompletableFuture<Wire> wire = new CompletableFuture<>();
        /** Those without an answer. */
        private final Set<Hold> asking = ConcurrentHashMap.newKeySet();
        private final int n;
        private volatile boolean over;

        private Link(int n) {
            this.n = n;
            String address = masters.get(n);
            int colon = address.lastIndexOf(':');
            String host = address.substring(0, colon);
            int port = Integer.parseInt(address.substring(colon + 1));
            wire.completeAsync(() -> connector.open(host, port, channel, this::hear, this::end), task -> {
                Thread thread = new Thread(task, "dlock-quorum");
                thread.setDaemon(true);
                thread.start();
            });
        }

        /** The last reply, or the exception that came instead. Nothing is sent if the connection comes too late. */
        private Object ask(Hold hold, List<Object> words) throws InterruptedException {
            return askAll(hold, List.of(words));
        }

        private Object askAll(Hold hold, List<List<Object>> commands) throws InterruptedException {
            Object answer = await(wire, bound);
            if (answer instanceof Wire wire) {
                CompletableFuture<Object> reply = null;
                for (List<Object> words : commands) {
                    reply = send(wire, words);
                }
                answer = awaitFor(hold, reply, bound);
            }
            return answer;
        }

        private static CompletableFuture<Object> send(Wire wire, List<Object> words) {
            return wire.send(words.stream().map(word -> word.toString().getBytes(UTF_8)).toList());
        }

        /** If the connection ends before the answer, the last words of the hold go behind its request. */
        private Object awaitFor(Hold hold, CompletableFuture<?> answer, long nanos) throws InterruptedException {
            asking.add(hold);
            Object said = await(answer, nanos);
            asking.remove(hold);
            return said;
        }

        private Object await(CompletableFuture<?> answer, long nanos) throws InterruptedException {
            try {
                return answer.get(nanos, NANOSECONDS);
            } catch (ExecutionException failed) {
                if (!(failed.getCause() instanceof ServerError)) {
                    end();
                }
                return failed.getCause();
            } catch (TimeoutException late) {
                silent.set(n, System.nanoTime() + SILENCE);
                end();
                return new TimeoutException("no answer in time");
            }
        }

        /** {@code word token keylen:key 36:owner number} of this wait: an earlier one was told, or its link ended. */
        private void hear(byte[] message) {
            String[] words = new String(message, UTF_8).split(" ");
            CompletableFuture<Object> told = waits.get(words[words.length - 2].substring(3));
            if (told == null) {
                return;
            }
            switch (words[0]) {
                case "granted" -> told.complete(List.of(Long.parseLong(words[1])));
                case "timeout", "cancelled" -> told.complete(null);
                default -> told.completeExceptionally(new ServerError(words[0]));
            }
        }

        private void end() {
            if (!over) {
                over = true;
                wire.thenAccept(wire -> {
                    // On another connection they might come before what they take back.
                    asking.forEach(hold -> hold.lastWords().forEach(words -> send(wire, words)));
                    wire.close();
                });
                var ended = new IllegalStateException("the connection has ended");
                waits.values().forEach(told -> told.completeExceptionally(ended));
            }
        }
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.DLockException.Unavailable;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import redis.clients.jedis.HostAndPort;

/** Replies, refusals and silence in an order that no server can be made to keep. */
class ScriptedTest {
    private static final Object SILENCE = new Object();
    private static final List<Object> GRANT = List.of(7L, 1L);
    private static final Duration SOON = Duration.ofMillis(300);

    /** Answers as the test says. Whatever is asked is noted, after the name of the node. */
    private static class Server implements Connector {
        /** A reply, an error, or silence, for a node and the words. */
        final BiFunction<String, String, Object> answers;
        final Queue<String> asked = new ConcurrentLinkedQueue<>();
        final AtomicInteger opened = new AtomicInteger();
        final AtomicInteger closed = new AtomicInteger();
        final Map<String, Consumer<Throwable>> ends = new ConcurrentHashMap<>();

        Server(BiFunction<String, String, Object> answers) {
            this.answers = answers;
        }

        long count(String words) {
            return asked.stream().filter(one -> one.startsWith(words)).count();
        }

        /** How many owners have waited for this lock. */
        long owners(String key) {
            return asked.stream().filter(one -> one.startsWith("FAIRACQUIRE " + key + " ")).map(one -> one.split(" ")[2]).distinct().count();
        }

        @Override
        public Wire open(String node, Duration bound, String channel, Consumer<byte[]> messages, Consumer<Throwable> ended)
                throws Exception {
            opened.incrementAndGet();
            if (answers.apply(node, channel == null ? "OPEN" : "SUBSCRIBE") instanceof Exception no) {
                throw no;
            }
            ExecutorService reader = Executors.newSingleThreadExecutor(task -> Core.daemon(task, "scripted"));
            if (channel == null) {
                ends.put(node, ended);
            }
            return new Wire() {
                @Override
                public void send(byte[][] words, BiConsumer<Object, Throwable> then) {
                    List<String> text = new ArrayList<>();
                    for (byte[] word : words) {
                        text.add(new String(word, UTF_8));
                    }
                    String line = String.join(" ", text).replace("DLOCK.", "");
                    asked.add((node + " " + line).strip());
                    reader.execute(() -> {
                        Object reply = answers.apply(node, line);
                        if (reply instanceof String error) {
                            then.accept(null, new ServerError(error));
                        } else if (reply != SILENCE) {
                            then.accept(reply, null);
                        }
                    });
                }

                @Override
                public void close() {
                    closed.incrementAndGet();
                    reader.execute(() -> ended.accept(new IOException("closed")));
                    reader.shutdown();
                }
            };
        }
    }

    /** What a server without a fault says. */
    private static Object usual(String words) {
        return switch (words.split(" ")[0]) {
            case "ACQUIRE", "FAIRACQUIRE" -> GRANT;
            case "RENEW" -> 10_000L;
            case "KEEP" -> List.of(1L, 10_000L, List.of());
            case "RELEASE", "CANCEL" -> 0L;
            default -> null;
        };
    }

    @BeforeAll
    static void warm() throws Exception {
        CasesTest.warm(); // a try is given one reply timeout, connection and all
    }

    private static Settings settings() {
        return Settings.DEFAULT.replyTimeout(SOON);
    }

    /** What no time can mend: a library of another version, and what a library does not accept. */
    static Stream<Throwable> errorsThatNeverMend() {
        return Stream.of(new NoSuchMethodError("another version of the library"), new IllegalArgumentException("no such port"),
                new UnsupportedOperationException("not by this library"));
    }

    private static void endsAtOnce(Connector connector, Throwable why) {
        try (DLocks locks = new DLocks(connector, settings())) {
            var failed = assertThrows(ExecutionException.class, () -> locks.ask("k").holdAsync().get(10, SECONDS));
            Throwable cause = failed;
            while (cause != null && cause != why) {
                cause = cause.getCause();
            }
            assertEquals(why, cause, () -> String.valueOf(failed));
        }
    }

    /** Waits without a bound would last for ever, in silence. */
    @ParameterizedTest
    @MethodSource("errorsThatNeverMend")
    void whatNoTimeCanMendEndsAWait(Throwable why) {
        class Broken extends Server {
            final String at;

            Broken(String at) {
                super((node, words) -> words.startsWith("FAIRACQUIRE") && at.equals("message") ? null : usual(words));
                this.at = at;
            }

            private <T> T unless(String what, T value) {
                if (at.equals(what)) {
                    ScriptedTest.<RuntimeException>raise(why);
                }
                return value;
            }

            @Override
            public Wire open(String node, Duration bound, String channel, Consumer<byte[]> messages, Consumer<Throwable> ended)
                    throws Exception {
                unless(channel == null ? "open" : "message", null);
                Wire wire = super.open(node, bound, channel, messages, ended);
                return new Wire() {
                    @Override
                    public void send(byte[][] words, BiConsumer<Object, Throwable> then) {
                        unless("send", null);
                        wire.send(words, (reply, error) -> {
                            if (at.equals("reply")) {
                                then.accept(null, why);
                            } else {
                                then.accept(reply, error);
                            }
                        });
                    }

                    @Override
                    public void close() {
                        wire.close();
                    }
                };
            }

            @Override
            public boolean cluster() {
                return at.equals("refresh") || at.equals("node");
            }

            @Override
            public String node(int slot) {
                return at.equals("refresh") ? null : unless("node", "");
            }

            @Override
            public void refresh() {
                unless("refresh", null);
            }
        }

        for (String at : List.of("open", "send", "reply", "message", "refresh", "node")) {
            endsAtOnce(new Broken(at), why);
        }
    }

    /** A RELEASE without a token may be read late: until it is answered, its owner's name is not used again. */
    @Test
    void aNameIsUsedAgainWhenItsReleaseWasAnswered() throws Exception {
        for (boolean answered : List.of(true, false)) {
            Server server = new Server((node, words) -> !words.contains(" b ") ? usual(words) : switch (words.split(" ")[0]) {
                case "FAIRACQUIRE" -> words.contains("NOTIFY") ? List.of(0L, 1L, 5L) : null;
                case "CANCEL", "RELEASE" -> answered ? 0L : SILENCE;
                default -> usual(words);
            });
            try (DLocks locks = new DLocks(server)) {
                locks.lock("a").lock(); // the thread keeps its name while it holds something
                assertFalse(locks.lock("b").tryLock(Duration.ofMillis(50)));
                AtomicInteger unanswered = locks.mine.get().unanswered;
                Stage.until("the RELEASE is sent, and answered", () -> server.count("RELEASE b") == 1
                        && (unanswered.get() == 0) == answered);
                assertFalse(locks.lock("b").tryLock(Duration.ofMillis(50)));
                assertEquals(answered ? 1 : 2, server.owners("b"));
            }
        }
    }

    /** Nor with a token: the server may have that hold still, and grants its owner the same one. */
    @Test
    void aNameWhoseHoldWasNotReleasedIsNotUsedAgain() {
        for (boolean answered : List.of(true, false)) {
            Server server = new Server((node, words) -> !words.contains(" b ") ? usual(words) : switch (words.split(" ")[0]) {
                case "FAIRACQUIRE" -> List.of(8L, 1L);
                case "RELEASE" -> answered ? 0L : SILENCE;
                default -> usual(words);
            });
            try (DLocks locks = new DLocks(server, settings())) {
                locks.lock("a").lock();
                DLock lock = locks.lock("b");
                lock.lock();
                if (answered) {
                    lock.unlock();
                } else {
                    assertThrows(Unavailable.class, lock::unlock);
                }
                lock.lock();
                assertEquals(answered ? 1 : 2, server.owners("b"));
            }
        }
    }

    @SuppressWarnings("unchecked")
    private static <E extends Throwable> void raise(Throwable why) throws E {
        throw (E) why;
    }

    /** A grant whose reply comes when nobody waits any more is given back, behind the request. */
    @Test
    void aGrantThatNobodyWaitsForIsGivenBack() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        CountDownLatch left = new CountDownLatch(1);
        Server server = new Server((node, words) -> {
            if (words.startsWith("ACQUIRE")) {
                asked.countDown();
                await(left);
            }
            return usual(words);
        });
        try (DLocks locks = new DLocks(server, Settings.DEFAULT)) {
            CompletableFuture<Hold> wait = locks.ask("key").tryHoldAsync(Duration.ZERO);
            await(asked);
            wait.cancel(false);
            left.countDown();
            Stage.until("it has left", () -> server.count("RELEASE") > 0);
            assertEquals(List.of("ACQUIRE", "CANCEL", "RELEASE"),
                    server.asked.stream().map(one -> one.split(" ")[0]).filter(one -> !one.equals("KEEP")).toList());
        }
    }

    /** A cold start can take longer than the bound: the error says that it was the connection, not a reply. */
    @Test
    void anErrorSaysThatThereWasNoConnection() {
        CountDownLatch over = new CountDownLatch(1);
        Server server = new Server((node, words) -> {
            if (words.equals("OPEN")) {
                await(over);
            }
            return usual(words);
        });
        try (DLocks locks = new DLocks(server, Settings.DEFAULT.replyTimeout(Duration.ofMillis(1_500)))) {
            Unavailable error = assertThrows(Unavailable.class, () -> locks.ask("cold").tryHold(Duration.ZERO));
            assertTrue(error.getMessage().endsWith(": no connection yet"), error.getMessage());
        } finally {
            over.countDown();
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException over) {
            throw new AssertionError(over);
        }
    }

    /** Whoever gives up while the messages' connection is opened takes no place afterwards. */
    @Test
    void whoGivesUpWhileItSubscribesTakesNoPlace() throws Exception {
        for (String how : List.of("cancel", "orTimeout", "complete")) {
            for (int i = 0; i < 30; i++) {
                CountDownLatch subscribing = new CountDownLatch(1);
                CountDownLatch subscribed = new CountDownLatch(1);
                Server server = new Server((node, words) -> {
                    if (words.equals("SUBSCRIBE")) {
                        subscribing.countDown();
                        await(subscribed);
                        return null;
                    }
                    return words.contains("NOTIFY") ? List.of(0L, 0L, 1L) : words.startsWith("FAIR") ? null : usual(words);
                });
                try (DLocks locks = new DLocks(server, Settings.DEFAULT)) {
                    CompletableFuture<Hold> wait = locks.ask("key").holdAsync();
                    await(subscribing);
                    switch (how) {
                        case "cancel" -> wait.cancel(false);
                        case "complete" -> wait.complete(null);
                        default -> assertThrows(Exception.class, () -> wait.orTimeout(1, TimeUnit.MILLISECONDS).get());
                    }
                    subscribed.countDown();
                    Stage.until("it has left", () -> server.count("RELEASE") > 0);
                    Stage.until("the connection is there", () -> server.opened.get() == 2);
                    locks.ask("other").tryHold(Duration.ZERO); // all that was begun has been done
                    List<String> asked = server.asked.stream().filter(one -> one.contains(" key ")).toList();
                    assertTrue(asked.get(asked.size() - 1).startsWith("RELEASE"), how + ": " + asked);
                }
            }
        }
    }

    /** What cannot be left since nobody is there is forgotten when it has ended anyhow. */
    @Test
    void anOutageHeapsNothingUp() throws Exception {
        AtomicInteger down = new AtomicInteger(1);
        Server server = new Server((node, words) -> words.equals("OPEN") && down.get() > 0 ? new IOException("refused")
                : usual(words));
        try (DLocks locks = new DLocks(server, settings().lease(Duration.ofSeconds(1)).queueGrace(SOON))) {
            List<CompletableFuture<Hold>> tries = new ArrayList<>();
            for (int i = 0; i < 50; i++) {
                tries.add(locks.ask("key" + i).tryHoldAsync(Duration.ZERO));
            }
            tries.forEach(one -> assertThrows(Unavailable.class, () -> Stage.result(one)));
            Thread.sleep(1500);
            down.set(0);
            Hold hold = Stage.result(locks.ask("key").holdAsync());
            Stage.until("its keeper has been there", () -> server.count("KEEP") > 1);
            hold.release();
            assertEquals(0, server.count("CANCEL"));
        }
    }

    /** Too few replicas confirm a KEEP: what is given up is given back all the same. */
    @Test
    void whatIsLeftNeedsNoReplica() throws Exception {
        Server server = new Server((node, words) -> words.startsWith("KEEP") ? "NOACK 0 of 1" : usual(words));
        try (DLocks locks = new DLocks(server, Settings.DEFAULT.lease(Duration.ofSeconds(600)))) {
            Hold hold = locks.ask("key").hold();
            Stage.until("it is kept", () -> server.count("KEEP") > 0);
            locks.core.releases.abandon(hold.renewal());
            Stage.until("it is given back", () -> server.count("RELEASE") > 0);
        }
    }

    /** A wait that asks by its ticket, of a server that hangs, ends with the locks. */
    @Test
    void closingEndsAWaitThatPolls() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        Server server = new Server((node, words) -> words.equals("SUBSCRIBE") ? new Connector.ServerError("NOPERM channel")
                : words.startsWith("FAIR") ? asked.incrementAndGet() < 4 ? null : SILENCE : usual(words));
        DLocks locks = new DLocks(server, settings());
        CompletableFuture<Hold> wait = locks.ask("key").holdAsync();
        Stage.until("it asks again", () -> asked.get() >= 4);
        locks.close();
        assertThrows(Unavailable.class, () -> Stage.result(wait));
    }

    /** Granted before the end, and taken over after it: the hold is told lost. */
    @Test
    void aHoldThatComesAfterTheEndIsLost() throws Exception {
        Server server = new Server((node, words) -> usual(words));
        DLocks locks = new DLocks(server, settings());
        Take take = new Take(locks.core, new Request(locks.core.settings, "key", "me", 1, false, null), -1).start(false);
        assertNotNull(Stage.result(take.done));
        locks.close();
        Hold hold = new Hold(locks.core, take.request, lost -> {});
        assertEquals("closed", Stage.result(hold.lost().toCompletableFuture()));
    }

    private static Server cluster(BiFunction<String, String, Object> answers) {
        return new Server(answers) {
            @Override
            public boolean cluster() {
                return true;
            }

            @Override
            public String node(int slot) {
                return slot == Request.slot("key".getBytes(UTF_8)) ? "a" : "b";
            }
        };
    }

    /** One node has become a replica: the connections to the others are none of its business. */
    @Test
    void aReplicaEndsOnlyItsOwnConnection() throws Exception {
        Server server = cluster((node, words) ->
                node.equals("a") && words.startsWith("KEEP") ? "READONLY it is a replica" : usual(words));
        try (DLocks locks = new DLocks(server, Settings.DEFAULT)) {
            Hold there = locks.ask("other").ephemeral().hold();
            Hold here = locks.ask("key").hold();
            Stage.until("the node is asked again", () -> server.count("a KEEP") > 2);
            assertTrue(here.isHeld());
            assertTrue(there.isHeld(), "its connection has ended");
            assertEquals(0, server.count("b RENEW"), "its connection was replaced");
        }
    }

    /** A slot that is on its way: the key is at the other node already, which wants to be asked for it. */
    @Test
    void aHoldInASlotOnItsWayIsKept() throws Exception {
        AtomicInteger keeps = new AtomicInteger();
        Map<String, String> before = new ConcurrentHashMap<>();
        Server server = cluster((node, words) -> {
            String last = before.put(node, words);
            if (node.equals("a") && words.startsWith("KEEP")) {
                return keeps.incrementAndGet() > 1 ? List.of(0L, 10_000L, List.of())
                        : List.of(0L, 10_000L, List.of(List.of("key".getBytes(UTF_8), 7L, "moved".getBytes(UTF_8))));
            }
            if (words.startsWith("RENEW")) {
                return node.equals("a") ? "ASK 12539 b" : "ASKING".equals(last) ? 10_000L : "MOVED 12539 a";
            }
            return usual(words);
        });
        try (DLocks locks = new DLocks(server, Settings.DEFAULT.lease(Duration.ofSeconds(2)))) {
            Hold hold = locks.ask("key").hold();
            Stage.until("the other node keeps it", () -> server.count("b KEEP") > 1);
            assertTrue(hold.isHeld());
            assertTrue(server.count("a RENEW") < 3, server.count("a RENEW") + " times");
        }
    }

    /** A thread that is interrupted tries no more often than others. */
    @Test
    void anInterruptedLeaseIsAskedForInPeace() {
        Server server = new Server((node, words) -> words.equals("OPEN") ? new IOException("refused") : usual(words));
        try (DLocks locks = new DLocks(server, Settings.DEFAULT.replyTimeout(Duration.ofSeconds(1)))) {
            Thread.currentThread().interrupt();
            assertThrows(Unavailable.class, () -> locks.lease("key", "me", Duration.ofSeconds(5)));
            assertTrue(Thread.interrupted());
            assertTrue(server.opened.get() <= 50, server.opened + " connections");
        }
    }

    /** A crowd that waits asks again over the connections that it shares, and not by one of its own for each. */
    @Test
    void aCutOpensNoConnectionForEachWait() throws Exception {
        for (String library : List.of("lettuce", "jedis")) {
            try (Stage s = new Stage(library, "single")) {
                String path = Stage.control("path " + Stage.addresses("single")[0]);
                s.closing(() -> Stage.control("close " + path));
                Connector to = Stage.connector(library, "single", path, null, null);
                AtomicInteger opened = new AtomicInteger();
                Connector counting = (node, bound, channel, messages, ended) -> {
                    opened.incrementAndGet();
                    return to.open(node, bound, channel, messages, ended);
                };
                DLocks locks = s.closing(new DLocks(counting, Stage.settings(Stage.LONG)));
                s.hold();
                for (int i = 0; i < 200; i++) {
                    locks.ask(s.key).holdAsync();
                }
                s.awaitQueued(200);
                Stage.control("delay " + path + " 100"); // so that one connection is there before the other
                for (int i = 0; i < 3; i++) {
                    opened.set(0);
                    long before = s.places(s.key).get(0).number("client");
                    Stage.control("cut " + path);
                    Stage.until("they have noticed", () -> s.places(s.key).get(0).number("client") != before);
                    s.awaitQueued(200);
                    assertTrue(opened.get() <= 20, opened + " connections by " + library);
                }
            }
        }
    }

    @Test
    void whatAnObserverThrowsStopsNoKeeper() throws Exception {
        for (String library : List.of("lettuce", "jedis")) {
            try (Stage s = new Stage(library, "single")) {
                DLocks locks = s.closing(new DLocks(Stage.connector(library, "single"), Stage.settings(Stage.LEASE).observer(
                        new Observer() {
                            @Override
                            public void lost(String key, String reason) {
                                throw new AssertionError("thrown by the test");
                            }
                        })));
                Hold first = locks.ask(s.key).hold();
                Hold second = locks.ask(s.key + ":2").hold();
                Hold kept = locks.ask(s.key + ":3").hold();
                for (Hold one : List.of(first, second)) {
                    s.ask(s.key, "DLOCK.FORCERELEASE", one.key());
                    assertEquals("forced", Stage.result(one.lost().toCompletableFuture()));
                }
                Stage.until("the other one lasts", () -> s.heldMs(kept.key()) > 2 * Stage.LEASE.toMillis());
                assertTrue(kept.isHeld());
            }
        }
    }

    @Test
    void aThreadsHoldThatWasGivenBackOtherwiseIsNotEntered() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            DLock lock = s.locks().lock(s.key);
            lock.lock();
            lock.current().release();
            assertThrows(NotHeld.class, lock::lock);
            assertThrows(NotHeld.class, lock::unlock);
            lock.lock();
            lock.unlock();
            assertFalse(lock.isLocked());
        }
    }

    /** A name that was cut off in the middle of a character is another one for the server, which says it so. */
    @Test
    void aKeyThatIsNoTextIsHeard() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            String broken = s.key + "\ud83d";
            Hold first = s.locks().ask(broken).hold();
            CompletableFuture<Hold> second = s.locks(Stage.LONG).ask(broken).holdAsync();
            s.awaitQueued(s.key + "?", 1);
            first.release();
            Stage.result(second).release();
        }
    }

    /** A node that does not know its own host says only the port. */
    @Test
    void aNodeWithoutAHostIsWhereTheAnswerCameFrom() throws Exception {
        Server server = new Server((node, words) -> node.equals("here:1") && words.startsWith("ACQUIRE") ? "MOVED 12539 :2"
                : usual(words)) {
            @Override
            public boolean cluster() {
                return true;
            }

            @Override
            public String node(int slot) {
                return "here:1";
            }
        };
        try (DLocks locks = new DLocks(server, Settings.DEFAULT)) {
            assertNotNull(locks.ask("key").tryHold(Duration.ZERO));
            assertEquals(1, server.count("here:2 ACQUIRE"), server.asked.toString());
        }
    }

    /** A thread that holds another lock has the same owner's name when it asks again. */
    @Test
    void whatIsLeftLateEndsNoNewHold() throws Exception {
        AtomicInteger left = new AtomicInteger();
        Server server = new Server((node, words) -> {
            if (words.startsWith("CANCEL") && left.get() == 0) {
                try {
                    Thread.sleep(200); // the owner has asked again by then
                } catch (InterruptedException over) {
                    throw new AssertionError(over);
                }
            }
            if (words.startsWith("RELEASE key") && left.getAndIncrement() == 0) {
                return "TRYAGAIN";
            }
            return left.get() == 0 && words.startsWith("FAIRACQUIRE key") ? words.contains("NOTIFY") ? List.of(0L, 0L, 1L) : null
                    : usual(words);
        });
        try (DLocks locks = new DLocks(server, Settings.DEFAULT)) {
            DLock outer = locks.lock("outer");
            outer.lock();
            DLock lock = locks.lock("key");
            assertFalse(lock.tryLock(Duration.ofSeconds(2)));
            lock.lock();
            Thread.sleep(500);
            List<String> asked = server.asked.stream().filter(one -> one.contains(" key ")).toList();
            String last = asked.get(asked.size() - 1);
            assertTrue(last.startsWith("FAIRACQUIRE"), asked.toString());
        }
    }

    /** The messages' connection was refused for a moment: that is no lack of a right. */
    @Test
    void aRefusedConnectMakesNobodyDeaf() throws Exception {
        AtomicInteger refused = new AtomicInteger();
        Server server = new Server((node, words) -> words.equals("SUBSCRIBE")
                ? refused.getAndIncrement() == 0 ? new Connector.ServerError("WRONGPASS invalid username-password pair") : null
                : words.contains("NOTIFY") ? List.of(7L, 0L, 1L)
                : words.startsWith("FAIR") && !words.contains("BLOCK") ? null : usual(words));
        try (DLocks locks = new DLocks(server, Settings.DEFAULT)) {
            assertThrows(DLockException.Refused.class, () -> locks.ask("key").hold());
            locks.ask("key").hold().release();
            assertEquals(1, server.asked.stream().filter(one -> one.contains("NOTIFY")).count(), server.asked.toString());
        }
    }

    /** While the link is replaced it ends, and somebody opens another one. */
    @Test
    void aLinkThatIsReplacedLeavesNoOther() throws Exception {
        CountDownLatch opening = new CountDownLatch(1);
        CountDownLatch opened = new CountDownLatch(1);
        AtomicInteger opens = new AtomicInteger();
        Server server = new Server((node, words) -> {
            if (words.equals("OPEN") && opens.incrementAndGet() == 2) {
                opening.countDown();
                try {
                    opened.await();
                } catch (InterruptedException over) {
                    throw new AssertionError(over);
                }
            }
            return words.startsWith("KEEP") ? List.of(opens.get() == 1 ? 2L : 1L, 10_000L, List.of())
                    : words.startsWith("FAIRACQUIRE other") ? List.of(8L, 1L) : usual(words);
        });
        try (DLocks locks = new DLocks(server, Settings.DEFAULT)) {
            Hold hold = locks.ask("key").hold();
            assertTrue(opening.await(Stage.PATIENCE, SECONDS));
            server.ends.get("").accept(new IOException("cut"));
            locks.ask("other").hold();
            opened.countDown();
            Stage.until("the hold is tied anew", () -> server.count("RENEW key") > 0);
            Stage.until("one connection is left", () -> opens.get() - server.closed.get() == 1);
            assertTrue(hold.isHeld());
        }
    }

    @Test
    void whatOthersPublishIsIgnored() throws Exception {
        for (String library : List.of("lettuce", "jedis")) {
            try (Stage s = new Stage(library, "single")) {
                Connector to = Stage.connector(library, "single");
                AtomicInteger opened = new AtomicInteger();
                Connector counting = (node, bound, channel, messages, ended) -> {
                    opened.incrementAndGet();
                    return to.open(node, bound, channel, messages, ended);
                };
                DLocks locks = s.closing(new DLocks(counting, Stage.settings(Stage.LONG)));
                s.hold();
                CompletableFuture<Hold> wait = locks.ask(s.key).holdAsync();
                s.awaitQueued(1);
                int before = opened.get();
                for (String strange : List.of("", "x", "granted 1", "granted x 3:abc", "granted 1 99:a 1:b 1", "a b 2:x 1:y z")) {
                    s.ask(s.key, "PUBLISH", locks.core.channel, strange);
                }
                s.handOver();
                Stage.result(wait).release();
                assertEquals(before, opened.get(), library);
            }
        }
    }

    /** The other languages' candidates, too. */
    @Test
    void whoLeadsIsKnownWhateverItsLanguage() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            Leader leader = new Leader(s.locks(), s.key, "me");
            long term = s.hold(s.key, "host-7#0123");
            assertEquals(new Leader.Leading("host-7", term), leader.who().orElseThrow());
            s.ask(s.key, "DLOCK.FORCERELEASE", s.key);
            Stage.result(leader.campaign());
            assertTrue(s.owners().get(0).matches("[^/]+/[0-9]+/me#[-0-9a-f]+"), s.owners().toString());
            leader.resign();
        }
    }

    /** The server reads nothing any more, so that who writes stands still: the clock tells the loss all the same. */
    @Test
    void theClockWaitsForNoSocket() throws Exception {
        for (String library : List.of("lettuce", "jedis")) {
            try (Stage s = new Stage(library, "single"); ServerSocket entrance = new ServerSocket(0)) {
                CountDownLatch stopped = new CountDownLatch(1);
                Core.daemon(() -> lead(entrance, Stage.addresses("single")[0], stopped), "path").start();
                String path = "127.0.0.1:" + entrance.getLocalPort();
                DLocks locks = s.closing(new DLocks(Stage.connector(library, "single", path, null, null),
                        Stage.settings(Stage.LEASE).replyTimeout(Duration.ofSeconds(3))));
                Hold hold = locks.ask(s.key).hold();
                stopped.countDown();
                CompletableFuture<Hold> late = locks.ask(s.key + "x").tryHoldAsync(Duration.ofSeconds(1));
                Stage.Actor writer = s.actor();
                writer.start(() -> {
                    for (int i = 0; i < 20; i++) { // more than the sockets hold
                        locks.ask("x".repeat(1 << 20) + i).tryHoldAsync(Duration.ofSeconds(1));
                    }
                });
                assertNotNull(Stage.result(hold.lost().toCompletableFuture()));
                assertThrows(DLockException.class, () -> Stage.result(late));
            }
        }
    }

    /** A path that stops reading. What the harness has reads on. */
    private static void lead(ServerSocket entrance, HostAndPort to, CountDownLatch stopped) {
        try {
            while (true) {
                Socket client = entrance.accept();
                Socket server = new Socket(to.getHost(), to.getPort());
                Core.daemon(() -> pump(client, server, stopped), "there").start();
                Core.daemon(() -> pump(server, client, stopped), "back").start();
            }
        } catch (IOException over) {
            // The test is.
        }
    }

    private static void pump(Socket from, Socket to, CountDownLatch stopped) {
        byte[] buffer = new byte[4096];
        try {
            for (int n = from.getInputStream().read(buffer); n > 0; n = from.getInputStream().read(buffer)) {
                if (stopped.getCount() == 0) {
                    return; // the sockets stay open
                }
                to.getOutputStream().write(buffer, 0, n);
            }
        } catch (IOException over) {
            // One of them has closed.
        }
    }
}

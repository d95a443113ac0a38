// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import dlock.DLockException.LockTimeout;
import dlock.DLockException.Refused;
import java.io.File;
import java.io.IOException;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.logging.SimpleFormatter;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.api.parallel.Isolated;

/** Runs the cases that all languages have ({@code clients/cases}), by Lettuce and by Jedis. */
class CasesTest {
    /** The delay, in seconds, that a busy machine causes by itself. The delays that the cases look for are longer. */
    static final double LATE = Double.parseDouble(System.getenv().getOrDefault("DLOCK_LATE", "4"));

    /** The cases of all languages that look for something that is gone, or that Java does not have. */
    private static final Map<String, String> GONE = Map.ofEntries(
            Map.entry("no_right_to_ping", "nothing is pinged; and a session has no EPHEMERAL holds"),
            Map.entry("a_refused_renewal_is_the_reason", "the session renews; sessions.json has a refused SESSION"),
            Map.entry("no_right_to_renew", "a grant after a wait is told by its row, and is not confirmed by RENEW"),
            Map.entry("a_fork", "a program in Java does not fork"),
            Map.entry("work_that_is_yet_to_be_done", "a lock is not given a function here; the starter's RefusalTest has it"),
            Map.entry("an_ephemeral_hold_over_a_failover_elsewhere", "a session has no EPHEMERAL holds"),
            Map.entry("an_ephemeral_hold_ends_with_its_connection", "a session has no EPHEMERAL holds"));

    static List<JsonNode> cases() throws IOException {
        List<JsonNode> all = new ArrayList<>();
        for (String file : List.of("cases.json", "sessions.json")) {
            new ObjectMapper().readTree(new File(System.getProperty("dlock.cases", "../../cases"), file)).forEach(all::add);
        }
        int before = all.size();
        all.removeIf(one -> GONE.containsKey(one.get("name").asText()));
        assertEquals(GONE.size(), before - all.size(), "each that is left out is there");
        return all;
    }

    /** These freeze a server that all use, count what the whole process has or says, or measure milliseconds. */
    static boolean alone(JsonNode one) {
        return one.toString().matches(".*\"(do\":\"(freeze|fault|connections|logged|settings|forget)|at_once)\".*");
    }

    static Stream<DynamicTest> tests(boolean alone) throws IOException {
        String only = System.getProperty("case", "");
        String libraries = System.getProperty("libraries", "lettuce,jedis");
        List<JsonNode> some = cases().stream()
                .filter(one -> alone(one) == alone && one.get("name").asText().contains(only)).toList();
        return Stream.of(libraries.split(",")).flatMap(library -> some.stream().map(one -> DynamicTest.dynamicTest(
                one.get("name").asText() + " by " + library, () -> run(library, one))));
    }

    /** The first connection of a process takes seconds on a busy machine: until the libraries' classes are there. */
    @BeforeAll
    static void warm() throws Exception {
        for (String library : List.of("lettuce", "jedis")) {
            try (Stage stage = new Stage(library, "single")) {
                Asking asking = stage.locks().ask(stage.key);
                Hold hold = asking.hold();
                asking.tryHoldAsync(Duration.ofSeconds(1)).exceptionally(late -> null).join(); // a wait
                hold.release();
            }
        }
    }

    @TestFactory
    @Execution(ExecutionMode.CONCURRENT)
    Stream<DynamicTest> cases_() throws IOException {
        return tests(false);
    }

    /** One after the other. */
    @Isolated
    static class AloneTest {
        @TestFactory
        @Execution(ExecutionMode.SAME_THREAD)
        Stream<DynamicTest> cases_() throws IOException {
            return tests(true);
        }
    }

    static void run(String library, JsonNode one) throws Exception {
        try (Case run = new Case(library, one)) {
            run.run();
        }
    }

    /** What a case has made so far. Each step is a method. */
    static final class Case implements AutoCloseable {
        private final String name;
        private final JsonNode steps;
        private final String library;
        private final Stage stage;
        private final Map<String, String> paths = new HashMap<>();
        private final Map<String, DLocks> clients = new HashMap<>();
        private final Map<String, List<Hold>> holds = new HashMap<>();
        private final Map<String, Future<Hold>> starts = new HashMap<>();
        private final Map<String, String> spread = new HashMap<>();
        private final Map<String, long[]> marks = new HashMap<>();
        private final Map<Hold, Runnable> many = new ConcurrentHashMap<>();
        private final Deque<String> frozen = new ArrayDeque<>();
        private final Deque<String[]> settings = new ArrayDeque<>();
        private final List<String> users = new ArrayList<>();
        private final ConcurrentLinkedQueue<String> logged = new ConcurrentLinkedQueue<>();
        private final Handler handler = new Handler() {
            @Override
            public void publish(LogRecord record) {
                logged.add(new SimpleFormatter().formatMessage(record));
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };

        Case(String library, JsonNode one) {
            this.library = library;
            name = one.get("name").asText();
            steps = one.get("steps");
            stage = new Stage(library, one.path("at").asText("single"));
            Logger.getLogger("dlock").addHandler(handler);
        }

        void run() throws Exception {
            for (JsonNode step : steps) {
                try {
                    step(step);
                } catch (Exception | AssertionError error) { // the report of a test has no name of the case
                    throw new AssertionError(name + " by " + library + ", " + step + ": " + error, error);
                }
            }
        }

        @Override
        public void close() throws Exception {
            for (String address : frozen) {
                Stage.control("thaw " + address);
            }
            for (String[] one : settings) {
                stage.ask(stage.key, "CONFIG", "SET", one[0], one[1]);
            }
            for (String path : paths.values()) {
                Stage.control("close " + path);
            }
            clients.values().forEach(DLocks::close);
            for (String user : users) {
                stage.ask(stage.key, "ACL", "DELUSER", user);
            }
            stage.close();
            Logger.getLogger("dlock").removeHandler(handler);
        }

        private String key(JsonNode step) {
            return named(step.path("key").asText("lock"));
        }

        private String named(String key) {
            return spread.getOrDefault(key, stage.key + ":" + key);
        }

        private static Double number(JsonNode step, String name) {
            return step.hasNonNull(name) ? step.get(name).asDouble() : null;
        }

        private DLocks client(JsonNode step) {
            return clients.get(step.path("client").asText("client"));
        }

        private String path(JsonNode step) {
            return paths.get(step.get("path").asText());
        }

        /** Those of a step. Some stand for something of this case. */
        private Object[] words(JsonNode step) throws Exception {
            List<Object> words = new ArrayList<>();
            for (JsonNode one : step.get("words")) {
                words.add(switch (one.asText()) {
                    case "KEY" -> named("lock");
                    case "DATA" -> named("data");
                    case "USER" -> users.get(users.size() - 1);
                    case "SESSION" -> stage.sessionOf(named("lock"));
                    case "OWNER" -> stage.places(named("lock")).get(0).word("owner"); // of the first in the queue
                    default -> one.asText();
                });
            }
            return words.toArray();
        }

        private void step(JsonNode step) throws Exception {
            String key = key(step);
            switch (step.get("do").asText()) {
                case "path" -> {
                    String to = step.path("to").asText("single");
                    String target = switch (to) {
                        case "primary" -> stage.node(key).getHostAndPort().toString();
                        case "replica" -> replica(key);
                        default -> Stage.addresses(to)[0].toString();
                    };
                    paths.put(step.get("as").asText(), Stage.control("path " + target));
                }
                case "close", "silence", "strand", "sound", "cut" -> Stage.control(step.get("do").asText() + " " + path(step));
                case "delay" -> Stage.control("delay " + path(step) + " " + step.get("ms").asInt());
                case "settings" -> {
                    for (var names = step.fieldNames(); names.hasNext();) {
                        String name = names.next();
                        if (!name.equals("do")) {
                            List<?> before = (List<?>) stage.ask(key, "CONFIG", "GET", name);
                            settings.push(new String[] {name, Stage.text(before.get(1))});
                            stage.ask(key, "CONFIG", "SET", name, step.get(name).asText());
                        }
                    }
                }
                case "freeze" -> {
                    frozen.push(step.has("replica") ? replica(key) : stage.node(key).getHostAndPort().toString());
                    Stage.control("freeze " + frozen.peek());
                    if (step.has("replica")) {
                        stage.frozen.add(frozen.peek());
                    }
                }
                case "thaw" -> {
                    stage.frozen.clear();
                    Stage.control("thaw " + frozen.pop());
                }
                case "commands" -> {
                    long seen = Long.parseLong(Stage.control("commands " + path(step)));
                    if (step.has("at_most")) {
                        long more = seen - marks.get("commands")[0];
                        assertTrue(more <= step.get("at_most").asLong(), more + " commands");
                    }
                    marks.put("commands", new long[] {seen});
                }
                case "ask" -> {
                    Object reply = stage.ask(key, words(step));
                    assertTrue(!step.has("replies") || step.get("replies").asText().equals(Stage.text(reply)), () -> Stage.text(reply));
                }
                case "fault" -> {
                    String what = step.get("what").asText();
                    Stage.control(what.equals("switch") ? what : what + " " + key);
                }
                case "renewed" -> Stage.until(key + " is renewed", () -> stage.isRenewed(key));
                case "guard" -> {
                    for (Hold hold : holds.get(step.get("hold").asText())) {
                        if (step.has("gives")) {
                            judge(step, () -> {
                                hold.guard(words(step));
                                return null;
                            });
                        } else {
                            hold.guard(words(step));
                        }
                    }
                }
                case "other" -> stage.hold(key, "other", step.path("shared").asBoolean() ? new Object[] {"SHARED"} : new Object[0]);
                case "hand_over" -> stage.handOver(key, "other");
                case "user" -> {
                    String name = stage.key.replaceAll("[{}]", "") + users.size();
                    stage.ask(key, "ACL", "SETUSER", name, "on", ">word", "~*", "&*", "+@all", step.get("rule").asText());
                    users.add(name);
                    client("client", null, step.path("lease").asDouble(10), 60, name, "word");
                }
                case "client" -> client(step.path("as").asText("client"), step.has("path") ? path(step) : null,
                        step.path("lease").asDouble(10), step.path("auto").asDouble(60), step.path("user").asText(null), step.path("password").asText(null));
                case "queued" -> {
                    if (step.path("absent").asBoolean()) {
                        stage.awaitTickets(key, step.get("count").asInt());
                    } else {
                        stage.awaitQueued(key, step.get("count").asInt());
                    }
                }
                case "free" -> stage.awaitGone(key);
                case "unkept" -> Stage.until("nobody keeps " + key, () -> stage.isUnkept(key));
                case "overflow" -> overflow();
                case "many" -> judge(step, () -> all(step));
                case "outlasts" -> Stage.until(key + " is old", () -> stage.heldMs(key) > step.get("ms").asLong());
                case "connections" -> connections(step);
                case "lock" -> {
                    if (step.has("slots")) {
                        spread(step.path("key").asText("lock"));
                    }
                    String name = key(step);
                    Double timeout = step.has("timeout") ? number(step, "timeout") : Double.valueOf(Stage.PATIENCE);
                    judge(step, () -> {
                        Asking asking = limited(client(step).ask(name), step);
                        return timeout == null ? asking.hold() : asking.tryHold(seconds(timeout));
                    });
                }
                case "start" -> starts.put(step.get("as").asText(), step.has("keys") ? stage.actor().start(() -> all(step))
                        : start(limited(client(step).ask(key), step), step.has("timeout")
                        ? number(step, "timeout") : Double.valueOf(Stage.PATIENCE)));
                case "joined" -> judge(step, () -> Stage.result(starts.get(step.get("start").asText())));
                case "release" -> {
                    for (Hold hold : holds.get(step.path("hold").asText("hold"))) {
                        if (many.containsKey(hold)) {
                            Runnable unlock = many.remove(hold);
                            unlock.run();
                        } else if (step.has("after")) {
                            hold.releaseAfter(seconds(step.get("after").asDouble()));
                        } else if (step.has("gives")) {
                            judge(step, () -> {
                                hold.release();
                                return null;
                            });
                        } else {
                            hold.release();
                        }
                    }
                }
                case "block" -> { // the work releases its lock: to do so again is an error, and to leave the block is none
                    try (Hold hold = client(step).ask(key).hold()) {
                        hold.release();
                        assertThrows(NotHeld.class, hold::release);
                    }
                    DLock lock = client(step).lock(key);
                    for (Runnable release : List.<Runnable>of(lock::unlock, () -> lock.current().release())) {
                        try (var locked = lock.hold()) {
                            release.run();
                            assertThrows(NotHeld.class, release::run);
                        }
                        assertFalse(lock.isHeldByCurrentThread());
                    }
                }
                case "holds" -> {
                    List<Hold> all = new ArrayList<>();
                    for (int i = 0; i < step.get("count").asInt();) { // in hundreds: a pool's connections are few
                        List<CompletableFuture<Hold>> waits = new ArrayList<>();
                        for (int end = Math.min(i + 100, step.get("count").asInt()); i < end; i++) {
                            waits.add(client(step).ask(named(String.valueOf(i))).holdAsync());
                        }
                        for (CompletableFuture<Hold> wait : waits) {
                            all.add(Stage.result(wait));
                        }
                    }
                    holds.put(step.get("as").asText(), all);
                }
                case "lost" -> {
                    for (Hold hold : holds.get(step.get("hold").asText())) {
                        String why = hold.lost().toCompletableFuture().get(
                                (long) (1000 * (step.get("within").asDouble() + LATE)), TimeUnit.MILLISECONDS);
                        assertTrue(why.contains(step.path("text").asText()), why);
                    }
                }
                case "kept" -> holds.get(step.get("hold").asText()).forEach(
                        hold -> assertTrue(hold.isHeld(), hold.key() + " is held"));
                case "forget" -> {
                    var forgotten = new WeakReference<>(holds.remove(step.get("hold").asText()).get(0));
                    Stage.until("the collector has found it", () -> {
                        System.gc();
                        return forgotten.get() == null;
                    });
                }
                case "end" -> client(step).close();
                case "cycles" -> {
                    int workers = step.get("workers").asInt();
                    marks.put("workers", new long[] {workers});
                    cycles(client(step), key, workers, step.get("count").asInt());
                }
                case "objects" -> {
                    for (int i = 0; i < step.get("count").asInt(); i++) {
                        DLock lock = client(step).lock(named(String.valueOf(i)));
                        lock.lock();
                        lock.unlock();
                    }
                }
                case "logged" -> {
                    String text = step.get("text").asText();
                    Callable<Long> seen = () -> logged.stream().filter(line -> line.contains(text)).count();
                    Stage.until("it says " + text, () -> seen.call() >= step.get("at_least").asLong());
                    assertTrue(!step.has("at_most") || seen.call() <= step.get("at_most").asLong(), logged.toString());
                }
                case "bad" -> {
                    var error = assertThrows(IllegalArgumentException.class, () -> {
                        String name = step.path("key").asText("lock");
                        Asking asking = client(step).ask(name.isEmpty() ? name : named(name));
                        limited(asking, step);
                        // A Duration has neither of what other languages can say wrong.
                        asking.tryHold(step.path("timeout").asText().equals("NaN") ? null : step.has("timeout")
                                ? Duration.ofSeconds(-5) : Duration.ZERO);
                    });
                    assertTrue(error.getMessage().contains(step.get("names").asText()), error.getMessage());
                }
                default -> throw new AssertionError("no such step: " + step);
            }
        }

        /** Takes several locks of one slot, which a thread of its own holds. */
        private Hold all(JsonNode step) throws Exception {
            Double timeout = step.has("timeout") ? number(step, "timeout") : Double.valueOf(Stage.PATIENCE);
            List<DLock> locks = new ArrayList<>();
            step.get("keys").forEach(one -> locks.add(client(step).lock(named(one.asText()))));
            Lock all = DLocks.all(locks.toArray(DLock[]::new));
            Stage.Actor actor = stage.actor();
            boolean isTaken = actor.run(() -> {
                if (timeout == null) {
                    all.lock();
                    return true;
                }
                return all.tryLock((long) (1000 * timeout), TimeUnit.MILLISECONDS);
            });
            Hold hold = isTaken ? actor.run(() -> locks.get(0).current()) : null;
            if (hold != null) {
                many.put(hold, () -> {
                    try {
                        actor.run(all::unlock);
                    } catch (Exception failed) {
                        throw new AssertionError(failed);
                    }
                });
            }
            return hold;
        }

        /** More happens in the session of the lock's holder than a server remembers. */
        private void overflow() throws Exception {
            String session = stage.sessionOf(named("lock"));
            String one = named("overflow");
            var node = stage.node(one);
            for (int i = 0; i < 5100; i++) {
                Stage.send(node, "DLOCK.ACQUIRE", one, "overflow/" + i, 60000, "IN", session);
                Stage.send(node, "DEL", one);
            }
        }

        private void client(
                String name, String path, double lease, double auto, String user, String password) {
            Connector connector = Stage.connector(library, path != null ? "single" : stage.place, path, user, password);
            Settings settings = Settings.DEFAULT.lease(seconds(lease)).hangTimeout(seconds(auto));
            clients.put(name, new DLocks(connector, settings));
        }

        static Duration seconds(double seconds) {
            return Duration.ofMillis((long) (1000 * seconds));
        }

        private static Asking limited(Asking asking, JsonNode step) {
            if (step.has("limit")) {
                asking.limit(step.get("limit").asInt());
            }
            if (step.path("shared").asBoolean()) {
                asking.shared();
            }
            if (step.has("lease")) {
                asking.lease(seconds(step.get("lease").asDouble()));
            }
            if (step.has("max_hold")) {
                asking.maxHold(seconds(step.get("max_hold").asDouble()));
            }
            if (step.has("actor") || step.has("owner")) { // the old word of the cases is owner
                asking.actor(step.path("actor").asText(step.path("owner").asText()));
            }
            return step.has("permits") ? asking.permits(step.get("permits").asInt()) : asking;
        }

        private static CompletableFuture<Hold> start(Asking asking, Double timeout) {
            return timeout == null ? asking.holdAsync() : asking.tryHoldAsync(seconds(timeout));
        }

        /** The other one of the pair. */
        private String replica(String key) throws Exception {
            String primary = stage.node(key).getHostAndPort().toString();
            return Stream.of(Stage.addresses("pair")).map(Object::toString).filter(one -> !one.equals(primary)).findFirst().orElseThrow();
        }

        /** In 250 ms. A busy machine is late by itself: one of twenty is enough. */
        private static void isAtOnce(Callable<Hold> work) throws Exception {
            long took = Long.MAX_VALUE;
            for (int i = 0; i < 20 && took >= 250_000_000; i++) {
                long began = System.nanoTime();
                assertThrows(DLockException.class, work::call);
                took = System.nanoTime() - began;
            }
            assertTrue(took < 250_000_000, took + " ns");
        }

        private void judge(JsonNode step, Callable<Hold> work) throws Exception {
            if (step.path("at_once").asBoolean()) {
                isAtOnce(work);
            }
            long began = System.nanoTime();
            String got;
            String text = "";
            try {
                Hold hold = work.call();
                got = hold == null ? "none" : "hold";
                if (hold != null) {
                    holds.put(step.path("as").asText("hold"), List.of(hold));
                }
            } catch (LockTimeout error) {
                got = "timeout";
                text = error.getMessage();
                assertNotNull(error.getCause());
            } catch (NotHeld error) {
                got = "not held";
            } catch (DLockException.Fenced error) {
                got = "fenced";
            } catch (DLockException.Deadlock error) {
                got = "deadlock";
            } catch (Refused error) {
                got = Map.of("NOACK", "unconfirmed", "REPLACED", "replaced").getOrDefault(error.code(), "refusal");
                text = error.getMessage();
            } catch (DLockException error) {
                got = "failure";
                text = error.getMessage();
            }
            assertEquals(step.get("gives").asText(), got, text);
            assertTrue(text.contains(step.path("text").asText()), text);
            double took = (System.nanoTime() - began) / 1e9;
            assertTrue(!step.has("within") || took < step.get("within").asDouble() + LATE, took + " s");
        }

        /** A key of another node for each. */
        private void spread(String key) throws Exception {
            Set<String> taken = new HashSet<>();
            for (String one : spread.values()) {
                taken.add(stage.node(one).getHostAndPort().toString());
            }
            while (!spread.containsKey(key)) {
                String one = "{" + Long.toHexString(ThreadLocalRandom.current().nextLong() >>> 16) + "}lock";
                if (!taken.contains(stage.node(one).getHostAndPort().toString())) {
                    spread.put(key, one);
                }
            }
        }

        private void connections(JsonNode step) throws Exception {
            String list = Stage.text(stage.ask(stage.key, "CLIENT", "LIST"));
            long count = list.lines().filter(line -> line.contains("cmd=dlock")).count();
            if (step.has("as")) {
                marks.put(step.get("as").asText(), new long[] {count, Thread.activeCount()});
            } else {
                long[] before = marks.get(step.get("same").asText());
                // Jedis' pool has a connection for each worker that asks at once, and one for the loop.
                long most = Math.max(before[0], marks.get("workers")[0] + 1);
                assertTrue(count <= most, count + " connections, not " + most);
                assertTrue(Thread.activeCount() <= before[1] + 3, Thread.activeCount() + " threads, not " + before[1]);
            }
        }

        private static void cycles(DLocks locks, String key, int workers, int count) throws Exception {
            var executor = Executors.newFixedThreadPool(workers);
            try {
                List<Future<?>> all = new ArrayList<>();
                for (int i = 0; i < workers; i++) {
                    all.add(executor.submit(() -> {
                        for (int j = 0; j < count; j++) {
                            DLock lock = locks.lock(key);
                            lock.lock();
                            lock.unlock();
                        }
                    }));
                }
                for (var one : all) {
                    Stage.result(one);
                }
            } finally {
                executor.shutdown();
                executor.awaitTermination(Stage.PATIENCE, TimeUnit.SECONDS);
            }
        }
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** One leader at a time, and a term for each. */
class LeaderTest {
    @Test
    void oneAfterTheOther() throws Exception {
        String name = UUID.randomUUID().toString();
        try (Stage s = new Stage("lettuce", "single")) {
            Leader one = new Leader(s.locks(Stage.LONG), name, "one");
            Leader two = new Leader(s.locks(Stage.LONG), name, "two");
            assertThrows(NotHeld.class, () -> one.guard("SET", name + "x", 1));
            Hold first = Stage.result(one.campaign());
            Stage.until("one leads", one::isLeader);
            one.guard("SET", name + "x", 1);
            var second = two.campaign();
            assertEquals(Optional.of(new Leader.Leading("one", first.token())), two.who());
            assertFalse(two.isLeader());
            one.resign();
            assertFalse(one.isLeader());
            assertTrue(Stage.result(second).token() > first.token());
            Stage.until("two leads", two::isLeader);
            assertThrows(DLockException.Fenced.class, () -> first.guard("SET", name + "x", 1));
            s.ask(name, "DLOCK.FORCERELEASE", name);
            Stage.until("two has stepped down", () -> !two.isLeader());
            Stage.result(two.campaign());
            Stage.until("two leads again", two::isLeader);
            s.ask(name, "DLOCK.FORCERELEASE", name);
            two.close(); // what was lost is no error
            Stage.until("nobody leads", () -> one.who().isEmpty());
        }
    }

    /** A candidate in a process of its own: while it believes that it leads, it writes under its term. */
    static final class Candidate {
        public static void main(String[] arguments) throws Exception {
            String name = arguments[1];
            String id = arguments[2];
            DLocks locks = new DLocks(Stage.connector("lettuce", "single", arguments[0], null, null),
                    Settings.DEFAULT.lease(Stage.LEASE).hangTimeout(Stage.LEASE.multipliedBy(2)));
            Leader leader = new Leader(locks, name, id);
            while (true) {
                Hold term = leader.campaign().join();
                while (leader.isLeader()) {
                    try { // A path that is silent must not keep it from looking again.
                        term.guardAsync("RPUSH", name + ":log", term.token() + " " + id).toCompletableFuture()
                                .get(1, TimeUnit.SECONDS);
                    } catch (java.util.concurrent.ExecutionException | java.util.concurrent.TimeoutException refused) {
                        // It looks again.
                    }
                    Thread.sleep(5);
                }
            }
        }
    }

    private static Process candidate(Stage s, String address, String id) throws Exception {
        Process program = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1", "-cp", System.getProperty("java.class.path"), "dlock.LeaderTest$Candidate", address,
                s.key, id).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        s.closing(program::destroyForcibly);
        return program;
    }

    private static List<String> log(Stage s) throws Exception {
        return ((List<?>) s.ask(s.key, "LRANGE", s.key + ":log", 0, -1)).stream().map(Stage::text).toList();
    }

    /** It has written once more. */
    private static Callable<Boolean> writes(Stage s, String id) throws Exception {
        Callable<Long> count = () -> log(s).stream().filter(line -> line.endsWith(" " + id)).count();
        long before = count.call();
        return () -> count.call() > before;
    }

    private static void signal(String signal, Process program) throws Exception {
        new ProcessBuilder("kill", "-" + signal, String.valueOf(program.pid())).start().waitFor();
    }

    /** One leader is killed, one is stopped, one's path is silent, one's is cut. */
    @Test
    void noTwoLead() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            String address = Stage.addresses("single")[0].toString();
            String silent = Stage.control("path " + address);
            String cut = Stage.control("path " + address);
            s.closing(() -> Stage.control("close " + silent));
            s.closing(() -> Stage.control("close " + cut));
            Map<String, Process> programs = new HashMap<>();
            for (String id : List.of("killed", "stopped", "silent", "cut")) {
                programs.put(id, candidate(s, id.equals("silent") ? silent : id.equals("cut") ? cut : address, id));
            }
            BlockingQueue<Optional<Leader.Leading>> changes = new LinkedBlockingQueue<>();
            Leader watcher = new Leader(s.locks(), s.key, "watcher");
            s.closing(watcher.observe(Duration.ofMillis(200), changes::add));
            Set<String> seen = new HashSet<>();
            while (seen.size() < 4) {
                Optional<Leader.Leading> now = changes.poll(Stage.PATIENCE, TimeUnit.SECONDS);
                assertNotNull(now, "nobody leads after " + seen);
                if (now.isEmpty() || !seen.add(now.get().id())) {
                    continue;
                }
                String id = now.get().id();
                Stage.until(id + " writes", writes(s, id));
                switch (id) {
                    case "killed" -> programs.get(id).destroyForcibly();
                    case "stopped" -> signal("STOP", programs.get(id));
                    case "silent" -> Stage.control("silence " + silent);
                    default -> {
                        Stage.control("cut " + cut); // its hold continues over a new connection
                        Stage.until("it has written again", writes(s, id));
                        programs.get(id).destroyForcibly();
                    }
                }
            }
            // Those that believed to lead find out.
            Stage.control("sound " + silent);
            signal("CONT", programs.get("stopped"));
            String last = Stage.until("one of them leads", () -> watcher.who().map(Leader.Leading::id)
                    .filter(List.of("silent", "stopped")::contains).orElse(null));
            Stage.until("it writes", writes(s, last));
            long before = 0;
            Map<Long, String> terms = new HashMap<>();
            for (String line : log(s)) {
                long term = Long.parseLong(line.split(" ")[0]);
                assertTrue(term >= before, "term " + term + " after " + before);
                before = term;
                String id = line.split(" ")[1];
                String other = terms.put(term, id);
                assertTrue(other == null || other.equals(id), "in term " + term + ": " + other + " and " + id);
            }
            assertTrue(terms.size() >= 4, terms.toString());
        }
    }
}

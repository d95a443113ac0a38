// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisURI;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;

/** Servers of the test's own: the primary stalls, or is to be a replica, and the Sentinels promote the other one. */
class SentinelTest {
    private static int free() throws IOException {
        return Integer.parseInt(Stage.control("port"));
    }

    /** Starts the program that the stage's server is. */
    private static Process program(Stage s, String... words) throws Exception {
        String info = Stage.text(s.ask(s.key, "INFO", "server"));
        String pid = info.lines().filter(line -> line.startsWith("process_id:")).findFirst().orElseThrow().substring(11).strip();
        List<String> command = new ArrayList<>(List.of("bash", "-c", "exec -a redis-server \"$0\" \"$@\"",
                Files.readSymbolicLink(Path.of("/proc", pid, "exe")).toString()));
        command.addAll(List.of(words));
        Process program = new ProcessBuilder(command).directory(Files.createTempDirectory("dlock").toFile())
                .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        s.closing(program::destroyForcibly);
        return program;
    }

    private static String module(Stage s) throws Exception {
        for (Object one : (List<?>) s.ask(s.key, "MODULE", "LIST")) {
            List<String> row = ((List<?>) one).stream().map(Stage::text).toList();
            if (row.contains("dlock")) {
                return row.get(row.indexOf("path") + 1);
            }
        }
        throw new AssertionError("the server has no module");
    }

    private static String ask(int port, Object... words) {
        try (var connection = Stage.connect(new HostAndPort("127.0.0.1", port))) {
            Object reply = Stage.send(connection, words);
            return reply instanceof List<?> list ? list.stream().map(Stage::text).toList().toString() : Stage.text(reply);
        } catch (RuntimeException down) {
            return "";
        }
    }

    private static void signal(String name, Process program) throws Exception {
        new ProcessBuilder("kill", "-" + name, String.valueOf(program.pid())).start().waitFor();
    }

    /** A primary, its replica, and three Sentinels with a detection of 3 s. */
    private static final class Group {
        final Stage s;
        final int first = free();
        final int second = free();
        final Process primary;
        final List<Integer> sentinels = new ArrayList<>();
        final JedisClientConfig password = DefaultJedisClientConfig.builder().password("word").build();

        Group(Stage s) throws Exception {
            this.s = s;
            String module = module(s);
            primary = program(s, "--port", "" + first, "--bind", "127.0.0.1", "--save", "", "--requirepass", "word", "--masterauth", "word",
                    "--repl-diskless-sync-delay", "0", "--loadmodule", module);
            program(s, "--port", "" + second, "--bind", "127.0.0.1", "--save", "", "--requirepass", "word", "--masterauth", "word",
                    "--replicaof", "127.0.0.1 " + first, "--loadmodule", module);
            Stage.until("the replica is there", () -> told(second, "INFO", "replication").contains("master_link_status:up"));
            for (int i = 0; i < 3; i++) {
                sentinels.add(free());
                Path file = Files.createTempDirectory("dlock").resolve("sentinel.conf");
                Files.writeString(file, "port " + sentinels.get(i) + "\nbind 127.0.0.1\nsentinel monitor locks 127.0.0.1 " + first + " 2\n"
                        + "sentinel auth-pass locks word\nsentinel down-after-milliseconds locks 3000\nsentinel failover-timeout locks 5000\n");
                program(s, file.toString(), "--sentinel");
            }
            for (int one : sentinels) {
                Stage.until("the Sentinels know each other and the replica", () -> {
                    String master = ask(one, "SENTINEL", "MASTER", "locks");
                    return master.contains("num-slaves, 1") && master.contains("num-other-sentinels, 2");
                });
            }
        }

        /** What a server says, or nothing. */
        String told(int port, Object... words) {
            try (var connection = new redis.clients.jedis.Connection(new HostAndPort("127.0.0.1", port), password)) {
                Object reply = Stage.send(connection, words);
                return Stage.text(reply instanceof List<?> list ? list.get(0) : reply);
            } catch (RuntimeException down) { // it ends its connections when it is promoted
                return "";
            }
        }

        DLocks locks(String library) {
            StringBuilder uri = new StringBuilder("redis-sentinel://:word@");
            sentinels.forEach(one -> uri.append(one == sentinels.get(0) ? "" : ",").append("127.0.0.1:").append(one));
            if (library.equals("lettuce")) { // the first one loads classes, which takes seconds on a busy machine
                Stage.LETTUCE.connect(RedisURI.create(uri + "/0#locks")).close();
            }
            Connector connector = library.equals("lettuce")
                    ? new LettuceConnector(Stage.LETTUCE, RedisURI.create(uri + "/0#locks"))
                    : JedisConnector.sentinel(password, "locks", DefaultJedisClientConfig.builder().build(),
                            Set.of(new HostAndPort("127.0.0.1", sentinels.get(0)), new HostAndPort("127.0.0.1", sentinels.get(1))));
            return s.closing(new DLocks(connector, Stage.settings(Duration.ofSeconds(12))));
        }

        List<Hold> holds(DLocks locks) throws Exception {
            List<Hold> holds = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                holds.add(locks.ask(s.key + i).tryHold(Duration.ofSeconds(30)));
            }
            return holds;
        }

        void awaitKeptElsewhere(List<Hold> holds) throws Exception {
            Stage.until("all are kept by the other server", () -> {
                assertTrue(holds.stream().allMatch(Hold::isHeld), holds.stream().filter(Hold::isHeld).count() + " are held");
                return told(second, "ROLE").equals("master") && holds.stream().allMatch(hold -> hold.left().toMillis() > 9000); // before, it was less
            });
        }
    }

    /** With a detection of 3 s, holds with a lease of 1.5 x (3 s + 5 s) continue at the new primary. */
    @ParameterizedTest
    @ValueSource(strings = {"lettuce", "jedis"})
    void aStalledPrimaryLosesNoHold(String library) throws Exception {
        try (Stage s = new Stage(library, "single")) {
            Group group = new Group(s);
            List<Hold> holds = group.holds(group.locks(library));
            signal("STOP", group.primary);
            group.awaitKeptElsewhere(holds);
            holds.forEach(Hold::release);
        }
    }

    /** The former primary grants for eleven seconds more, and nobody asks it. What it has granted meanwhile the new one does not know. */
    @ParameterizedTest
    @ValueSource(strings = {"lettuce", "jedis"})
    void aPlannedFailoverIsFollowed(String library) throws Exception {
        try (Stage s = new Stage(library, "single")) {
            Group group = new Group(s);
            DLocks locks = group.locks(library);
            List<Hold> holds = group.holds(locks);
            AtomicLong followed = new AtomicLong(Long.MAX_VALUE);
            AtomicBoolean isOver = new AtomicBoolean();
            Future<Integer> turns = s.actor().start(() -> {
                int count = 0;
                while (!isOver.get()) {
                    boolean isElsewhere = System.nanoTime() > followed.get();
                    Hold hold = locks.ask(s.key).tryHold(Duration.ofSeconds(30));
                    try {
                        hold.release();
                    } catch (NotHeld lost) {
                        assertFalse(isElsewhere, "lost at the new primary: " + lost.getMessage());
                    }
                    count++;
                    Thread.sleep(20);
                }
                return count;
            });
            Stage.until("it is asked to", () -> ask(group.sentinels.get(0), "SENTINEL", "FAILOVER", "locks").equals("OK"));
            Stage.until("the Sentinels name the other one", () -> group.sentinels.stream().allMatch(one ->
                    ask(one, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "locks").contains("" + group.second)));
            Thread.sleep(2500); // it asks a Sentinel once a second
            followed.set(System.nanoTime());
            String before = calls(group);
            Thread.sleep(2000);
            assertEquals(before, calls(group), "commands to the former primary");
            group.awaitKeptElsewhere(holds);
            isOver.set(true);
            assertTrue(Stage.result(turns) > 0);
            holds.forEach(Hold::release);
        }
    }

    /** The lines of the client's commands at the former primary, without their times. */
    private static String calls(Group group) {
        return group.told(group.first, "INFO", "commandstats").lines().filter(line -> line.matches("cmdstat_dlock\\.(?!apply).*"))
                .map(line -> line.substring(0, line.indexOf(','))).sorted().toList().toString();
    }
}

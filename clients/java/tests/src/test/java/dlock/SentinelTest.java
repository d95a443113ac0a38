// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisURI;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** Servers of the test's own: the primary stands still, and the Sentinels promote the replica. */
class SentinelTest {
    private static int free() throws Exception {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    /** What the stage's server is, this is, too. */
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

    /** With a detection of 3 s, holds with a lease of 1.5 x (3 s + 5 s) go on at the new primary. */
    private void aStalledPrimary(String library) throws Exception {
        try (Stage s = new Stage(library, "single")) {
            int first = free();
            int second = free();
            String module = module(s);
            Process primary = program(s, "--port", "" + first, "--bind", "127.0.0.1", "--save", "", "--requirepass", "word", "--masterauth", "word",
                    "--repl-diskless-sync-delay", "0", "--loadmodule", module);
            program(s, "--port", "" + second, "--bind", "127.0.0.1", "--save", "", "--requirepass", "word", "--masterauth", "word",
                    "--replicaof", "127.0.0.1 " + first, "--loadmodule", module);
            var password = DefaultJedisClientConfig.builder().password("word").build();
            Stage.until("the replica is there", () -> {
                try (var connection = new redis.clients.jedis.Connection(new HostAndPort("127.0.0.1", second), password)) {
                    return Stage.text(Stage.send(connection, "INFO", "replication")).contains("master_link_status:up");
                } catch (RuntimeException down) {
                    return false;
                }
            });
            List<Integer> sentinels = new ArrayList<>();
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
            StringBuilder uri = new StringBuilder("redis-sentinel://:word@");
            sentinels.forEach(one -> uri.append(one == sentinels.get(0) ? "" : ",").append("127.0.0.1:").append(one));
            if (library.equals("lettuce")) { // the first one loads classes, which takes seconds on a busy machine
                Stage.LETTUCE.connect(RedisURI.create(uri + "/0#locks")).close();
            }
            Connector connector = library.equals("lettuce")
                    ? new LettuceConnector(Stage.LETTUCE, RedisURI.create(uri + "/0#locks"))
                    : JedisConnector.sentinel(password, "locks", DefaultJedisClientConfig.builder().build(),
                            Set.of(new HostAndPort("127.0.0.1", sentinels.get(0)), new HostAndPort("127.0.0.1", sentinels.get(1))));
            DLocks locks = s.closing(new DLocks(connector, Stage.settings(Duration.ofSeconds(12))));
            List<Hold> holds = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                holds.add(locks.ask(s.key + i).tryHold(Duration.ofSeconds(30)));
            }
            signal("STOP", primary);
            Stage.until("all are kept by the other server", () -> {
                assertTrue(holds.stream().allMatch(Hold::isHeld), library + ": " + holds.stream().filter(Hold::isHeld).count() + " are held");
                try (var connection = new redis.clients.jedis.Connection(new HostAndPort("127.0.0.1", second), password)) {
                    String info = Stage.text(Stage.send(connection, "ROLE") instanceof List<?> role ? role.get(0) : "");
                    return info.equals("master") && holds.stream().allMatch(hold -> hold.left().toMillis() > 7000);
                } catch (RuntimeException down) { // it ends its connections when it is promoted
                    return false;
                }
            });
            holds.forEach(Hold::release);
        }
    }

    @Test
    void aStalledPrimaryLosesNoHoldByLettuce() throws Exception {
        aStalledPrimary("lettuce");
    }

    @Test
    void aStalledPrimaryLosesNoHoldByJedis() throws Exception {
        aStalledPrimary("jedis");
    }
}

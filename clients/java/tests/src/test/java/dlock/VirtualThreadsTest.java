// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Virtual threads, in a process of a newer Java, if there is one on the machine. */
class VirtualThreadsTest {
    private static final int TASKS = 100;

    private static File newer() {
        Stream<File> homes = System.getenv().entrySet().stream().filter(one -> one.getKey().matches("JAVA_HOME_[23]\\d.*"))
                .map(one -> new File(one.getValue()));
        File[] installed = new File("/usr/lib/jvm").listFiles((directory, name) -> name.matches(".*-[23]\\d(-.*)?"));
        if (Runtime.version().feature() >= 21) {
            homes = Stream.of(new File(System.getProperty("java.home")));
        }
        return Stream.concat(homes, Stream.of(installed == null ? new File[0] : installed))
                .map(home -> new File(home, "bin/java")).filter(File::canExecute).findFirst().orElse(null);
    }

    /** All wait on one carrier: who pinned it while it waits would stop all others. */
    @ParameterizedTest
    @ValueSource(strings = {"lettuce", "jedis"})
    void virtualThreadsShareOneCarrier(String library) throws Exception {
        File java = newer();
        assumeTrue(java != null, "no Java of 21 or later");
        try (Stage s = new Stage(library, "single")) {
            Process program = new ProcessBuilder(java.toString(), "-XX:TieredStopAtLevel=1", "-Djdk.virtualThreadScheduler.parallelism=1",
                    "-Djdk.virtualThreadScheduler.maxPoolSize=1", "-cp", System.getProperty("java.class.path"),
                    "dlock.VirtualThreadsTest$Program", library, s.key).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            s.closing(program::destroyForcibly);
            String said = new String(program.getInputStream().readAllBytes(), StandardCharsets.UTF_8).strip();
            assertEquals(String.valueOf(TASKS), said);
            s.awaitGone();
        }
    }

    static final class Program {
        private static int count; // by the lock

        public static void main(String[] arguments) throws Exception {
            System.setProperty("java.util.logging.SimpleFormatter.format", "");
            DLocks locks = new DLocks(Stage.connector(arguments[0], "single"),
                    Settings.DEFAULT.replyTimeout(Duration.ofSeconds(Stage.PATIENCE))); // it begins cold
            var executor = (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
            List<Future<?>> all = new ArrayList<>();
            for (int i = 0; i < TASKS; i++) {
                boolean hold = i % 2 == 0;
                all.add(executor.submit(() -> {
                    try (AutoCloseable locked = hold ? locks.ask(arguments[1]).tryHold(Duration.ofSeconds(2 * Stage.PATIENCE))
                            : locks.lock(arguments[1]).hold()) {
                        int before = count;
                        Thread.sleep(1);
                        count = before + 1;
                    }
                    return null;
                }));
            }
            for (Future<?> one : all) {
                Stage.result(one);
            }
            System.out.println(count);
            Runtime.getRuntime().halt(0);
        }
    }
}

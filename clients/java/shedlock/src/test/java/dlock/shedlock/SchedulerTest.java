// SPDX-License-Identifier: MIT
package dlock.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.RedisURI;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.junit.jupiter.api.Test;

class SchedulerTest {
    /** Three processes with one schedule: each tick is run once, also after the one that runs it was killed in the middle. */
    @Test
    void oneProcessRunsEachTick() throws Exception {
        String job = "job-" + UUID.randomUUID();
        Map<String, Process> programs = new HashMap<>();
        try (var redis = DLockProviderTest.CLIENT.connect(RedisURI.create("redis://" + System.getenv("DLOCK_SINGLE")))) {
            for (int i = 0; i < 3; i++) {
                Process one = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1",
                        "-XX:+UseSerialGC", "-Djob=" + job, "-cp", System.getProperty("java.class.path"), Nightly.class.getName())
                        .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
                programs.put(String.valueOf(one.pid()), one);
            }
            String killed = null;
            List<String> log = List.of();
            for (long end = System.nanoTime() + 90_000_000_000L; log.size() < 5; Thread.sleep(10)) {
                assertTrue(System.nanoTime() < end, "too few ticks: " + log);
                log = redis.sync().lrange(job + ":log", 0, -1);
                if (log.size() == 2 && killed == null) { // in the middle of its tick
                    killed = log.get(1).split(" ")[1];
                    programs.get(killed).destroyForcibly();
                }
            }
            for (int i = 1; i < log.size(); i++) {
                String before = log.get(i - 1).split(" ")[0];
                assertEquals(Long.parseLong(before) + 1, Long.parseLong(log.get(i).split(" ")[0]), log.toString());
                assertTrue(i < 2 || !log.get(i).endsWith(" " + killed), "it is dead");
            }
        } finally {
            programs.values().forEach(Process::destroyForcibly);
        }
    }
}

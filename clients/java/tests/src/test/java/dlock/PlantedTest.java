// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.api.parallel.Isolated;

/**
 * Each case fails on a client with a fault: a case that nothing fails proves nothing. The source is replaced for a process
 * of its own, and nothing of it is left.
 */
@Isolated
class PlantedTest {
    private record Fault(List<String> cases, String file, String right, String wrong) {
        Fault(String cases, String file, String right, String wrong) {
            this(List.of(cases.split(" ")), file, right, wrong);
        }
    }

    private static final List<Fault> FAULTS = List.of(
            new Fault("closed_try", "Take", "if (timeout == 0 || core.closed) {\n                finish(null, why)",
                    "if (timeout == 0 || core.closed) {\n finish(null, null)"),
            new Fault("closed_two_seconds", "Take", "why.getMessage(), why)", "why.getMessage(), null)"),
            new Fault("closed_without_bound", "Take", "\"still waiting", "\"-"),
            new Fault("hung_try hung_later", "Core", "replyNanos = settings.replyTimeout().toNanos()", "replyNanos = 20_000_000_000L"),
            new Fault("silent_path", "Core", "BootClock.look();\n        long now", "if (!closed) return;\n long now"),
            new Fault("slow_path", "Core", "replyNanos = settings.replyTimeout().toNanos()", "replyNanos = 150_000_000L"),
            new Fault("wrong_password no_right_to_the_command no_module replaced no_right_to_renew", "DLockException",
                    "return PASSING.contains(refused.code())", "return refused != null"),
            new Fault("no_channel", "Wait", "if (denied) {\n            take.poll()", "if (!denied) {\n take.poll()"),
            new Fault("two_dead_links_of_five one_hung_node_of_three", "Keeper", "{\n                    round();",
                    "synchronized (Keeper.class) {\n for (int i = 0; i < 9; i++) try { round(); break; } catch (Unavailable no) {}"),
            new Fault("two_thousand_holds_at_200_ms", "Keeper", "renewal -> renewal.link != link && renewal.request.fixed == null",
                    "renewal -> true"),
            new Fault("forced deleted expired", "Keeper", "List<?> lost = (List<?>) reply.get(2);",
                    "List<?> lost = List.of(); link.renewals = (int) Math.min(link.renewals, count);"),
            new Fault("cut_and_kept hold_over_a_failover hold_over_a_switch hold_over_a_slot_move an_ephemeral_hold_over_a_failover_elsewhere",
                    "Keeper", "if (!loose.isEmpty()) {", "if (loose == null) {"),
            new Fault("cut_wait", "Subscriber", "all.forEach(one -> one.told(word, 0, 0));", ""),
            new Fault("wait_over_a_failover wait_over_a_switch wait_over_a_crash wait_over_a_slot_move", "Take",
                    "if (DLockException.passes(why)) {", "if (!placed && DLockException.passes(why)) {"),
            new Fault("after_close closed_without_a_channel", "Core", "if (closed) {\n            return;", "if (!closed) {\n return;"),
            new Fault("a_thousand_cycles", "Routes", "node.link(request.slot).whenComplete", "node.open().whenComplete"),
            new Fault("dropped sixty_forgotten_at_200_ms", "Keeper", "if (renewal.hold == one) {", "if (renewal.hold == null) {"),
            new Fault("the_replica_frozen", "DLockException", ", \"NOACK\");", ");"),
            new Fault("a_hold_that_may_not_last", "Keeper", "if (current.brief) {", "if (current == null) {"),
            new Fault("a_time_out_leaves_no_place a_time_out_in_the_queue", "Take", "(why != null || timeout != 0)", "why != null"),
            new Fault("several_permits a_large_request_is_not_overtaken permits_outlast_a_cut", "Request", "return permits == 1 ?",
                    "return permits > 0 ?"),
            new Fault("first_come_first_served", "Take", "placed();\n                begin(node);\n                wait.begin();",
                    "core.later(50_000_000, () -> step(this::askNow));"),
            new Fault("a_try_takes_no_place", "Take", "request.take(timeout == 0)", "request.take(false)"),
            new Fault("an_ephemeral_hold_ends_with_its_connection", "Request", "return ephemeral ?", "return ephemeral && upgrade ?"),
            new Fault("readers_and_a_writer a_semaphore_of_three an_inner_hold_ends_no_outer_one", "Request", "return limit == 1 ?",
                    "return limit > 0 ?"),
            new Fault("no_write_after_the_loss", "Hold", "Request.words(guarded)", "Request.words(words)"),
            new Fault("a_refused_keep_is_the_reason", "Core", "(why == null ? \"\" : \": \" + why.getMessage())", "\"\""),
            new Fault("no_right_to_release", "Releases", "core.lose(", "if (core.closed) core.lose("),
            new Fault("no_right_to_ping", "Subscriber", "now.join().ping();", "end(\"it may not ping\");"),
            new Fault("a_turn_takes_three_commands", "Take", "node.subscriber.hasWaits(request.key)", "timeout == 42"),
            new Fault("no_time_out_is_too_long", "Asking", "return Long.MAX_VALUE / 4;", "return 1;"),
            new Fault("a_try_at_a_closed_port a_try_at_a_replica a_try_without_replicas a_try_at_a_busy_server"
                    + " a_try_at_a_loading_server", "Take",
                    "if (timeout == 0 || core.closed) {\n                finish(null, why);", "if (core.closed) {\n finish(null, why);"),
            new Fault("a_hold_over_a_busy_server", "DLockException", "\"LOADING\", \"BUSY\",", "\"LOADING\","),
            new Fault("a_wait_at_a_loading_server", "DLockException", "\"LOADING\", \"BUSY\",", "\"BUSY\","),
            new Fault("a_late_release_ends_no_later_hold a_late_release_of_a_lost_hold taken_again_after_a_loss", "Asking",
                    "+ UUID.randomUUID()", "+ (owner == null ? UUID.randomUUID() : locks.core.id)"),
            new Fault("asked_again_after_a_lost_reply", "Take", "again = request.link != null", "again = false"),
            new Fault("bad_arguments", "Request", "key == null || key.isEmpty()", "key == null"));

    @Test
    void everyCaseHasItsFault() throws IOException {
        Set<String> planted = FAULTS.stream().flatMap(fault -> fault.cases.stream()).collect(Collectors.toCollection(TreeSet::new));
        assertEquals(CasesTest.cases().stream().map(one -> one.get("name").asText()).collect(Collectors.toCollection(TreeSet::new)),
                planted);
    }

    @TestFactory
    @EnabledIfEnvironmentVariable(named = "DLOCK_PLANTED", matches = "1")
    @Execution(ExecutionMode.SAME_THREAD)
    Stream<DynamicTest> aPlantedFaultIsSeen() {
        String only = System.getProperty("case", "");
        return FAULTS.stream().flatMap(fault -> fault.cases.stream().filter(name -> name.contains(only))
                .map(name -> DynamicTest.dynamicTest(name, () -> see(fault, name))));
    }

    private static void see(Fault fault, String name) throws Exception {
        Path there = Files.createTempDirectory("dlock-planted");
        try {
            String source = Files.readString(Path.of("../core/src/main/java/dlock/" + fault.file + ".java"));
            assertTrue(source.contains(fault.right), fault.file + " has it");
            Path faulty = Files.writeString(there.resolve(fault.file + ".java"), source.replace(fault.right, fault.wrong));
            String classes = System.getProperty("java.class.path");
            int built = ToolProvider.getSystemJavaCompiler().run(null, null, null, "-proc:none", "-nowarn", "-cp", classes,
                    "-d", there.toString(), faulty.toString());
            assertEquals(0, built, "it builds");
            File said = there.resolve("said").toFile();
            var builder = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-cp",
                    there + File.pathSeparator + classes, "dlock.PlantedTest$Program", name)
                    .redirectErrorStream(true).redirectOutput(said);
            boolean patient = List.of("two_thousand_holds_at_200_ms", "two_dead_links_of_five", "one_hung_node_of_three",
                    "cut_and_kept", "the_replica_frozen", "a_thousand_cycles", "a_hold_that_may_not_last", "a_time_out_in_the_queue",
                    "a_turn_takes_three_commands", "sixty_forgotten_at_200_ms", "a_late_release_of_a_lost_hold",
                    "asked_again_after_a_lost_reply", "taken_again_after_a_loss").contains(name);
            builder.environment().putAll(java.util.Map.of("DLOCK_LATE", "0.5", "PATIENCE", patient ? "30" : "6"));
            Process program = builder.start();
            boolean ended = program.waitFor(120, TimeUnit.SECONDS);
            program.destroyForcibly();
            List<String> lines = Files.readAllLines(said.toPath());
            String seen = lines.stream().filter(line -> line.startsWith("seen: ")).findFirst().orElse(null);
            assertTrue(ended && seen != null, "nobody has seen it:\n" + String.join("\n", lines));
            System.out.println(name + ": " + seen);
        } finally {
            try (var files = Files.walk(there)) {
                files.sorted(java.util.Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
            }
        }
    }

    /** Runs one case on whatever client it finds. */
    static final class Program {
        public static void main(String[] arguments) throws Exception {
            JsonNode one = CasesTest.cases().stream().filter(some -> some.get("name").asText().equals(arguments[0]))
                    .findFirst().orElseThrow();
            for (JsonNode step : one.get("steps")) { // who waits for ever is not waited for
                if (step.get("do").asText().equals("lock") && step.has("timeout") && step.get("timeout").isNull()) {
                    ((ObjectNode) step).put("timeout", 3);
                }
            }
            try {
                CasesTest.run("lettuce", one);
            } catch (Exception | AssertionError seen) {
                System.out.println("seen: " + seen);
            }
            Runtime.getRuntime().halt(0);
        }
    }
}

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
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
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
    /** Other words in the source of a class of the core. */
    private record Edit(String file, String right, String wrong) {}

    private record Fault(List<String> cases, List<Edit> edits) {
        Fault(String cases, Edit... edits) {
            this(List.of(cases.split(" ")), List.of(edits));
        }

        Fault(String cases, String file, String right, String wrong) {
            this(cases, new Edit(file, right, wrong));
        }
    }

    private static final Edit NO_CANCEL = new Edit("Take", "private void cancel() {", "private void cancel() {\n if (asked >= 0) return;");

    private static final Edit NO_RELEASE = new Edit("Sessions", "say(key, Request.bytes(List.of(\"DLOCK.RELEASE\", key, owner, \"TOKEN\", token)), 0);", "");

    private static final List<Fault> FAULTS = List.of(
            new Fault("closed_try", "Take", "            fail(why);\n            return;", "            finish(null, null);\n            return;"),
            new Fault("closed_two_seconds", "Take", "why.getMessage(), why)", "why.getMessage(), null)"),
            new Fault("closed_without_bound", "Take", "\"still waiting", "\"-"),
            new Fault("hung_try hung_later",
                    new Edit("Settings", "return replyTimeout.toNanos();", "return 20_000_000_000L;"),
                    new Edit("Library", "way.node, settings.replyTimeout()", "way.node, java.time.Duration.ofSeconds(20)")),
            new Fault("silent_path", "Clock", "return end <= now() && (grace <= now() || end <= covers);", "return false;"),
            new Fault("slow_path", "Settings", "return replyTimeout.toNanos();", "return 150_000_000L;"),
            new Fault("wrong_password no_right_to_the_command no_module two_that_wait_for_each_other", "DLockException",
                    "return PASSING.contains(code(refused))", "return refused != null"),
            new Fault("replaced", "Sessions", "\"cancelled\", \"replaced\",", "\"cancelled\","),
            new Fault("two_dead_links_of_five one_hung_node_of_three",
                    new Edit("Sessions", "private final ReentrantLock guard", "private static final ReentrantLock guard"),
                    new Edit("Session", "session.error = why;", "session.error = why;\n if (why != null) try { Thread.sleep(s.settings.lease()"
                            + ".toMillis()); } catch (InterruptedException no) { }")),
            new Fault("two_thousand_holds_at_200_ms", "Sessions", "session.bounded().forEach", "List.copyOf(session.holds.values()).forEach"),
            new Fault("forced deleted expired cut_and_kept", "Sessions", "session.loop == null && !isClosed", "session.loop == null && isClosed"),
            new Fault("a_short_hold_beside_a_long_one", "Sessions", "session.bounded().forEach(this::renew);", ""),
            new Fault("cut_wait", "Session", "notBefore = Clock.now() + 100 * MS;", "notBefore = Clock.now() + NEVER / 2;"),
            new Fault("wait_over_a_failover wait_over_a_switch wait_over_a_crash wait_over_a_slot_move", "Take",
                    "        this.word = word;\n", "        if (word.equals(\"again\") || word.equals(\"gone\")) {\n return;\n }\n this.word = word;\n"),
            new Fault("hold_over_a_failover hold_over_a_switch hold_over_a_slot_move a_hold_over_a_crash an_overflow_of_rows", "Sessions",
                    "if (hold.renewal != null && !hold.renewal.isDone() || hold.isOver) {", "if (hold != null || hold.isOver) {"),
            new Fault("after_close", "DLocks", "        sessions.close();", ""),
            new Fault("a_thousand_cycles", "Library", "lines.put(way, opening);", "lines.put(new Way(way.node + lines.size(), true), opening);"),
            new Fault("dropped sixty_forgotten_at_200_ms", "Sessions", "hold.isOver ? null", "hold != null ? null"),
            new Fault("the_replica_frozen", "Take", "if (word.equals(\"again\")) {", "if (word.equals(\"-\")) {"),
            new Fault("a_hold_that_may_not_last", "Sessions", "case \"taken\" -> {", "case \"taken\" -> { }\n case \"taken!\" -> {"),
            new Fault("a_late_word", "Sessions", "session.heard = Math.max(session.heard, sent);", ""),
            new Fault("a_time_out_leaves_no_place a_time_out_in_the_queue", NO_CANCEL,
                    new Edit("Request", "left >= NEVER / 2 ? 0 : Math.max(1, left / MS)", "600_000"),
                    new Edit("Session", "LINGER = SECOND;", "LINGER = 600 * SECOND;"),
                    NO_RELEASE),
            new Fault("several_permits a_large_request_is_not_overtaken permits_outlast_a_cut", "Request", "if (permits > 1) {",
                    "if (permits > 99) {"),
            new Fault("bad_arguments", "Request", "key == null || key.isEmpty()", "key == null"),
            new Fault("first_come_first_served", "Take", "owner, wait == 0, left)", "owner, true, left)"),
            new Fault("a_try_takes_no_place", NO_CANCEL, new Edit("Take", "owner, wait == 0, left)", "owner, false, 600 * SECOND)")),
            new Fault("readers_and_a_writer a_semaphore_of_three", new Edit("Request", "if (limit == SHARED) {", "if (limit == 0) {"),
                    new Edit("Request", "} else if (limit > 1) {", "} else if (limit == 0) {")),
            new Fault("no_write_after_the_loss", "Hold", "Request.bytes(all);", "Request.bytes(all.subList(3, all.size()));"),
            new Fault("no_right_to_release", "Sessions", "if (why instanceof Refused && !DLockException.passes(why)) {",
                    "if (isClosed) {"),
            new Fault("a_turn_takes_three_commands", "Sessions", "clock.set(to.loop == null ?", "renew(hold);\n        clock.set(to.loop == null ?"),
            new Fault("a_try_at_a_closed_port a_try_at_a_replica a_try_without_replicas a_try_at_a_busy_server"
                    + " a_try_at_a_loading_server", "Take", "if (wait == 0 || !DLockException.passes(why)) {",
                    "if (!DLockException.passes(why)) {"),
            new Fault("a_hold_over_a_busy_server", "DLockException", "\"LOADING\", \"BUSY\",", "\"LOADING\","),
            new Fault("a_wait_at_a_loading_server", "DLockException", "\"LOADING\", \"BUSY\",", "\"BUSY\","),
            new Fault("a_wait_at_a_drained_server", "DLockException", "\"NOACK\", \"QUARANTINE\"", "\"NOACK\""),
            new Fault("no_time_out_is_too_long", "Asking", "? timeout.toNanos() : NEVER", "? timeout.toNanos() : 1"),
            new Fault("asked_again_after_a_lost_reply", "Take", "|| asked > 1) {", ") {"),
            new Fault("late_commands_of_open_connections", new Edit("Sessions", "+ numbers;", "+ \"me\";"),
                    new Edit("Take", "Session in = session;", "Session in = session;\n s.say(key, Request.bytes(List.of(\"DLOCK.RELEASE\","
                            + " key, owner, \"HOLDS\", 0)), NEVER / 8);")),
            new Fault("a_late_request_is_given_back a_loss_is_given_back a_row_that_nobody_knows", NO_RELEASE,
                    new Edit("Sessions", "end(hold, reason, true, 0);", "lose(hold, reason);")),
            new Fault("released_during_a_failover", "Errand", "if (ends.test(error)) {", "if (error != null) {"),
            new Fault("released_while_the_server_is_away", "Hold", "s.timer.schedule(() -> done.completeExceptionally(errand.why()),",
                    "s.timer.schedule(() -> {\n done.completeExceptionally(errand.why());\n errand.cancel(false);\n },"),
            new Fault("the_last_word", "Session", "String key = session.anyKey();",
                    "if (isLast) {\n session.loop = null;\n return null;\n }\n String key = session.anyKey();"),
            new Fault("a_free_lock_takes_two_commands", "Belief", "return Clock.now() >= third();", "return true;"),
            new Fault("said_twice", "Take", "if (wait == 0 || !DLockException.passes(why)) {", "if (why != null) {"),
            new Fault("two_actors_of_one_client an_actor_that_waits_for_itself", "Sessions", "(actor == null ? \"\" : actor + \"#\")", "\"\""),
            new Fault("forgotten_and_left_to_its_lease", "Sessions", "has not released it\", true, hold.lease)",
                    "has not released it\", true, 0)"),
            new Fault("released_by_the_work_itself", "Hold", "if (!belief.isReleased) {", "if (belief != null) {"),
            new Fault("released_by_the_work_itself", "DLock", "if (!isDone) {", "if (depth > 0) {"),
            new Fault("max_hold", "Belief", "Clock.after(since, request.maxHold())", "Clock.NEVER * 2"),
            new Fault("release_after", "Hold", "end(time.toMillis() * MS,", "end(0,"),
            new Fault("many_of_one_slot", "Many", "before == null || !before", "before != one || !before"),
            new Fault("a_refused_session_is_the_reason", "Session", "session.error = why;", ""),
            new Fault("a_refused_session_is_the_reason", "Session", "if (!DLockException.passes(why)) {", "if (isOver && isFirst && isLast) {"));

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
            Map<String, String> sources = new HashMap<>();
            for (Edit edit : fault.edits) {
                String source = sources.containsKey(edit.file) ? sources.get(edit.file)
                        : Files.readString(Path.of("../core/src/main/java/dlock/" + edit.file + ".java"));
                assertTrue(source.contains(edit.right), edit.file + " has it");
                sources.put(edit.file, source.replace(edit.right, edit.wrong));
            }
            String classes = System.getProperty("java.class.path");
            List<String> words = new ArrayList<>(List.of("-proc:none", "-nowarn", "-cp", classes, "-d", there.toString()));
            for (var source : sources.entrySet()) {
                words.add(Files.writeString(there.resolve(source.getKey() + ".java"), source.getValue()).toString());
            }
            int built = ToolProvider.getSystemJavaCompiler().run(null, null, null, words.toArray(String[]::new));
            assertEquals(0, built, "it builds");
            File said = there.resolve("said").toFile();
            var builder = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-cp",
                    there + File.pathSeparator + classes, "dlock.PlantedTest$Program", name)
                    .redirectErrorStream(true).redirectOutput(said);
            builder.environment().putAll(Map.of("DLOCK_LATE", "0.5", "PATIENCE", "25"));
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
            for (JsonNode step : one.get("steps")) { // a wait without a bound gets one
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

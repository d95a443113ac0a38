// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.DLockException.Unavailable;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.stream.Stream;
import javax.net.ssl.SSLException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The rules without a server: what a session's answers say of its holds, and what becomes of a call. */
class RulesTest {
    private static final long LEASE = 600 * Clock.MS;

    private static Belief hold(Session session, long token, long lease) {
        Request request = new Request(List.of("key"), lease, Clock.NEVER, null, 1, 1, Collections.singletonList(null));
        Belief hold = new Belief("key", "owner", token, Clock.now() + lease / 3, request);
        hold.session = session;
        session.holds.put(hold.place(), hold);
        return hold;
    }

    @Test
    void anAnswerThatComesLateRenewsNobody() {
        Session session = new Session(1, "key");
        hold(session, 1, LEASE);
        hold(session, 2, LEASE);
        session.believe(Clock.now() - LEASE, Clock.now() - LEASE / 3);
        assertEquals(List.of(), session.bounded(), "the server has them for long");
    }

    @Test
    void aHoldBesideAShorterOneIsRenewed() {
        Session session = new Session(1, "key");
        Belief one = hold(session, 1, LEASE);
        hold(session, 2, LEASE / 10);
        session.believe(Clock.now(), Clock.now() + LEASE / 10);
        assertEquals(List.of(one), session.bounded());
        session.believe(Clock.now(), Clock.now() + LEASE);
        assertEquals(List.of(), session.bounded(), "there is time");
    }

    /** It says nothing of a hold that came into the session after the question. */
    @Test
    void anAnswerCountsForWhatWasThereWhenItWasAskedFor() {
        Session session = new Session(1, "key");
        Belief hold = hold(session, 1, LEASE);
        hold.told = Clock.now();
        session.believe(hold.told - 1, Clock.NEVER);
        assertTrue(hold.until() < hold.told + LEASE);
        session.believe(hold.told + 1, hold.told + 2 * LEASE);
        assertEquals(hold.told + 2 * LEASE, hold.until());
    }

    /** The server keeps the place, and its word about the end does not come in time: others have the lock. */
    @Test
    void aPlaceThatWasKeptUntilTheEndSaysTaken() throws Exception {
        try (DLocks locks = answering(words -> CompletableFuture.completedFuture(
                words.startsWith("DLOCK.SESSION") ? Arrays.asList(5L, 0L, null, List.of()) : List.of(0L, 0L, 5L)))) {
            assertNull(locks.ask("key").tryHold(Duration.ofMillis(300)));
        }
    }

    /** It has asked again since, and the server has kept its place. */
    @Test
    void aFailureBeforeTheWaitIsNotItsReason() throws Exception {
        AtomicBoolean hasFailed = new AtomicBoolean();
        try (DLocks locks = answering(words -> words.startsWith("DLOCK.SESSION")
                ? CompletableFuture.completedFuture(Arrays.asList(5L, 0L, null, List.of()))
                : hasFailed.getAndSet(true) ? CompletableFuture.completedFuture(List.of(0L, 0L, 5L))
                : CompletableFuture.failedFuture(new Said("LOADING it starts")))) {
            assertNull(locks.ask("key").tryHold(Duration.ofSeconds(1)));
        }
    }

    /** What has come meanwhile is yet to be read: nothing is over for the time that an answer needs. */
    @Test
    void aShortStallIsSeen() throws Exception {
        CountDownLatch ring = new CountDownLatch(1);
        Clock clock = new Clock(timer, ring::countDown);
        long end = Clock.now() + 400 * Clock.MS;
        clock.set(end);
        timer.execute(() -> {
            try {
                Thread.sleep(700); // the whole process, as it were
            } catch (InterruptedException over) {
                Thread.currentThread().interrupt();
            }
        });
        assertTrue(ring.await(5, TimeUnit.SECONDS));
        assertTrue(clock.hasRung(3 * Clock.SECOND));
        assertEquals(false, clock.isOver(end), "it is late by 0.3 s");
        Thread.sleep(100);
        assertEquals(false, clock.isOver(end));
    }

    /** A machine that is busy all the time does not put off a loss for ever. */
    @Test
    void aClockThatIsAlwaysLateTellsOfALossAllTheSame() throws Exception {
        CountDownLatch isOver = new CountDownLatch(1);
        long end = Clock.now() + 100 * Clock.MS;
        AtomicReference<Clock> clock = new AtomicReference<>();
        clock.set(new Clock(timer, () -> {
            clock.get().hasRung(3 * Clock.SECOND);
            if (clock.get().isOver(end)) {
                isOver.countDown();
            } else {
                clock.get().set(Clock.now() + 50 * Clock.MS);
            }
        }));
        clock.get().set(end);
        timer.scheduleWithFixedDelay(() -> LockSupport.parkNanos(400 * Clock.MS), 0, 1, TimeUnit.MILLISECONDS);
        assertTrue(isOver.await(10, TimeUnit.SECONDS));
    }

    // ---- the loop ---------------------------------------------------------------------------------------------------

    private static final long LEFT = 2_200;

    /** Makes locks of a server that grants what is asked for. The test sets the answers to SESSION by whether it blocks. */
    private DLocks locks(Function<Boolean, CompletionStage<Object>> sessions) {
        return answering(words -> words.startsWith("DLOCK.SESSION") ? sessions.apply(words.contains(" BLOCK "))
                : CompletableFuture.completedFuture(List.of(7L, 5L)));
    }

    /** Makes locks of a server of which the test sets all answers. */
    private DLocks answering(Function<String, CompletionStage<Object>> answers) {
        Connector connector = new Connector() {
            @Override
            public String said(Throwable error) {
                return Connector.messageOf(error, Said.class);
            }

            @Override
            public Line open(String node, Duration within) {
                return new Line() {
                    @Override
                    public CompletionStage<Object> send(List<byte[][]> commands) {
                        String words = String.join(" ", Stream.of(commands.get(0)).map(word -> new String(word, UTF_8)).toList());
                        seen.add(words);
                        return answers.apply(words);
                    }

                    @Override
                    public void close() {
                        seen.add("close");
                    }
                };
            }
        };
        return new DLocks(connector, Settings.DEFAULT.lease(Duration.ofSeconds(3)));
    }

    /** Returns the answer after so long: it has no rows, and tells of a lease that the server keeps. */
    private static CompletionStage<Object> kept(long afterMs) {
        return new CompletableFuture<Object>().completeOnTimeout(Arrays.asList(5L, 0L, LEFT, List.of()), afterMs, TimeUnit.MILLISECONDS);
    }

    @Test
    void aLostAnswerCostsNoHold() throws Exception {
        AtomicInteger blocking = new AtomicInteger();
        try (DLocks locks = locks(isBlocking -> !isBlocking ? kept(0)
                : blocking.getAndIncrement() == 0 ? new CompletableFuture<>() : kept(500))) {
            Hold hold = locks.ask("key").hold();
            hold.lost().thenAccept(seen::add);
            Thread.sleep(5000);
            assertTrue(hold.isHeld(), seen.toString());
            assertTrue(blocking.get() > 1, seen.toString());
            assertTrue(seen.contains("close"), "the connection without an answer is left: " + seen);
        }
    }

    @Test
    void twoLateAnswersCostNoHold() throws Exception {
        try (DLocks locks = locks(isBlocking -> kept(isBlocking ? 1100 : 600))) {
            Hold hold = locks.ask("key").hold();
            hold.lost().thenAccept(seen::add);
            Thread.sleep(6000);
            assertTrue(hold.isHeld(), seen.toString());
        }
    }

    /** The reason of a loss says whether answers came late or none came. */
    @Test
    void aLossSaysHowOldTheLastAnswerIs() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (DLocks locks = locks(isBlocking -> asked.getAndIncrement() == 0 ? kept(0) : new CompletableFuture<>())) {
            Hold hold = locks.ask("key").hold();
            String why = hold.lost().toCompletableFuture().get(10, TimeUnit.SECONDS);
            assertTrue(hold.isLost());
            assertTrue(why.matches("nobody has confirmed it before its end: the last answer was sent 2[.][0-9] s ago, "
                    + "the question after it [0-9.]+ s ago, the server does not answer"), why);
        }
    }

    /** The job continues with what it was doing: a loop that ended would end all holds, one lease later. */
    @Test
    void aStepThatFailsIsAnAnswerToItsJob() throws Exception {
        BlockingQueue<RuntimeException> answers = new LinkedBlockingQueue<>();
        Job job = new Job() {
            private int steps;

            @Override
            public Step next() {
                steps++;
                if (steps == 2) {
                    throw new StackOverflowError("next");
                }
                return steps > 3 ? null : new Step("key", Request.bytes(List.of("DLOCK.SESSION")), Clock.SECOND, false);
            }

            @Override
            public void answered(long sent, Object reply, RuntimeException why) {
                if (why == null && steps == 1) {
                    throw new StackOverflowError("answered");
                }
                answers.add(why == null ? new IllegalStateException("well") : why);
            }
        };
        try (DLocks locks = locks(isBlocking -> kept(10))) {
            new Driver(locks.sessions, job).run();
            for (String text : List.of("the server has answered", "next", "well")) {
                RuntimeException why = answers.poll(5, TimeUnit.SECONDS);
                assertTrue(why != null && why.getMessage().startsWith(text), String.valueOf(why));
            }
        }
    }

    /** A failover may end thousands of holds at once. */
    @Test
    void aMassLossNeedsNoCrowdOfThreads() throws Exception {
        Set<Thread> threads = ConcurrentHashMap.newKeySet();
        List<String> lost = new CopyOnWriteArrayList<>();
        Observer slow = new Observer() {
            @Override
            public void lost(String key, String reason) {
                threads.add(Thread.currentThread());
                lost.add(key);
            }
        };
        try (FakeLocks fake = new FakeLocks(Settings.DEFAULT.observer(slow))) {
            List<Hold> holds = new ArrayList<>();
            for (int i = 0; i < 200; i++) {
                holds.add(fake.locks().ask("key" + i).hold());
            }
            fake.locks().close();
            Stage.until("all are told", () -> lost.size() == holds.size());
            assertTrue(threads.size() < 5, threads.size() + " threads");
        }
    }

    /** It may wait for something that needs the locks. */
    @Test
    void anObserverHoldsUpNobody() throws Exception {
        Observer waits = new Observer() {
            @Override
            public void granted(String key, Duration after) {
                try {
                    over.await();
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
            }
        };
        try (FakeLocks fake = new FakeLocks(Settings.DEFAULT.observer(waits))) {
            CompletableFuture<Hold> hold = CompletableFuture.supplyAsync(() -> fake.locks().ask("key").hold());
            Thread.sleep(300);
            assertTrue(CompletableFuture.supplyAsync(() -> fake.locks().sessions.under(() -> true)).get(2, TimeUnit.SECONDS));
            over.countDown();
            hold.join().release();
        }
    }

    // ---- calls ------------------------------------------------------------------------------------------------------

    private final List<String> seen = new CopyOnWriteArrayList<>();
    private final CountDownLatch over = new CountDownLatch(1);
    private final ScheduledExecutorService timer = Executors.newScheduledThreadPool(1, task -> Sessions.daemon(task, "timer"));

    private static final class Said extends RuntimeException {
        Said(String words) {
            super(words);
        }
    }

    /** Makes two nodes, which serve the keys a and b. The test sets what each of them answers. */
    private Library library(BiFunction<String, String, CompletionStage<Object>> answers) {
        return library(answers, task -> Sessions.daemon(task, "opens").start());
    }

    private Library library(BiFunction<String, String, CompletionStage<Object>> answers, Executor background) {
        Connector connector = new Connector() {
            @Override
            public int slot(String key) {
                return key.equals("a") ? 1 : 2;
            }

            @Override
            public boolean isWatched() {
                return isWatched;
            }

            @Override
            public String node(int slot) {
                if (strange.get()) {
                    throw new IllegalStateException("strange");
                }
                return slot == 1 && !hasMoved ? "a:1" : "b:2";
            }

            @Override
            public void refresh(Duration within) throws Exception {
                seen.add("refresh");
                if (moves) {
                    Thread.sleep(100);
                    hasMoved = true;
                    return;
                }
                over.await(); // as if a node hung
            }

            @Override
            public String said(Throwable error) {
                return Connector.messageOf(error, Said.class);
            }

            @Override
            public Line open(String node, Duration within) {
                seen.add("open " + node);
                return new Line() {
                    @Override
                    public CompletionStage<Object> send(List<byte[][]> commands) {
                        String words = String.join(" ", commands.stream().flatMap(Stream::of).map(word -> new String(word, UTF_8)).toList());
                        return answers.apply(node, words);
                    }

                    @Override
                    public void close() {
                        seen.add("close " + node);
                    }
                };
            }
        };
        return new Library(connector, Settings.DEFAULT.replyTimeout(Duration.ofMillis(500)), timer, background);
    }

    private final AtomicBoolean strange = new AtomicBoolean();
    private boolean isWatched;
    private boolean moves;
    private volatile boolean hasMoved;

    private static CompletableFuture<Object> call(Library library, String key) {
        return library.call(key, Request.bytes(List.of("GET", key)), Clock.NEVER, false);
    }

    @AfterEach
    void end() {
        over.countDown();
        timer.shutdownNow();
    }

    @Test
    void aServerThatHangsHoldsUpNoOther() throws Exception {
        Library library = library((node, words) -> node.equals("a:1") ? new CompletableFuture<>() : CompletableFuture.completedFuture(1L));
        CompletableFuture<Object> hangs = call(library, "a");
        while (!hangs.isDone()) {
            assertEquals(1L, call(library, "b").get(400, TimeUnit.MILLISECONDS));
        }
        assertThrows(Unavailable.class, () -> Hold.await(hangs));
        Stage.until("its connection is ended", () -> seen.contains("close a:1"));
        Stage.until("the library is asked", () -> seen.contains("refresh"));
        assertEquals(1L, call(library, "b").get(400, TimeUnit.MILLISECONDS), "also while that hangs");
        assertThrows(Unavailable.class, () -> Hold.await(call(library, "a")));
        assertEquals(List.of("open a:1", "open a:1"), seen.stream().filter("open a:1"::equals).toList());
        assertEquals(List.of("open b:2"), seen.stream().filter(one -> one.endsWith("b:2")).toList());
    }

    /** A node that has not answered is asked again only if the library still names it. */
    @Test
    void aLookUnderWayIsWaitedFor() {
        moves = true;
        Library library = library((node, words) -> node.equals("a:1") ? new CompletableFuture<>() : CompletableFuture.completedFuture(1L));
        assertThrows(Unavailable.class, () -> Hold.await(call(library, "a")));
        assertEquals(1L, Hold.await(call(library, "a")));
        assertEquals(List.of("open a:1"), seen.stream().filter("open a:1"::equals).toList());
    }

    @Test
    void aSlotThatMovesIsFollowed() {
        Library library = library((node, words) -> node.equals("a:1") ? CompletableFuture.failedFuture(
                new Said(words.equals("GET a") ? "MOVED 1 b:2" : "ERR")) : CompletableFuture.completedFuture(words));
        assertEquals("GET a", Hold.await(call(library, "a")));
        Library asking = library((node, words) -> node.equals("a:1") ? CompletableFuture.failedFuture(new Said("ASK 1 b:2"))
                : CompletableFuture.completedFuture(words));
        assertEquals("ASKING GET a", Hold.await(call(asking, "a")));
        Library circle = library((node, words) -> CompletableFuture.failedFuture(new Said("MOVED 1 " + node)));
        var moved = assertThrows(DLockException.Refused.class, () -> Hold.await(call(circle, "a")));
        assertTrue(moved.getMessage().startsWith("MOVED"), moved.getMessage());
    }

    @Test
    void aReplicaIsLeft() throws Exception {
        Library library = library((node, words) -> CompletableFuture.failedFuture(new Said("READONLY it is a replica")));
        assertThrows(DLockException.Refused.class, () -> Hold.await(call(library, "a")));
        Stage.until("it is left", () -> seen.contains("close a:1"));
    }

    /** The timeout of a caller that waits less long than for a reply says nothing about the server. */
    @Test
    void aCallersOwnTimeEndsNoConnection() throws Exception {
        Library library = library((node, words) -> new CompletableFuture<>());
        assertThrows(Unavailable.class, () -> Hold.await(library.call("a", Request.bytes(List.of("GET", "a")), 20 * Clock.MS, false)));
        Stage.until("it is connected", () -> !seen.isEmpty());
        assertThrows(Unavailable.class, () -> Hold.await(library.call("a", Request.bytes(List.of("GET", "a")), 20 * Clock.MS, false)));
        assertEquals(List.of("open a:1"), seen);
    }

    /** The node that has said where the slot is now is well. */
    @Test
    void aNodeThatHangsEndsNoConnectionToWhoNamedIt() throws Exception {
        Library library = library((node, words) -> node.equals("a:1") ? CompletableFuture.failedFuture(new Said("MOVED 1 b:2"))
                : new CompletableFuture<>());
        assertThrows(Unavailable.class, () -> Hold.await(call(library, "a")));
        Stage.until("the one that hangs is left", () -> seen.contains("close b:2"));
        assertEquals(false, seen.contains("close a:1"));
    }

    /** A caller gets the error that its connector throws, and the next call works. */
    @Test
    void whatAConnectorThrowsIsTold() throws Exception {
        Library library = library((node, words) -> CompletableFuture.completedFuture(1L));
        strange.set(true);
        assertEquals("strange", assertThrows(Unavailable.class, () -> Hold.await(call(library, "a"))).getMessage());
        strange.set(false);
        assertEquals(1L, Hold.await(call(library, "a")));
        AtomicBoolean isFull = new AtomicBoolean(true);
        Library full = library((node, words) -> CompletableFuture.completedFuture(1L), task -> {
            if (isFull.getAndSet(false)) {
                throw new OutOfMemoryError("unable to create native thread");
            }
            Sessions.daemon(task, "opens").start();
        });
        long began = Clock.now();
        assertThrows(Unavailable.class, () -> Hold.await(call(full, "a")));
        assertTrue(Clock.now() - began < 400 * Clock.MS, "at once");
        assertEquals(1L, Hold.await(call(full, "a")));
    }

    /** The primary is known, and is as good as any other until a Sentinel names another one. */
    @Test
    void aSentinelThatHangsHoldsUpOneCall() throws Exception {
        isWatched = true;
        Library library = library((node, words) -> CompletableFuture.completedFuture(1L));
        assertEquals(1L, Hold.await(call(library, "a")));
        Thread.sleep(1050);
        long began = Clock.now();
        for (int i = 0; i < 100; i++) {
            assertEquals(1L, Hold.await(call(library, "a")));
        }
        assertTrue(Clock.now() - began < Clock.SECOND, Clock.now() - began + " ns");
    }

    /** What waits for a thread of the library would come behind the command that takes it back. */
    @Test
    void whatIsGivenUpIsNotSentLater() {
        CompletableFuture<Object> sending = new CompletableFuture<>();
        Library library = library((node, words) -> sending);
        assertThrows(Unavailable.class, () -> Hold.await(call(library, "a")));
        assertTrue(sending.isCancelled());
    }

    /** The clock waits for no work of a call that is out of time. */
    @Test
    void aTimeOutIsNoWorkOfTheClock() throws Exception {
        try (DLocks locks = locks(isBlocking -> new CompletableFuture<>())) {
            locks.sessions.library.call("key", Request.bytes(List.of("DLOCK.SESSION")), 50 * Clock.MS, false)
                    .whenComplete((value, why) -> seen.add(Thread.currentThread().getName()));
            Stage.until("it is out of time", () -> seen.contains("dlock-calls"));
        }
    }

    /** An error of a thread of ours would name no line of the program. */
    @Test
    void anErrorNamesItsCaller() {
        try (DLocks locks = answering(words -> CompletableFuture.supplyAsync(() -> {
            throw new Said(words.startsWith("DLOCK.GUARD") ? "FENCED no" : "NOPERM no");
        }))) {
            var refused = assertThrows(DLockException.Refused.class, () -> locks.lock("key").lock());
            assertEquals("NOPERM", refused.code());
            assertTrue(Stream.of(refused.getStackTrace()).anyMatch(one -> one.getClassName().startsWith("dlock.RulesTest")));
            assertTrue(refused.getCause() instanceof DLockException.Refused);
        }
    }

    // ---- the end of a hold --------------------------------------------------------------------------------------------

    /** The lock is not to stay taken for as long as this program lives. */
    @Test
    void whatMayNotBeLeftToItsLeaseIsReleased() throws Exception {
        try (DLocks locks = answering(words -> words.startsWith("DLOCK.RENEW") ? CompletableFuture.failedFuture(new Said("NOPERM no RENEW"))
                : CompletableFuture.completedFuture(words.startsWith("DLOCK.RELEASE") ? 0L : List.of(7L, 5L)))) {
            Hold hold = locks.ask("key").hold();
            assertThrows(DLockException.Refused.class, () -> hold.releaseAfter(Duration.ofSeconds(5)));
            Stage.until("it is released", () -> seen.stream().anyMatch(words -> words.startsWith("DLOCK.RELEASE")));
            assertThrows(NotHeld.class, hold::release);
        }
    }

    /** The answer to the first command is lost. A lock whose time is over when the next one is answered has ended as it should. */
    @Test
    void aLockThatWasLeftMayEndBeforeAnAnswer() throws Exception {
        for (long ms : List.of(60_000L, 50L)) {
            AtomicInteger tries = new AtomicInteger();
            try (DLocks locks = answering(words -> words.startsWith("DLOCK.RENEW")
                    ? CompletableFuture.failedFuture(tries.getAndIncrement() == 0 ? new UnknownHostException("nobody") : new Said("NOTHELD no"))
                    : CompletableFuture.completedFuture(List.of(7L, 5L)))) {
                Hold hold = locks.ask("key").hold();
                if (ms > 50) {
                    assertThrows(NotHeld.class, () -> hold.releaseAfter(Duration.ofMillis(ms)));
                } else {
                    hold.releaseAfter(Duration.ofMillis(ms));
                }
                assertEquals(2, tries.get());
            }
        }
    }

    /** A name that cannot be looked up, or a login that is refused, is no answer of a server: it still has the hold, and renews it. */
    @Test
    void anErrandEndsByAnAnswer() throws Exception {
        Iterator<Exception> failures = List.of(new UnknownHostException("no such name"), new SSLException("no such certificate"),
                new IllegalStateException("strange"), new Said("WRONGPASS no such user"), new Said("NOAUTH who are you"),
                new Said("ERR max number of clients + cluster connections reached")).iterator();
        try (DLocks locks = answering(words -> words.startsWith("DLOCK.RELEASE") && failures.hasNext()
                ? CompletableFuture.failedFuture(failures.next())
                : CompletableFuture.completedFuture(words.startsWith("DLOCK.RELEASE") ? 0L : List.of(7L, 5L)))) {
            locks.ask("key").hold().releaseAsync();
            Stage.until("it is answered", () -> sent("DLOCK.RELEASE") == 7);
        }
    }

    private long sent(String command) {
        return seen.stream().filter(words -> words.startsWith(command)).count();
    }

    /** Rights may come back: until the end of the hold the server that has another session is asked again. */
    @Test
    void aRenewalThatIsRefusedIsSaidAgain() throws Exception {
        try (DLocks locks = answering(words -> words.startsWith("DLOCK.SESSION") ? CompletableFuture.completedFuture(
                Arrays.asList(6L, 0L, LEFT, List.of()))
                : !words.startsWith("DLOCK.RENEW") ? CompletableFuture.completedFuture(List.of(7L, 5L))
                : words.startsWith("DLOCK.RENEW one") && sent("DLOCK.RENEW one") > 3 ? CompletableFuture.completedFuture(List.of(3000L, 6L))
                : CompletableFuture.failedFuture(new Said("NOPERM no RENEW")))) {
            Hold one = locks.ask("one").hold();
            Hold two = locks.ask("two").hold();
            String why = two.lost().toCompletableFuture().get(10, TimeUnit.SECONDS);
            assertTrue(why.startsWith("nobody has confirmed it before its end") && why.endsWith("NOPERM no RENEW"), why);
            assertTrue(one.isHeld(), seen.toString());
        }
    }

    /**
     * The row of a grant may be on its way while its lock is left to its lease, which is not to end then. Or a late command has brought
     * the lock back: the session is not to renew it.
     */
    @Test
    void aRowOfALockThatWasLeftReleasesNothing() throws Exception {
        CompletableFuture<Object> rows = new CompletableFuture<>();
        try (DLocks locks = answering(words -> words.startsWith("DLOCK.SESSION")
                ? words.contains(" SEEN 5 0") ? rows.copy() : CompletableFuture.completedFuture(Arrays.asList(5L, 2L, LEFT, List.of()))
                : CompletableFuture.completedFuture(words.startsWith("DLOCK.RENEW") ? 9000L
                : words.startsWith("DLOCK.RELEASE") ? 0L : List.of(words.contains(" wait ") ? 0L : 7L, 5L)))) {
            Hold left = locks.ask("left").hold();
            Hold given = locks.ask("given").hold();
            locks.ask("wait").holdAsync();
            Stage.until("the loop has asked", () -> sent("DLOCK.SESSION") == 1);
            left.releaseAfter(Duration.ofSeconds(9));
            given.release();
            rows.complete(Arrays.asList(5L, 2L, LEFT, List.of(row(1, left), row(2, given))));
            Stage.until("it has read the rows", () -> seen.stream().anyMatch(words -> words.contains(" SEEN 5 2")));
            Stage.until("it is left once more", () -> sent("DLOCK.RENEW left") == 2);
            assertTrue(seen.stream().anyMatch(words -> words.matches("DLOCK.RENEW left [^ ]+ [1-8][0-9]{3} TOKEN 7")), seen.toString());
            assertEquals(List.of(0L, 2L), List.of(sent("DLOCK.RELEASE left"), sent("DLOCK.RELEASE given")));
        }
    }

    @Test
    void aRenewalThatComesLateKeepsNoLockThatWasLeft() throws Exception {
        for (long ms : List.of(9000L, 1L)) {
            seen.clear();
            CompletableFuture<Object> late = new CompletableFuture<>();
            try (DLocks locks = answering(words -> words.startsWith("DLOCK.SESSION") // it begins again
                    ? CompletableFuture.completedFuture(Arrays.asList(6L, 0L, null, List.of()))
                    : words.contains(" IN ") && words.startsWith("DLOCK.RENEW") ? late.copy()
                    : CompletableFuture.completedFuture(words.startsWith("DLOCK.RENEW") ? ms : List.of(7L, 5L)))) {
                Hold hold = locks.ask("key").hold();
                Stage.until("it is renewed", () -> sent("DLOCK.RENEW") == 1);
                hold.releaseAfter(Duration.ofMillis(ms));
                Thread.sleep(10);
                late.complete(List.of(3000L, 6L)); // by another connection: it was left before
                Stage.until("it is left once more", () -> sent("DLOCK.RENEW") == 3);
                assertTrue(seen.stream().anyMatch(words -> words.matches("DLOCK.RENEW key [^ ]+ ([1-8][0-9]{3}|1) TOKEN 7")), seen.toString());
            }
        }
    }

    private static List<Object> row(long number, Hold hold) {
        return List.of(number, "granted".getBytes(UTF_8), hold.key().getBytes(UTF_8), hold.owner().getBytes(UTF_8), hold.token(), LEFT);
    }

    @Test
    void whatHasEndedIsForgotten() throws Exception {
        try (FakeLocks fake = new FakeLocks(Settings.DEFAULT.replyTimeout(Duration.ofMillis(500)))) {
            Sessions s = fake.locks().sessions;
            fake.locks().ask("given").hold().release();
            Stage.until("it is forgotten", () -> s.under(() -> s.held.isEmpty()));
            fake.locks().ask("left").hold().releaseAfter(Duration.ofMinutes(9));
            assertEquals(1, s.under(() -> s.held.size()));
            Stage.until("it is forgotten, too", () -> s.under(() -> s.held.isEmpty()));
        }
    }

    /** They are taken by one command, and each keeps its own. */
    @Test
    void eachOfSeveralLocksTellsItsOwnOfItsLoss() throws Exception {
        try (FakeLocks fake = new FakeLocks()) {
            DLocks.all(fake.locks().lock("one").onLost(hold -> seen.add("one " + hold.key())), fake.locks().lock("none"),
                    fake.locks().lock("two").onLost(hold -> seen.add("two " + hold.key()))).lock();
            List.of("one", "none", "two").forEach(fake::lose);
            Stage.until("both are told", () -> seen.size() == 2);
            assertEquals(Set.of("one one", "two two"), Set.copyOf(seen));
        }
    }

    @Test
    void closeWaitsForAReleaseUnderWay() {
        CompletableFuture<Object> late = new CompletableFuture<Object>().completeOnTimeout(0L, 300, TimeUnit.MILLISECONDS);
        DLocks locks = answering(words -> words.startsWith("DLOCK.RELEASE") ? late : CompletableFuture.completedFuture(List.of(7L, 5L)));
        locks.ask("key").hold().releaseAsync();
        locks.close();
        assertTrue(late.isDone());
    }
}

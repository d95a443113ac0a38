// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.MS;
import static dlock.Clock.NEVER;
import static dlock.Clock.SECOND;
import static java.lang.System.Logger.Level.DEBUG;
import static java.lang.System.Logger.Level.ERROR;
import static java.lang.System.Logger.Level.WARNING;
import static java.nio.charset.StandardCharsets.UTF_8;

import dlock.Belief.Place;
import dlock.DLockException.Refused;
import dlock.DLockException.Unavailable;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.function.Supplier;

/**
 * All that this client holds and waits for, and all that follows from the rows of the servers. The guard covers it, and is never held
 * while anything is waited for. The timer waits for no server; what connects does so in the background; the program's own code has
 * threads apart, so that nothing of ours waits for it.
 */
final class Sessions {
    static final System.Logger LOG = System.getLogger("dlock");
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final Set<String> WAITS_END = Set.of("timeout", "cancelled", "replaced", "wrongtype", "again");

    final Settings settings;
    final String name;
    private final ReentrantLock guard = new ReentrantLock();
    /** What is to be done as soon as the guard is free, and the holds whose loss is reported then. */
    private final List<Runnable> later = new ArrayList<>();
    private final List<Belief> lost = new ArrayList<>();
    private final Set<Errand> errands = ConcurrentHashMap.newKeySet();
    final ScheduledThreadPoolExecutor timer;
    final Executor callbacks;
    final Library library;
    final Clock clock;
    private final Map<Long, Session> byId = new HashMap<>();
    /** By owner. */
    final Map<String, Take> asked = new HashMap<>();
    final Map<Place, Belief> held = new HashMap<>();
    private long numbers;
    volatile boolean isClosed;

    Sessions(Connector connector, Settings settings) {
        this.settings = settings;
        String letters = RANDOM.ints(22, 0, 62).mapToObj(i -> "" + (char) (i < 10 ? '0' + i : i < 36 ? 'a' + i - 10 : 'A' + i - 36))
                .reduce("", String::concat);
        name = host() + "/" + ProcessHandle.current().pid() + "/" + letters;
        timer = timer("dlock-clock");
        callbacks = threads("dlock-callbacks");
        library = new Library(connector, settings, timer("dlock-calls"), threads("dlock"));
        clock = new Clock(timer, () -> under(this::ring));
    }

    private static String host() {
        try {
            String host = InetAddress.getLocalHost().getHostName().replace('/', '-');
            return host.substring(0, Math.min(64, host.length()));
        } catch (UnknownHostException unknown) {
            return "localhost";
        }
    }

    /** Returns a timer that drops the tasks that come after its end. */
    private static ScheduledThreadPoolExecutor timer(String name) {
        var timer = new ScheduledThreadPoolExecutor(1, task -> daemon(task, name));
        timer.setRemoveOnCancelPolicy(true);
        timer.setRejectedExecutionHandler(new ThreadPoolExecutor.DiscardPolicy());
        return timer;
    }

    /** Returns as many threads as there are tasks: they may block. */
    private static Executor threads(String name) {
        return new ThreadPoolExecutor(0, Integer.MAX_VALUE, 5, TimeUnit.SECONDS, new SynchronousQueue<>(), task -> daemon(task, name));
    }

    static Thread daemon(Runnable task, String name) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        thread.setContextClassLoader(Sessions.class.getClassLoader()); // otherwise the thread keeps the first caller's
        return thread;
    }

    /** Takes a step under the guard, and then does what has come of it. */
    <T> T under(Supplier<T> step) {
        List<Runnable> some = List.of();
        List<Belief> ended = List.of();
        guard.lock();
        try {
            return step.get();
        } finally {
            if (guard.getHoldCount() == 1) {
                some = List.copyOf(later);
                later.clear();
                ended = List.copyOf(lost);
                lost.clear();
            }
            guard.unlock();
            some.forEach(Runnable::run);
            if (!ended.isEmpty()) {
                List<Belief> all = ended;
                callbacks.execute(() -> all.forEach(this::report));
            }
        }
    }

    void under(Runnable step) {
        under(() -> {
            step.run();
            return null;
        });
    }

    static Unavailable closedError() {
        return new Unavailable("these locks are closed", null);
    }

    void check() {
        if (isClosed) {
            throw closedError();
        }
    }

    /** Returns the reply to a command about a key. */
    CompletableFuture<Object> ask(String key, Object... words) {
        check();
        return library.call(key, Request.bytes(Arrays.asList(words)), settings.replyNanos(), false);
    }

    /** Ends everything: what is held is reported lost, and lives on until its lease. A release under way is waited for. */
    void close() {
        under(() -> {
            long count = held.values().stream().filter(hold -> !hold.isOver).count();
            if (!isClosed && count > 0) {
                log(WARNING, "closed with {0} locks held: they are lost", count);
            }
            isClosed = true;
            List.copyOf(held.values()).forEach(hold -> lose(hold, "closed"));
            List.copyOf(asked.values()).forEach(take -> take.fail(closedError()));
        });
        CompletableFuture.allOf(errands.toArray(Errand[]::new)).exceptionally(why -> null)
                .completeOnTimeout(null, settings.replyNanos(), TimeUnit.NANOSECONDS).join();
        library.close();
        timer.shutdown();
    }

    /** Logs by another thread: a logger may block. */
    void log(System.Logger.Level level, String text, Object... words) {
        callbacks.execute(() -> LOG.log(level, text, words));
    }

    /** Calls the observer as soon as the guard is free. What it throws is logged, and goes no further. */
    void tell(Consumer<Observer> what) {
        after(() -> {
            try {
                what.accept(settings.observer());
            } catch (RuntimeException | Error error) { // also those of a library that does not fit
                LOG.log(ERROR, "the observer has failed", error);
            }
        });
    }

    /** Does something as soon as the guard is free, and what was to be done before it is done. */
    void after(Runnable task) {
        under(() -> {
            later.add(task);
        });
    }

    static Duration since(long began) {
        return Duration.ofNanos(Math.max(0, Clock.now() - began));
    }

    /** Returns an owner that was never used. What stands before # is the actor, for the search for deadlocks. */
    String owner(String actor) {
        numbers++;
        return name + "/" + (actor == null ? "" : actor + "#") + numbers;
    }

    Session session(long id, String key) {
        return byId.computeIfAbsent(id, one -> new Session(one, key));
    }

    /** Forgets a session with nothing in it: the server does so as well, and draws another id for the next one. */
    void tidy(Session session) {
        if (session.isEmpty()) {
            byId.remove(session.id);
        }
    }

    /** Returns the believed end of what the server counts from the arrival of a command. Two milliseconds are its rounding. */
    long believed(long sent, long ms) {
        return Clock.after(sent, Math.min(ms, NEVER / MS) * MS) - 2 * MS - settings.clockMargin().toNanos();
    }

    /** Notes that the hold is in that session now. */
    void join(Belief hold, Session to) {
        if (hold.session != to) {
            leave(hold);
            hold.isTaken = false;
            hold.told = Clock.now();
            hold.session = to;
            to.holds.put(hold.place(), hold);
        }
        if (hold.isOld()) {
            keep(to);
        }
        clock.set(to.loop == null ? Math.min(hold.until(), hold.third()) : hold.until());
    }

    /** Takes the hold out of its session: nothing prolongs it any longer. */
    void leave(Belief hold) {
        Session from = hold.session;
        if (from != null) {
            from.holds.remove(hold.place());
            hold.session = null;
            tidy(from);
        }
    }

    void keep(Session session) {
        if (session.loop == null && !isClosed) {
            byId.put(session.id, session);
            session.loop = new Session.Loop(this, session);
            after(new Driver(this, session.loop)::run);
        }
    }

    /** Notes a loss that the server has reported, or that cannot be reported to it. */
    void lose(Belief hold, String reason) {
        held.remove(hold.place());
        end(hold, reason, true);
    }

    private void end(Belief hold, String reason, boolean isLost) {
        if (hold.isOver) {
            return;
        }
        leave(hold);
        hold.reason = reason;
        hold.isReleased = !isLost;
        hold.isOver = true;
        if (hold.renewal != null) {
            hold.renewal.stop();
        }
        if (isLost) {
            lost.add(hold);
        }
    }

    /**
     * Ends a hold: the server is to release it (zero), or to let it end so long from now, whether or not this program lives. If it
     * refuses the one, it is asked for the other.
     */
    Errand end(Belief hold, String reason, boolean isLost, long nanos) {
        end(hold, reason, isLost);
        Errand errand = nanos == 0 ? say(hold.key, hold.words("RELEASE"), hold.lease) : leaveToLease(hold, nanos);
        errand.whenComplete((reply, why) -> under(() -> {
            boolean isRefused = why instanceof Refused && !DLockException.passes(why);
            if (isRefused && nanos == 0) {
                leaveToLease(hold, hold.lease);
            } else if (isRefused) {
                say(hold.key, hold.words("RELEASE"), hold.lease);
            } else if (nanos == 0) {
                held.remove(hold.place());
            }
        }));
        return errand;
    }

    /** Has the server renew the hold no more, so that its lease ends it. */
    private Errand leaveToLease(Belief hold, long nanos) {
        hold.leftUntil = Clock.after(Clock.now(), nanos);
        Errand errand = say(hold.key, hold.words("RENEW", Math.max(1, nanos / MS)), hold.lease);
        // Until then a row may still tell of the grant, and what is of nobody is released.
        errand.whenComplete((reply, why) -> timer.schedule(() -> under(() -> held.remove(hold.place())), 3 * settings.replyNanos(),
                TimeUnit.NANOSECONDS));
        return errand;
    }

    /**
     * Leaves a hold to its lease once more, if it was left: the server has said that it is in a session. A command of its owner may have
     * come late, and the server would renew what nobody can release.
     */
    private void leaveAgain(Belief hold) {
        if (hold.leftUntil != null) {
            say(hold.key, hold.words("RENEW", Math.max(1, (hold.leftUntil - Clock.now()) / MS)), hold.lease);
        }
    }

    /** Tells of a loss. What may block of the program's own code has a thread of its own. */
    private void report(Belief hold) {
        LOG.log(isClosed ? DEBUG : WARNING, "lock {0} of {1} with token {2} is lost: {3}", hold.key, hold.owner,
                Long.toString(hold.token), hold.reason);
        tell(observer -> observer.lost(hold.key, hold.reason));
        if (hold.onLost == null && hold.lost.getNumberOfDependents() == 0) {
            hold.lost.complete(hold.reason);
            return;
        }
        callbacks.execute(() -> {
            hold.lost.complete(hold.reason);
            if (hold.onLost != null) {
                hold.onLost.accept(new Hold(this, hold));
            }
        });
    }

    private void ring() {
        if (isClosed || !clock.hasRung(settings.replyNanos())) {
            return;
        }
        long alarm = NEVER;
        try {
            for (Belief hold : List.copyOf(held.values())) {
                if (hold.isOver) {
                    continue;
                }
                if (clock.isOver(hold.until())) {
                    expire(hold);
                    continue;
                }
                alarm = Math.min(alarm, Math.max(hold.until(), Clock.now() + 50 * MS));
                if (hold.session != null && hold.session.loop == null) {
                    if (hold.isOld()) {
                        keep(hold.session);
                    } else {
                        alarm = Math.min(alarm, hold.third());
                    }
                }
            }
        } catch (RuntimeException | Error strange) {
            alarm = Clock.now() + 100 * MS; // it rings again
            throw strange;
        } finally {
            clock.set(alarm);
        }
    }

    /** Reports a hold whose believed end has passed. The server may still count it as held, so the client releases it. */
    void expire(Belief hold) {
        String reason = hold.bound <= Clock.now() ? "max_hold is over" : "nobody has confirmed it before its end: " + silence(hold);
        if (hold.isTaken) { // another client renews it now
            lose(hold, reason);
        } else {
            end(hold, reason, true, 0);
        }
    }

    /** Says how long nobody has answered, and why. */
    private String silence(Belief hold) {
        Session session = hold.session;
        boolean isTold = session != null && session.heard >= hold.told;
        String text = "the last answer was sent " + seconds(isTold ? session.heard : hold.told);
        if (session != null && session.loop != null && session.loop.asked > session.heard) {
            text += ", the question after it " + seconds(session.loop.asked);
        }
        RuntimeException why = hold.why() == null && session != null ? session.error : hold.why();
        return text + (why == null ? "" : ", " + why.getMessage());
    }

    private static String seconds(long time) {
        return String.format(Locale.ROOT, "%.1f s ago", (Clock.now() - time) / (double) SECOND);
    }

    /** Says a command until a server has answered it, or until nothing can be left there of a client that has been silent. */
    Errand say(String key, byte[][] words, long lease) {
        return errand(key, words, Clock.now() + settings.hangTimeout().toNanos() + 2 * Math.max(lease, settings.lease().toNanos()),
                DLockException::isAnswer);
    }

    /** Says a command until a server has answered it, by a reply or an error that ends it, or until that time. */
    Errand errand(String key, byte[][] words, long until, Predicate<RuntimeException> ends) {
        Errand errand = new Errand(this, key, words, until, ends);
        errands.add(errand);
        errand.whenComplete((reply, why) -> errands.remove(errand));
        after(errand::say);
        return errand;
    }

    /** Ends a hold that the program does not want. */
    void unwanted(Belief hold) {
        under(() -> end(hold, "it was not wanted", false, 0));
    }

    /** Reports a hold lost whose Hold the collector has found. Its work may be running, and has the lease to stop. */
    void forget(Belief hold) {
        under(() -> hold.isOver ? null
                : end(hold, "forgotten: the program no longer refers to its Hold, and has not released it", true, hold.lease));
    }

    /** Brings the hold into the session of whoever serves it now, and learns how long it lasts. */
    void renew(Belief hold) {
        if (hold.renewal != null && !hold.renewal.isDone() || hold.isOver) {
            return;
        }
        Errand errand = errand(hold.key, hold.words("RENEW", Math.max(1, hold.lease / MS), "IN", name), NEVER, NotHeld.class::isInstance);
        hold.renewal = errand;
        errand.whenComplete((reply, why) -> under(() -> {
            if (hold.isOver) {
                if (reply != null) {
                    leaveAgain(hold);
                }
            } else if (why instanceof NotHeld) {
                lose(hold, why.getMessage());
            } else if (reply instanceof List<?> answer) {
                hold.end = Math.max(hold.end, believed(errand.sent, number(answer.get(0))));
                join(hold, session(number(answer.get(1)), hold.key));
            }
        }));
    }

    static long number(Object reply) {
        return reply instanceof Long number ? number : 0;
    }

    private static String text(Object reply) {
        return new String((byte[]) reply, UTF_8);
    }

    /** Reads the answer to a SESSION, and returns the session that it is of. */
    Session told(long sent, List<?> answer, String key) {
        Session session = session(number(answer.get(0)), key);
        session.heard = Math.max(session.heard, sent);
        for (Object each : (List<?>) answer.get(3)) {
            List<?> row = (List<?>) each;
            if (number(row.get(0)) > session.seen) {
                session.seen = number(row.get(0));
                row(session, text(row.get(1)), text(row.get(2)), text(row.get(3)), number(row.get(4)),
                        believed(sent, number(row.get(5))));
            }
        }
        if (answer.get(2) != null) {
            session.believe(sent, believed(sent, number(answer.get(2))));
            session.bounded().forEach(this::renew);
        }
        return session;
    }

    private void row(Session session, String word, String key, String owner, long token, long end) {
        Belief hold = held.get(new Place(key, token));
        Take take = asked.get(owner);
        boolean isGrant = word.equals("granted");
        if (WAITS_END.contains(word)) {
            if (take != null) {
                take.ended(word);
            }
        } else if (isGrant && hold == null && take != null && take.isFor(key)) {
            take.granted(key, token, session, end);
        } else if (isGrant && hold == null) { // a place that was left, or a command that came late
            say(key, Request.bytes(List.of("DLOCK.RELEASE", key, owner, "TOKEN", token)), 0);
        } else if (isGrant && hold.isOver) {
            leaveAgain(hold);
        } else if (hold != null && !hold.isOver) { // else whoever ended it knows
            row(session, word, hold, end);
        }
    }

    private void row(Session session, String word, Belief hold, long end) {
        switch (word) {
            case "granted" -> {
                hold.end = Math.max(hold.end, end);
                join(hold, session);
            }
            case "taken" -> {
                hold.isTaken = true;
                leave(hold);
                hold.end = Math.min(hold.end, end);
                clock.set(hold.end);
            }
            case "moved" -> {
                leave(hold);
                renew(hold);
            }
            default -> lose(hold, word);
        }
    }

    /** Brings all that was in this session to where the servers say: a key's server has another one. */
    void gone(Session session) {
        for (Belief hold : List.copyOf(session.holds.values())) {
            leave(hold);
            renew(hold);
        }
        List.copyOf(session.waits).forEach(take -> take.ended("gone"));
    }
}

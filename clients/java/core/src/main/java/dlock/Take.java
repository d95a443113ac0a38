// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.MS;
import static dlock.Clock.NEVER;
import static dlock.Clock.SECOND;
import static java.lang.System.Logger.Level.WARNING;

import dlock.DLockException.LockTimeout;
import dlock.DLockException.Refused;
import dlock.DLockException.Unavailable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;

/** One request, from its beginning to its end. Its owner is its own. */
final class Take implements Job {
    /** How much longer a request that is out of time waits for the word about it. */
    private static final long GRACE = 500 * MS;

    /** Ends with the holds, null if others hold the lock, or the reason why not, as soon as the observer has been called. */
    final CompletableFuture<List<Belief>> done = new CompletableFuture<>();
    private final Sessions s;
    private final Request request;
    /** Without a time to wait it is a try. */
    private final long wait;
    private final long began = Clock.now();
    private final long deadline;
    private String owner;
    /** What was granted, by key. With the last one it holds them all. */
    private final Belief[] found;
    /** What went wrong last. */
    private RuntimeException error;
    private Session session;
    private Runnable wake = () -> {};
    private boolean isOver;
    private boolean isWaiting;
    private long waitingSince;
    private boolean hasWaited;
    private int asked;
    private long notBefore = -NEVER;
    private long warnAfter = -NEVER;
    /** Of a row that came before the answer. */
    private String word;

    Take(Sessions s, Request request, long wait) {
        s.check();
        long margin = s.settings.clockMargin().toNanos();
        if (request.lease() <= margin) {
            throw new IllegalArgumentException("lease must be longer than clockMargin, which is " + margin / MS + " ms, not "
                    + request.lease() / MS + " ms");
        }
        this.s = s;
        this.request = request;
        this.wait = wait;
        found = new Belief[request.keys().size()];
        deadline = Clock.after(began, wait == 0 ? s.settings.replyNanos() : wait);
        owner = s.under(() -> s.owner(request.actor()));
    }

    Take start() {
        new Driver(s, this).run();
        return this;
    }

    String key() {
        return request.keys().get(0);
    }

    boolean isFor(String key) {
        return request.keys().contains(key);
    }

    boolean isDone() {
        return isOver;
    }

    @Override
    public void waiting(Runnable wake) {
        this.wake = wake;
    }

    @Override
    public Step next() {
        long now = Clock.now();
        long left = deadline - now;
        if (isDone()) {
            return null;
        }
        if (s.isClosed) {
            fail(Sessions.closedError());
            return null;
        }
        if (asked > 0 && left + (isWaiting ? GRACE : 0) <= 0) {
            outOfTime();
            return null;
        }
        if (isWaiting) {
            return Step.pause(left + GRACE);
        }
        if (notBefore > now) {
            return Step.pause(Math.min(notBefore - now, left));
        }
        asked++;
        word = null;
        s.asked.put(owner, this); // a row may be read before the answer
        return new Step(key(), request.words(s.name, owner, wait == 0, left), left + GRACE, false);
    }

    /** Reads [token, id], [[token, …], id], [0, place, id], null or an error. */
    @Override
    public void answered(long sent, Object reply, RuntimeException why) {
        if (isDone()) { // its rows were faster
            return;
        }
        if (why != null) {
            failed(why);
        } else if (reply instanceof List<?> grant && grant.size() > 1) {
            Session in = s.session(Sessions.number(grant.get(grant.size() - 1)), key());
            List<?> tokens = grant.get(0) instanceof List<?> several ? several : grant.subList(0, 1);
            if (Sessions.number(tokens.get(0)) == 0 || asked > 1) { // asked again, only the row says how long it lasts
                waitIn(in);
                return;
            }
            long end = s.believed(sent, request.lease() / MS);
            for (int i = 0; i < found.length; i++) {
                granted(request.keys().get(i), Sessions.number(tokens.get(i)), in, end);
            }
        } else {
            finish(null, null);
        }
    }

    void granted(String key, long token, Session in, long end) {
        found[request.keys().indexOf(key)] = new Belief(key, owner, token, end, request);
        if (!Arrays.asList(found).contains(null)) {
            List<Belief> holds = List.of(found);
            for (Belief hold : holds) {
                s.held.put(hold.place(), hold);
                s.join(hold, in);
            }
            finish(holds, null);
        }
    }

    private void waitIn(Session in) {
        session = in;
        error = null; // what went wrong before is not why it waits
        isWaiting = true;
        waitingSince = Clock.now();
        in.waits.add(this);
        if (word != null) { // the outcome came first
            ended(word);
            return;
        }
        if (!hasWaited) {
            hasWaited = true;
            s.tell(observer -> observer.waiting(key()));
        }
        s.keep(in);
    }

    private void stopWaiting() {
        isWaiting = false;
        if (session != null) {
            session.waits.remove(this);
            s.tidy(session);
        }
    }

    /** A row tells of an outcome that is no grant, or the session is gone. While there is time it asks again. */
    void ended(String word) {
        this.word = word;
        if (!isWaiting) { // its answer is yet to come
            return;
        }
        stopWaiting();
        giveBackFound();
        if (word.equals("again")) {
            error = DLockException.said("NOACK the server did not confirm the grant, or serves the lock no more");
        }
        switch (word) {
            case "replaced" -> fail(new Refused("REPLACED a newer request of the same owner has taken the place"));
            case "wrongtype" -> fail(new Refused("WRONGTYPE the key holds something that is not a lock"));
            default -> {
                if (word.equals("timeout") && deadline - Clock.now() < 20 * MS) {
                    finish(null, null);
                } else if (wait == 0) {
                    fail(error != null ? error : new Unavailable("the request has ended: " + word, null));
                } else {
                    notBefore = Clock.now() + (asked > 1 ? ThreadLocalRandom.current().nextLong(50 * MS) : 0);
                    wake.run();
                }
            }
        }
    }

    /** Ends it with this error, and cancels what the server may still have of it. */
    void fail(RuntimeException why) {
        boolean isQueued = asked > 1 || session != null;
        finish(null, why);
        if (isQueued && !DLockException.code(why).equals("REPLACED")) {
            cancel();
        }
        giveBackFound();
    }

    /** Ends it wherever it stands: the program does not want it any longer. */
    void leave(RuntimeException why) {
        s.under(() -> {
            if (!isDone()) {
                finish(null, why);
                if (asked > 0) {
                    cancel();
                }
                giveBackFound();
            }
        });
    }

    private void outOfTime() {
        RuntimeException why = error != null ? error : session != null ? session.error : null;
        if (why == null && wait > 0 && isWaiting && session.heard > waitingSince) { // the server has kept the place: others have the lock
            finish(null, null);
        } else {
            why = why != null ? why : new Unavailable("the server does not answer", null);
            finish(null, wait == 0 ? why : new LockTimeout("lock " + key() + " was not granted in time: " + why.getMessage(), why));
        }
        cancel();
        giveBackFound();
    }

    private void failed(RuntimeException why) {
        if (wait == 0 || !DLockException.passes(why)) {
            fail(why);
            return;
        }
        long now = Clock.now();
        if (now >= warnAfter) {
            warnAfter = now + 10 * SECOND;
            s.log(WARNING, "still waiting for lock {0}: {1}", key(), why.getMessage());
        }
        error = why;
        notBefore = now + ThreadLocalRandom.current().nextLong(20 * MS, 100 * MS);
    }

    private void finish(List<Belief> holds, RuntimeException why) {
        isOver = true;
        stopWaiting();
        s.asked.remove(owner);
        if (hasWaited) {
            s.tell(observer -> observer.waited(key()));
        }
        if (holds != null) {
            s.tell(observer -> observer.granted(key(), Sessions.since(began)));
        } else {
            s.tell(observer -> observer.refused(key(), Sessions.since(began), why));
        }
        s.after(() -> {
            if (why == null) {
                done.complete(holds);
            } else {
                done.completeExceptionally(why);
            }
        });
        wake.run();
    }

    /** Releases a partial grant. The next request has another owner. */
    private void giveBackFound() {
        List<Belief> some = new ArrayList<>(Arrays.asList(found));
        if (some.removeIf(hold -> hold == null) && !some.isEmpty()) {
            some.forEach(hold -> s.say(hold.key, hold.words("RELEASE"), hold.lease));
            Arrays.fill(found, null);
            s.asked.remove(owner);
            owner = s.owner(request.actor());
        }
    }

    /** Leaves the queue. If the grant came first, its row belongs to no take any longer, and the client releases it by its token. */
    private void cancel() {
        String key = key();
        Session in = session;
        Errand cancel = s.say(key, Request.bytes(List.of("DLOCK.CANCEL", key, owner)), request.lease());
        cancel.thenAccept(reply -> s.under(() -> {
            if (Sessions.number(reply) == 0 && (in == null || in.loop == null)) { // it may be held, and no session reads its row
                Errand rows = s.say(key, Request.bytes(List.of("DLOCK.SESSION", key, s.name, 1)), request.lease());
                rows.thenAccept(answer -> s.under(() -> s.tidy(s.told(rows.sent, (List<?>) answer, key))));
            }
        }));
    }
}

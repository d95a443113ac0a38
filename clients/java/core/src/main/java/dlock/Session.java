// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.MS;
import static dlock.Clock.NEVER;
import static dlock.Clock.SECOND;
import static java.lang.System.Logger.Level.WARNING;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** What one server keeps for this client, by the id that it drew. */
final class Session {
    final long id;
    final Map<Belief.Place, Belief> holds = new HashMap<>();
    final Set<Take> waits = new HashSet<>();
    private String key;
    /** The last row. */
    long seen;
    /** When the last SESSION was sent that was answered, with holds or without. */
    long heard = -NEVER;
    Loop loop;
    RuntimeException error;

    Session(long id, String key) {
        this.id = id;
        this.key = key;
    }

    /** Returns a key that the server serves. */
    String anyKey() {
        if (!waits.isEmpty()) {
            key = waits.iterator().next().key();
        } else if (!holds.isEmpty()) {
            key = holds.keySet().iterator().next().key();
        }
        return key;
    }

    /** Returns how long the shortest lease in it is, or as long as is usual. */
    long shortest(long usual) {
        return holds.values().stream().mapToLong(hold -> hold.lease).min().orElse(usual);
    }

    boolean isNeeded() {
        return !waits.isEmpty() || holds.values().stream().anyMatch(Belief::isOld);
    }

    boolean isEmpty() {
        return loop == null && holds.isEmpty() && waits.isEmpty();
    }

    /** Reads the least lease of a SESSION, which counts for the holds that were in the session when it was sent. */
    void believe(long sent, long end) {
        holds.values().stream().filter(hold -> hold.told <= sent).forEach(hold -> hold.end = Math.max(hold.end, end));
    }

    /** Returns the holds of which a shorter one says too little: less than half of their lease is left. */
    List<Belief> bounded() {
        long shortest = shortest(NEVER);
        return holds.values().stream().filter(hold -> hold.lease > shortest + shortest / 2 && hold.end - Clock.now() < hold.lease / 2).toList();
    }

    /** Keeps the session: SESSION again and again, as long as there are waits, or holds that have grown old. */
    static final class Loop implements Job {
        /** How long a loop without work stays, so that the next wait does not start a new one. */
        private static final long LINGER = SECOND;

        private final Sessions s;
        private final Session session;
        private boolean isFirst = true;
        private boolean isLast;
        private boolean isOver;
        private long needed = Clock.now();
        private long notBefore;
        private long block;
        /** When it was asked last, and the shortest lease in the session then. */
        long asked = -NEVER;
        private long lease;
        private boolean hasWarned;

        Loop(Sessions s, Session session) {
            this.s = s;
            this.session = session;
        }

        @Override
        public Step next() {
            long now = Clock.now();
            boolean isNeeded = session.isNeeded();
            if (s.isClosed || isOver && !isNeeded) {
                session.loop = null;
                session.holds.values().forEach(hold -> s.clock.set(hold.third()));
                s.tidy(session);
                return null;
            }
            if (isOver) { // something has come in the last moment
                isOver = false;
                isFirst = true;
            }
            if (notBefore > now) {
                return Step.pause(notBefore - now);
            }
            needed = isNeeded ? now : needed;
            isLast = needed + LINGER < now; // read the rows of the last answer as well: a grant whose answer was lost is reported only there
            String key = session.anyKey();
            List<Object> words = new ArrayList<>(List.of("DLOCK.SESSION", key, s.name,
                    isLast ? 1 : s.settings.hangTimeout().toMillis(), "SEEN", session.id, session.seen));
            block = 0;
            long reply = s.settings.replyNanos();
            lease = session.shortest(s.settings.lease().toNanos());
            if (!isFirst && !isLast) {
                block = Math.max(MS, Math.min(SECOND, Math.min(lease / 6, reply / 2)));
                words.addAll(List.of("BLOCK", block / MS));
            }
            asked = now;
            // An answer that is lost must not cost a lease.
            return new Step(key, Request.bytes(words), Math.min(reply, Math.max(lease / 2, SECOND / 2)), true);
        }

        @Override
        public void answered(long sent, Object reply, RuntimeException why) {
            session.error = why;
            if (why != null) {
                failed(why);
                return;
            }
            hasWarned = false;
            List<?> answer = (List<?>) reply;
            Session told = s.told(sent, answer, session.key);
            if (told != session) {
                s.gone(session);
                isOver = true;
            } else if (((List<?>) answer.get(3)).isEmpty() && Clock.now() - sent < block - 10 * MS) {
                notBefore = sent + 100 * MS; // answered early without rows
            }
            isOver |= isLast;
            isFirst = Clock.now() - sent > block + lease / 6; // a late answer: the next one is not to wait for news as well
        }

        private void failed(RuntimeException why) {
            isOver = isLast;
            isFirst = true;
            notBefore = Clock.now() + 100 * MS;
            if (!hasWarned && !s.isClosed) {
                s.log(WARNING, "what is held and waited for is not kept: {0}", why.getMessage());
                hasWarned = true;
            }
            if (!DLockException.passes(why)) {
                List.copyOf(session.waits).forEach(take -> take.fail(why));
            }
        }
    }
}

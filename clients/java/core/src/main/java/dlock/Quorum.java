// SPDX-License-Identifier: MIT
package dlock;

import dlock.DLockException.Unavailable;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * A lock over several masters that know nothing of each other: an owner that holds it at a majority holds the lock. Each
 * master's hold is kept by its own {@link DLocks}. Name the masters in the same order in every program: a client that waits
 * does so at the first that answers, so that there is one queue.
 */
public final class Quorum {
    /** A lock that is held as long as a majority of the masters' holds is. */
    public static final class Held implements AutoCloseable {
        private final List<Hold> holds;
        private final int masters;

        private Held(List<Hold> holds, int masters) {
            this.holds = holds;
            this.masters = masters;
        }

        /** So long a majority is ours for sure. */
        public Duration left() {
            List<Duration> left = new ArrayList<>();
            holds.forEach(hold -> left.add(hold.left()));
            left.sort(Collections.reverseOrder());
            return left.size() <= masters / 2 ? Duration.ZERO : left.get(masters / 2);
        }

        /** Whether a majority is still held, as far as we know. */
        public boolean isHeld() {
            return !left().isZero();
        }

        /** The hold at each master that has granted one. To guard a write at a master is that hold's. */
        public List<Hold> holds() {
            return holds;
        }

        /** Gives it back at all masters, the first last: who is next there finds the others free. */
        @Override
        public void close() {
            giveBack(holds);
        }
    }

    private static final long SILENCE = 1_000_000_000L; // so long a master that did not answer is asked last

    private final List<DLocks> masters;
    /** When each did not answer. */
    private final Map<DLocks, Long> silent = new ConcurrentHashMap<>();

    /** Makes one over these masters; each should have a bound that is short compared with the lease. */
    public Quorum(List<DLocks> masters) {
        if (masters == null || masters.isEmpty()) {
            throw new IllegalArgumentException("masters must not be empty");
        }
        this.masters = List.copyOf(masters);
    }

    /** Waits so long (zero: one try); null if it is taken. An error if no majority can say so. */
    public Held tryHold(String key, Duration timeout) throws InterruptedException {
        long end = System.nanoTime() + Asking.nanos(timeout);
        while (true) {
            List<Hold> holds = new ArrayList<>();
            List<RuntimeException> errors = new ArrayList<>();
            boolean won = false;
            try {
                for (DLocks master : silentLast()) {
                    boolean first = holds.isEmpty() && errors.size() < masters.size();
                    try {
                        Hold hold = master.ask(key).tryHold(Duration.ZERO); // a master that is dead costs no more than this
                        if (hold == null && first) {
                            hold = master.ask(key).tryHold(Duration.ofNanos(Math.max(0, end - System.nanoTime())));
                        }
                        if (hold != null) {
                            holds.add(hold);
                        } else if (first) {
                            break; // the one queue has not let us in
                        }
                    } catch (DLockException error) {
                        errors.add(error);
                        if (!(error instanceof DLockException.Refused)) {
                            silent.put(master, System.nanoTime());
                        }
                    }
                }
                Held held = new Held(List.copyOf(holds), masters.size());
                won = held.isHeld();
                if (won) {
                    return held;
                }
            } finally {
                if (!won) {
                    giveBack(holds);
                }
            }
            long pause = ThreadLocalRandom.current().nextLong(20, 200); // or those who have split the votes do it again
            if (System.nanoTime() + pause * 1_000_000 >= end) {
                if (2 * errors.size() >= masters.size()) {
                    throw new Unavailable("no majority of the masters has voted: " + errors.get(0).getMessage(), errors.get(0));
                }
                return null;
            }
            TimeUnit.MILLISECONDS.sleep(pause);
        }
    }

    /** Nobody is kept waiting by one that hangs. */
    private List<DLocks> silentLast() {
        long now = System.nanoTime();
        List<DLocks> sorted = new ArrayList<>(masters);
        sorted.sort(Comparator.comparing(master -> silent.containsKey(master) && now - silent.get(master) < SILENCE));
        return sorted;
    }

    private static void giveBack(List<Hold> holds) {
        for (int i = holds.size() - 1; i >= 0; i--) {
            try {
                holds.get(i).release();
            } catch (NotHeld | DLockException lost) {
                Sessions.LOG.log(System.Logger.Level.DEBUG, "a master's hold was lost", lost);
            }
        }
    }
}

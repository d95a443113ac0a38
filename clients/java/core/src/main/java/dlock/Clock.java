// SPDX-License-Identifier: MIT
package dlock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The time, and an alarm for the earliest of all ends. It waits for no server.
 *
 * <p>Times are nanoseconds of a clock that continues while the machine is suspended, as leases do. {@link System#nanoTime} may stop
 * then, so this clock adds what that one has missed, by Linux' uptime, elsewhere by the time of day.
 */
final class Clock {
    static final long MS = 1_000_000;
    static final long SECOND = 1_000 * MS;
    static final long NEVER = Long.MAX_VALUE / 4;
    /** While there is an alarm the clock wakes so often. If it wakes so late, the process stalled; a busy machine is less late. */
    private static final long SLICE = 250 * MS;
    private static final long LATE = 200 * MS;
    private static final long MISSED = 500 * MS; // less is the imprecision of the clocks
    private static final Path UPTIME = Path.of("/proc/uptime");
    private static final AtomicLong SLEPT = new AtomicLong();
    private static volatile long wall = wall();
    private static long ahead = outside() - System.nanoTime();

    private final ScheduledExecutorService timer;
    private final Runnable ring;
    // All by the sessions' guard.
    private long alarm = NEVER;
    private long wound;
    private long due;
    /** Until then, what has ended after {@link #covers} is not over yet: the process stalled. */
    private long grace = Long.MIN_VALUE;
    private long covers;
    private Future<?> winding;

    /** Makes one that calls {@code ring} in the timer's thread. */
    Clock(ScheduledExecutorService timer, Runnable ring) {
        this.timer = timer;
        this.ring = ring;
    }

    /** Returns the time. If the time of day has gone another way, the machine may have slept. */
    static long now() {
        if (Math.abs(wall() - wall) > MISSED) {
            look();
        }
        return System.nanoTime() + SLEPT.get();
    }

    /** Returns a time that lies so long behind another one, without an overflow. */
    static long after(long time, long nanos) {
        return time + Math.min(nanos, NEVER);
    }

    private static long wall() {
        return System.currentTimeMillis() * MS - System.nanoTime();
    }

    /** Looks whether the machine has slept. */
    private static synchronized void look() {
        long before = System.nanoTime();
        long outside = outside();
        long after = System.nanoTime();
        if (after - before > LATE) { // this thread stalled between the two clocks: the next call finds what was missed
            return;
        }
        long missed = outside - after - ahead;
        if (missed > MISSED) {
            SLEPT.addAndGet(missed);
        }
        if (Math.abs(missed) > MISSED) {
            ahead = outside - after;
        }
        wall = wall();
    }

    private static long outside() {
        try {
            String text = Files.readString(UPTIME);
            return (long) (Double.parseDouble(text.substring(0, text.indexOf(' '))) * SECOND);
        } catch (IOException | RuntimeException other) {
            return System.currentTimeMillis() * MS;
        }
    }

    void set(long at) {
        if (at < alarm) {
            alarm = at;
            wind();
        }
    }

    private void wind() {
        if (winding != null) {
            winding.cancel(false);
        }
        long wait = Math.max(0, Math.min(SLICE, alarm - now()));
        wound = now();
        due = wound + wait;
        winding = alarm < NEVER ? timer.schedule(ring, wait, TimeUnit.NANOSECONDS) : null;
    }

    /** Returns whether something is due. If the process stalled, nothing is over until the server had time to answer. */
    boolean hasRung(long replyNanos) {
        long late = now() - due;
        if (late > LATE && grace <= due) {
            grace = now() + Math.min(replyNanos, 10 * late);
            covers = wound;
        } else if (late > SECOND) { // it stalled again, and for long: a busy machine must not put off a loss for ever
            grace += late;
        }
        if (alarm > now()) {
            wind();
            return false;
        }
        alarm = NEVER;
        return true;
    }

    boolean isOver(long end) {
        return end <= now() && (grace <= now() || end <= covers);
    }
}

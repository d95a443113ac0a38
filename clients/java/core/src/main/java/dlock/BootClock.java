// SPDX-License-Identifier: MIT
package dlock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Nanoseconds of a clock that goes on while the machine is suspended. {@link System#nanoTime} may stand still then, so what
 * it has missed is added: seen by Linux' uptime, elsewhere by the time of day.
 */
final class BootClock {
    private static final Path UPTIME = Path.of("/proc/uptime");
    private static final long MISSED = 500_000_000L; // less is the imprecision of the two
    private static final AtomicLong SLEPT = new AtomicLong();
    private static volatile long before = outside() - System.nanoTime();

    private BootClock() {}

    static long now() {
        return System.nanoTime() + SLEPT.get();
    }

    /** Looks whether the machine has slept. */
    static void look() {
        long ahead = outside() - System.nanoTime();
        long missed = ahead - before;
        if (missed > MISSED) {
            SLEPT.addAndGet(missed);
        }
        if (Math.abs(missed) > MISSED) {
            before = ahead;
        }
    }

    private static long outside() {
        try {
            String text = Files.readString(UPTIME);
            return (long) (Double.parseDouble(text.substring(0, text.indexOf(' '))) * 1e9);
        } catch (IOException | RuntimeException other) {
            return System.currentTimeMillis() * 1_000_000;
        }
    }
}

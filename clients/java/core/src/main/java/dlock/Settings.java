// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;

/**
 * How long things last.
 *
 * @param lease what a lock has left when this program dies or loses the server; a second at least
 * @param auto how long a program that hangs, its connection open, keeps its locks
 * @param claim how long a place in a queue is kept while the connection is away
 * @param bound how long a connect or a reply may take
 * @param allowance so much before its end a lease is believed to have ended
 * @param observer is told what happens
 */
public record Settings(
        Duration lease, Duration auto, Duration claim, Duration bound, Duration allowance, Observer observer) {
    /** The settings that fit most programs. */
    public static final Settings DEFAULT = new Settings(Duration.ofSeconds(10), Duration.ofSeconds(60),
            Duration.ofSeconds(5), Duration.ofSeconds(3), Duration.ofMillis(100), new Observer() {});

    /** An argument that makes no sense is an error that names it. */
    public Settings {
        positive("lease", lease, 1000);
        positive("auto", auto, 1);
        positive("claim", claim, 1);
        positive("bound", bound, 1);
        positive("allowance", allowance, 0);
        if (observer == null) {
            throw new IllegalArgumentException("observer must not be null");
        }
        auto = auto.compareTo(lease) < 0 ? lease : auto;
    }

    private static void positive(String name, Duration value, long least) {
        if (value == null || value.isNegative() || value.compareTo(Duration.ofMillis(least)) < 0) {
            throw new IllegalArgumentException(name + " must be at least " + least + " ms, not " + value);
        }
    }

    /** The same with another lease. */
    public Settings lease(Duration lease) {
        return new Settings(lease, auto, claim, bound, allowance, observer);
    }

    /** The same with another time for a program that hangs. */
    public Settings auto(Duration auto) {
        return new Settings(lease, auto, claim, bound, allowance, observer);
    }

    /** The same with another time for a place whose connection is away. */
    public Settings claim(Duration claim) {
        return new Settings(lease, auto, claim, bound, allowance, observer);
    }

    /** The same with another time for a connect or a reply. */
    public Settings bound(Duration bound) {
        return new Settings(lease, auto, claim, bound, allowance, observer);
    }

    /** The same, and somebody who is told what happens. */
    public Settings observer(Observer observer) {
        return new Settings(lease, auto, claim, bound, allowance, observer);
    }

    /** The lease until whoever has waited has confirmed the grant. */
    long firstMs() {
        return Math.min(lease.toMillis(), 3000);
    }

    long intervalNanos() {
        return Math.min(1_000_000_000L, lease.toNanos() / 3);
    }
}

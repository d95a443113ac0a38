// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.WARNING;

import java.time.Duration;

/**
 * How long things last.
 *
 * @param lease how long a lock lasts after this program dies or loses the server; a second at least
 * @param hangTimeout how long a program that hangs, its connection open, keeps its locks
 * @param queueGrace how long a place in a queue is kept while the connection is away
 * @param replyTimeout how long a connect or a reply may take
 * @param clockMargin how long before its end a lease is believed to have ended
 * @param observer is called for each event
 */
public record Settings(
        Duration lease, Duration hangTimeout, Duration queueGrace, Duration replyTimeout, Duration clockMargin,
        Observer observer) {
    /** The settings that fit most programs. */
    public static final Settings DEFAULT = new Settings(Duration.ofSeconds(10), Duration.ofSeconds(60),
            Duration.ofSeconds(5), Duration.ofSeconds(3), Duration.ofMillis(100), new Observer() {});

    /** Checks the values. An argument that makes no sense is an error that names it. */
    public Settings {
        positive("lease", lease, 1000);
        positive("hangTimeout", hangTimeout, 1);
        positive("queueGrace", queueGrace, 1);
        positive("replyTimeout", replyTimeout, 1);
        positive("clockMargin", clockMargin, 0);
        if (observer == null) {
            throw new IllegalArgumentException("observer must not be null");
        }
        hangTimeout = hangTimeout.compareTo(lease) < 0 ? lease : hangTimeout;
    }

    private static void positive(String name, Duration value, long least) {
        if (value == null || value.isNegative() || value.compareTo(Duration.ofMillis(least)) < 0) {
            throw new IllegalArgumentException(name + " must be at least " + least + " ms, not " + value);
        }
    }

    /** Returns these settings with another lease. */
    public Settings lease(Duration lease) {
        return new Settings(lease, hangTimeout, queueGrace, replyTimeout, clockMargin, observer);
    }

    /** Returns these settings with another time for a program that hangs. */
    public Settings hangTimeout(Duration hangTimeout) {
        return new Settings(lease, hangTimeout, queueGrace, replyTimeout, clockMargin, observer);
    }

    /** Returns these settings with another time for a place whose connection is away. */
    public Settings queueGrace(Duration queueGrace) {
        return new Settings(lease, hangTimeout, queueGrace, replyTimeout, clockMargin, observer);
    }

    /** Returns these settings with another time for a connect or a reply. */
    public Settings replyTimeout(Duration replyTimeout) {
        return new Settings(lease, hangTimeout, queueGrace, replyTimeout, clockMargin, observer);
    }

    /** Returns these settings with another margin of the clock. */
    public Settings clockMargin(Duration clockMargin) {
        return new Settings(lease, hangTimeout, queueGrace, replyTimeout, clockMargin, observer);
    }

    /** Returns these settings with an observer. */
    public Settings observer(Observer observer) {
        return new Settings(lease, hangTimeout, queueGrace, replyTimeout, clockMargin, observer);
    }

    /**
     * Sets {@link #hangTimeout(Duration)} by its name of 0.3.0.
     *
     * @deprecated use hangTimeout
     */
    @Deprecated
    public Settings auto(Duration auto) {
        renamed("auto", "hangTimeout");
        return hangTimeout(auto);
    }

    /**
     * Sets {@link #queueGrace(Duration)} by its name of 0.3.0.
     *
     * @deprecated use queueGrace
     */
    @Deprecated
    public Settings claim(Duration claim) {
        renamed("claim", "queueGrace");
        return queueGrace(claim);
    }

    /**
     * Sets {@link #replyTimeout(Duration)} by its name of 0.3.0.
     *
     * @deprecated use replyTimeout
     */
    @Deprecated
    public Settings bound(Duration bound) {
        renamed("bound", "replyTimeout");
        return replyTimeout(bound);
    }

    private static void renamed(String old, String now) {
        Core.LOG.log(WARNING, "the setting {0} is called {1} now", old, now);
    }

    /** Returns the lease until the waiter has confirmed the grant. */
    long firstMs() {
        return Math.min(lease.toMillis(), 3000);
    }

    long intervalNanos() {
        return Math.min(1_000_000_000L, lease.toNanos() / 3);
    }
}

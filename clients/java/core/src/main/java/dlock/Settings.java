// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.WARNING;

import java.time.Duration;

/**
 * How long things last.
 *
 * @param lease how long a lock lasts after this program dies or loses the server; a second at least
 * @param hangTimeout how long a program that hangs, its connection open, keeps its locks
 * @param replyTimeout how long a connect or a reply may take
 * @param clockMargin how long before its end a lease is believed to have ended
 * @param observer is called for each event
 */
public record Settings(
        Duration lease, Duration hangTimeout, Duration replyTimeout, Duration clockMargin, Observer observer) {
    /** The settings that fit most programs. */
    public static final Settings DEFAULT = new Settings(Duration.ofSeconds(10), Duration.ofSeconds(30),
            Duration.ofSeconds(3), Duration.ofMillis(100), new Observer() {});

    /** Checks the values. An argument that makes no sense is an error that names it. */
    public Settings {
        positive("lease", lease, 1000);
        positive("hangTimeout", hangTimeout, 1);
        positive("replyTimeout", replyTimeout, 1);
        positive("clockMargin", clockMargin, 0);
        if (clockMargin.compareTo(lease) >= 0) {
            throw new IllegalArgumentException("clockMargin must be shorter than the lease, which is " + lease + ", not " + clockMargin);
        }
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
        return new Settings(lease, hangTimeout, replyTimeout, clockMargin, observer);
    }

    /** Returns these settings with another time for a program that hangs. */
    public Settings hangTimeout(Duration hangTimeout) {
        return new Settings(lease, hangTimeout, replyTimeout, clockMargin, observer);
    }

    /**
     * Changes nothing: how long a place is kept is the server's {@code dlock.claim-window-ms} now.
     *
     * @deprecated set that
     */
    @Deprecated
    public Settings queueGrace(Duration queueGrace) {
        Sessions.LOG.log(WARNING, "the setting queueGrace is the server''s dlock.claim-window-ms now");
        return this;
    }

    /** Returns these settings with another time for a connect or a reply. */
    public Settings replyTimeout(Duration replyTimeout) {
        return new Settings(lease, hangTimeout, replyTimeout, clockMargin, observer);
    }

    /** Returns these settings with another margin of the clock. */
    public Settings clockMargin(Duration clockMargin) {
        return new Settings(lease, hangTimeout, replyTimeout, clockMargin, observer);
    }

    /** Returns these settings with an observer. */
    public Settings observer(Observer observer) {
        return new Settings(lease, hangTimeout, replyTimeout, clockMargin, observer);
    }

    long replyNanos() {
        return replyTimeout.toNanos();
    }
}

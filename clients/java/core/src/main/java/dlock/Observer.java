// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;

/** What happens, for whoever counts it. Override what you need; it is called at once, so it must not block. */
public interface Observer {
    /** The lock is taken, and a wait for it begins. */
    default void waiting(String key) {}

    /** A wait that has begun has ended: with the lock or without. */
    default void waited(String key) {}

    /** The lock was granted so long after it was asked for. */
    default void granted(String key, Duration after) {}

    /** It was not: it is taken (null), or for this reason. */
    default void refused(String key, Duration after, Throwable error) {}

    /** It was released, after being held for that long. */
    default void released(String key, Duration after) {}

    /** It was held, and is no more. */
    default void lost(String key, String reason) {}
}

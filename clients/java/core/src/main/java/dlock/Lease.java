// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.MS;

import java.time.Duration;
import java.util.List;

/**
 * A lock for a time that is known before: nobody renews it, and it ends at that time, whether or not the program lives. What
 * schedulers ask for.
 */
public final class Lease {
    private final Sessions s;
    private final String key;
    private final String owner;
    private final long token;

    private Lease(Sessions s, String key, String owner, long token) {
        this.s = s;
        this.key = key;
        this.owner = owner;
        this.token = token;
    }

    /** Null: it is taken. */
    static Lease take(Sessions s, String key, String owner, Duration length) {
        long ms = millis(length);
        try {
            Object reply = ask(s, key, "DLOCK.ACQUIRE", key, owner, ms, "HOLDS", 1);
            return reply == null ? null : new Lease(s, key, owner, Sessions.number(((List<?>) reply).get(0)));
        } catch (DLockException error) {
            if (DLockException.passes(error)) { // what was asked may have been granted
                s.say(key, Request.bytes(List.of("DLOCK.RELEASE", key, owner, "HOLDS", 0)), ms * MS);
            }
            throw error;
        }
    }

    private static long millis(Duration length) {
        return Asking.atLeastOneMs("length", length) / MS;
    }

    /** Asks again what passes, until the time for a reply is over. All of these may be asked twice. */
    private static Object ask(Sessions s, String key, Object... words) {
        s.check();
        return Hold.await(s.errand(key, Request.bytes(List.of(words)), Clock.now() + s.settings.replyNanos(),
                why -> !DLockException.passes(why)));
    }

    /** Returns the fencing token. */
    public long token() {
        return token;
    }

    /** Ends it so long from now, be that later or earlier than before. False: it has ended already. */
    public boolean extend(Duration length) {
        return isHeld("DLOCK.RENEW", key, owner, millis(length), "TOKEN", token);
    }

    /** Gives it back. That it has ended is no error. */
    public void release() {
        isHeld("DLOCK.RELEASE", key, owner, "HOLDS", 0, "TOKEN", token);
    }

    private boolean isHeld(Object... words) {
        try {
            ask(s, key, words);
            return true;
        } catch (NotHeld ended) {
            return false;
        }
    }
}

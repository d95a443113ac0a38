// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.MS;

import java.time.Duration;
import java.util.ArrayList;
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
        byte[][] words = Request.bytes(List.of("DLOCK.ACQUIRE", key, owner, millis(length), "HOLDS", 1));
        try {
            Object reply = ask(s, key, words);
            return reply == null ? null : new Lease(s, key, owner, Sessions.number(((List<?>) reply).get(0)));
        } catch (DLockException error) {
            if (DLockException.passes(error)) { // what was asked may have been granted
                byte[][] release = Request.bytes(List.of("DLOCK.RELEASE", key, owner, "HOLDS", 0));
                s.say(key, release, millis(length) * MS);
            }
            throw error;
        }
    }

    private static long millis(Duration length) {
        return Asking.atLeastOneMs("length", length) / MS;
    }

    /** Asks again what passes, until the time for a reply is over. All of these may be asked twice. */
    private static Object ask(Sessions s, String key, byte[][] words) {
        s.check();
        return Hold.await(s.errand(key, words, Clock.now() + s.settings.replyNanos()));
    }

    /** Returns the fencing token. */
    public long token() {
        return token;
    }

    /** Ends it so long from now, be that later or earlier than before. False: it has ended already. */
    public boolean extend(Duration length) {
        return isHeld("RENEW", millis(length));
    }

    /** Gives it back. That it has ended is no error. */
    public void release() {
        isHeld("RELEASE", "HOLDS", 0);
    }

    private boolean isHeld(String name, Object... more) {
        List<Object> words = new ArrayList<>(List.of("DLOCK." + name, key, owner));
        words.addAll(List.of(more));
        words.addAll(List.of("TOKEN", token));
        try {
            ask(s, key, Request.bytes(words));
            return true;
        } catch (NotHeld ended) {
            return false;
        }
    }
}

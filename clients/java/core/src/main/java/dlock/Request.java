// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.MS;
import static dlock.Clock.NEVER;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * A lock, or several of one slot, as the program asks for it. Times are nanoseconds.
 *
 * @param limit how many permits may be held together
 * @param permits how many of them its hold takes
 * @param onLost what is called with a hold that is lost, or null, by key
 */
record Request(List<String> keys, long lease, long maxHold, String actor, int limit, int permits, List<Consumer<Hold>> onLost) {
    static final int SHARED = Integer.MAX_VALUE;

    Request {
        keys.forEach(Request::checkKey);
        if (limit < 1) {
            throw new IllegalArgumentException("limit must be at least 1, not " + limit);
        }
        if (permits < 1 || permits > limit) {
            throw new IllegalArgumentException("permits must be at least 1, and at most limit, which is " + limit + ", not " + permits);
        }
        keys = keys.stream().map(key -> new String(key.getBytes(UTF_8), UTF_8)).toList(); // as rows say it: half a character is a "?"
    }

    static void checkKey(String key) {
        if (key == null || key.isEmpty()) {
            throw new IllegalArgumentException("key must not be empty");
        }
    }

    /** Returns a command's words. */
    static byte[][] bytes(List<?> words) {
        return words.stream().map(word -> word instanceof byte[] bytes ? bytes : String.valueOf(word).getBytes(UTF_8))
                .toArray(byte[][]::new);
    }

    /** Returns the command: a try, or a request that waits for so long. */
    byte[][] words(String session, String owner, boolean isTry, long left) {
        List<Object> words = new ArrayList<>(16);
        if (keys.size() > 1) {
            words.addAll(List.of("DLOCK.MACQUIRE", keys.size()));
        } else {
            words.add(isTry ? "DLOCK.ACQUIRE" : "DLOCK.FAIRACQUIRE");
        }
        words.addAll(keys);
        words.addAll(List.of(owner, Math.max(1, lease / MS), "IN", session));
        if (!isTry) {
            words.addAll(List.of("BLOCK", left >= NEVER / 2 ? 0 : Math.max(1, left / MS)));
        }
        if (limit == SHARED) {
            words.add("SHARED");
        } else if (limit > 1) {
            words.addAll(List.of("LIMIT", limit));
        }
        if (permits > 1) { // older servers do not know the word
            words.addAll(List.of("PERMITS", permits));
        }
        return bytes(words);
    }
}

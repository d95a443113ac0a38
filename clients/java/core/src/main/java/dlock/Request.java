// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** One owner's wish for one lock, as words of commands. */
final class Request {
    static final int SHARED = Integer.MAX_VALUE;
    /** What the names of owners begin with: host/pid/. */
    static final String PROCESS = host().replace('/', '-') + "/" + ProcessHandle.current().pid() + "/";

    final Settings settings;
    final String key;
    final String owner;
    final int limit;
    /** How many of the limit its hold takes. */
    final int permits;
    final boolean ephemeral;
    final int slot;
    final boolean upgrade;
    /** What the upgrade is of, until it is granted; else null. */
    volatile Hold outer;
    volatile Node node;
    /** Where it was sent last: what is left is left there, behind it. */
    volatile Link link;
    volatile Renewal renewal;
    /** Counts what was sent to end something under this owner's name and is not answered yet; null: the name is used once. */
    AtomicInteger unanswered;
    /** The hold lasts for so long and nobody renews it; null: it is renewed. */
    Duration fixed;

    Request(Settings settings, String key, String owner, int limit, boolean ephemeral, Hold outer) {
        this(settings, key, owner, limit, 1, ephemeral, outer);
    }

    Request(Settings settings, String key, String owner, int limit, int permits, boolean ephemeral, Hold outer) {
        if (key == null || key.isEmpty()) {
            throw new IllegalArgumentException("key must not be empty");
        }
        if (owner == null || owner.isEmpty()) {
            throw new IllegalArgumentException("owner must not be empty");
        }
        if (limit < 1) {
            throw new IllegalArgumentException("limit must be at least 1, not " + limit);
        }
        checkPermits(permits, limit);
        this.settings = settings;
        this.key = new String(bytes(key), UTF_8); // as the server says it again: half a character has become a "?"
        this.owner = new String(bytes(owner), UTF_8);
        this.limit = limit;
        this.permits = permits;
        this.ephemeral = ephemeral;
        this.outer = outer;
        this.upgrade = outer != null;
        this.slot = slot(bytes(key));
    }

    static void checkPermits(int permits, int limit) {
        if (permits < 1 || permits > limit) {
            throw new IllegalArgumentException("permits must be at least 1, and at most limit, which is " + limit + ", not " + permits);
        }
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException unknown) {
            return "localhost";
        }
    }

    static byte[] bytes(Object word) {
        return word instanceof byte[] bytes ? bytes : String.valueOf(word).getBytes(UTF_8);
    }

    static byte[][] words(Object... words) {
        byte[][] bytes = new byte[words.length][];
        for (int i = 0; i < words.length; i++) {
            bytes[i] = bytes(words[i]);
        }
        return bytes;
    }

    private byte[][] command(String name, Object... rest) {
        List<Object> words = new ArrayList<>(16);
        words.add("DLOCK." + name);
        words.add(key);
        words.add(owner);
        for (Object one : rest) {
            if (one instanceof Object[] some && !(one instanceof byte[])) {
                words.addAll(List.of(some));
            } else {
                words.add(one);
            }
        }
        return words(words.toArray());
    }

    long leaseMs() {
        return (fixed != null ? fixed : settings.lease()).toMillis();
    }

    private Object[] limits() {
        return limit == 1 ? new Object[0] : limit == SHARED ? new Object[] {"SHARED"} : new Object[] {"LIMIT", limit};
    }

    private Object[] several() { // older servers do not know the word
        return permits == 1 ? new Object[0] : new Object[] {"PERMITS", permits};
    }

    private Object[] tied() {
        if (fixed != null) {
            return new Object[0];
        }
        long auto = settings.hangTimeout().toMillis();
        return ephemeral ? new Object[] {"EPHEMERAL", "AUTO", auto} : new Object[] {"AUTO", auto};
    }

    byte[][] take(boolean atOnce) {
        Object[] claim = atOnce ? new Object[0] : new Object[] {"CLAIM", settings.queueGrace().toMillis()};
        return command(atOnce ? "ACQUIRE" : "FAIRACQUIRE", leaseMs(), tied(), "HOLDS", 1, limits(), several(), claim);
    }

    byte[][] await(Object... how) {
        return command("FAIRACQUIRE", Math.min(leaseMs(), settings.firstMs()), how, "CLAIM", settings.queueGrace().toMillis(), "HOLDS", 1,
                limits(), several());
    }

    byte[][] renew(long token) {
        return command("RENEW", leaseMs(), "TOKEN", token, tied());
    }

    byte[][] untie(long token) {
        return command("RENEW", settings.lease().toMillis(), "TOKEN", token);
    }

    byte[][] release(long token) {
        return token == 0 ? command("RELEASE", "HOLDS", 0) : command("RELEASE", "HOLDS", 0, "TOKEN", token);
    }

    byte[][] cancel() {
        return command("CANCEL");
    }

    byte[][] held() {
        return command("HELD");
    }

    byte[][] downgrade() {
        return command("DOWNGRADE", (Object) limits());
    }

    /** The slot of a key: of what is within its first braces, if anything is. */
    static int slot(byte[] key) {
        int from = 0;
        int to = key.length;
        for (int open = 0; open < key.length; open++) {
            if (key[open] == '{') {
                int close = open + 1;
                while (close < key.length && key[close] != '}') {
                    close++;
                }
                if (close < key.length && close > open + 1) {
                    from = open + 1;
                    to = close;
                }
                break;
            }
        }
        int crc = 0;
        for (int i = from; i < to; i++) {
            crc ^= (key[i] & 0xff) << 8;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
            }
        }
        return crc & 0x3fff;
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;

/** The slot of a key in a cluster. */
final class Slot {
    private Slot() {}

    /** Returns the CRC-16 of what is within the key's first braces, if anything is, and else of all of it. */
    static int of(String key) {
        int open = key.indexOf('{');
        int close = open < 0 ? -1 : key.indexOf('}', open);
        int crc = 0;
        for (byte one : (close > open + 1 ? key.substring(open + 1, close) : key).getBytes(UTF_8)) {
            crc ^= (one & 0xff) << 8;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
            }
        }
        return crc & 0x3fff;
    }
}

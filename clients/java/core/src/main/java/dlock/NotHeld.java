// SPDX-License-Identifier: MIT
package dlock;

/** The lock is not, or no longer, held. */
public final class NotHeld extends IllegalMonitorStateException {
    NotHeld(String message) {
        super(message);
    }
}

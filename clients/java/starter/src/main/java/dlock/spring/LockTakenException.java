// SPDX-License-Identifier: MIT
package dlock.spring;

/** A {@link Locked} method was not run: its lock was taken for all of its time-out. */
public class LockTakenException extends RuntimeException {
    private static final long serialVersionUID = 1;

    LockTakenException(String key) {
        super("the lock " + key + " is taken");
    }
}

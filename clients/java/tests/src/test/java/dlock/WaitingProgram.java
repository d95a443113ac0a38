// SPDX-License-Identifier: MIT
package dlock;

/** A process that waits for a lock and holds it, for the tests to kill. */
final class WaitingProgram {
    public static void main(String[] arguments) throws Exception {
        DLocks locks = new DLocks(Stage.connector(arguments[0], arguments[1]), Stage.settings(Stage.LEASE));
        locks.lock(arguments[2]).lock();
        System.in.read();
    }
}

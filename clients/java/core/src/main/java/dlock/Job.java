// SPDX-License-Identifier: MIT
package dlock;

/** A take or a loop: rules that know neither threads nor connections. All of it by the sessions' guard. */
interface Job {
    /**
     * A command, and how long its reply may take; or without words a time to wait unless it is woken before.
     *
     * @param isOfLoop whether the command may block at the server
     */
    record Step(String key, byte[][] words, long nanos, boolean isOfLoop) {
        static Step pause(long nanos) {
            return new Step(null, null, nanos, false);
        }
    }

    /** Returns what is to be done next, or null: the end. */
    Step next();

    /** Reads the reply, or why there is none. */
    void answered(long sent, Object reply, RuntimeException error);

    /** Receives what ends the current pause, or cancels a call that has not been sent. */
    default void waiting(Runnable wake) {}
}

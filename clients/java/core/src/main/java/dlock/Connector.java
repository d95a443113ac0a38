// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletionStage;

/** What is needed of a client library: who serves a key, and connections. See the modules dlock-lettuce and dlock-jedis. */
public interface Connector extends AutoCloseable {
    /** Returns the slot of a key. Without a cluster all keys are of one. */
    default int slot(String key) {
        return 0;
    }

    /** Returns whether the server may change while the former one still grants locks: then it is looked up once a second. */
    default boolean isWatched() {
        return false;
    }

    /** Returns the address of the server of this slot, as far as the library knows it, or null. It waits for nothing. */
    default String node(int slot) {
        return "";
    }

    /**
     * Has the library find out who serves what. It may block.
     *
     * @param within how long a connect or a reply may take
     */
    default void refresh(Duration within) throws Exception {}

    /**
     * Opens a way to a server, by the library's connections, and without retries. It may block.
     *
     * @param node what {@link #node} or the server has said
     * @param within how long a connect or a reply may take
     */
    Line open(String node, Duration within) throws Exception;

    /** Returns what a server has said, wherever in its errors the library has put it, or null. */
    String said(Throwable error);

    /** Returns the message of the first error of this kind, or null. */
    static String messageOf(Throwable error, Class<? extends Throwable> kind) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (kind.isInstance(cause)) {
                return cause.getMessage();
            }
        }
        return null;
    }

    /** Ends what the connector has made for itself. */
    @Override
    default void close() {}

    /** A way to one server. The client closes it after a call that timed out, and opens another one. */
    interface Line extends AutoCloseable {
        /**
         * Sends these commands one directly behind the other, and waits for nothing. The stage has the reply to the last one (Long,
         * byte[], List or null) or the reason why there is none. If it is cancelled before they are sent, they are not sent.
         */
        CompletionStage<Object> send(List<byte[][]> commands);

        /** Returns false if it is known to have ended. */
        default boolean isOpen() {
            return true;
        }

        /** Ends it, and waits for nobody. */
        @Override
        void close();
    }
}

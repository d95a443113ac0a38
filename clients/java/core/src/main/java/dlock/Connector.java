// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletionStage;

/** What is needed of a client library: who serves a key, and connections. See the modules dlock-lettuce and dlock-jedis. */
public interface Connector extends AutoCloseable {
    /** Returns whether the keys are spread over the nodes of a cluster. */
    default boolean isCluster() {
        return false;
    }

    /** Returns whether the server may change while the former one goes on granting: then it is looked up once a second. */
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

    /** Ends what the connector has made for itself. */
    @Override
    default void close() {}

    /** A way to one server. After a call without an answer it is closed, and another one is opened. */
    interface Line extends AutoCloseable {
        /**
         * Sends these commands one directly behind the other, and waits for nothing. The stage has the reply to the last one (Long,
         * byte[], List or null) or the reason why there is none, a {@link ServerError} for an error of the server.
         */
        CompletionStage<Object> send(List<byte[][]> commands);

        /** Returns whether it is worth to send something. */
        boolean isOpen();

        /** Ends it, and waits for nobody. */
        @Override
        void close();
    }

    /** An error reply, as the server has sent it. */
    final class ServerError extends RuntimeException {
        private static final long serialVersionUID = 1;

        /** Makes one of the server's words. */
        public ServerError(String text) {
            super(text, null, false, false);
        }

        /** Returns what a server has said, wherever the library has put it, and else the error itself. */
        public static Throwable in(Throwable error, Class<? extends Throwable> kind) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof ServerError) {
                    return cause;
                }
                if (kind.isInstance(cause) && cause.getMessage() != null) {
                    return new ServerError(cause.getMessage());
                }
            }
            return error;
        }
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;
import java.util.function.BiConsumer;
import java.util.function.Consumer;

/** What is needed of a client library: who serves what, and connections. See the modules dlock-lettuce and dlock-jedis. */
public interface Connector extends AutoCloseable {
    /** Whether the keys are spread over the nodes of a cluster. */
    default boolean cluster() {
        return false;
    }

    /** The node ({@code host:port}) that serves a slot, or null if that is not known yet. Waits for nothing. */
    default String node(int slot) {
        return "";
    }

    /** Asks the cluster anew who serves what. May block. */
    default void refresh() throws Exception {}

    /**
     * Opens a connection that nobody else uses, and that does not reconnect. It may block: it runs where it can be given up.
     *
     * @param node a node of the cluster; empty: whatever the connector is for
     * @param bound how long it may take
     * @param messages if not null the connection subscribes to the channel, and whatever comes is told: a message, or
     *     null for any other answer
     * @param ended called once when the connection has ended
     */
    Wire open(String node, Duration bound, String channel, Consumer<byte[]> messages, Consumer<Throwable> ended)
            throws Exception;

    /** Ends what the connector has made for itself. */
    @Override
    default void close() {}

    /** A connection to one server. */
    interface Wire {
        /**
         * Sends a command and waits for nothing. {@code then} hears the reply (Long, byte[], List or null) or why there is
         * none (a {@link ServerError} for an error of the server), in the order of the replies.
         */
        void send(byte[][] words, BiConsumer<Object, Throwable> then);

        /** Asks a connection with messages for a sign of life. */
        default void ping() {}

        /** Returns the server's address, to tell one server from another; empty if the library does not say it. */
        default String address() {
            return "";
        }

        /** Ends it, and waits for nobody. */
        void close();
    }

    /** An error reply, as the server has sent it. */
    final class ServerError extends RuntimeException {
        private static final long serialVersionUID = 1;

        /** The server's words. */
        public ServerError(String text) {
            super(text, null, false, false);
        }

        /** The error that a server has said, wherever the library has put it; null if it has said none. */
        public static ServerError in(Throwable error, Class<? extends Throwable> kind) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof ServerError found) {
                    return found;
                }
                if (kind.isInstance(cause) && cause.getMessage() != null) {
                    return new ServerError(cause.getMessage());
                }
            }
            return null;
        }
    }
}

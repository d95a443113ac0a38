// SPDX-License-Identifier: MIT
package dlock.lettuce;

import static java.nio.charset.StandardCharsets.US_ASCII;
import static java.util.concurrent.TimeUnit.MILLISECONDS;

import dlock.Connector;
import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.net.SocketAddress;
import java.time.Duration;
import java.util.Collections;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * Connections by Lettuce, with the threads and the options of a client that exists. What a {@link RedisURI} says holds:
 * TLS, user, database, Sentinel.
 */
public final class LettuceConnector implements Connector {
    /** Limits how often a connect is repeated after Lettuce has lost the answer: on a busy machine, one in seventy times. */
    private static final int MOST_LOST = 3;
    /** From Lettuce 6.3 on a URI has the library's name. Spring Boot 3.0 has Lettuce 6.2. */
    private static final boolean NAMES_LIBRARIES = has("getLibraryName");

    private final RedisClient own;
    private final ClientOptions options;
    private final RedisURI uri;
    private final RedisClusterClient cluster;
    private volatile boolean known;
    /** Where each connection goes. */
    private final Map<RedisChannelHandler<?, ?>, String> addresses = Collections.synchronizedMap(new WeakHashMap<>());

    /** One server, or what Sentinel says is the primary. */
    public LettuceConnector(RedisClient client, RedisURI uri) {
        this(client, uri, null);
        if (uri == null) {
            throw new IllegalArgumentException("uri must not be null");
        }
    }

    /** A cluster, by the client's own map of slots. */
    public LettuceConnector(RedisClusterClient client) {
        this(client, null, client);
    }

    private static boolean has(String methodOfUri) {
        return Stream.of(RedisURI.class.getMethods()).anyMatch(method -> method.getName().equals(methodOfUri));
    }

    private LettuceConnector(AbstractRedisClient client, RedisURI uri, RedisClusterClient cluster) {
        if (!has("getCredentialsProvider")) {
            throw new IllegalStateException("Lettuce must be 6.2 or later, not "
                    + RedisURI.class.getPackage().getImplementationVersion());
        }
        if (client == null) {
            throw new IllegalArgumentException("client must not be null");
        }
        this.uri = uri;
        this.cluster = cluster;
        // A connection that came back by itself would send again what was cut off, and hear nothing meanwhile.
        options = client.getOptions().mutate().autoReconnect(false).protocolVersion(ProtocolVersion.RESP2)
                .timeoutOptions(TimeoutOptions.builder().timeoutCommands(false).build()).build();
        // Never shut down: with it Lettuce would end the threads that other clients of these resources have connections on.
        own = RedisClient.create(client.getResources());
        own.setOptions(options);
        own.addListener(new RedisConnectionStateListener() {
            @Override
            public void onRedisConnected(RedisChannelHandler<?, ?> handler, SocketAddress address) {
                addresses.put(handler, String.valueOf(address));
            }
        });
    }

    @Override
    public boolean cluster() {
        return cluster != null;
    }

    @Override
    public String node(int slot) {
        if (cluster == null) {
            return "";
        }
        if (!known) {
            return null;
        }
        RedisClusterNode node = cluster.getPartitions().getPartitionBySlot(slot);
        return node == null ? null : node.getUri().getHost() + ":" + node.getUri().getPort();
    }

    @Override
    public void refresh() {
        if (cluster != null) {
            cluster.getPartitions(); // it may have been asked for none yet
            cluster.refreshPartitions();
            known = true;
        }
    }

    @Override
    public Wire open(
            String node, Duration bound, String channel, Consumer<byte[]> messages, Consumer<Throwable> ended) {
        for (int lost = 0;; lost++) {
            try {
                return connect(node, bound, channel, messages, ended);
            } catch (RedisException error) {
                if (lost == MOST_LOST || !isLost(error)) {
                    throw error;
                }
                // Losses come in bursts, when the machine is busy.
                LockSupport.parkNanos(MILLISECONDS.toNanos(10L << lost));
            }
        }
    }

    /**
     * Returns whether Lettuce has lost the server's answer: if a handshake fails before Lettuce has looked at it, it reports only
     * that. Otherwise a wrong password would look like a server that cannot be reached.
     */
    private static boolean isLost(RedisException error) {
        Throwable cause = error;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause instanceof IllegalStateException || String.valueOf(cause.getMessage()).contains("closed prematurely");
    }

    private Wire connect(
            String node, Duration bound, String channel, Consumer<byte[]> messages, Consumer<Throwable> ended) {
        RedisURI target = target(node, bound);
        SocketOptions sockets = options.getSocketOptions().mutate().connectTimeout(bound).build();
        own.setOptions(options.mutate().socketOptions(sockets).build());
        StatefulConnection<byte[], byte[]> connection = null;
        try {
            Wire wire;
            if (channel == null) {
                StatefulRedisConnection<byte[], byte[]> commands = own.connect(ByteArrayCodec.INSTANCE, target);
                connection = commands;
                wire = new Link(commands, addresses);
            } else {
                StatefulRedisPubSubConnection<byte[], byte[]> subscriber = own.connectPubSub(ByteArrayCodec.INSTANCE, target);
                connection = subscriber;
                wire = new Subscriber(subscriber, channel.getBytes(US_ASCII), messages);
            }
            AtomicBoolean over = new AtomicBoolean();
            connection.addListener(new RedisConnectionStateListener() {
                @Override
                public void onRedisDisconnected(RedisChannelHandler<?, ?> handler) {
                    if (over.compareAndSet(false, true)) {
                        ended.accept(new RedisException("the connection has ended"));
                    }
                }
            });
            if (!connection.isOpen() && over.compareAndSet(false, true)) {
                throw new RedisException("the connection has ended");
            }
            return wire;
        } catch (RuntimeException error) {
            if (connection != null) {
                connection.closeAsync();
            }
            ServerError said = ServerError.in(error, RedisCommandExecutionException.class);
            throw said != null ? said : error;
        }
    }

    /** The builder that begins with a URI copies no sentinels, and wants a host that such a URI has not. */
    private RedisURI target(String node, Duration bound) {
        RedisURI from = uri != null ? uri : cluster.getPartitions().getPartition(0).getUri();
        RedisURI target = new RedisURI();
        if (uri == null) {
            int colon = node.lastIndexOf(':');
            target.setHost(node.substring(0, colon));
            target.setPort(Integer.parseInt(node.substring(colon + 1)));
        } else {
            target.setHost(from.getHost());
            target.setPort(from.getPort());
            target.setSocket(from.getSocket());
        }
        target.setSentinelMasterId(from.getSentinelMasterId());
        target.getSentinels().addAll(from.getSentinels());
        target.setCredentialsProvider(from.getCredentialsProvider());
        target.setDatabase(from.getDatabase());
        target.setClientName(from.getClientName());
        if (NAMES_LIBRARIES) {
            target.setLibraryName(from.getLibraryName());
            target.setLibraryVersion(from.getLibraryVersion());
        }
        target.setSsl(from.isSsl());
        target.setStartTls(from.isStartTls());
        target.setVerifyPeer(from.getVerifyMode());
        target.setTimeout(bound);
        return target;
    }

    @Override
    public String toString() {
        return uri != null ? uri.toString() : "cluster";
    }

    @SuppressWarnings("deprecation") // Lettuce 6 must have a name(), Lettuce 7 would rather not.
    private record Name(byte[] getBytes) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return getBytes;
        }

        @Override
        public String name() {
            return new String(getBytes, US_ASCII);
        }

        @Override
        public String toString() {
            return name();
        }
    }

    /** A command whose reply is told where it is read, in order. */
    private static final class Asked extends Command<byte[], byte[], Object> {
        private final BiConsumer<Object, Throwable> then;
        private final AtomicBoolean told = new AtomicBoolean();

        private Asked(Name name, CommandArgs<byte[], byte[]> arguments, BiConsumer<Object, Throwable> then) {
            super(name, new Reply(), arguments);
            this.then = then;
        }

        @Override
        public void complete() {
            super.complete();
            if (told.compareAndSet(false, true)) {
                if (getOutput().hasError()) {
                    then.accept(null, new ServerError(getOutput().getError()));
                } else {
                    then.accept(getOutput().get(), null);
                }
            }
        }

        @Override
        public boolean completeExceptionally(Throwable error) {
            boolean first = super.completeExceptionally(error);
            if (told.compareAndSet(false, true)) {
                then.accept(null, error);
            }
            return first;
        }

        @Override
        public void cancel() {
            super.cancel();
            if (told.compareAndSet(false, true)) {
                then.accept(null, new RedisException("the connection has ended"));
            }
        }
    }

    private record Link(StatefulRedisConnection<byte[], byte[]> commands, Map<RedisChannelHandler<?, ?>, String> addresses)
            implements Wire {
        @Override
        public void send(byte[][] words, BiConsumer<Object, Throwable> then) {
            CommandArgs<byte[], byte[]> arguments = new CommandArgs<>(ByteArrayCodec.INSTANCE);
            for (int i = 1; i < words.length; i++) {
                arguments.add(words[i]);
            }
            commands.dispatch(new Asked(new Name(words[0]), arguments, then));
        }

        @Override
        @SuppressWarnings("SuspiciousMethodCalls")
        public String address() {
            return addresses.getOrDefault(commands, "");
        }

        @Override
        public void close() {
            commands.closeAsync();
        }
    }

    private static final class Subscriber implements Wire {
        private final StatefulRedisPubSubConnection<byte[], byte[]> connection;
        private final byte[] channel;

        private Subscriber(StatefulRedisPubSubConnection<byte[], byte[]> connection, byte[] channel, Consumer<byte[]> messages) {
            this.connection = connection;
            this.channel = channel;
            connection.addListener(new RedisPubSubAdapter<>() {
                @Override
                public void message(byte[] name, byte[] message) {
                    messages.accept(message);
                }

                @Override
                public void subscribed(byte[] name, long count) {
                    messages.accept(null);
                }
            });
            connection.sync().subscribe(channel);
        }

        @Override
        public void send(byte[][] words, BiConsumer<Object, Throwable> then) {
            throw new UnsupportedOperationException("messages only");
        }

        /** To subscribe again changes nothing, and is answered. */
        @Override
        public void ping() {
            connection.async().subscribe(channel);
        }

        @Override
        public void close() {
            connection.closeAsync();
        }
    }
}

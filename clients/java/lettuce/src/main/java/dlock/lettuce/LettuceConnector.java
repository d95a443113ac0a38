// SPDX-License-Identifier: MIT
package dlock.lettuce;

import static java.nio.charset.StandardCharsets.US_ASCII;
import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.MILLISECONDS;

import dlock.Connector;
import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.ClientOptions.DisconnectedBehavior;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.DefaultEventLoopGroupProvider;
import io.lettuce.core.resource.EventLoopGroupProvider;
import io.lettuce.core.sentinel.api.StatefulRedisSentinelConnection;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.locks.LockSupport;

/**
 * Connections by Lettuce, with the threads and the options of a client that exists. What a {@link RedisURI} says holds:
 * TLS, user, database, Sentinel.
 */
public final class LettuceConnector implements Connector {
    /** Limits how often a failed handshake is repeated, of which Lettuce has lost the reason: on a busy machine one in seventy. */
    private static final int MOST_LOST = 3;

    /** An I/O thread for the locks alone: what the program does in its client's threads holds up no lock. */
    private final EventLoopGroupProvider threads = new DefaultEventLoopGroupProvider(1);
    private final ClientResources resources;
    private final RedisClient own;
    private final ClientOptions options;
    private final RedisURI uri;
    private final RedisClusterClient cluster;
    /** Ours, which asks with our bounds who serves what. */
    private volatile RedisClusterClient map;
    private StatefulRedisSentinelConnection<byte[], byte[]> sentinel;
    private volatile String primary;
    private volatile Duration bound = Duration.ZERO;
    private boolean isClosed;

    /** Connects to one server, or to what Sentinel says is the primary. */
    public LettuceConnector(RedisClient client, RedisURI uri) {
        this(client, uri, null);
        if (uri == null) {
            throw new IllegalArgumentException("uri must not be null");
        }
    }

    /** Connects to a cluster that the client knows. */
    public LettuceConnector(RedisClusterClient client) {
        this(client, null, client);
    }

    private LettuceConnector(AbstractRedisClient client, RedisURI uri, RedisClusterClient cluster) {
        try {
            new RedisURI().getCredentialsProvider();
        } catch (LinkageError old) {
            throw new IllegalStateException("Lettuce must be 6.2 or later, not "
                    + RedisURI.class.getPackage().getImplementationVersion(), old);
        }
        if (client == null) {
            throw new IllegalArgumentException("client must not be null");
        }
        this.uri = uri;
        this.cluster = cluster;
        // A connection that came back by itself would send again what was cut off. The caller bounds each call.
        options = client.getOptions().mutate().autoReconnect(false).disconnectedBehavior(DisconnectedBehavior.REJECT_COMMANDS)
                .protocolVersion(ProtocolVersion.RESP2).timeoutOptions(TimeoutOptions.builder().timeoutCommands(false).build()).build();
        ClientResources theirs = client.getResources();
        // What is named here is shared, so the end of ours does not end it.
        resources = theirs.mutate().eventLoopGroupProvider(threads).eventExecutorGroup(theirs.eventExecutorGroup())
                .timer(theirs.timer()).commandLatencyRecorder(theirs.commandLatencyRecorder()).build();
        own = RedisClient.create(resources);
    }

    @Override
    public int slot(String key) {
        return cluster == null ? 0 : SlotHash.getSlot(key.getBytes(UTF_8));
    }

    @Override
    public boolean isWatched() {
        return uri != null && !uri.getSentinels().isEmpty();
    }

    @Override
    public String node(int slot) {
        if (cluster == null) {
            return isWatched() ? primary : "";
        }
        RedisClusterNode node = map == null ? null : map.getPartitions().getPartitionBySlot(slot);
        return node == null ? null : node.getUri().getHost() + ":" + node.getUri().getPort();
    }

    @Override
    public synchronized void refresh(Duration within) {
        if (isClosed) {
            return;
        }
        if (isWatched()) {
            findPrimary(within);
        } else if (map != null) {
            map.refreshPartitions();
        } else if (cluster != null) {
            Duration look = within.dividedBy(3); // each look at the map waits for all nodes: one that hangs must not cost more
            RedisClusterClient made = RedisClusterClient.create(resources, cluster.getPartitions().stream()
                    .map(node -> target(node.getUri(), node.getUri().getHost() + ":" + node.getUri().getPort(), look)).toList());
            made.setOptions(ClusterClientOptions.builder(bounded(look))
                    .topologyRefreshOptions(ClusterTopologyRefreshOptions.create()).build());
            made.getPartitions();
            map = made;
        }
    }

    private void findPrimary(Duration within) {
        try {
            if (sentinel == null || !sentinel.isOpen()) {
                own.setOptions(bounded(within));
                sentinel = own.connectSentinel(ByteArrayCodec.INSTANCE, target(uri, null, within));
                sentinel.setTimeout(within);
            }
            if (sentinel.sync().getMasterAddrByName(uri.getSentinelMasterId().getBytes(US_ASCII)) instanceof InetSocketAddress address) {
                primary = address.getHostString() + ":" + address.getPort();
            }
        } catch (RuntimeException error) {
            if (sentinel != null) {
                sentinel.closeAsync(); // another one may answer
                sentinel = null;
            }
            throw error;
        }
    }

    private ClientOptions bounded(Duration within) {
        bound = within;
        SocketOptions sockets = options.getSocketOptions().mutate().connectTimeout(within).build();
        return options.mutate().socketOptions(sockets).build();
    }

    @Override
    public Line open(String node, Duration within) {
        own.setOptions(bounded(within));
        RedisURI target = target(uri != null ? uri : map.getPartitions().getPartition(0).getUri(), node, within);
        for (int lost = 0;; lost++) {
            try {
                return new Link(own.connect(ByteArrayCodec.INSTANCE, target));
            } catch (RedisException error) {
                if (lost == MOST_LOST || !isLost(error)) {
                    throw error;
                }
                // Losses come in bursts, when the machine is busy.
                LockSupport.parkNanos(MILLISECONDS.toNanos(10L << lost));
            }
        }
    }

    /** Returns whether Lettuce has lost the server's answer. Otherwise a wrong password would look like a server that is away. */
    private static boolean isLost(RedisException error) {
        Throwable cause = error;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause instanceof IllegalStateException || String.valueOf(cause.getMessage()).contains("closed prematurely");
    }

    /**
     * Returns a copy of the URI: for that node, or the same for null. The builder that begins with a URI copies no sentinels, and wants
     * a host that such a URI has not.
     */
    private static RedisURI target(RedisURI from, String node, Duration within) {
        RedisURI target = new RedisURI();
        if (node == null || node.isEmpty()) {
            target.setHost(from.getHost());
            target.setPort(from.getPort());
            target.setSocket(from.getSocket());
            target.setSentinelMasterId(from.getSentinelMasterId());
            from.getSentinels().forEach(one -> target.getSentinels().add(target(one, null, within)));
        } else {
            int colon = node.lastIndexOf(':');
            target.setHost(node.substring(0, colon));
            target.setPort(Integer.parseInt(node.substring(colon + 1)));
        }
        target.setCredentialsProvider(from.getCredentialsProvider());
        target.setDatabase(from.getDatabase());
        target.setClientName(from.getClientName());
        target.setSsl(from.isSsl());
        target.setStartTls(from.isStartTls());
        target.setVerifyPeer(from.getVerifyMode());
        target.setTimeout(within);
        return target;
    }

    @Override
    public String said(Throwable error) {
        return Connector.messageOf(error, RedisCommandExecutionException.class);
    }

    @Override
    public String toString() {
        return uri != null ? uri.toString() : "cluster";
    }

    @Override
    public synchronized void close() {
        isClosed = true;
        long ms = bound.toMillis() + 1000; // a handshake that has begun ends in the I/O thread
        if (map != null) {
            map.shutdownAsync(ms, 2 * ms, MILLISECONDS);
        }
        own.shutdownAsync(ms, 2 * ms, MILLISECONDS);
        resources.shutdown(0, 0, MILLISECONDS);
        threads.shutdown(ms, 2 * ms, MILLISECONDS);
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

    private record Link(StatefulRedisConnection<byte[], byte[]> connection) implements Line {
        @Override
        public CompletionStage<Object> send(List<byte[][]> commands) {
            List<AsyncCommand<byte[], byte[], Object>> all = new ArrayList<>();
            for (byte[][] words : commands) {
                CommandArgs<byte[], byte[]> arguments = new CommandArgs<>(ByteArrayCodec.INSTANCE);
                for (int i = 1; i < words.length; i++) {
                    arguments.add(words[i]);
                }
                all.add(new AsyncCommand<>(new Command<>(new Name(words[0]), new Reply(), arguments)));
            }
            connection.dispatch(all);
            return all.get(all.size() - 1);
        }

        @Override
        public boolean isOpen() {
            return connection.isOpen();
        }

        @Override
        public void close() {
            connection.closeAsync();
        }
    }
}

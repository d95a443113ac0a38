// SPDX-License-Identifier: MIT
package dlock.jedis;

import static java.nio.charset.StandardCharsets.UTF_8;

import dlock.Connector;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.commons.pool2.PooledObject;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionFactory;
import redis.clients.jedis.ConnectionPool;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.providers.ClusterConnectionProvider;
import redis.clients.jedis.util.JedisClusterCRC16;

/**
 * Connections by Jedis, of a pool for each server. What a {@link JedisClientConfig} says holds: TLS, user, database, the mapping of
 * addresses.
 */
public final class JedisConnector implements Connector {
    private enum Kind { ONE, SENTINEL, CLUSTER }

    private final Kind kind;
    private final JedisClientConfig config;
    private final List<HostAndPort> seeds;
    private final String master;
    private final JedisClientConfig sentinelConfig;
    private volatile ClusterConnectionProvider map;
    private volatile String primary;
    /** Which Sentinel has answered last. */
    private int answered;
    private boolean isClosed;

    /** Connects to one server. */
    public JedisConnector(JedisClientConfig config, HostAndPort address) {
        this(Kind.ONE, config, address == null ? List.of() : List.of(address), "", config);
    }

    private JedisConnector(Kind kind, JedisClientConfig config, Collection<HostAndPort> seeds, String master,
            JedisClientConfig sentinelConfig) {
        try {
            RedisProtocol.valueOf("RESP2");
        } catch (LinkageError old) {
            throw new IllegalStateException("Jedis must be 6.0 or later, not "
                    + JedisClientConfig.class.getPackage().getImplementationVersion(), old);
        }
        if (config == null) {
            throw new IllegalArgumentException("config must not be null");
        }
        if (seeds == null || seeds.isEmpty()) {
            throw new IllegalArgumentException("addresses must not be empty");
        }
        this.kind = kind;
        this.config = config;
        this.seeds = List.copyOf(seeds);
        this.master = master;
        this.sentinelConfig = sentinelConfig;
    }

    /** Connects to a cluster of which these nodes are known. */
    public static JedisConnector cluster(JedisClientConfig config, Collection<HostAndPort> addresses) {
        return new JedisConnector(Kind.CLUSTER, config, addresses, "", config);
    }

    /** Connects to what these Sentinels say is the primary of that name. */
    public static JedisConnector sentinel(JedisClientConfig config, String master, JedisClientConfig sentinelConfig,
            Collection<HostAndPort> sentinels) {
        if (master == null || master.isEmpty()) {
            throw new IllegalArgumentException("master must not be empty");
        }
        return new JedisConnector(Kind.SENTINEL, config, sentinels, master, sentinelConfig);
    }

    @Override
    public int slot(String key) {
        return kind == Kind.CLUSTER ? JedisClusterCRC16.getSlot(key.getBytes(UTF_8)) : 0;
    }

    @Override
    public boolean isWatched() {
        return kind == Kind.SENTINEL;
    }

    @Override
    public String node(int slot) {
        return switch (kind) {
            case ONE -> seeds.get(0).toString();
            case SENTINEL -> primary;
            case CLUSTER -> {
                HostAndPort node = map == null ? null : map.getNode(slot);
                yield node == null ? null : node.toString();
            }
        };
    }

    @Override
    public synchronized void refresh(Duration within) {
        if (isClosed) {
            return;
        }
        if (kind == Kind.SENTINEL) {
            primary = findPrimary(bounded(sentinelConfig, within));
        } else if (map != null) {
            map.renewSlotCache();
        } else if (kind == Kind.CLUSTER) {
            map = new ClusterConnectionProvider(Set.copyOf(seeds), bounded(config, within));
        }
    }

    /** Asks one Sentinel after the other, the one first that has answered last. */
    private String findPrimary(JedisClientConfig how) {
        JedisConnectionException last = null;
        for (int i = 0; i < seeds.size(); i++) {
            HostAndPort sentinel = seeds.get((answered + i) % seeds.size());
            try (Jedis jedis = new Jedis(sentinel, how)) {
                List<String> found = jedis.sentinelGetMasterAddrByName(master);
                if (found != null) {
                    answered = seeds.indexOf(sentinel);
                    return found.get(0) + ":" + found.get(1);
                }
                last = new JedisConnectionException("the Sentinel at " + sentinel + " knows no " + master);
            } catch (JedisConnectionException error) {
                last = error;
            }
        }
        throw last;
    }

    /** Returns the same settings with the protocol that all of these versions have, and with bounds. */
    private static JedisClientConfig bounded(JedisClientConfig config, Duration within) {
        int ms = (int) Math.min(Integer.MAX_VALUE, within.toMillis());
        return DefaultJedisClientConfig.builder().from(config).protocol(RedisProtocol.RESP2).connectionTimeoutMillis(ms)
                .socketTimeoutMillis(ms).blockingSocketTimeoutMillis(ms).build();
    }

    @Override
    public Line open(String node, Duration within) {
        Link link = new Link(HostAndPort.from(node), bounded(config, within), within);
        try (Connection first = link.pool.getResource()) { // who cannot connect learns of it here
            return link;
        } catch (RuntimeException error) {
            link.close();
            throw error;
        }
    }

    @Override
    public String said(Throwable error) {
        String said = Connector.messageOf(error, JedisDataException.class);
        for (Throwable cause = error; said == null && cause != null; cause = cause.getCause()) {
            for (Throwable reason : cause.getSuppressed()) { // why there is no map
                said = Connector.messageOf(reason, JedisDataException.class);
            }
        }
        return said;
    }

    @Override
    public String toString() {
        return master + seeds;
    }

    @Override
    public synchronized void close() {
        isClosed = true;
        if (map != null) {
            map.close();
        }
    }

    /** A pool, and as many threads: a call waits for its reply in one of them. */
    private static final class Link implements Line {
        private static final int MOST = 32;

        private final ConnectionPool pool;
        private final ThreadPoolExecutor threads = new ThreadPoolExecutor(MOST, MOST, 5, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), task -> {
            Thread thread = new Thread(task, "dlock-jedis");
            thread.setDaemon(true);
            return thread;
        });

        Link(HostAndPort address, JedisClientConfig config, Duration within) {
            GenericObjectPoolConfig<Connection> most = new GenericObjectPoolConfig<>();
            most.setMaxTotal(MOST);
            most.setMaxIdle(MOST);
            most.setMaxWait(within);
            most.setJmxEnabled(false);
            most.setTestOnBorrow(true);
            pool = new ConnectionPool(new ConnectionFactory(address, config) {
                @Override
                public boolean validateObject(PooledObject<Connection> one) { // so that a single attempt does not fail on a stale connection
                    return one.getIdleDuration().toMillis() < 1000 || super.validateObject(one);
                }
            }, most);
            threads.allowCoreThreadTimeOut(true);
        }

        @Override
        public CompletionStage<Object> send(List<byte[][]> commands) {
            return CompletableFuture.supplyAsync(() -> {
                try (Connection connection = pool.getResource()) {
                    commands.forEach(words -> connection.sendCommand(arguments(words)));
                    List<Object> replies = connection.getMany(commands.size());
                    if (replies.get(replies.size() - 1) instanceof JedisDataException error) {
                        throw error;
                    }
                    return replies.get(replies.size() - 1);
                }
            }, threads);
        }

        private static CommandArguments arguments(byte[][] words) {
            CommandArguments arguments = new CommandArguments(() -> words[0]);
            for (int i = 1; i < words.length; i++) {
                arguments.add(words[i]);
            }
            return arguments;
        }

        @Override
        public void close() {
            threads.shutdown();
            pool.close();
        }
    }
}

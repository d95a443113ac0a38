// SPDX-License-Identifier: MIT
package dlock.jedis;

import static java.nio.charset.StandardCharsets.US_ASCII;
import static java.nio.charset.StandardCharsets.UTF_8;

import dlock.Connector;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.stream.Stream;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisSocketFactory;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisSocketFactory;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * Connections by Jedis, each with a thread that reads it. What a {@link JedisClientConfig} says holds: TLS, user, database,
 * the mapping of addresses.
 */
public final class JedisConnector implements Connector {
    private enum Kind { ONE, SENTINEL, CLUSTER }

    private final Kind kind;
    private final JedisClientConfig config;
    private final List<HostAndPort> seeds;
    private final String master;
    private final JedisClientConfig sentinelConfig;
    private volatile String[] slots;

    /** One server. */
    public JedisConnector(JedisClientConfig config, HostAndPort address) {
        this(Kind.ONE, config, address == null ? List.of() : List.of(address), "", config);
    }

    private JedisConnector(Kind kind, JedisClientConfig config, Collection<HostAndPort> seeds, String master,
            JedisClientConfig sentinelConfig) {
        if (Stream.of(JedisClientConfig.class.getMethods()).noneMatch(method -> method.getName().equals("getRedisProtocol"))) {
            throw new IllegalStateException("Jedis must be 5.0 or later, not "
                    + JedisClientConfig.class.getPackage().getImplementationVersion());
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

    /** A cluster of which these nodes are known. */
    public static JedisConnector cluster(JedisClientConfig config, Collection<HostAndPort> addresses) {
        return new JedisConnector(Kind.CLUSTER, config, addresses, "", config);
    }

    /** What these Sentinels say is the primary of that name, asked at each connecting. */
    public static JedisConnector sentinel(JedisClientConfig config, String master, JedisClientConfig sentinelConfig,
            Collection<HostAndPort> sentinels) {
        if (master == null || master.isEmpty()) {
            throw new IllegalArgumentException("master must not be empty");
        }
        return new JedisConnector(Kind.SENTINEL, config, sentinels, master, sentinelConfig);
    }

    @Override
    public boolean cluster() {
        return kind == Kind.CLUSTER;
    }

    @Override
    public String node(int slot) {
        if (kind != Kind.CLUSTER) {
            return "";
        }
        String[] known = slots;
        return known == null ? null : known[slot];
    }

    @Override
    public void refresh() {
        if (kind != Kind.CLUSTER) {
            return;
        }
        List<HostAndPort> known = new ArrayList<>(seeds);
        if (slots != null) {
            List.of(slots).stream().distinct().filter(one -> one != null).map(HostAndPort::from).forEach(known::add);
        }
        JedisConnectionException last = null;
        for (HostAndPort seed : known) {
            try (Connection connection = new Connection(mapped(seed), bounded(config, Duration.ofSeconds(1)))) {
                connection.sendCommand(() -> "CLUSTER".getBytes(US_ASCII), "SLOTS");
                String[] found = new String[16384];
                for (Object row : connection.getObjectMultiBulkReply()) {
                    List<?> range = (List<?>) row;
                    List<?> first = (List<?>) range.get(2);
                    String host = new String((byte[]) first.get(0), UTF_8);
                    String name = (host.isEmpty() ? seed.getHost() : host) + ":" + first.get(1);
                    for (int slot = ((Long) range.get(0)).intValue(); slot <= (Long) range.get(1); slot++) {
                        found[slot] = name;
                    }
                }
                slots = found;
                return;
            } catch (JedisConnectionException error) {
                last = error;
            }
        }
        throw last;
    }

    private HostAndPort mapped(HostAndPort address) {
        return config.getHostAndPortMapper() == null ? address : config.getHostAndPortMapper().getHostAndPort(address);
    }

    private HostAndPort address(String node, Duration bound) {
        if (kind == Kind.CLUSTER) {
            return mapped(HostAndPort.from(node));
        }
        if (kind == Kind.ONE) {
            return mapped(seeds.get(0));
        }
        RuntimeException last = null;
        for (HostAndPort sentinel : seeds) {
            try (Connection connection = new Connection(sentinel, bounded(sentinelConfig, bound))) {
                connection.sendCommand(() -> "SENTINEL".getBytes(US_ASCII), "get-master-addr-by-name", master);
                List<String> found = connection.getMultiBulkReply();
                if (found != null) {
                    return mapped(new HostAndPort(found.get(0), Integer.parseInt(found.get(1))));
                }
                last = new JedisConnectionException("the Sentinel at " + sentinel + " knows no " + master);
            } catch (JedisConnectionException error) {
                last = error;
            }
        }
        throw last;
    }

    /** The same settings with the protocol whose replies come in order, and with bounds. */
    private static JedisClientConfig bounded(JedisClientConfig config, Duration bound) {
        int ms = (int) Math.min(Integer.MAX_VALUE, bound.toMillis());
        return (JedisClientConfig) Proxy.newProxyInstance(JedisClientConfig.class.getClassLoader(),
                new Class<?>[] {JedisClientConfig.class}, (proxy, method, arguments) -> switch (method.getName()) {
                    case "getRedisProtocol" -> RedisProtocol.RESP2;
                    case "isAutoNegotiateProtocol" -> false;
                    case "getConnectionTimeoutMillis", "getSocketTimeoutMillis" -> ms;
                    default -> {
                        try {
                            yield method.invoke(config, arguments);
                        } catch (InvocationTargetException error) {
                            throw error.getCause();
                        }
                    }
                });
    }

    @Override
    public Wire open(
            String node, Duration bound, String channel, Consumer<byte[]> messages, Consumer<Throwable> ended) {
        Line line = null;
        try {
            JedisClientConfig how = bounded(config, bound);
            line = new Line(new Sockets(new DefaultJedisSocketFactory(address(node, bound), how)), how);
            if (channel == null) {
                line.setTimeoutInfinite(); // the core looks after what is missing
                return new Link(line, ended);
            }
            Subscriber subscriber = new Subscriber(line, channel, messages);
            line.setTimeoutInfinite();
            subscriber.start(ended);
            return subscriber;
        } catch (RuntimeException error) {
            if (line != null) {
                line.cut();
            }
            ServerError said = ServerError.in(error, JedisDataException.class);
            throw said != null ? said : error;
        }
    }

    @Override
    public String toString() {
        return master + seeds;
    }

    private static void start(Runnable task, String name) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        thread.start();
    }

    /** Remembers the socket: to close it waits for nobody, which the library's own way may. */
    private static final class Sockets implements JedisSocketFactory {
        private final JedisSocketFactory from;
        private volatile Socket socket;

        private Sockets(JedisSocketFactory from) {
            this.from = from;
        }

        @Override
        public Socket createSocket() {
            return socket = from.createSocket();
        }
    }

    private static final class Line extends Connection {
        private final Sockets sockets;

        private Line(Sockets sockets, JedisClientConfig config) {
            super(sockets, config);
            this.sockets = sockets;
        }

        private void write(byte[][] words) {
            CommandArguments arguments = new CommandArguments(() -> words[0]);
            for (int i = 1; i < words.length; i++) {
                arguments.add(words[i]);
            }
            sendCommand(arguments);
            flush();
        }

        private void cut() {
            try {
                if (sockets.socket != null) {
                    sockets.socket.close();
                }
            } catch (IOException ended) {
                // So it is.
            }
        }
    }

    private static final class Link implements Wire {
        private final Line line;
        private final Consumer<Throwable> ended;
        private final ReentrantLock writing = new ReentrantLock();
        /** In the order in which they were sent, which is that of the replies. */
        private final Queue<BiConsumer<Object, Throwable>> asked = new ConcurrentLinkedQueue<>();
        private volatile boolean over;

        private Link(Line line, Consumer<Throwable> ended) {
            this.line = line;
            this.ended = ended;
            JedisConnector.start(this::read, "dlock-jedis");
        }

        @Override
        public void send(byte[][] words, BiConsumer<Object, Throwable> then) {
            writing.lock();
            try {
                asked.add(then);
                line.write(words);
            } catch (RuntimeException | LinkageError error) {
                line.cut(); // the thread that reads tells everybody, or a reply would be told to whoever asked next
            } finally {
                writing.unlock();
            }
            if (over) {
                fail(new JedisConnectionException("the connection has ended"));
            }
        }

        private void read() {
            try {
                while (true) {
                    Object reply;
                    ServerError no = null;
                    try {
                        reply = line.getUnflushedObject();
                    } catch (JedisDataException error) {
                        reply = null;
                        no = new ServerError(error.getMessage());
                    }
                    BiConsumer<Object, Throwable> then = asked.poll();
                    if (then != null) {
                        then.accept(reply, no);
                    }
                }
            } catch (RuntimeException | LinkageError error) {
                line.cut();
                over = true;
                fail(error);
                ended.accept(error);
            }
        }

        private void fail(Throwable why) {
            for (var one = asked.poll(); one != null; one = asked.poll()) {
                one.accept(null, why);
            }
        }

        @Override
        public String address() {
            Socket socket = line.sockets.socket;
            return socket == null ? "" : String.valueOf(socket.getRemoteSocketAddress());
        }

        @Override
        public void close() {
            line.cut(); // the thread that reads says so
        }
    }

    private static final class Subscriber implements Wire {
        private final Line line;
        private final byte[][] subscribe;
        private final Consumer<byte[]> messages;
        private final ReentrantLock writing = new ReentrantLock();

        private Subscriber(Line line, String channel, Consumer<byte[]> messages) {
            this.line = line;
            this.messages = messages;
            subscribe = new byte[][] {"SUBSCRIBE".getBytes(US_ASCII), channel.getBytes(US_ASCII)};
            line.write(subscribe);
            line.getUnflushedObject();
        }

        private void start(Consumer<Throwable> ended) {
            JedisConnector.start(() -> {
                try {
                    while (true) {
                        List<?> frame = (List<?>) line.getUnflushedObject();
                        boolean message = new String((byte[]) frame.get(0), US_ASCII).equals("message");
                        messages.accept(message ? (byte[]) frame.get(2) : null);
                    }
                } catch (RuntimeException | LinkageError error) {
                    line.cut();
                    ended.accept(error);
                }
            }, "dlock-jedis-messages");
        }

        @Override
        public void send(byte[][] words, BiConsumer<Object, Throwable> then) {
            throw new UnsupportedOperationException("messages only");
        }

        /** To subscribe again changes nothing, and is answered. */
        @Override
        public void ping() {
            writing.lock();
            try {
                line.write(subscribe);
            } catch (RuntimeException error) {
                line.cut();
            } finally {
                writing.unlock();
            }
        }

        @Override
        public void close() {
            line.cut();
        }
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;

import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import java.util.stream.Stream;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisException;

/** The servers of a test, and what they show of their locks. */
final class Stage implements AutoCloseable {
    static final int PATIENCE = Integer.parseInt(System.getenv().getOrDefault("PATIENCE", "60"));
    /** No stall of this process takes two thirds of it, so the client reports a lease that ends. */
    static final Duration LEASE = Duration.ofSeconds(3);
    /** No fault takes so long, however busy the machine. */
    static final Duration LONG = Duration.ofSeconds(15);

    static final RedisClient LETTUCE = RedisClient.create();
    static final RedisClusterClient CLUSTER =
            RedisClusterClient.create(LETTUCE.getResources(), RedisURI.create("redis://" + addresses("cluster")[0]));

    final String place;
    final String library;
    final String key = "{" + Long.toHexString(ThreadLocalRandom.current().nextLong() >>> 16) + "}lock";
    private final Map<HostAndPort, Connection> connections = new HashMap<>();
    private final List<AutoCloseable> open = new ArrayList<>();
    /** The replicas that stall. */
    final Set<String> frozen = new HashSet<>();

    Stage(String library, String place) {
        this.library = library;
        this.place = place;
    }

    static HostAndPort[] addresses(String name) {
        return Stream.of(System.getenv("DLOCK_" + name.toUpperCase()).split(",")).map(HostAndPort::from)
                .toArray(HostAndPort[]::new);
    }

    DLocks locks() {
        return locks(LEASE);
    }

    DLocks locks(Duration lease) {
        return closing(new DLocks(connector(library, place), settings(lease)));
    }

    static Settings settings(Duration lease) {
        return Settings.DEFAULT.lease(lease);
    }

    static Connector connector(String library, String place) {
        return connector(library, place, null, null, null);
    }

    /** Where the place's server is, or on a path to it. */
    static Connector connector(String library, String place, String path, String user, String password) {
        if (place.equals("pair")) {
            return new Primary(library);
        }
        HostAndPort address = path != null ? HostAndPort.from(path) : addresses(place)[0];
        if (library.equals("jedis")) {
            var config = DefaultJedisClientConfig.builder().user(user).password(password).build();
            return place.equals("cluster") ? JedisConnector.cluster(config, List.of(address))
                    : new JedisConnector(config, address);
        }
        RedisURI.Builder uri = RedisURI.builder().withHost(address.getHost()).withPort(address.getPort());
        if (user != null) {
            uri.withAuthentication(user, password);
        }
        if (place.equals("cluster")) {
            return new LettuceConnector(CLUSTER);
        }
        return new LettuceConnector(LETTUCE, uri.build());
    }

    /** Goes to whoever of the pair is the primary, as a connection by Sentinel does. */
    private record Primary(String library) implements Connector {
        @Override
        public Line open(String node, Duration within) throws Exception {
            HostAndPort primary = addresses("pair")[0];
            for (HostAndPort one : addresses("pair")) {
                try (Connection connection = connect(one)) {
                    if (text(((List<?>) send(connection, "ROLE")).get(0)).equals("master")) {
                        primary = one;
                    }
                }
            }
            Connector there = connector(library, "single", primary.toString(), null, null);
            return there.open(there.node(0), within);
        }

        @Override
        public String said(Throwable error) {
            return connector(library, "single").said(error);
        }
    }

    /** A thread of its own, since a thread is who holds a lock. */
    Actor actor() {
        return closing(new Actor());
    }

    /** To be closed with the stage. */
    <T extends AutoCloseable> T closing(T one) {
        open.add(one);
        return one;
    }

    static final class Actor implements AutoCloseable {
        volatile Thread thread;
        private final ExecutorService executor = Executors.newSingleThreadExecutor(this::thread);

        private Thread thread(Runnable task) {
            thread = new Thread(task, "actor");
            thread.setDaemon(true);
            return thread;
        }

        <T> Future<T> start(Callable<T> task) {
            return executor.submit(task);
        }

        Future<?> start(Runnable task) {
            return executor.submit(task);
        }

        <T> T run(Callable<T> task) throws Exception {
            return result(start(task));
        }

        void run(Runnable task) throws Exception {
            result(start(task));
        }

        @Override
        public void close() {
            executor.shutdownNow();
        }
    }

    static <T> T result(Future<T> future) throws Exception {
        try {
            return future.get(2 * PATIENCE, TimeUnit.SECONDS);
        } catch (java.util.concurrent.ExecutionException error) {
            if (error.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw error;
        }
    }

    static <T> T until(String what, Callable<T> condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE);
        while (true) {
            T value = condition.call();
            if (value != null && !Boolean.FALSE.equals(value)) {
                return value;
            }
            if (System.nanoTime() > end) {
                throw new TimeoutException("gave up waiting until " + what);
            }
            Thread.sleep(20);
        }
    }

    // ---- what is done to the servers --------------------------------------------------------------------------------

    /** Has something done to the servers, or on the way to them. */
    static String control(String line) throws IOException {
        HostAndPort address = addresses("CONTROL")[0];
        try (Socket socket = new Socket(address.getHost(), address.getPort());
                BufferedReader lines = new BufferedReader(new InputStreamReader(socket.getInputStream(), UTF_8))) {
            socket.getOutputStream().write((line + "\n").getBytes(UTF_8));
            String answer = lines.readLine();
            if (!answer.startsWith("ok")) {
                throw new AssertionError(answer);
            }
            return answer.substring(Math.min(3, answer.length()));
        }
    }

    /** The reply of whoever serves the key. */
    Object ask(String key, Object... words) throws Exception {
        try {
            return send(node(key), words);
        } catch (JedisConnectionException lost) {
            return send(node(key), words);
        }
    }

    /** Returns the node that serves this key now; some nodes may know it later than others. */
    Connection node(String key) throws Exception {
        return until(key + " is served", () -> Stream.of(addresses(place))
                .filter(address -> !frozen.contains(address.toString()) && serves(address, key))
                .findFirst().map(this::connection).orElse(null));
    }

    private boolean serves(HostAndPort address, String key) {
        try {
            send(connection(address), "EXISTS", key); // or MOVED
            return new String((byte[]) ((List<?>) send(connection(address), "ROLE")).get(0), UTF_8).equals("master");
        } catch (JedisException other) {
            return false;
        }
    }

    Connection connection(HostAndPort address) {
        return connections.compute(address, (name, old) -> old != null && !old.isBroken() ? old : connect(name));
    }

    static Connection connect(HostAndPort address) {
        var config = DefaultJedisClientConfig.builder().protocol(RedisProtocol.RESP2)
                .socketTimeoutMillis(PATIENCE * 1000).build();
        return new Connection(address, config);
    }

    static Object send(Connection connection, Object... words) {
        CommandArguments arguments = new CommandArguments(() -> words[0].toString().getBytes(UTF_8));
        for (int i = 1; i < words.length; i++) {
            arguments.add(words[i].toString());
        }
        return connection.executeCommand(arguments);
    }

    /** Makes another owner take the lock, for longer than any test lasts. */
    long hold(String key, String owner, Object... options) throws Exception {
        List<Object> words = new ArrayList<>(List.of("DLOCK.ACQUIRE", key, owner, 600_000));
        words.addAll(List.of(options));
        return (Long) ((List<?>) ask(key, words.toArray())).get(0);
    }

    void hold() throws Exception {
        hold(key, "other");
    }

    /** Releases the lock, and returns the next holder, which it reads in the same step. */
    String handOver(String owner) throws Exception {
        return handOver(key, owner);
    }

    String handOver(String key, String owner) throws Exception {
        Connection node = node(key);
        send(node, "MULTI");
        send(node, "DLOCK.RELEASE", key, owner, "HOLDS", 0);
        send(node, "DLOCK.HELD", key);
        List<?> held = (List<?>) ((List<?>) send(node, "EXEC")).get(1);
        return held == null ? null : text(held.get(3));
    }

    String handOver() throws Exception {
        return handOver("other");
    }

    // ---- what they show ---------------------------------------------------------------------------------------------

    static String text(Object value) {
        return value instanceof byte[] bytes ? new String(bytes, UTF_8) : String.valueOf(value);
    }

    /** INFO's map, of a protocol that has none. */
    private static Object named(Object value) {
        if (value instanceof byte[] bytes) {
            return new String(bytes, UTF_8);
        }
        if (!(value instanceof List<?> list)) {
            return value;
        }
        boolean map = !list.isEmpty() && list.size() % 2 == 0 && list.get(0) instanceof byte[] first
                && List.of("state", "owner").contains(new String(first, UTF_8));
        if (!map) {
            return list.stream().map(Stage::named).toList();
        }
        Map<String, Object> named = new LinkedHashMap<>();
        for (int i = 0; i < list.size(); i += 2) {
            named.put(text(list.get(i)), named(list.get(i + 1)));
        }
        return named;
    }

    private Map<?, ?> info(String key) throws Exception {
        Object info = named(ask(key, "DLOCK.INFO", key, "COUNT", 5000));
        return info != null ? (Map<?, ?>) info : Map.of("holders", List.of(), "queue", List.of());
    }

    /** A holder or a place in the queue. */
    record Row(Map<?, ?> fields) {
        long number(String name) {
            return (Long) fields.get(name);
        }

        String word(String name) {
            return (String) fields.get(name);
        }
    }

    private List<Row> rows(String key, String name) throws Exception {
        return ((List<?>) info(key).get(name)).stream().map(row -> new Row((Map<?, ?>) row)).toList();
    }

    List<Row> holders() throws Exception {
        return rows(key, "holders");
    }

    /** The first holder, as soon as there is one. */
    Row holder() throws Exception {
        return until("it is held", () -> holders().stream().findFirst().orElse(null));
    }

    List<String> owners(String key) throws Exception {
        return rows(key, "holders").stream().map(row -> row.word("owner")).toList();
    }

    long heldMs(String key) throws Exception {
        List<Row> holders = rows(key, "holders");
        if (holders.isEmpty()) {
            throw new AssertionError(key + " is not held any more");
        }
        return holders.get(0).number("held-ms");
    }

    /** It is held in a session: the server renews it. */
    boolean isRenewed(String key) throws Exception {
        return rows(key, "holders").stream().findFirst().filter(holder -> !holder.word("in").isEmpty()).isPresent();
    }

    /** It is held, and its session is not alive. */
    boolean isUnkept(String key) throws Exception {
        return rows(key, "holders").stream().findFirst().orElseThrow().number("alive") == 0;
    }

    String sessionOf(String key) throws Exception {
        return rows(key, "holders").get(0).word("in");
    }

    List<String> owners() throws Exception {
        return owners(key);
    }

    List<Row> places(String key) throws Exception {
        return rows(key, "queue");
    }

    List<String> queue() throws Exception {
        return places(key).stream().map(row -> row.word("owner")).toList();
    }

    /** Who gets no messages asks by the ticket, and is absent meanwhile. */
    void awaitTickets(String key, int count) throws Exception {
        until(count + " have tickets", () -> places(key).size() == count);
    }

    void awaitQueued(String key, int count) throws Exception {
        until(count + " are queued, and nobody is absent", () -> {
            List<Row> queue = places(key);
            return queue.size() == count && queue.stream().noneMatch(row -> row.word("kind").equals("absent"));
        });
    }

    void awaitQueued(int count) throws Exception {
        awaitQueued(key, count);
    }

    void awaitGone() throws Exception {
        awaitGone(key);
    }

    void awaitGone(String key) throws Exception {
        until("nobody holds it and nobody waits", () -> ask(key, "DLOCK.INFO", key) == null);
    }

    /** Until the collector has found it. It stops everybody: not more often than needed. */
    void awaitCollected(String key) throws Exception {
        until("the collector has found it", () -> {
            System.gc();
            Thread.sleep(1000);
            return ask(key, "DLOCK.INFO", key) == null;
        });
    }

    /** The unlock messages of the lock from now on. */
    Supplier<String> messages() throws Exception {
        String channel = "__dlock@0__:" + key;
        Connection connection = connect(node(key).getHostAndPort());
        open.add(connection::disconnect);
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        boolean sharded = place.equals("cluster");
        send(connection, sharded ? "SSUBSCRIBE" : "SUBSCRIBE", channel);
        Thread reader = new Thread(() -> {
            try {
                while (true) {
                    heard.add(text(((List<?>) connection.getUnflushedObject()).get(2)));
                }
            } catch (JedisException end) {
                heard.add("the connection has ended");
            }
        });
        reader.setDaemon(true);
        reader.start();
        return () -> {
            try {
                return heard.poll(PATIENCE, TimeUnit.SECONDS);
            } catch (InterruptedException interrupted) {
                throw new AssertionError(interrupted);
            }
        };
    }

    @Override
    public void close() throws Exception {
        for (AutoCloseable one : open) {
            one.close();
        }
        connections.values().forEach(Connection::disconnect);
    }
}

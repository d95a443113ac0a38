// SPDX-License-Identifier: MIT

import dlock.Connector;
import dlock.DLock;
import dlock.DLocks;
import dlock.Hold;
import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SetArgs;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.config.Config;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** Measures the packages and Redisson on one server in one run. Prints Markdown. */
public final class Bench {
    private static final int PAIRS = 4000;
    private static final int ROUNDS = 5;
    private static final int SECONDS = 5;
    private static final String ADDRESS = System.getenv("DLOCK_SINGLE");
    private static final RedisClient LETTUCE = RedisClient.create();

    /** Takes a lock, does the work and gives it back; and its end. */
    private interface Kind extends AutoCloseable {
        void pair(String key, Runnable work) throws Exception;

        @Override
        void close();
    }

    private static Connector connector(String library, String address) {
        return library.equals("Lettuce") ? new LettuceConnector(LETTUCE, RedisURI.create("redis://" + address))
                : new JedisConnector(DefaultJedisClientConfig.builder().build(), HostAndPort.from(address));
    }

    private static Kind ours(String library) {
        DLocks locks = new DLocks(connector(library, ADDRESS));
        return new Kind() {
            @Override
            public void pair(String key, Runnable work) {
                DLock lock = locks.lock(key);
                lock.lock();
                work.run();
                lock.unlock();
            }

            @Override
            public void close() {
                locks.close();
            }
        };
    }

    private static Kind redisson() {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + ADDRESS);
        var client = Redisson.create(config);
        return new Kind() {
            @Override
            public void pair(String key, Runnable work) {
                RLock lock = client.getLock(key);
                lock.lock();
                work.run();
                lock.unlock();
            }

            @Override
            public void close() {
                client.shutdown();
            }
        };
    }

    /** No lock, but what the library can do in two round trips. */
    private static Kind bareLettuce() {
        var connection = LETTUCE.connect(RedisURI.create("redis://" + ADDRESS));
        return new Kind() {
            @Override
            public void pair(String key, Runnable work) {
                connection.sync().set(key, "x", SetArgs.Builder.nx().px(10_000));
                work.run();
                connection.sync().del(key);
            }

            @Override
            public void close() {
                connection.close();
            }
        };
    }

    private static double uncontended(Callable<Kind> make) throws Exception {
        try (Kind kind = make.call()) {
            String key = "bench:" + UUID.randomUUID();
            for (int i = 0; i < 1000; i++) {
                kind.pair(key, () -> {});
            }
            long began = System.nanoTime();
            for (int i = 0; i < PAIRS; i++) {
                kind.pair(key, () -> {});
            }
            return PAIRS * 1e9 / (System.nanoTime() - began);
        }
    }

    /** Prints waits in milliseconds, and the turns of the workers. */
    private static void contended(String name, Callable<Kind> make, int workers) throws Exception {
        String key = "bench:" + UUID.randomUUID();
        List<List<Double>> waits = new ArrayList<>();
        var threads = Executors.newFixedThreadPool(workers);
        try (Kind kind = make.call()) {
            kind.pair(key, () -> {});
            long end = System.nanoTime() + SECONDS * 1_000_000_000L;
            List<Future<?>> all = new ArrayList<>();
            for (int i = 0; i < workers; i++) {
                List<Double> mine = new ArrayList<>();
                waits.add(mine);
                all.add(threads.submit(() -> {
                    for (long began = System.nanoTime(); began < end; began = System.nanoTime()) {
                        long asked = began;
                        kind.pair(key, () -> mine.add((System.nanoTime() - asked) / 1e6));
                    }
                    return null;
                }));
            }
            for (Future<?> one : all) {
                one.get();
            }
        } finally {
            threads.shutdown();
        }
        double[] sorted = waits.stream().flatMap(List::stream).mapToDouble(Double::doubleValue).sorted().toArray();
        var turns = waits.stream().mapToInt(List::size).summaryStatistics();
        say("| %d | %s | %d | %.1f | %.1f | %.1f | %d, %d |", workers, name, sorted.length / SECONDS, sorted[sorted.length / 2],
                sorted[sorted.length * 99 / 100], sorted[sorted.length - 1], turns.getMin(), turns.getMax());
    }

    private static String control(String line) throws Exception {
        HostAndPort address = HostAndPort.from(System.getenv("DLOCK_CONTROL"));
        try (Socket socket = new Socket(address.getHost(), address.getPort());
                var lines = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8))) {
            socket.getOutputStream().write((line + "\n").getBytes(StandardCharsets.UTF_8));
            String[] words = lines.readLine().split(" ");
            return words.length > 1 ? words[1] : "";
        }
    }

    private static List<Hold> take(DLocks locks, int count) {
        List<CompletableFuture<Hold>> asked = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            asked.add(locks.ask("bench:" + UUID.randomUUID()).holdAsync());
        }
        return asked.stream().map(CompletableFuture::join).toList();
    }

    /** Returns the round trips that 32 tasks need together to take and release 32 free locks. */
    private static double thirtyTwoAt50Ms(String library) throws Exception {
        String path = control("path " + ADDRESS);
        control("delay " + path + " 50");
        try (DLocks locks = new DLocks(connector(library, path))) {
            take(locks, 1).forEach(Hold::release);
            long began = System.nanoTime();
            var given = take(locks, 32).stream().map(hold -> hold.releaseAsync().toCompletableFuture()).toList();
            given.forEach(CompletableFuture::join);
            return (System.nanoTime() - began) / 50e6;
        }
    }

    private static void held(String library, int count) throws Exception {
        String path = control("path " + ADDRESS);
        HostAndPort address = HostAndPort.from(ADDRESS);
        try (var watch = redis.clients.jedis.RedisClient.builder().hostAndPort(address).build();
                DLocks locks = new DLocks(connector(library, path))) {
            Callable<Long> clients = () -> new String((byte[]) watch.sendCommand(() -> "CLIENT".getBytes(), "LIST")).lines().count();
            long before = clients.call();
            List<Hold> holds = take(locks, count);
            long connections = clients.call() - before;
            long first = Long.parseLong(control("commands " + path));
            Thread.sleep(10_000);
            double rate = (Long.parseLong(control("commands " + path)) - first) / 10.0;
            say("| %d | dlock, %s | %.1f | %d | %d |", count, library, rate, connections,
                    holds.stream().filter(Hold::isLost).count());
        }
    }

    private static void say(String line, Object... words) {
        System.out.println(String.format(Locale.ROOT, line, words));
    }

    private static double median(List<Double> values) {
        double[] sorted = values.stream().mapToDouble(Double::doubleValue).sorted().toArray();
        return sorted[sorted.length / 2];
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Callable<Kind>> kinds = new LinkedHashMap<>();
        kinds.put("dlock, Lettuce", () -> ours("Lettuce"));
        kinds.put("dlock, Jedis", () -> ours("Jedis"));
        kinds.put("Redisson", Bench::redisson);
        Map<String, Callable<Kind>> all = new LinkedHashMap<>(kinds);
        all.put("SET and DEL, Lettuce", Bench::bareLettuce);
        say("\n%s, Java %s; medians of %d interleaved rounds\n", System.getenv("DLOCK_SERVER"), Runtime.version().feature(), ROUNDS);
        Map<String, List<Double>> rates = new LinkedHashMap<>();
        for (int round = -1; round < ROUNDS; round++) { // the first one warms up
            for (var kind : all.entrySet()) {
                double rate = uncontended(kind.getValue());
                if (round >= 0) {
                    rates.computeIfAbsent(kind.getKey(), name -> new ArrayList<>()).add(rate);
                }
            }
        }
        double theirs = median(rates.get("Redisson"));
        say("| uncontended | pairs a second | least and most | of Redisson |\n|---|---|---|---|");
        rates.forEach((name, some) -> say("| %s | %.0f | %.0f, %.0f | %.2f |", name, median(some),
                some.stream().min(Double::compare).orElseThrow(), some.stream().max(Double::compare).orElseThrow(),
                median(some) / theirs));
        say("\n| workers on one lock | | turns a second | wait p50 ms | p99 ms | longest ms | fewest and most turns |\n"
                + "|---|---|---|---|---|---|---|");
        for (int workers : new int[] {16, 100}) {
            for (var kind : kinds.entrySet()) {
                contended(kind.getKey(), kind.getValue(), workers);
            }
        }
        for (String library : List.of("Lettuce", "Jedis")) {
            say("\n32 tasks on free locks at 50 ms, %s: %.2f round trips together", library, thirtyTwoAt50Ms(library));
        }
        say("\n| locks held in one process | | commands a second | connections | lost |\n|---|---|---|---|---|");
        for (String library : List.of("Lettuce", "Jedis")) {
            for (int count : new int[] {100, 10_000}) {
                held(library, count);
            }
        }
        System.exit(0); // the libraries' threads keep running
    }
}

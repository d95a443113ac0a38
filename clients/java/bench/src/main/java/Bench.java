// SPDX-License-Identifier: MIT

import com.sun.management.OperatingSystemMXBean;
import dlock.Connector;
import dlock.DLock;
import dlock.DLocks;
import dlock.Hold;
import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SetArgs;
import io.lettuce.core.api.sync.RedisCommands;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.ToDoubleFunction;
import java.util.stream.LongStream;
import java.util.stream.Stream;
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
    private static final RedisCommands<String, String> WATCH = LETTUCE.connect(RedisURI.create("redis://" + ADDRESS)).sync();
    private static final OperatingSystemMXBean SYSTEM =
            ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);

    /** What a round has shown: pairs a second, and microseconds of the processor for each, the client's and the server's. */
    private record Round(double rate, double client, double server) {}

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

    /** A field of the server's INFO. */
    private static double told(String field) {
        return WATCH.info("everything").lines().filter(line -> line.startsWith(field + ":"))
                .mapToDouble(line -> Double.parseDouble(line.substring(field.length() + 1))).findFirst().orElseThrow();
    }

    private static double serverMicros() {
        return 1e6 * (told("used_cpu_user") + told("used_cpu_sys"));
    }

    /** The id of the newest connection. Those of the last measurement may still be ending. */
    private static long newest() {
        return connections().max().orElseThrow();
    }

    private static long since(long newest) {
        return connections().filter(id -> id > newest).count();
    }

    private static LongStream connections() {
        return WATCH.clientList().lines().mapToLong(line -> Long.parseLong(line.substring("id=".length(), line.indexOf(' '))));
    }

    private static Round uncontended(Callable<Kind> make) throws Exception {
        try (Kind kind = make.call()) {
            String key = "bench:" + UUID.randomUUID();
            for (int i = 0; i < 1000; i++) {
                kind.pair(key, () -> {});
            }
            double server = serverMicros();
            long client = SYSTEM.getProcessCpuTime();
            long began = System.nanoTime();
            for (int i = 0; i < PAIRS; i++) {
                kind.pair(key, () -> {});
            }
            double rate = PAIRS * 1e9 / (System.nanoTime() - began);
            return new Round(rate, (SYSTEM.getProcessCpuTime() - client) / 1e3 / PAIRS, (serverMicros() - server) / PAIRS);
        }
    }

    /** Prints waits in milliseconds, and the turns of the workers within the time. Waits that outlast it also count. */
    private static void contended(String name, Callable<Kind> make, int workers) throws Exception {
        String key = "bench:" + UUID.randomUUID();
        List<List<Double>> waits = new ArrayList<>();
        int[] turns = new int[workers];
        var threads = Executors.newFixedThreadPool(workers);
        try (Kind kind = make.call()) {
            kind.pair(key, () -> {});
            long end = System.nanoTime() + SECONDS * 1_000_000_000L;
            List<Future<?>> all = new ArrayList<>();
            for (int i = 0; i < workers; i++) {
                int worker = i;
                List<Double> mine = new ArrayList<>();
                waits.add(mine);
                all.add(threads.submit(() -> {
                    for (long began = System.nanoTime(); began < end; began = System.nanoTime()) {
                        long asked = began;
                        kind.pair(key, () -> {
                            long now = System.nanoTime();
                            mine.add((now - asked) / 1e6);
                            turns[worker] += now < end ? 1 : 0;
                        });
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
        var had = Arrays.stream(turns).summaryStatistics();
        say("| %d | %s | %d | %.1f | %.1f | %.1f | %.1f | %d, %d |", workers, name, had.getSum() / SECONDS,
                sorted[sorted.length / 2], sorted[(int) (sorted.length * 0.99)], sorted[(int) (sorted.length * 0.999)],
                sorted[sorted.length - 1], had.getMin(), had.getMax());
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

    /** Prints the connections while tasks wait for one held lock. They take it in turn in the end. */
    private static void waiting(String library, int count) throws Exception {
        long before = newest();
        String key = "bench:" + UUID.randomUUID();
        try (DLocks locks = new DLocks(connector(library, ADDRESS))) {
            Hold hold = locks.ask(key).holdAsync().join();
            var turns = Stream.generate(() -> locks.ask(key).holdAsync().thenCompose(Hold::releaseAsync)).limit(count).toList();
            while (told("dlock_places_queued") < count) {
                Thread.sleep(10);
            }
            say("| %d | dlock, %s | %d |", count, library, since(before));
            hold.release();
            turns.forEach(CompletableFuture::join);
        }
    }

    private static void held(String library, int count) throws Exception {
        String path = control("path " + ADDRESS);
        long before = newest();
        try (DLocks locks = new DLocks(connector(library, path))) {
            List<Hold> holds = take(locks, count);
            long connections = since(before);
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

    /** One figure of all rounds, the smallest first. */
    private static double[] sorted(List<Round> rounds, ToDoubleFunction<Round> figure) {
        return rounds.stream().mapToDouble(figure).sorted().toArray();
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(new PrintStream(System.out, true, StandardCharsets.UTF_8)); // whatever the locale
        Map<String, Callable<Kind>> kinds = new LinkedHashMap<>();
        kinds.put("dlock, Lettuce", () -> ours("Lettuce"));
        kinds.put("dlock, Jedis", () -> ours("Jedis"));
        kinds.put("Redisson", Bench::redisson);
        Map<String, Callable<Kind>> all = new LinkedHashMap<>(kinds);
        all.put("SET and DEL, Lettuce", Bench::bareLettuce);
        say("\n%s, Java %s; medians of %d interleaved rounds\n", System.getenv("DLOCK_SERVER"), Runtime.version().feature(),
                ROUNDS);
        Map<String, List<Round>> rounds = new LinkedHashMap<>();
        for (int round = -1; round < ROUNDS; round++) { // the first one warms up
            for (var kind : all.entrySet()) {
                Round seen = uncontended(kind.getValue());
                if (round >= 0) {
                    rounds.computeIfAbsent(kind.getKey(), name -> new ArrayList<>()).add(seen);
                }
            }
        }
        int middle = ROUNDS / 2;
        double theirs = sorted(rounds.get("Redisson"), Round::rate)[middle];
        say("| uncontended | pairs a second | least, most | of Redisson | client µs a pair | server µs a pair |\n"
                + "|---|---|---|---|---|---|");
        rounds.forEach((name, seen) -> {
            double[] rates = sorted(seen, Round::rate);
            say("| %s | %.0f | %.0f, %.0f | %.2f | %.0f | %.1f |", name, rates[middle], rates[0], rates[ROUNDS - 1],
                    rates[middle] / theirs, sorted(seen, Round::client)[middle], sorted(seen, Round::server)[middle]);
        });
        say("\n| workers on one lock | | turns a second | wait p50 ms | p99 ms | p99.9 ms | longest ms | fewest and most turns |\n"
                + "|---|---|---|---|---|---|---|---|");
        for (int workers : new int[] {16, 100}) {
            for (var kind : kinds.entrySet()) {
                contended(kind.getKey(), kind.getValue(), workers);
            }
        }
        List<String> libraries = List.of("Lettuce", "Jedis");
        say("\n| tasks that wait for one held lock | | connections |\n|---|---|---|");
        for (int count : new int[] {1, 100, 1_000}) {
            for (String library : libraries) {
                waiting(library, count);
            }
        }
        for (String library : libraries) {
            say("\n32 tasks on free locks at 50 ms, %s: %.2f round trips together", library, thirtyTwoAt50Ms(library));
        }
        say("\n| locks held in one process | | commands a second | connections | lost |\n|---|---|---|---|---|");
        for (String library : libraries) {
            for (int count : new int[] {100, 10_000}) {
                held(library, count);
            }
        }
        System.exit(0); // the libraries' threads keep running
    }
}

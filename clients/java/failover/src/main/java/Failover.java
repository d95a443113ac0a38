// SPDX-License-Identifier: MIT

import dlock.Connector;
import dlock.DLocks;
import dlock.Hold;
import dlock.Settings;
import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.io.OutputStream;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/**
 * One client in a run of failovers. It keeps ten locks and takes turns on others while primaries come and go. It prints when it has
 * each lock, frees it and loses it, by the machine's monotonic clock. It ends with its input.
 */
public final class Failover {
    private static final String TAG = "{" + System.getenv("DLOCK_TAG") + "}";
    private static final int BOUND = 1; // in seconds: how long the end may wait for one thing

    private static DLocks locks;
    private static boolean isOver;

    private static Connector connector(String library) {
        String sentinels = System.getenv("DLOCK_SENTINELS");
        String servers = sentinels == null ? System.getenv("DLOCK_CLUSTER") : sentinels;
        if (library.equals("Lettuce")) {
            return sentinels == null ? new LettuceConnector(RedisClusterClient.create("redis://" + servers))
                    : new LettuceConnector(RedisClient.create(), RedisURI.create("redis-sentinel://" + sentinels + "#locks"));
        }
        var config = DefaultJedisClientConfig.builder().build();
        List<HostAndPort> nodes = Stream.of(servers.split(",")).map(HostAndPort::from).toList();
        return sentinels == null ? JedisConnector.cluster(config, nodes) : JedisConnector.sentinel(config, "locks", config, nodes);
    }

    /** Writes the line at once, and nothing after {@code end}. */
    private static synchronized void say(String line) {
        if (!isOver) {
            System.out.print(line + "\n");
            System.out.flush();
            isOver = line.equals("end");
        }
    }

    /** Says what has happened to a hold, and when. */
    private static void tell(String what, Hold hold) {
        long micros = System.nanoTime() / 1000;
        say(what + " " + hold.key() + " " + hold.token() + " " + micros);
    }

    /** Waits for the lock, over all errors. */
    private static Hold take(String key) throws InterruptedException {
        while (true) {
            try {
                Hold hold = locks.ask(key).tryHold(Duration.ofSeconds(60));
                if (hold != null) {
                    return hold;
                }
            } catch (RuntimeException error) {
                complain(key, error);
            }
        }
    }

    private static void complain(String key, RuntimeException error) throws InterruptedException {
        System.err.println(key + ": " + error.toString().replace("\n", "; "));
        Thread.sleep(100);
    }

    /** Takes the lock, works under it, and releases it. An interrupt ends the wait and the work, and a loss ends the work. */
    private static void turn(String key, long micros) throws Exception {
        Hold hold = take(key);
        tell("have", hold);
        try {
            hold.lost().toCompletableFuture().get(micros, TimeUnit.MICROSECONDS);
            tell("lost", hold);
        } catch (TimeoutException done) { // it was held all the time
        } finally {
            tell("free", hold);
            try {
                hold.release();
            } catch (RuntimeException error) {
                complain(key, error);
            }
        }
    }

    private static Void shared() throws Exception {
        while (true) {
            ThreadLocalRandom random = ThreadLocalRandom.current();
            turn(TAG + "turn:" + random.nextInt(3), random.nextLong(5_000, 15_000));
        }
    }

    private static Void own(String name) throws Exception {
        while (true) {
            turn(TAG + "own:" + name, 5_000);
            Thread.sleep(20);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String name = "java-" + arguments[0].toLowerCase(Locale.ROOT);
        locks = new DLocks(connector(arguments[0]), Settings.DEFAULT
                .lease(Duration.ofMillis(Long.parseLong(System.getenv("DLOCK_LEASE_MS")))).hangTimeout(Duration.ofSeconds(20)));
        Hold[] kept = new Hold[10];
        for (int i = 0; i < kept.length; i++) {
            Hold hold = take(TAG + "kept:" + name + ":" + i);
            hold.lost().thenRun(() -> tell("lost", hold));
            kept[i] = hold;
        }
        say("ready");
        ExecutorService workers = Executors.newFixedThreadPool(3);
        workers.submit(Failover::shared);
        workers.submit(Failover::shared);
        workers.submit(() -> own(name));

        System.in.transferTo(OutputStream.nullOutputStream()); // nothing is read
        List<Hold> held = Stream.of(kept).filter(Hold::isHeld).toList();
        held.forEach(hold -> say("kept " + hold.key() + " " + hold.token()));
        workers.shutdownNow();
        workers.awaitTermination(BOUND, TimeUnit.SECONDS);
        say("end");
        CompletableFuture.allOf(held.stream().map(hold -> hold.releaseAsync().toCompletableFuture()).toArray(CompletableFuture[]::new))
                .completeOnTimeout(null, BOUND, TimeUnit.SECONDS).exceptionally(error -> null).join();
        System.exit(0); // the libraries' threads keep running
    }
}

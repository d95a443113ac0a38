import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;
import org.redisson.misc.RedisURI;

/**
 * Clients of Redisson's locks. Writes a line when a client has a lock and one when it begins to release it; ends with its input.
 * System.nanoTime is the monotonic clock of the machine, which the runner also reads.
 */
public final class Rivals {
    private static volatile boolean over;
    private static String kind;
    private static int locks;
    private static int clients;
    private static long waitMs;
    private static int shortMs;
    private static int longMs;

    /** KIND LOCKS CLIENTS WAIT-MS LEASE-MS SHORT-MS LONG-MS GROUP..., where a group is SENTINEL,.../ANNOUNCED:WAY,... */
    public static void main(String[] words) throws Exception {
        kind = words[0];
        locks = Integer.parseInt(words[1]);
        clients = Integer.parseInt(words[2]);
        waitMs = Long.parseLong(words[3]);
        shortMs = Integer.parseInt(words[5]);
        longMs = Integer.parseInt(words[6]);
        List<Thread> threads = new ArrayList<>();
        for (int group = 0; group + 7 < words.length; group++) {
            RedissonClient redisson = kind.equals("nothing") ? null : redisson(words[group + 7]);
            for (int number = 0; number < clients; number++) {
                String name = group + "-" + number;
                threads.add(new Thread(() -> work(name, redisson)));
            }
        }
        threads.forEach(Thread::start);
        while (System.in.read() >= 0) {
            continue;
        }
        over = true;
        long end = System.nanoTime() + 10_000_000_000L;
        for (Thread thread : threads) {
            thread.join(Math.max(1, (end - System.nanoTime()) / 1_000_000));
        }
        Runtime.getRuntime().halt(0);
    }

    /** Sets the number of connections, and leaves everything else at its default. */
    private static RedissonClient redisson(String group) {
        String[] parts = group.split("/");
        Map<Integer, Integer> ways = new HashMap<>();
        for (String way : parts[1].split(",")) {
            String[] ends = way.split(":");
            ways.put(Integer.parseInt(ends[0]), Integer.parseInt(ends[1]));
        }
        Config config = new Config();
        SentinelServersConfig sentinels = config.useSentinelServers()
                .setMasterName("locks")
                .setMasterConnectionPoolSize(clients * 2)
                .setMasterConnectionMinimumIdleSize(4)
                .setSlaveConnectionPoolSize(clients)
                .setSlaveConnectionMinimumIdleSize(2)
                .setNatMapper(uri -> {
                    int port = ways.getOrDefault(uri.getPort(), uri.getPort());
                    return new RedisURI(uri.getScheme(), uri.getHost(), port);
                });
        for (String port : parts[0].split(",")) {
            sentinels.addSentinelAddress("redis://127.0.0.1:" + port);
        }
        System.err.println("watchdog " + config.getLockWatchdogTimeout() + " ms, checkLockSyncedSlaves "
                + config.isCheckLockSyncedSlaves() + ", slavesSyncTimeout " + config.getSlavesSyncTimeout() + " ms");
        return Redisson.create(config);
    }

    private static void work(String name, RedissonClient redisson) {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        while (!over) {
            try {
                int number = random.nextInt(locks);
                int holdMs = random.nextInt(10) == 0 ? random.nextInt(1_000, longMs) : random.nextInt(1, shortMs);
                turn(name, number, lock(redisson, "lock:" + number), holdMs);
                Thread.sleep(random.nextInt(1, shortMs));
            } catch (InterruptedException error) {
                return;
            } catch (RuntimeException error) {
                System.err.println(System.nanoTime() + " " + name + " " + error);
                rest();
            }
        }
    }

    private static RLock lock(RedissonClient redisson, String name) {
        return switch (kind) {
            case "rlock" -> redisson.getLock(name);
            case "fair" -> redisson.getFairLock(name);
            case "nothing" -> null;
            default -> throw new IllegalArgumentException(kind);
        };
    }

    private static void turn(String name, int number, RLock lock, int holdMs) throws InterruptedException {
        long asked = System.nanoTime();
        if (lock != null && !lock.tryLock(waitMs, TimeUnit.MILLISECONDS)) {
            return;
        }
        // The watchdog renews it as long as this program lives; the claim is 30 s.
        say("grant " + name + " " + number + " " + System.nanoTime() + " " + (asked + 30_000_000_000L));
        Thread.sleep(holdMs);
        long at = System.nanoTime();
        String how = "released";
        try {
            if (lock != null) {
                lock.unlock();
            }
        } catch (IllegalMonitorStateException error) {
            how = "lost";
        } catch (RuntimeException error) {
            System.err.println(System.nanoTime() + " " + name + " " + error);
            how = "unknown";
        }
        say("over " + name + " " + at + " " + how);
    }

    private static void rest() {
        try {
            Thread.sleep(50);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}

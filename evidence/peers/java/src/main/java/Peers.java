import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ArrayOutput;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.locks.LockSupport;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Clients of Redisson's locks, and of dlock by Lettuce, as threads of one program. */
public final class Peers {
    /** A client: takes its lock, waiting as long as necessary, and releases it. */
    interface Client {
        void acquire(boolean alone) throws Exception;

        void release() throws Exception;

        /** Begins the measured part: the client has warmed up. */
        default void begin() {}

        /** The fencing token of the last grant, or 0. */
        default long token() {
            return 0;
        }
    }

    record Turn(int client, long asked, long granted, long released, long token) {}

    /** The time after the last request within which all should have been served. */
    static final long PATIENCE_MS = 10_000;

    public static void main(String[] words) throws Exception {
        int port = Integer.parseInt(words[words[0].equals("contend") ? 2 : 1]);
        // contend KIND PORT CLIENTS WORK-US DURATION-MS [LIMIT PERMITS,…] | hold PORT WATCHDOG-MS | wait PORT WATCHDOG-MS
        switch (words[0]) {
            case "contend" -> contend(words[1], port, words);
            case "hold" -> {
                redisson(port, Long.parseLong(words[2]), 8).getLock("killed").lock();
                System.out.println("held");
                LockSupport.park();
                Thread.sleep(Long.MAX_VALUE);
            }
            case "wait" -> {
                RLock lock = redisson(port, Long.parseLong(words[2]), 8).getLock("killed");
                System.out.println("asking");
                lock.lock();
                System.out.println("granted");
                System.exit(0);
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    static RedissonClient redisson(int port, long watchdogMs, int connections) {
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdogMs);
        config.useSingleServer()
                .setTimeout(30_000)
                .setAddress("redis://127.0.0.1:" + port)
                .setConnectionPoolSize(connections)
                .setConnectionMinimumIdleSize(Math.min(8, connections))
                .setSubscriptionConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionPoolSize(50);
        return Redisson.create(config);
    }

    static void contend(String kind, int port, String[] words) throws Exception {
        int count = Integer.parseInt(words[3]);
        long workNs = Long.parseLong(words[4]) * 1_000;
        long durationNs = Long.parseLong(words[5]) * 1_000_000;
        List<Client> clients = words.length > 6
                ? Permits.clients(kind, port, count, Integer.parseInt(words[6]), words[7].split(","))
                : kind.startsWith("r") ? redissonClients(kind, port, count) : dlockClients(kind, port, count);
        CyclicBarrier door = new CyclicBarrier(count + 1);
        long[] start = new long[1];
        AtomicLongArray asking = new AtomicLongArray(count);
        List<List<Turn>> turns = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            int client = number;
            List<Turn> own = new ArrayList<>();
            turns.add(own);
            Thread thread = new Thread(() -> {
                try {
                    run(client, clients.get(client), own, asking, door, start, workNs, durationNs);
                } catch (Throwable error) {
                    // The others would wait for it at the barrier.
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        limit(durationNs / 1_000_000 + 2 * PATIENCE_MS);
        // All have warmed up, and none begins before the observer has read the server's expenses.
        door.await();
        System.out.println("begin");
        start[0] = System.nanoTime();
        door.await();
        long end = start[0] + durationNs + PATIENCE_MS * 1_000_000;
        for (Thread thread : threads) {
            thread.join(Math.max(1, (end - System.nanoTime()) / 1_000_000));
        }
        System.out.println("end");
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        long now = System.nanoTime() - start[0];
        for (int number = 0; number < count; number++) {
            if (threads.get(number).isAlive()) {
                out.println("waits " + number + " " + asking.get(number) + " " + now + " " + now + " 0");
            }
            for (Turn turn : List.copyOf(turns.get(number))) {
                out.println(turn.client + " " + turn.asked + " " + turn.granted + " " + turn.released + " " + turn.token);
            }
        }
        out.flush();
        System.exit(0);
    }

    /** Ends this program with an error if it has not ended by then. */
    static void limit(long milliseconds) {
        Thread thread = new Thread(() -> {
            LockSupport.parkNanos(milliseconds * 1_000_000);
            System.err.println("it did not end");
            Runtime.getRuntime().halt(1);
        });
        thread.setDaemon(true);
        thread.start();
    }

    static void run(
            int number,
            Client client,
            List<Turn> turns,
            AtomicLongArray asking,
            CyclicBarrier door,
            long[] start,
            long workNs,
            long durationNs)
            throws Exception {
        long end = System.nanoTime() + 1_000_000_000L;
        int warm = 0;
        while (warm++ < 2_000 && System.nanoTime() < end) {
            client.acquire(warm % 4 == number % 4);
            client.release();
        }
        client.begin();
        door.await();
        door.await();
        int turn = 0;
        while (true) {
            long asked = System.nanoTime() - start[0];
            if (asked >= durationNs) {
                return;
            }
            asking.set(number, asked);
            client.acquire((number + turn++) % 4 == 0);
            long granted = System.nanoTime() - start[0];
            long token = client.token();
            if (workNs > 0) {
                Thread.sleep(workNs / 1_000_000, (int) (workNs % 1_000_000));
            }
            turns.add(new Turn(number, asked, granted, System.nanoTime() - start[0], token));
            client.release();
        }
    }

    /** Redisson counts threads as owners, so all share one client, as they do in a user's program. */
    static List<Client> redissonClients(String kind, int port, int count) {
        RedissonClient redisson = redisson(port, 30_000, Math.max(64, count));
        if (kind.equals("rsemaphore")) {
            redisson.getSemaphore("semaphore").trySetPermits(1);
        }
        List<Client> clients = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            clients.add(switch (kind) {
                case "rlock" -> of(redisson.getLock("lock"));
                case "rfair" -> of(redisson.getFairLock("fair"));
                case "rmulti" -> of(redisson.getMultiLock(
                        redisson.getLock("{multi}:1"), redisson.getLock("{multi}:2"), redisson.getLock("{multi}:3")));
                case "rwrite" -> {
                    RReadWriteLock both = redisson.getReadWriteLock("read-write");
                    yield new Client() {
                        private RLock held;

                        @Override
                        public void acquire(boolean alone) {
                            held = alone ? both.writeLock() : both.readLock();
                            held.lock();
                        }

                        @Override
                        public void release() {
                            held.unlock();
                        }
                    };
                }
                case "rsemaphore" -> {
                    RSemaphore semaphore = redisson.getSemaphore("semaphore");
                    yield new Client() {
                        @Override
                        public void acquire(boolean alone) throws Exception {
                            semaphore.acquire();
                        }

                        @Override
                        public void release() {
                            semaphore.release();
                        }
                    };
                }
                default -> throw new IllegalArgumentException(kind);
            });
        }
        return clients;
    }

    static Client of(RLock lock) {
        return new Client() {
            @Override
            public void acquire(boolean alone) {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    /** A connection for each, since a blocked one does nothing else. */
    static List<Client> dlockClients(String kind, int port, int count) {
        RedisClient lettuce = lettuce(port);
        List<Client> clients = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            clients.add(new Dlock(lettuce.connect(), kind, owner(number)));
        }
        return clients;
    }

    static RedisClient lettuce(int port) {
        return RedisClient.create(
                RedisURI.builder().withHost("127.0.0.1").withPort(port).withTimeout(Duration.ofHours(1)).build());
    }

    static String owner(int number) {
        return "6f9619ff-8b86-d011-b42d-00cf4fc964ff:" + number;
    }

    /** A command that Lettuce does not know. */
    record Word(String text) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return text.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return text;
        }
    }

    static final class Dlock implements Client {
        private final StatefulRedisConnection<String, String> connection;
        private final String kind;
        private final String owner;

        Dlock(StatefulRedisConnection<String, String> connection, String kind, String owner) {
            this.connection = connection;
            this.kind = kind;
            this.owner = owner;
        }

        @Override
        public void acquire(boolean alone) {
            switch (kind) {
                case "acquire" -> run("DLOCK.ACQUIRE", "lock", owner, "BLOCK", "0");
                case "fairacquire" -> run("DLOCK.FAIRACQUIRE", "lock", owner, "BLOCK", "0");
                case "limit" -> run("DLOCK.ACQUIRE", "lock", owner, "BLOCK", "0", "LIMIT", "1");
                case "shared" -> {
                    if (alone) {
                        run("DLOCK.ACQUIRE", "lock", owner, "BLOCK", "0");
                    } else {
                        run("DLOCK.ACQUIRE", "lock", owner, "BLOCK", "0", "SHARED");
                    }
                }
                case "macquire" -> run("DLOCK.MACQUIRE", "3", "{multi}:1", "{multi}:2", "{multi}:3", owner, "BLOCK", "0");
                default -> throw new IllegalArgumentException(kind);
            }
        }

        @Override
        public void release() {
            if (kind.equals("macquire")) {
                run("DLOCK.MRELEASE", "3", "{multi}:1", "{multi}:2", "{multi}:3", owner);
            } else {
                run("DLOCK.RELEASE", "lock", owner);
            }
        }

        private void run(String name, String... words) {
            Peers.run(connection, name, words);
        }
    }

    /** Sends a command that Lettuce does not know, and returns its answer, which is not null. */
    static List<Object> run(StatefulRedisConnection<String, String> connection, String name, String... words) {
        CommandArgs<String, String> arguments = new CommandArgs<>(StringCodec.UTF8);
        for (String word : words) {
            arguments.add(word);
        }
        CommandOutput<String, String, List<Object>> output = new ArrayOutput<>(StringCodec.UTF8);
        List<Object> answer = connection.sync().dispatch(new Word(name), output, arguments);
        if (answer == null) {
            throw new IllegalStateException(name + " was answered null");
        }
        return answer;
    }
}

import io.lettuce.core.RedisClient;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.api.StatefulRedisConnection;
import java.util.ArrayList;
import java.util.List;
import org.redisson.api.RedissonClient;

/** Clients that take several permits of a semaphore: each takes a fixed number. Each warms up with a semaphore of its own. */
final class Permits {
    private static final String MEASURED = "permits";

    /** The sleep of redis-py's lock between two tries. */
    private static final long POLL_MS = 100;

    /** Takes ARGV[1] of ARGV[2] permits, or none. */
    private static final String TAKE = "local used = tonumber(redis.call('GET', KEYS[1]) or '0') "
            + "if used + tonumber(ARGV[1]) > tonumber(ARGV[2]) then return 0 end "
            + "redis.call('INCRBY', KEYS[1], ARGV[1]) return 1";

    private Permits() {}

    /** A client with a semaphore's name, which changes once the client has warmed up. */
    private abstract static class Named implements Peers.Client {
        String name;

        Named(int number) {
            name = warm(number);
        }

        @Override
        public void begin() {
            name = MEASURED;
        }
    }

    private static String warm(int number) {
        return "warm:" + number;
    }

    static List<Peers.Client> clients(String kind, int port, int count, int limit, String[] sizes) {
        RedissonClient redisson = kind.equals("rsemaphore") ? Peers.redisson(port, 30_000, Math.max(64, count)) : null;
        RedisClient lettuce = redisson == null ? Peers.lettuce(port) : null;
        if (redisson != null) {
            for (int number = 0; number < count; number++) {
                redisson.getSemaphore(warm(number)).trySetPermits(limit);
            }
            redisson.getSemaphore(MEASURED).trySetPermits(limit);
        }
        String script = kind.equals("polling") ? lettuce.connect().sync().scriptLoad(TAKE) : null;
        List<Peers.Client> clients = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            int permits = Integer.parseInt(sizes[number % sizes.length]);
            clients.add(switch (kind) {
                case "rsemaphore" -> redisson(redisson, number, permits);
                case "acquire" -> dlock(lettuce.connect(), number, limit, permits);
                case "polling" -> polling(lettuce.connect(), number, script, limit, permits);
                default -> throw new IllegalArgumentException(kind);
            });
        }
        return clients;
    }

    private static Peers.Client redisson(RedissonClient redisson, int number, int permits) {
        return new Named(number) {
            @Override
            public void acquire(boolean alone) throws Exception {
                redisson.getSemaphore(name).acquire(permits);
            }

            @Override
            public void release() {
                redisson.getSemaphore(name).release(permits);
            }
        };
    }

    private static Peers.Client dlock(
            StatefulRedisConnection<String, String> connection, int number, int limit, int permits) {
        String owner = Peers.owner(number);
        String[] options = {"BLOCK", "0", "LIMIT", Integer.toString(limit), "PERMITS", Integer.toString(permits)};
        return new Named(number) {
            private long token;

            @Override
            public void acquire(boolean alone) {
                List<String> words = new ArrayList<>(List.of(name, owner));
                words.addAll(List.of(options));
                token = (Long) Peers.run(connection, "DLOCK.ACQUIRE", words.toArray(new String[0])).get(0);
            }

            @Override
            public void release() {
                Peers.run(connection, "DLOCK.RELEASE", name, owner);
            }

            @Override
            public long token() {
                return token;
            }
        };
    }

    private static Peers.Client polling(
            StatefulRedisConnection<String, String> connection, int number, String script, int limit, int permits) {
        String[] arguments = {Integer.toString(permits), Integer.toString(limit)};
        return new Named(number) {
            @Override
            public void acquire(boolean alone) throws Exception {
                String[] keys = {name};
                while (connection.sync().<Long>evalsha(script, ScriptOutputType.INTEGER, keys, arguments) == 0) {
                    Thread.sleep(POLL_MS);
                }
            }

            @Override
            public void release() {
                connection.sync().decrby(name, permits);
            }
        };
    }
}

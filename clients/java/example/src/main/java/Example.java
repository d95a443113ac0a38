// SPDX-License-Identifier: MIT
import dlock.DLock;
import dlock.DLocks;
import dlock.Hold;
import dlock.Leader;
import dlock.Settings;
import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import dlock.shedlock.DLockProvider;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.UUID;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import reactor.core.publisher.Mono;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** What the page shows, run. */
public final class Example {
    private Example() {}

    /** Fails if something is not as the page says. */
    public static void main(String[] arguments) throws Exception {
        String server = System.getenv("DLOCK_SINGLE");
        RedisClient client = RedisClient.create();
        RedisURI uri = RedisURI.create("redis://" + server);
        try (DLocks locks = new DLocks(new LettuceConnector(client, uri))) {
            use(locks);
            reactive(locks);
            lead(locks);
            schedule(locks);
        }
        try (DLocks locks = new DLocks(new JedisConnector(DefaultJedisClientConfig.builder().build(), HostAndPort.from(server)))) {
            use(locks);
        }
        SimpleMeterRegistry registry = new SimpleMeterRegistry();
        try (DLocks locks = new DLocks(new LettuceConnector(client, uri), Settings.DEFAULT.observer(new Metrics(registry)))) {
            use(locks);
        }
        check(registry.get("dlock.granted").timer().count() == 2);
        check(registry.get("dlock.lost").counter().count() == 0);
        client.shutdown();
    }

    private static void use(DLocks locks) throws Exception {
        String stock = "{" + UUID.randomUUID() + "}stock";
        DLock lock = locks.lock(stock); // a java.util.concurrent.locks.Lock: its owner is the thread
        lock.lock();
        try {
            lock.guard("SET", stock + ":left", 41); // runs only while the lock is held: else Fenced
        } finally {
            lock.unlock();
        }
        try (Hold hold = locks.ask(stock).tryHold(Duration.ofSeconds(5))) { // its owner is nobody but the hold
            check(hold != null); // null: it is taken
        }
    }

    private static void reactive(DLocks locks) {
        String stock = "{" + UUID.randomUUID() + "}stock";
        Object left = Mono.usingWhen(
                Mono.fromCompletionStage(() -> locks.ask(stock).holdAsync()),
                hold -> Mono.fromCompletionStage(() -> hold.guardAsync("INCR", stock + ":left")),
                hold -> Mono.fromCompletionStage(hold::releaseAsync)).block();
        check(Long.valueOf(1).equals(left));
    }

    private static void lead(DLocks locks) {
        String billing = "{" + UUID.randomUUID() + "}billing";
        Leader leader = new Leader(locks, billing, "host-7");
        Hold term = leader.campaign().join(); // until it leads; term.lost() says when that is over
        leader.guard("SET", billing + ":day", "today"); // a leader of before is Fenced
        check(leader.who().equals(Optional.of(new Leader.Leading("host-7", term.token()))));
        leader.resign();
        check(!leader.isLeader());
    }

    private static void schedule(DLocks locks) {
        DLockProvider provider = new DLockProvider(locks);
        LockConfiguration nightly = new LockConfiguration(
                Instant.now(), UUID.randomUUID().toString(), Duration.ofSeconds(10), Duration.ZERO);
        SimpleLock lock = provider.lock(nightly).orElseThrow();
        check(provider.lock(nightly).isEmpty());
        lock.unlock();
    }

    private static void check(boolean true_) {
        if (!true_) {
            throw new AssertionError();
        }
    }
}

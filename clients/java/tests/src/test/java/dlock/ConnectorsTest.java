// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.resource.ClientResources;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** What the connectors make of the libraries' clients. */
class ConnectorsTest {
    private final Stage s = new Stage("jedis", "single");
    private final HostAndPort address = Stage.addresses("single")[0];
    private final RedisURI uri = RedisURI.create(address.getHost(), address.getPort());

    @AfterEach
    void close() throws Exception {
        s.close();
    }

    private static byte[][] words(Object... words) {
        return Stream.of(words).map(word -> word.toString().getBytes(UTF_8)).toArray(byte[][]::new);
    }

    /** Its host stalls: the kernel takes the connection, and nobody answers. */
    @ParameterizedTest
    @ValueSource(strings = {"lettuce", "jedis"})
    void aSentinelThatHangsIsLeftInTime(String library) throws Exception {
        try (ServerSocket one = new ServerSocket(0); ServerSocket two = new ServerSocket(0)) {
            RedisURI sentinels = RedisURI.Builder.sentinel("127.0.0.1", one.getLocalPort(), "name")
                    .withSentinel("127.0.0.1", two.getLocalPort()).build();
            var config = DefaultJedisClientConfig.builder().build();
            try (Connector connector = library.equals("lettuce") ? new LettuceConnector(Stage.LETTUCE, sentinels)
                    : JedisConnector.sentinel(config, "name", config, List.of(new HostAndPort("127.0.0.1", one.getLocalPort()),
                            new HostAndPort("127.0.0.1", two.getLocalPort())))) {
                var refused = CompletableFuture.supplyAsync(() -> assertThrows(Exception.class, () -> connector.refresh(Duration.ofMillis(300))));
                refused.get(15, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void aBlockedThreadOfTheProgramsClientHoldsUpNoLock() throws Exception {
        CountDownLatch over = new CountDownLatch(1);
        ClientResources resources = ClientResources.builder().ioThreadPoolSize(1).build();
        RedisClient client = RedisClient.create(resources, uri);
        LettuceConnector connector = new LettuceConnector(client, uri);
        try (var connection = client.connect()) {
            CountDownLatch blocked = new CountDownLatch(1);
            connection.async().blpop(1, s.key + ":none").thenRun(() -> {
                blocked.countDown();
                try {
                    over.await();
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
            });
            assertTrue(blocked.await(10, TimeUnit.SECONDS));
            try (Connector.Line line = connector.open("", Duration.ofSeconds(3))) {
                Object pong = line.send(List.<byte[][]>of(words("PING"))).toCompletableFuture().get(5, TimeUnit.SECONDS);
                assertEquals("PONG", Stage.text(pong));
            } finally {
                over.countDown();
            }
            connector.close();
            Thread.sleep(100);
            assertEquals("PONG", connection.sync().ping(), "the program's own client lives on");
            assertFalse(resources.eventExecutorGroup().isShuttingDown());
            CountDownLatch rings = new CountDownLatch(1);
            resources.timer().newTimeout(timeout -> rings.countDown(), 1, TimeUnit.MILLISECONDS);
            assertTrue(rings.await(5, TimeUnit.SECONDS));
        } finally {
            client.shutdown(0, 0, TimeUnit.SECONDS);
            resources.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    /** The program may have Lettuce keep the commands of a lost connection. */
    @Test
    void aLostConnectionIsNoticedAtOnce() throws Exception {
        RedisClient client = RedisClient.create(Stage.LETTUCE.getResources());
        client.setOptions(ClientOptions.builder().disconnectedBehavior(ClientOptions.DisconnectedBehavior.ACCEPT_COMMANDS).build());
        String path = Stage.control("path " + address);
        s.closing(() -> Stage.control("close " + path));
        HostAndPort there = HostAndPort.from(path);
        try (LettuceConnector connector = new LettuceConnector(client, RedisURI.create(there.getHost(), there.getPort()));
                Connector.Line line = connector.open("", Duration.ofSeconds(3))) {
            var reply = line.send(List.<byte[][]>of(words("BLPOP", s.key + ":none", 30))).toCompletableFuture();
            Thread.sleep(100);
            Stage.control("cut " + path);
            assertThrows(Exception.class, () -> reply.get(2, TimeUnit.SECONDS));
            assertTrue(reply.isCompletedExceptionally());
        }
    }

    /** Jedis maps an address when it connects, and takes none as it is. */
    @Test
    void aMapperMayMapNothing() throws Exception {
        var config = DefaultJedisClientConfig.builder().hostAndPortMapper(one -> null).build();
        var elsewhere = Stage.addresses("masters")[1];
        try (JedisConnector connector = new JedisConnector(config, elsewhere);
                Connector.Line line = connector.open(connector.node(0), Duration.ofSeconds(3))) {
            Object info = line.send(List.<byte[][]>of(words("INFO", "server"))).toCompletableFuture().get(5, TimeUnit.SECONDS);
            assertTrue(Stage.text(info).contains("tcp_port:" + elsewhere.getPort()));
        }
        var mapping = DefaultJedisClientConfig.builder().hostAndPortMapper(one -> one.getPort() == 1 ? elsewhere : one).build();
        try (JedisConnector connector = new JedisConnector(mapping, new HostAndPort("127.0.0.1", 1))) {
            connector.open(connector.node(0), Duration.ofSeconds(3)).close();
        }
    }

    /** What the caller has given up while it waited for a thread would come behind the CANCEL. */
    @Test
    void jedisSendsNothingThatWasCancelledBefore() throws Exception {
        String list = s.key + ":none";
        try (JedisConnector connector = new JedisConnector(DefaultJedisClientConfig.builder().build(), address);
                Connector.Line line = connector.open(connector.node(0), Duration.ofSeconds(3))) {
            List<CompletableFuture<Object>> busy = new ArrayList<>();
            for (int i = 0; i < 32; i++) {
                busy.add(line.send(List.<byte[][]>of(words("BLPOP", list, 1))).toCompletableFuture());
            }
            var late = line.send(List.<byte[][]>of(words("SET", s.key + ":late", 1))).toCompletableFuture();
            late.cancel(false);
            for (CompletableFuture<Object> one : busy) {
                one.get(10, TimeUnit.SECONDS);
            }
            line.send(List.<byte[][]>of(words("PING"))).toCompletableFuture().get(5, TimeUnit.SECONDS);
            assertEquals(0L, s.ask(s.key, "EXISTS", s.key + ":late"));
        }
    }

    @Test
    void aWrongPasswordInAClusterIsNamed() throws Exception {
        var wrong = DefaultJedisClientConfig.builder().user("nobody").password("wrong").build();
        try (DLocks locks = new DLocks(JedisConnector.cluster(wrong, List.of(Stage.addresses("cluster")[0])))) {
            var refused = assertThrows(DLockException.Refused.class, () -> locks.ask(s.key).tryHold(Duration.ZERO));
            assertTrue(refused.getMessage().startsWith("WRONGPASS"), refused.getMessage());
        }
    }
}

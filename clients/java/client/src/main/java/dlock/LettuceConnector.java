// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.US_ASCII;

import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Consumer;
import java.util.stream.Stream;

/** Connections of {@link DLocks} by Lettuce: of the resources and the options of a client that exists. */
public final class LettuceConnector implements DLocks.Connector {
    /** Who greets no sooner is asked no more; another server may have taken over. Lettuce's own is a minute. */
    private static final Duration LONGEST = Duration.ofSeconds(3);

    private final RedisClient client;
    private final List<RedisURI> seeds;

    /** The first URI also says how to log in everywhere. */
    public LettuceConnector(AbstractRedisClient like, RedisURI... seeds) {
        client = RedisClient.create(like.getResources());
        // A connection that came back by itself would send again what was cut off, and hear nothing meanwhile.
        client.setOptions(like.getOptions().mutate().autoReconnect(false).build());
        this.seeds = List.of(seeds);
    }

    @Override
    public List<String> seeds() {
        return seeds.stream().map(uri -> uri.getHost() + ":" + uri.getPort()).toList();
    }

    @Override
    public DLocks.Wire open(String host, int port, String channel, Consumer<byte[]> messages, Runnable ended) {
        RedisURI like = seeds.get(0);
        Duration timeOut = like.getTimeout().compareTo(LONGEST) < 0 ? like.getTimeout() : LONGEST;
        RedisURI uri = RedisURI.builder(like).withHost(host).withPort(port).withTimeout(timeOut).build();
        StatefulRedisPubSubConnection<byte[], byte[]> listening = null;
        try {
            listening = client.connectPubSub(ByteArrayCodec.INSTANCE, uri);
            listening.addListener(new RedisPubSubAdapter<>() {
                @Override
                public void message(byte[] channel, byte[] message) {
                    messages.accept(message);
                }
            });
            listening.sync().subscribe(channel.getBytes(US_ASCII));
            var commands = client.connect(ByteArrayCodec.INSTANCE, uri);
            for (StatefulConnection<?, ?> one : List.of(listening, commands)) {
                one.addListener(new RedisConnectionStateListener() {
                    @Override
                    public void onRedisDisconnected(RedisChannelHandler<?, ?> connection) {
                        ended.run();
                    }
                });
            }
            return new Wire(listening, commands);
        } catch (RuntimeException error) {
            if (listening != null) {
                listening.closeAsync();
            }
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof RedisCommandExecutionException) {
                    throw new DLocks.ServerError(cause.getMessage()); // it has not let us in, and says why
                }
            }
            throw error;
        }
    }

    @SuppressWarnings("deprecation") // Lettuce 6 must have a name(), Lettuce 7 would rather not.
    private record Name(String name) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return name.getBytes(US_ASCII);
        }
    }

    /** Whatever comes: integers, arrays of them, maps (flat), nothing. None of Lettuce's own outputs takes all of it. */
    public static final class Reply extends CommandOutput<byte[], byte[], Object> {
        private final Deque<List<Object>> lists = new ArrayDeque<>();
        private final Deque<Integer> missing = new ArrayDeque<>();

        public Reply() {
            super(ByteArrayCodec.INSTANCE, null);
        }

        private void add(Object value) {
            if (lists.isEmpty()) {
                output = value;
            } else {
                lists.peek().add(value);
            }
            while (!lists.isEmpty() && lists.peek().size() == missing.peek()) {
                lists.pop();
                missing.pop();
            }
        }

        @Override
        public void multi(int count) {
            List<Object> list = count < 0 ? null : new ArrayList<>();
            add(list);
            if (count > 0) {
                lists.push(list);
                missing.push(count);
            }
        }

        @Override
        public void set(ByteBuffer bytes) {
            add(bytes == null ? null : codec.decodeValue(bytes));
        }

        @Override
        public void set(long integer) {
            add(integer);
        }

        @Override
        public void set(double number) {
            add(number);
        }

        @Override
        public void set(boolean value) {
            add(value);
        }
    }

    private record Wire(
            StatefulRedisPubSubConnection<byte[], byte[]> listening, StatefulRedisConnection<byte[], byte[]> commands)
            implements DLocks.Wire {
        @Override
        public CompletableFuture<Object> send(List<byte[]> words) {
            var arguments = new CommandArgs<>(ByteArrayCodec.INSTANCE);
            words.subList(1, words.size()).forEach(arguments::add);
            return commands.async().dispatch(new Name(new String(words.get(0), US_ASCII)), new Reply(), arguments)
                    .toCompletableFuture()
                    .exceptionally(error -> {
                        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
                        throw cause instanceof RedisCommandExecutionException
                                ? new DLocks.ServerError(cause.getMessage())
                                : new CompletionException(cause);
                    });
        }

        @Override
        public void close() {
            Stream.of(listening, commands).forEach(StatefulConnection::closeAsync);
        }
    }
}

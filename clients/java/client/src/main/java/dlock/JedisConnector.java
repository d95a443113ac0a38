// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.US_ASCII;

import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Consumer;
import java.util.stream.Stream;
import redis.clients.jedis.BinaryJedisPubSub;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.exceptions.JedisDataException;

/** Connections of {@link DLocks} by Jedis: two to each server, and two threads that read them. */
public final class JedisConnector implements DLocks.Connector {
    private final JedisClientConfig config;
    private final List<HostAndPort> seeds;

    public JedisConnector(JedisClientConfig config, HostAndPort... seeds) {
        this.config = config;
        this.seeds = List.of(seeds);
    }

    @Override
    public List<String> seeds() {
        return seeds.stream().map(HostAndPort::toString).toList();
    }

    @Override
    public DLocks.Wire open(String host, int port, String channel, Consumer<byte[]> messages, Runnable ended) {
        Line listening = new Line(new HostAndPort(host, port), config);
        try {
            listening.setTimeoutInfinite(); // messages come when they come
            Wire wire = new Wire(listening, new Line(new HostAndPort(host, port), config), ended);
            wire.listen(channel.getBytes(US_ASCII), messages);
            return wire;
        } catch (RuntimeException error) {
            listening.disconnect();
            throw error;
        }
    }

    private static final class Line extends Connection {
        private Line(HostAndPort address, JedisClientConfig config) {
            super(address, config);
        }

        private void write(CommandArguments words) {
            sendCommand(words);
            flush();
        }
    }

    private static final class Wire implements DLocks.Wire {
        private final Line listening;
        private final Line commands;
        private final Runnable ended;
        /** In the order in which they were sent, which is that of the replies. Null: closed. */
        private BlockingQueue<CompletableFuture<Object>> asked = new LinkedBlockingQueue<>();

        private Wire(Line listening, Line commands, Runnable ended) {
            this.listening = listening;
            this.commands = commands;
            this.ended = ended;
            start(this::read);
        }

        private static void start(Runnable task) {
            Thread thread = new Thread(task, "dlock-jedis");
            thread.setDaemon(true);
            thread.start();
        }

        private void listen(byte[] channel, Consumer<byte[]> messages) {
            CompletableFuture<Void> subscribed = new CompletableFuture<>();
            start(() -> {
                try {
                    new BinaryJedisPubSub() {
                        @Override
                        public void onSubscribe(byte[] channel, int channels) {
                            subscribed.complete(null);
                        }

                        @Override
                        public void onMessage(byte[] channel, byte[] message) {
                            messages.accept(message);
                        }
                    }.proceed(listening, channel);
                } catch (RuntimeException error) {
                    subscribed.completeExceptionally(error);
                } finally {
                    close();
                }
            });
            subscribed.join();
        }

        @Override
        public synchronized CompletableFuture<Object> send(List<byte[]> words) {
            CompletableFuture<Object> reply = new CompletableFuture<>();
            if (asked == null) {
                return CompletableFuture.failedFuture(new IllegalStateException("the connection has ended"));
            }
            CommandArguments arguments = new CommandArguments(() -> words.get(0));
            words.subList(1, words.size()).forEach(arguments::add);
            asked.add(reply);
            try {
                commands.write(arguments);
            } catch (RuntimeException error) {
                close();
            }
            return reply;
        }

        private void read() {
            BlockingQueue<CompletableFuture<Object>> asked = this.asked;
            CompletableFuture<Object> reply = null;
            try {
                while (true) {
                    reply = asked.take();
                    try {
                        reply.complete(commands.getUnflushedObject());
                    } catch (JedisDataException error) {
                        reply.completeExceptionally(new DLocks.ServerError(error.getMessage()));
                    }
                }
            } catch (InterruptedException | RuntimeException error) {
                reply.completeExceptionally(error);
                close();
            }
        }

        @Override
        public void close() {
            BlockingQueue<CompletableFuture<Object>> left;
            synchronized (this) {
                left = asked;
                asked = null;
            }
            if (left == null) {
                return;
            }
            Stream.of(listening, commands).forEach(Connection::disconnect);
            CompletableFuture<Object> end = new CompletableFuture<>();
            left.add(end); // for the thread that reads
            var error = new IllegalStateException("the connection has ended");
            left.forEach(reply -> reply.completeExceptionally(error));
            ended.run();
        }
    }
}

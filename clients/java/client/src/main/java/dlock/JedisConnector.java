// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.US_ASCII;

import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
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
        Line listening = null;
        try {
            listening = new Line(new HostAndPort(host, port), config);
            listening.setTimeoutInfinite(); // messages come when they come
            Wire wire = new Wire(listening, new Line(new HostAndPort(host, port), config), ended);
            wire.listen(channel.getBytes(US_ASCII), messages);
            return wire;
        } catch (RuntimeException error) {
            if (listening != null) {
                listening.disconnect();
            }
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof JedisDataException) {
                    throw new DLocks.ServerError(cause.getMessage()); // it has not let us in, and says why
                }
            }
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
        /** In the order in which they were sent, which is that of the replies. */
        private final BlockingQueue<CompletableFuture<Object>> asked = new LinkedBlockingQueue<>();
        private final AtomicBoolean closed = new AtomicBoolean();

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
            try {
                subscribed.orTimeout(3, TimeUnit.SECONDS).join();
            } catch (RuntimeException error) {
                close();
                throw error;
            }
        }

        @Override
        public synchronized CompletableFuture<Object> send(List<byte[]> words) {
            CompletableFuture<Object> reply = new CompletableFuture<>();
            CommandArguments arguments = new CommandArguments(() -> words.get(0));
            words.subList(1, words.size()).forEach(arguments::add);
            asked.add(reply);
            try {
                if (!closed.get()) {
                    commands.write(arguments);
                }
            } catch (RuntimeException error) {
                close();
            }
            if (closed.get()) {
                reply.completeExceptionally(new IllegalStateException("the connection has ended"));
            }
            return reply;
        }

        private void read() {
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

        /** Waits for nobody: a thread that writes to a server that hangs ends by it. */
        @Override
        public void close() {
            if (!closed.compareAndSet(false, true)) {
                return;
            }
            Stream.of(listening, commands).forEach(Connection::disconnect);
            CompletableFuture<Object> end = new CompletableFuture<>();
            asked.add(end); // for the thread that reads
            var error = new IllegalStateException("the connection has ended");
            asked.forEach(reply -> reply.completeExceptionally(error));
            ended.run();
        }
    }
}

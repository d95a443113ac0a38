// SPDX-License-Identifier: MIT
package dlock;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import redis.clients.jedis.HostAndPort;

/** A way to a server. While it is frozen nothing comes through, and nobody is told. */
final class Path implements AutoCloseable {
    private final ServerSocket listener;
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();
    private final Runnable met;
    private boolean frozen;
    private String pattern;

    Path(HostAndPort server, Runnable met) throws IOException {
        this.met = met;
        listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        start(() -> {
            while (true) {
                Socket near = listener.accept();
                met.run();
                Socket far = new Socket(server.getHost(), server.getPort());
                sockets.addAll(List.of(near, far));
                start(() -> pass(near, far));
                start(() -> pass(far, near));
            }
        });
    }

    private interface Task {
        void run() throws IOException, InterruptedException;
    }

    private static void start(Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (IOException | InterruptedException end) {
                // It is closed.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void pass(Socket from, Socket to) throws IOException, InterruptedException {
        byte[] bytes = new byte[1 << 16];
        while (true) {
            int n = from.getInputStream().read(bytes);
            synchronized (this) {
                if (pattern != null && n > 0
                        && new String(bytes, 0, n, StandardCharsets.ISO_8859_1).contains(pattern)) {
                    frozen = true;
                }
                while (frozen) {
                    wait();
                }
            }
            if (n < 0) {
                to.shutdownOutput();
                return;
            }
            to.getOutputStream().write(bytes, 0, n);
        }
    }

    HostAndPort address() {
        return new HostAndPort("127.0.0.1", listener.getLocalPort());
    }

    synchronized void freeze() {
        frozen = true;
    }

    /** Lets through what comes before these words, and not them. */
    synchronized void freezeAt(String words) {
        pattern = words;
    }

    synchronized void thaw() {
        frozen = false;
        pattern = null;
        notifyAll();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        thaw();
        for (Socket socket : sockets) {
            socket.close();
        }
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;

/**
 * One leader among the candidates of a name: whoever holds its lock. It steps down before its lease ends, since a hold is
 * believed for less long. The fencing token is the term: what a leader writes it writes by {@link Hold#guard}.
 */
public final class Leader implements AutoCloseable {
    private final DLocks locks;
    private final String name;
    private final String id;
    private volatile Hold hold;
    private CompletableFuture<Hold> campaign;

    /** A candidate, known to the others by this id. */
    public Leader(DLocks locks, String name, String id) {
        if (locks == null) {
            throw new IllegalArgumentException("locks must not be null");
        }
        this.locks = locks;
        this.name = name;
        this.id = id;
        locks.ask(name).owner(id); // what is wrong is told at once
    }

    /**
     * Stands for election, until it is leader. The hold says when that is over ({@link Hold#lost}); then it may stand again.
     * One campaign at a time.
     */
    public CompletableFuture<Hold> campaign() {
        CompletableFuture<Hold> begun;
        locks.core.guard.lock();
        try {
            if (campaign != null && (!campaign.isDone() || isLeader())) {
                return campaign;
            }
            CompletableFuture<Hold> asked = locks.ask(name).owner(id).holdAsync();
            begun = campaign = asked;
        } finally {
            locks.core.guard.unlock();
        }
        begun.thenAccept(granted -> hold = granted);
        return begun;
    }

    /** Whether it leads, for sure. */
    public boolean isLeader() {
        return term().isPresent();
    }

    /** The term in which it leads. */
    public OptionalLong term() {
        Hold now = hold;
        return now != null && !now.left().isZero() ? OptionalLong.of(now.token()) : OptionalLong.empty();
    }

    /** The leader's id, as the server knows it. */
    public Optional<String> who() {
        locks.core.check();
        Request any = new Request(locks.core.settings, name, "-", 1, false, null);
        List<?> held = (List<?>) Hold.await(
                locks.core.ask(any, Request.words("DLOCK.HELD", name)), 2 * locks.core.boundNanos);
        if (held == null) {
            return Optional.empty();
        }
        String owner = new String((byte[]) held.get(3), StandardCharsets.UTF_8);
        return Optional.of(owner.substring(0, Math.max(0, owner.lastIndexOf(':'))));
    }

    /** Leads no more, and stands no more. */
    public void resign() {
        CompletableFuture<Hold> begun;
        locks.core.guard.lock();
        try {
            begun = campaign;
            campaign = null;
        } finally {
            locks.core.guard.unlock();
        }
        if (begun == null || begun.cancel(false)) {
            return;
        }
        Hold now = begun.isCompletedExceptionally() ? null : begun.join();
        hold = null;
        if (now != null && now.isHeld()) {
            now.release();
        }
    }

    @Override
    public void close() {
        resign();
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import dlock.DLockException.Unavailable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/**
 * What the client knows of one hold, and until when it believes in it. The program's {@link Hold} refers to it, and not the other
 * way, so that the collector finds a Hold that the program has forgotten. All but what never changes is by the sessions' guard.
 */
final class Belief {
    /** Names a hold. */
    record Place(String key, long token) {}

    final String key;
    final String owner;
    final long token;
    final long lease;
    /** The program's, or null. */
    final Consumer<Hold> onLost;
    /** Ends with the reason when the lock is lost. */
    final CompletableFuture<String> lost = new CompletableFuture<>();
    final long since = Clock.now();
    final long bound;
    long end;
    /** When an answer told that it is in its session. */
    long told;
    Session session;
    /** Lost, or released: for this reason. */
    volatile boolean isOver;
    volatile boolean isReleased;
    volatile String reason = "";
    /** When its lease is to end, if it was left to it. */
    Long leftUntil;
    /** The last RENEW. */
    Errand renewal;
    /** It has left this session for another one, or for none: the client does not release a hold that another renews. */
    boolean isTaken;

    Belief(String key, String owner, long token, long end, Request request) {
        this.key = key;
        this.owner = owner;
        this.token = token;
        this.end = end;
        lease = request.lease();
        bound = Clock.after(since, request.maxHold());
        onLost = request.onLost().get(request.keys().indexOf(key));
    }

    Place place() {
        return new Place(key, token);
    }

    /** Returns the believed end. */
    long until() {
        return Math.min(end, bound);
    }

    /** Returns whether it is to be kept: a third of its lease has passed. */
    boolean isOld() {
        return Clock.now() >= third();
    }

    long third() {
        return since + lease / 3;
    }

    /** Returns why nothing prolongs it, or null. */
    RuntimeException why() {
        if (isTaken) {
            return new Unavailable("it was taken out of the session", null);
        }
        return renewal != null && renewal.tries > 0 && !renewal.isDone() ? renewal.why() : null;
    }

    /** Returns a command that names the hold by its token. */
    byte[][] words(String name, Object... more) {
        List<Object> words = new ArrayList<>(List.of("DLOCK." + name, key, owner));
        words.addAll(Arrays.asList(more));
        words.addAll(List.of("TOKEN", token));
        return Request.bytes(words);
    }
}

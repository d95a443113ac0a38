// SPDX-License-Identifier: MIT
package dlock;

import java.net.UnknownHostException;
import java.util.Set;
import java.util.concurrent.CompletionException;
import javax.net.ssl.SSLException;

/** Whatever goes wrong with a lock, but {@link NotHeld}. */
public class DLockException extends RuntimeException {
    private static final Set<String> PASSING = Set.of("UNBLOCKED", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "BUSY",
            "NOREPLICAS", "MISCONF", "READONLY", "MOVED", "ASK", "NOACK", "QUARANTINE");

    DLockException(String message) {
        super(message);
    }

    DLockException(String message, Throwable cause) {
        super(message, cause);
    }

    /** The server has said no, in these words. */
    public static class Refused extends DLockException {
        Refused(String message) {
            super(message);
        }

        /** Returns the first word of what the server said, such as {@code NOACK}: a program may dispatch on it. */
        public String code() {
            return DLockException.code(this);
        }
    }

    /** A guarded command was not run: the lock is not held under this token. */
    public static final class Fenced extends Refused {
        Fenced(String message) {
            super(message);
        }
    }

    /** The wait could never end; the message names the circle. */
    public static final class Deadlock extends Refused {
        Deadlock(String message) {
            super(message);
        }
    }

    /** Nobody has answered, or the client can no longer ask. */
    public static final class Unavailable extends DLockException {
        Unavailable(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** The lock was not granted in time. Its cause is what the server failed to do, if the lock was not just taken. */
    public static final class LockTimeout extends DLockException {
        LockTimeout(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** Returns an error as one of these. */
    static RuntimeException of(Throwable error) {
        if (error instanceof DLockException || error instanceof NotHeld) {
            return (RuntimeException) error;
        }
        if (error instanceof CompletionException && error.getCause() != null) {
            return of(error.getCause());
        }
        return new Unavailable(error.getMessage() == null ? error.toString() : error.getMessage(), error);
    }

    /**
     * Returns an error of this thread, whose trace names the caller. Another thread has made the given one, and others may wait for it.
     */
    static RuntimeException here(Throwable error) {
        RuntimeException there = of(error);
        if (there instanceof LockTimeout) {
            return new LockTimeout(there.getMessage(), there.getCause());
        }
        if (there instanceof Unavailable) {
            return new Unavailable(there.getMessage(), there);
        }
        RuntimeException here = said(there.getMessage());
        here.initCause(there);
        return here;
    }

    /** Returns what a server has said. */
    static RuntimeException said(String text) {
        return switch (text.split("[ :]", 2)[0]) {
            case "NOTHELD" -> new NotHeld(text);
            case "FENCED" -> new Fenced(text);
            case "DEADLOCK" -> new Deadlock(text);
            default -> new Refused(text);
        };
    }

    /** Returns the word on which a program may dispatch, or an empty one. */
    static String code(Throwable error) {
        return isSaid(error) ? error.getMessage().split("[ :]", 2)[0] : "";
    }

    /** Returns whether the server has said so. */
    static boolean isSaid(Throwable error) {
        return error instanceof Refused || error instanceof NotHeld;
    }

    /** Whether a server has read the command, and will not answer it in another way. A refused login is about the connection. */
    static boolean isAnswer(Throwable error) {
        return isSaid(error) && !passes(error) && !code(error).equals("WRONGPASS") && !code(error).equals("NOAUTH");
    }

    /**
     * Whether the error may pass with another connection, another node or a little time. It does not pass if the library is of
     * another version (a {@link LinkageError}), or does not accept what it was given.
     */
    static boolean passes(Throwable error) {
        if (error instanceof Refused refused) {
            return PASSING.contains(code(refused)) || refused.getMessage().contains("max number of clients");
        }
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof SSLException || cause instanceof UnknownHostException || cause instanceof LinkageError
                    || cause instanceof IllegalArgumentException || cause instanceof UnsupportedOperationException
                    || cause instanceof ClassCastException) {
                return false;
            }
        }
        return error instanceof Unavailable;
    }
}

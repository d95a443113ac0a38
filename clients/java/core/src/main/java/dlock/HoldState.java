// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.DEBUG;
import static java.lang.System.Logger.Level.ERROR;
import static java.lang.System.Logger.Level.WARNING;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/** The part of a {@link Hold} that the core refers to. It does not refer to the Hold, so that the collector can find that. */
final class HoldState {
    enum Phase { HELD, LOST, RELEASED }

    final Core core;
    final Request request;
    final long since = BootClock.now();
    final AtomicReference<Phase> phase = new AtomicReference<>(Phase.HELD);
    final CompletableFuture<String> lost = new CompletableFuture<>();
    private final Consumer<Hold> onLost;
    volatile Renewal renewal;
    volatile String reason = "";

    HoldState(Core core, Request request, Consumer<Hold> onLost) {
        this.core = core;
        this.request = request;
        this.onLost = onLost;
        renewal = request.renewal;
    }

    /** Reports the loss, once. */
    void lose(String why) {
        if (!phase.compareAndSet(Phase.HELD, Phase.LOST)) {
            return;
        }
        reason = why;
        var level = core.closed ? DEBUG : WARNING;
        core.tell(observer -> observer.lost(request.key, why));
        core.callbacks.execute(() -> { // the caller may have the guard, and loggers may block
            Core.LOG.log(level, "lock {0} of {1} is lost: {2}", request.key, request.owner, why);
            lost.complete(why);
            try {
                onLost.accept(new Hold(this));
            } catch (RuntimeException error) {
                Core.LOG.log(ERROR, "onLost has failed", error);
            }
        });
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** From a reader to the only writer, and back. The upgrade is a new grant: the hold has a new token from then on. */
final class Upgrade {
    private static final CompletableFuture<Object> LEFT = CompletableFuture.completedFuture(null);

    private Upgrade() {}

    /** The hold is that of what was granted now. */
    static void done(Core core, Hold hold, Request request) {
        request.outer = null; // or the hold would refer to itself, and nobody could forget it
        hold.renewal(request.renewal);
        core.attach(request, hold);
    }

    /** The upgrade was given up. Whatever came first, the hold is a reader's again, perhaps under the new token. */
    static CompletableFuture<Object> leave(Core core, Request request) {
        Hold hold = request.outer;
        if (hold == null) {
            return LEFT; // it is the hold's before it could be left
        }
        Routes routes = core.routes;
        return routes.ask(request, request.cancel()).thenCompose(cancelled -> Long.valueOf(1).equals(cancelled) ? LEFT
                : routes.ask(request, hold.state.request.downgrade())
                        .thenCompose(reply -> routes.ask(request, request.held()))
                        .thenCompose(held -> held == null ? LEFT : read(core, request, hold, (Long) ((List<?>) held).get(0))));
    }

    private static CompletableFuture<Object> read(Core core, Request request, Hold hold, long token) {
        if (token == hold.token()) {
            return LEFT;
        }
        CompletableFuture<Object> done = new CompletableFuture<>();
        core.routes.call(request, request.renew(token), (node, link, sent, left, why) -> {
            if (why == null) {
                core.granted(request, node, link, token, sent, (Long) left);
                done(core, hold, request);
            }
            Link.settle(done, left, why);
        });
        return done;
    }
}

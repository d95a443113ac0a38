// SPDX-License-Identifier: MIT
package dlock;

import java.util.List;

/** From a reader to the only writer, and back. The upgrade is a new grant: the hold has a new token from then on. */
final class Upgrade {
    private Upgrade() {}

    /** The hold is that of what was granted now. */
    static void done(Core core, Hold hold, Request request) {
        request.outer = null; // or the hold would refer to itself, and nobody could forget it
        hold.tie(request.tie);
        core.adopt(request, hold);
    }

    /** The upgrade was given up. Whatever came first, the hold is a reader's again, perhaps under the new token. */
    static void leave(Core core, Node node, Link link, Request request) {
        Hold hold = request.outer;
        Keeper keeper = node.keeper;
        if (Long.valueOf(1).equals(keeper.get(link.ask(request.cancel())))) {
            return;
        }
        keeper.get(link.ask(hold.request.downgrade()));
        List<?> held = (List<?>) keeper.get(link.ask(request.held()));
        long token = held == null ? 0 : (Long) held.get(0);
        if (token == 0 || token == hold.token()) {
            return;
        }
        long sent = BootClock.now();
        Object left = keeper.get(link.ask(request.renew(token)));
        core.tie(request, node, link, token, sent, (Long) left);
        done(core, hold, request);
    }
}

// SPDX-License-Identifier: MIT
package dlock;

import java.lang.ref.ReferenceQueue;
import java.lang.ref.WeakReference;

/** A hold that a link's server renews for us. All by the core's guard. */
final class Renewal {
    /** The program's hold. When the collector has found it, nobody can give it back any more. */
    static final class Ref extends WeakReference<Hold> {
        final Renewal renewal;

        Ref(Hold hold, Renewal renewal, ReferenceQueue<Hold> forgotten) {
            super(hold, forgotten);
            this.renewal = renewal;
        }
    }

    final Request request;
    final long token;
    Link link;
    Ref hold;
    /** What the core tells of a loss; null until the grant has reached the program. */
    HoldState state;
    /** After a pause of this process: how long an answer is waited for. */
    long askedUntil = Long.MIN_VALUE;
    /** Why the last RENEW was refused, or null. */
    RuntimeException refusal;
    boolean asking; // the key is at its node before its slot is
    private long serial;
    private long until = Long.MIN_VALUE;

    Renewal(Request request, long token) {
        this.request = request;
        this.token = token;
    }

    /** The server has said that it renews it for this link. */
    void attach(Link to, long until) {
        this.until = Math.max(end(), until);
        askedUntil = Long.MIN_VALUE;
        refusal = null;
        if (request.fixed != null) {
            return; // nobody renews it
        }
        if (link != to) {
            detach();
            to.renewals++;
            link = to;
        }
        serial = ++to.serial;
    }

    void detach() {
        if (link != null) {
            until = end();
            link.renewals--;
            link = null;
        }
    }

    /** Until then it is ours. */
    long end() {
        return link != null && serial <= link.kept ? Math.max(until, link.believed) : until;
    }

    Hold hold() {
        return hold == null ? null : hold.get();
    }
}

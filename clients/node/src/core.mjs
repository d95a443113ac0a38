// SPDX-License-Identifier: MIT
/*
 * What all locks share: the holds that servers renew for us, and the clock that tells when one is over.
 *
 * - A *node* is a server that we talk to. Its *link* is the one connection for all commands of all locks. Replies come
 *   in the order of the commands, and what a reply changes is changed as it is read, whether or not anybody waits.
 * - A *renewal* is a hold that the server renews for our link (AUTO). One KEEP a second moves the believed end of all of
 *   its link, reports what was lost, and counts them, so that none is kept that we do not know of.
 * - A *wait* is a place in a queue. Its end is announced on a channel of ours, on a second connection, the *subscriber*.
 *
 * take.mjs takes and waits, keep.mjs keeps, release.mjs gives back, routes.mjs finds who is to be asked.
 */
import { randomUUID } from 'node:crypto';

import { after, now } from './clock.mjs';
import { Keeper } from './keep.mjs';
import { leaveToLease, release, untie } from './release.mjs';
import { Renewal } from './node.mjs';
import { Routes } from './routes.mjs';
import { Take } from './take.mjs';

const ROUNDING = 2; // servers count whole milliseconds
const HUNG = 250; // an end that is seen so late: this process was stopped
const DOUBT = 1_000; // so long the server is asked then what is still held
const nothing = () => {};

export class Core extends Routes {
  renewals = new Set();
  named = new Map(); // what owners that the program has named hold, by key and owner
  suffix = `#${randomUUID()}`; // what the names of those end with
  #aliases = 0;
  #alarm = Infinity;
  #disarm = nothing;

  /** What `make` makes of the renewal of what was granted; null if it is taken. A time-out of 0: one attempt. */
  take(request, timeout, make) { return new Take(this, request, timeout, make).result(); }

  /** Gives back what was granted, and nothing else. The last hold of an owner says so to the server. */
  async release(renewal, hold) {
    this.check();
    renewal.forget(hold);
    if (!renewal.holds.length) await release(this, renewal);
  }

  /** When a lease of this length, asked for at that time, is believed to have ended. */
  until(sent, lease) { return sent + Number(lease) - ROUNDING - this.settings.clockMargin; }

  /** The server has said that it renews this hold for this link. */
  granted(request, link, word, sent, lease) {
    const token = Number(word);
    if (request.renewal?.token !== token) {
      this.lose(request.renewal, 'granted anew');
      request.renewal = new Renewal(request, token, request.node);
      this.renewals.add(request.renewal);
    }
    request.renewal.node = request.node;
    request.renewal.attach(link, this.until(sent, lease));
    this.wake(request.node);
  }

  /** The program has it now. `again` makes another like it, to report it lost when the program has forgotten this one. */
  adopt(renewal, hold, again) {
    renewal.holds.push(Object.assign(new WeakRef(hold), { again }));
    if (renewal.gone) hold.reportLost(renewal.gone);
    else this.arm(renewal.end());
  }

  lose(renewal, reason) {
    if (!this.renewals.delete(renewal)) return;
    renewal.detach();
    renewal.gone = reason;
    const named = this.named.get(renewal.request.name);
    if (named?.renewal === renewal) named.renewal = null;
    this.tidy(renewal.request.name);
    for (const hold of renewal.holds) hold.deref()?.reportLost(reason);
  }

  /** What an owner that the program has named has at a lock. */
  owner(name) {
    let named = this.named.get(name);
    if (!named) this.named.set(name, named = { renewal: null, users: 0, unanswered: 0, alias: '', last: null });
    return named;
  }

  /**
   * Gives a named owner another name, before something is said that ends what it has. Until that is answered, which the
   * function that is returned notes, it may be read late, and must end nothing that the owner is granted later.
   */
  rename({ name }) {
    if (!name) return nothing;
    const named = this.owner(name);
    named.unanswered += 1;
    named.alias = `.${++this.#aliases}`;
    return () => {
      named.unanswered -= 1;
      this.tidy(name);
    };
  }

  /** Forgets a named owner that neither holds the lock nor asks for it. */
  tidy(name) {
    const named = this.named.get(name);
    if (named && !named.renewal && !named.users && !named.unanswered) this.named.delete(name);
  }

  of(node) { return [...this.renewals].filter((one) => one.node === node); }

  /** The link has died. Places and ephemeral holds have ended with it; all else is renewed anew. */
  unlinked(node, link) {
    for (const renewal of this.of(node)) {
      if (renewal.link === link && renewal.request.ephemeral.length) this.lose(renewal, 'closed');
    }
    if (!link.used) return;
    node.notifyAll('again');
    this.rouse(node);
  }

  /** The clock of all holds: waits for nothing, and looks at them once a lease. Timers stand still in a suspended machine. */
  arm(at) { if (at < this.#alarm) this.#rearm(at); }

  #rearm(at) {
    this.#disarm();
    this.#alarm = at;
    if (at !== Infinity && !this.closed) {
      this.#disarm = after(Math.min(at - now(), 1000), () => (this.#alarm <= now() ? this.expire() : this.#rearm(at)));
    }
  }

  /**
   * Loses what has ended by the clock. An end that is seen late is no loss yet: this process was stopped, and the server may
   * have renewed the hold meanwhile. Its keeper asks.
   */
  expire() {
    const at = now();
    let next = Infinity;
    for (const renewal of [...this.renewals]) {
      const end = renewal.end();
      if (end > at) {
        next = Math.min(next, end);
      } else if (!renewal.doubted && at - end > Math.max(HUNG, this.settings.clockMargin) && renewal.holds.length) {
        renewal.doubted = at + Math.min(DOUBT, this.settings.replyTimeout);
        renewal.detach();
        this.rouse(renewal.node);
        next = Math.min(next, renewal.doubted);
      } else if (renewal.doubted > at) {
        next = Math.min(next, renewal.doubted);
      } else {
        const why = renewal.refusal ?? renewal.node.trouble;
        this.lose(renewal, `nobody has confirmed it before its end${why ? `: ${why.message}` : ''}`);
        untie(this, renewal);
      }
    }
    this.#rearm(next);
  }

  /**
   * A hold that nothing refers to any more is lost: nobody can give it back. What it protects may still run, so it is left to
   * its lease. (A FinalizationRegistry would cost each lock more.)
   */
  dropForgotten(node) {
    for (const renewal of this.of(node)) {
      if (renewal.ending) continue;
      const forgotten = renewal.forgotten();
      for (const one of forgotten) one.again().reportLost('forgotten: nothing refers to the hold any more, and it was not released');
      if (forgotten.length && !renewal.holds.length) leaveToLease(this, renewal);
    }
  }

  /** Something is to be kept from now on. */
  wake(node) { (node.keeper ??= new Keeper(this, node)).wake(); }

  /** Says to the node that we live. */
  async keepAlive(node) {
    node.keeper ??= new Keeper(this, node);
    return node.keeper.keepAlive(await this.link(node));
  }

  /** At once. */
  rouse(node) { (node.keeper ??= new Keeper(this, node)).rouse(); }

  /** Everything ends: what is held is lost, and lives on until its lease. */
  end() {
    this.closed = true;
    if (this.renewals.size) this.settings.logger.warn(`closed with ${this.renewals.size} locks held: they are lost`);
    for (const renewal of [...this.renewals]) this.lose(renewal, 'closed');
    for (const node of this.nodes.values()) {
      node.notifyAll('closed');
      node.keeper?.rouse();
    }
    this.closeLinks();
    this.#rearm(Infinity);
  }
}

// SPDX-License-Identifier: MIT
/*
 * What all locks share: the holds that servers renew for us, and the clock that tells when one is over.
 *
 * - A *node* is a server that we talk to. Its *link* is the one connection for all commands of all locks. Replies come
 *   in the order of the commands, and what a reply changes is changed as it is read, whether or not anybody waits.
 * - A *tie* is a hold that the server renews for our link (AUTO). One KEEP a second moves the believed end of all ties
 *   of its link, tells what was lost, and counts the ties, so that none is kept that we do not know of.
 * - A *wait* is a place in a queue. Its end is told on a channel of ours, heard on a second connection, the *ear*.
 *
 * take.mjs takes and waits, keep.mjs keeps, leave.mjs gives back, places.mjs finds who is to be asked.
 */
import { after, now } from './clock.mjs';
import { Keeper } from './keep.mjs';
import { release } from './leave.mjs';
import { Tie } from './node.mjs';
import { Places } from './places.mjs';
import { Take } from './take.mjs';

const ROUNDING = 2; // servers count whole milliseconds
const nothing = () => {};

export class Core extends Places {
  #alarm = Infinity;
  #disarm = nothing;

  /** What `make` makes of the tie of what was granted; null if it is taken. A time-out of 0: one try. */
  take(request, timeout, make) { return new Take(this, request, timeout, make).result(); }

  /** Gives back what was granted, and nothing else. */
  release(request, tie, hold) {
    this.check();
    tie.forget(hold);
    return release(this, request, tie);
  }

  /** When a lease of this length, asked for at that time, is believed to have ended. */
  until(sent, lease) { return sent + Number(lease) - ROUNDING - this.settings.allowance; }

  /** The server has said that it renews this hold for this link. */
  tie(request, link, word, sent, lease) {
    const [node, token] = [request.node, Number(word)];
    if (request.outer && request.outer !== token) { // an upgrade: the outer hold has ended with its token
      this.lose(node, node.ties.get(request.outer), 'upgraded');
      [request.outer, request.before] = [token, 0];
    }
    let tie = node.ties.get(token) ?? this.#fetch(request, token);
    if (!tie) node.ties.set(token, tie = new Tie(request, token));
    tie.attach(link, this.until(sent, lease));
    request.tie = tie;
    this.wake(node);
  }

  /** The tie of a hold that its owner has asked for again where its slot is by now, before the keeper knew: it is one. */
  #fetch(request, token) {
    if (!request.before) return null;
    for (const { ties } of this.nodes.values()) {
      const tie = ties.get(token);
      if (tie?.request.id !== request.id) continue;
      ties.delete(token);
      tie.detach();
      [tie.request.node, tie.request.asking] = [request.node, request.asking];
      request.node.ties.set(token, tie);
      return tie;
    }
    return null;
  }

  /** Somebody has it now. */
  adopt(request, tie, hold) {
    tie.holds.push([request, new WeakRef(hold)]);
    if (tie.gone) hold.tellLost(tie.gone);
    else if (tie.end() < this.#alarm) this.#rearm(tie.end());
  }

  lose(node, tie, reason) {
    if (!tie || !node.ties.delete(tie.token)) return;
    tie.detach();
    tie.gone = reason;
    for (const [, hold] of tie.holds) hold.deref()?.tellLost(reason);
  }

  /** Wherever it is kept. */
  loseTie(tie, reason) {
    for (const node of this.nodes.values()) if (node.ties.get(tie.token) === tie) this.lose(node, tie, reason);
  }

  /** The link has died. Places and sessions have ended with it; all else is tied anew. */
  unlinked(node, link) {
    for (const tie of [...node.ties.values()]) {
      if (tie.link === link && tie.request.session.length) this.lose(node, tie, 'session');
    }
    node.tell('again');
    this.rouse(node);
  }

  /** The clock of all holds: waits for nothing, and looks at them once a lease. Timers stand still in a suspended machine. */
  #rearm(at) {
    this.#disarm();
    this.#alarm = at;
    if (at !== Infinity && !this.closed) {
      this.#disarm = after(Math.min(at - now(), 1000), () => (this.#alarm <= now() ? this.expire() : this.#rearm(at)));
    }
  }

  /** Tells what has ended by the clock. */
  expire() {
    let at = Infinity;
    for (const node of this.nodes.values()) {
      for (const tie of [...node.ties.values()]) {
        if (tie.end() > now()) {
          at = Math.min(at, tie.end());
        } else {
          this.lose(node, tie, 'nobody has confirmed it before its end');
          this.drop(tie.request, tie.token);
        }
      }
    }
    this.#rearm(at);
  }

  /** What nobody refers to any more can be given back by nobody. (A FinalizationRegistry would cost each lock more than this.) */
  dropForgotten(node) {
    for (const tie of node.ties.values()) for (const request of tie.forgotten()) this.drop(request, tie.token);
  }

  /** Leaves for good, in the background. Without a token it is the wait that is left. */
  drop(request, token = 0) {
    if (!request.node || this.closed) return;
    const { lease, claim } = request.settings;
    request.node.leaving.push({ until: now() + Math.max(lease, claim), request, token });
    this.rouse(request.node);
  }

  /** Something is to be kept from now on, or left. */
  wake(node) { (node.keeper ??= new Keeper(this, node)).wake(); }

  /** At once. */
  rouse(node) { (node.keeper ??= new Keeper(this, node)).rouse(); }

  /** Everything ends: what is held is told lost, and lives on until its lease. */
  end() {
    this.closed = true;
    const held = [...this.nodes.values()].reduce((sum, node) => sum + node.ties.size, 0);
    if (held) this.settings.logger.warn(`closed with ${held} locks held: they are lost`);
    for (const node of this.nodes.values()) {
      for (const tie of [...node.ties.values()]) this.lose(node, tie, 'closed');
      node.tell('closed');
      node.keeper?.rouse();
    }
    this.closeLinks();
    this.#rearm(Infinity);
  }
}

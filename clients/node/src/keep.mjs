// SPDX-License-Identifier: MIT
// Keeps what is held at one node, and sees that what is left there is given back.
import { now, pause } from './clock.mjs';
import { NoAck, NotHeld, Unreachable } from './errors.mjs';
import { depart, hand } from './leave.mjs';
import { redirection } from './places.mjs';

const nothing = () => {};

/** The keeper of a node: does nothing but this, and waits for no other node. */
export class Keeper {
  #awake = false;
  #kicked = false;
  #kick = nothing;

  constructor(core, node) { [this.core, this.node] = [core, node]; }

  /** Something is to be kept from now on, or left. */
  wake() {
    if (this.#awake || this.core.closed) return;
    this.#awake = true;
    this.#run();
  }

  /** At once. */
  rouse() {
    this.wake();
    this.#kicked = true;
    this.#kick();
  }

  async #run() {
    const { node, core: { settings } } = this;
    do {
      if (!this.#kicked) {
        await new Promise((done) => {
          this.#kick = done;
          setTimeout(done, settings.interval).unref();
        });
      }
      if (this.core.closed) return;
      this.core.dropForgotten(node);
      this.#kicked = false;
      try {
        await this.round();
      } catch (error) {
        this.#say(error);
        node.leaving = node.leaving.filter(({ until }) => now() < until);
        // Whoever is asked who serves what may hang.
        if (!(error instanceof NoAck)) await Promise.race([this.core.lookAround(), pause(settings.interval / 2)]);
        this.#rehome();
        await pause(20 + 80 * Math.random()); // a server that accepts and hangs up is not asked all the time
      }
    } while (node.ties.size || node.waits.size || node.leaving.length || this.#kicked);
    this.#awake = false;
  }

  #say(error) { this.core.settings.debug(`node ${this.node.name || 'of the client'}: ${error.message}`); }

  async round() {
    const { core, node } = this;
    if (!node.ties.size && !node.waits.size && !node.leaving.length) return;
    let link = await core.link(node);
    const loose = [...node.ties.values()].filter((tie) => tie.link !== link);
    if (loose.length) await this.retie(link, loose);
    if (link.surplus > 1) { // two in a row: it has ties that nobody knows of
      core.settings.logger.warn(`the connection to ${node.name || 'the server'} keeps holds that nobody has: it is replaced`);
      const old = link;
      link = await node.once('link', async () => core.linked(node, await core.openLink(node)));
      await this.retie(link, [...node.ties.values()]);
      old.die(new Unreachable('replaced'));
    }
    if (node.ties.size || node.waits.size) {
      await link.post(['DLOCK.KEEP', core.settings.auto], (error, reply, _, sent) => { if (reply) this.kept(link, sent, reply); }).catch((error) => {
        if (!(error instanceof NoAck)) throw error; // what is believed stays as it was; to give back needs no replica
        this.#say(error);
      });
    }
    if (link.short) await this.retie(link, [...node.ties.values()].filter((tie) => tie.link === link && tie.isNear()));
    await depart(core, node, link);
  }

  kept(link, sent, [ties, left, lost]) {
    const { core, node } = this;
    if (left !== null) [link.believed, link.kept] = [sent + Number(left) - core.settings.allowance, link.serial];
    // It renews at two thirds. Where one hold may not last (dlock.max-hold-ms), each is asked for its own end.
    link.short = left !== null && left < core.settings.lease / 2;
    for (const [, token, reason] of lost ?? []) {
      const tie = node.ties.get(Number(token));
      if (tie?.link !== link) continue;
      if (['moved', 'renamed', 'taken', 'demoted'].includes(reason)) {
        tie.detach(); // RENEW tells what has become of it
        this.rouse();
      } else {
        core.lose(node, tie, reason);
      }
    }
    link.surplus = ties > link.ties ? link.surplus + 1 : 0;
    if (lost === null || ties < link.ties) {
      for (const tie of node.ties.values()) tie.detach();
      this.rouse();
    }
  }

  /** Ties our holds to this link, all in one go. */
  async retie(link, ties) {
    const { core, node } = this;
    const asked = ties.map(async (tie) => {
      if (!tie.holds.length) { // it is about to be given back
        node.ties.delete(tie.token);
        tie.detach();
        return;
      }
      try {
        await link.post(tie.request.renew(tie.token), (error, lease, _, sent) => {
          if (error instanceof NotHeld) core.lose(node, tie, 'not held any more');
          else if (!error && !tie.gone) tie.attach(link, core.until(sent, lease));
        }, tie.request.asking);
      } catch (error) {
        const other = redirection(error);
        if (other) this.#move(core.follow(other, node), tie, other.asking);
        else if (error.code === 'READONLY' || error instanceof Unreachable) throw error;
        else if (!(error instanceof NotHeld || error instanceof NoAck)) core.settings.logger.warn(`lock '${tie.request.key}' cannot be renewed: ${error.message}`);
      }
    });
    const failed = (await Promise.allSettled(asked)).find(({ status }) => status === 'rejected');
    if (failed) throw failed.reason;
  }

  #move(target, tie, asking = false) {
    const { core, node } = this;
    if (target === node || !node.ties.delete(tie.token)) return;
    tie.detach();
    target.ties.set(tie.token, tie);
    [tie.request.node, tie.request.asking] = [target, asking];
    if (asking) core.wake(target); // not at once: each of the two may name the other
    else core.rouse(target);
  }

  /** What another node serves by now is that one's to keep, and to leave. */
  #rehome() {
    const { core, node } = this;
    if (!core.source.cluster) return;
    const home = ({ request }) => {
      try {
        return core.route(request.key);
      } catch {
        return node; // nobody is known to serve it yet
      }
    };
    for (const tie of [...node.ties.values()]) this.#move(home(tie), tie);
    const leaving = node.leaving.map((one) => [home(one), one]);
    node.leaving = leaving.filter(([other]) => other === node).map(([, one]) => one);
    for (const [other, one] of leaving) if (other !== node) hand(core, other, one);
    node.tell('again');
  }
}

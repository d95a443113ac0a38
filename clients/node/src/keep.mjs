// SPDX-License-Identifier: MIT
// Keeps what is held at one node.
import { pause } from './clock.mjs';
import { NoAck, NotHeld, Unreachable, passes } from './errors.mjs';
import { redirection } from './routes.mjs';

const nothing = () => {};

/** The keeper of a node: does nothing but this, and waits for no other node. */
export class Keeper {
  #running = false;
  #kicked = false;
  #kick = nothing;

  constructor(core, node) { [this.core, this.node] = [core, node]; }

  /** Something is to be kept from now on. */
  wake() {
    if (this.#running || this.core.closed) return;
    this.#running = true;
    this.#run();
  }

  /** At once. */
  rouse() {
    this.wake();
    this.#kicked = true;
    this.#kick();
  }

  #isNeeded() { return this.node.waits.size > 0 || this.core.of(this.node).length > 0; }

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
        this.#note(error);
        // A node that is asked who serves what may hang.
        await Promise.race([this.core.refreshRoutes(), pause(settings.interval / 2)]);
        this.core.reroute(node);
        await pause(20 + 80 * Math.random()); // a server that accepts and hangs up is not asked all the time
      }
    } while (this.#isNeeded() || this.#kicked);
    this.#running = false;
  }

  /** Remembers why holds are not kept: it is the reason of a loss. */
  #note(error) {
    const { node, core: { settings } } = this;
    const name = node.name || 'of the client';
    const before = node.refused;
    [node.trouble, node.refused] = [error, !passes(error)];
    if (node.refused && !before) settings.logger.warn(`node ${name} refuses to keep locks: ${error.message}`);
    else settings.debug(`node ${name}: ${error.message}`);
  }

  async round() {
    const { core, node } = this;
    if (!this.#isNeeded()) return;
    let link = await core.link(node);
    const unrenewed = core.of(node).filter((one) => one.link !== link);
    if (unrenewed.length) await this.renew(link, unrenewed);
    if (link.surplus > 1) { // two in a row: it keeps holds that nobody has
      core.settings.logger.warn(`the connection to ${node.name || 'the server'} keeps holds that nobody has: it is replaced`);
      const old = link;
      link = await node.once('link', async () => core.linked(node, await core.openLink(node)));
      await this.renew(link, core.of(node));
      old.die(new Unreachable('replaced'));
    }
    if (!this.#isNeeded()) return;
    await this.keepAlive(link).catch((error) => {
      if (!(error instanceof NoAck)) throw error; // what is believed stays as it was
      core.settings.debug(`node ${node.name || 'of the client'}: ${error.message}`);
    });
    if (link.short) await this.renew(link, core.of(node).filter((one) => one.link === link && one.isNear()));
  }

  /** Says that we live. */
  keepAlive(link) {
    return link.post(['DLOCK.KEEP', this.core.settings.hangTimeout], (error, reply, _, sent) => {
      if (reply) this.kept(link, sent, reply);
    });
  }

  kept(link, sent, [count, left, lost]) {
    const { core, node } = this;
    [node.trouble, node.refused] = [null, false];
    if (left !== null) [link.believed, link.kept] = [sent + Number(left) - core.settings.clockMargin, link.serial];
    // It renews at two thirds. Where one hold may not last (dlock.max-hold-ms), each is asked for its own end.
    link.short = left !== null && left < core.settings.lease / 2;
    for (const [, token, reason] of lost ?? []) {
      const renewal = core.of(node).find((one) => one.token === Number(token) && one.link === link);
      if (!renewal) continue;
      if (['moved', 'renamed', 'taken', 'demoted'].includes(reason)) {
        renewal.detach(); // RENEW tells what has become of it
        this.rouse();
      } else {
        core.lose(renewal, reason);
      }
    }
    link.surplus = count > link.renewals ? link.surplus + 1 : 0;
    if (lost === null || count < link.renewals) {
      for (const renewal of core.of(node)) renewal.detach();
      this.rouse();
    }
  }

  /** Has the server renew our holds for this link, all in one go. */
  async renew(link, renewals) {
    const { core, node } = this;
    const asked = renewals.map(async (renewal) => {
      if (!renewal.holds.length) { // it is about to be given back
        if (!renewal.ending) core.lose(renewal, 'abandoned');
        return;
      }
      const { request, token } = renewal;
      try {
        await link.post(request.renew(token), (error, lease, _, sent) => {
          if (error instanceof NotHeld) core.lose(renewal, 'not held any more');
          else if (error) renewal.refusal = passes(error) ? renewal.refusal : error;
          else if (!renewal.gone && renewal.node === node) {
            renewal.attach(link, core.until(sent, lease));
            core.arm(renewal.end());
          }
        }, core.isAsking(request.key));
      } catch (error) {
        const other = redirection(error);
        if (other) core.move(renewal, core.follow(other, node, request.key));
        else if (error.code === 'READONLY' || error instanceof Unreachable) throw error;
        else if (!(error instanceof NotHeld || error instanceof NoAck)) core.settings.logger.warn(`lock '${request.key}' cannot be renewed: ${error.message}`);
      }
    });
    const failed = (await Promise.allSettled(asked)).find(({ status }) => status === 'rejected');
    if (failed) throw failed.reason;
  }
}

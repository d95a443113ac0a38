// SPDX-License-Identifier: MIT
// Takes a lock: asks for it, waits in the queue, confirms the grant; or gives up.
import { after, now, pause } from './clock.mjs';
import { Closed, LockTimeout, NoAck, NotHeld, Replaced, Unreachable, late, passes, typed } from './errors.mjs';
import { giveUp, isLeaving } from './leave.mjs';

const GRACE = 500; // so much longer a caller whose time is up waits for a reply that is on its way
const WARN_EVERY = 10_000;
const FINAL = ['deadlock', 'replaced', 'notheld', 'wrongtype', 'refused', 'noack']; // messages that are errors of the server
const nothing = () => {};

/** One caller's wait for one lock. A time-out of 0: one try. */
export class Take {
  #began = now();
  #stop = nothing;
  #abort = null;
  #queued = false;
  #waiting = false; // for its turn, and for nothing else
  #trouble = null; // the last that went wrong
  #box = null;
  #link = null; // of its own

  /** `make` makes the hold of the tie. */
  constructor(core, request, timeout, make) {
    [this.core, this.request, this.timeout, this.make] = [core, request, timeout, make];
    this.deadline = timeout < 2 ** 40 ? this.#began + timeout : Infinity; // servers know no longer ones
    this.end = timeout ? this.deadline : this.#began + core.settings.bound;
  }

  /** What was made; null if it is taken. */
  result() {
    return new Promise((resolve, reject) => {
      [this.resolve, this.reject] = [resolve, reject];
      const { signal } = this.request;
      if (signal?.aborted) return this.#leave(signal.reason);
      if (signal) signal.addEventListener('abort', this.#abort = () => this.#leave(signal.reason));
      if (this.end < this.#began + 2 ** 31 - 1000) this.#stop = after(this.end + GRACE - this.#began, () => this.#ring());
      this.#run();
    });
  }

  async #run() {
    const { core, request } = this;
    try {
      const tie = await this.#ask();
      if (request.ended) return;
      if (!tie) return this.#queued ? this.#leave(null) : this.#settle(null, null); // the claim keeps the place
      const hold = this.make(tie);
      core.tell('granted', request.key, now() - this.#began);
      this.#settle(null, hold);
    } catch (error) {
      if (request.asked && !(error instanceof Replaced)) this.#leave(error);
      else this.#settle(error, null);
    }
  }

  /** The first end is the one that counts. */
  #settle(error, hold) {
    const { core, request } = this;
    if (request.ended) return;
    request.ended = true;
    this.#stop();
    if (this.#abort) request.signal.removeEventListener('abort', this.#abort);
    if (this.#queued) core.tell('waited', request.key);
    if (!hold) {
      this.#box?.put(['over', 0, 0]);
      this.#link?.die(new Closed('the wait is over'));
      core.tell('refused', request.key, now() - this.#began, error);
    }
    if (error) this.reject(error);
    else this.resolve(hold);
  }

  #leave(error) {
    if (this.request.ended) return;
    this.#settle(error, null);
    giveUp(this.core, this.request);
  }

  /** Its time is up, and a reply is missing. */
  #ring() {
    // The last that was heard of it is that it is taken.
    if (this.timeout && (this.#waiting || (this.#queued && !this.#trouble))) return this.#leave(null);
    const cause = this.#trouble ?? late('the server does not answer');
    return this.#leave(this.timeout ? this.#notInTime(cause) : cause);
  }

  #notInTime(cause) {
    return new LockTimeout(`lock '${this.request.key}' was not granted within ${this.timeout} ms: ${cause.message}`, { cause });
  }

  /** Asks until it is granted or refused; what a little time can mend is asked again. */
  async #ask() {
    const { core, request, timeout, end } = this;
    let warned = -Infinity;
    for (;;) {
      core.check();
      try {
        return await this.#attempt();
      } catch (error) {
        if (request.ended) return null;
        const unconfirmed = error instanceof NotHeld && !request.before; // the grant has ended before it was confirmed
        if (!unconfirmed && (!passes(error) || (timeout === 0 && (error instanceof NoAck || error.late)))) throw error;
        this.#trouble = error;
        if (now() >= end) throw timeout ? this.#notInTime(error) : error;
        if (now() >= warned + WARN_EVERY) {
          core.settings.logger.warn(`still waiting for lock '${request.key}': ${error.message}`);
          warned = now();
        }
        await core.lookAround();
        await pause(Math.min(end - now(), 20 + 80 * Math.random()));
      } finally {
        this.#waiting = false;
      }
    }
  }

  async #attempt() {
    const { core, request } = this;
    if (!request.looked) { // an outer hold of this name is not ours to give back
      while (isLeaving(core, request)) {
        core.check();
        if (request.ended) return null;
        await pause(10);
      }
      request.within(await core.call({ key: request.key }, request.words('HELD')));
    }
    const unknown = core.ready();
    if (unknown) await unknown;
    const atOnce = this.timeout === 0;
    const known = core.route(request.key);
    // Others of ours wait for it: the place is asked for at once, with its messages.
    if (!atOnce && !this.#queued && known.awaited.has(request.key) && known.ear && !known.ear.error) return this.#queue(known);
    if (!this.#queued) {
      const reply = await core.call(request, request.take(atOnce), (error, granted, link, sent) => {
        if (granted) core.tie(request, link, granted[0], sent, request.settings.lease);
      });
      if (reply || atOnce) return request.tie;
      if (request.ended) return null;
      this.#tellWaiting();
    }
    const node = core.route(request.key);
    if (!node.deaf) {
      try {
        await core.listen(node);
      } catch (error) {
        if (passes(error)) return this.#block(node);
        if (error.code !== 'NOPERM') throw error;
        if (!node.deaf) core.settings.logger.warn(`waits block on connections of their own, since messages cannot be heard: ${error.message}`);
        node.deaf = true;
      }
    }
    return node.deaf ? this.#block(node) : this.#queue(node);
  }

  #tellWaiting() {
    if (this.#queued) return;
    this.#queued = true;
    this.core.tell('waiting', this.request.key);
  }

  /** Waits by NOTIFY. */
  async #queue(node) {
    const { core, request, deadline } = this;
    const box = this.#box = node.await(request);
    core.wake(node);
    try {
      if (!node.ear || node.ear.error) throw new Unreachable('messages are not heard'); // as we came
      const block = deadline === Infinity ? [] : ['BLOCK', Math.max(1, Math.floor(deadline - now()))];
      const reply = await core.call(request, request.wait('NOTIFY', core.channel, ...block));
      if (request.node !== node) throw typed(new Error('TRYAGAIN the slot has moved'));
      if (reply && Number(reply[0])) return await this.#confirm(Number(reply[0]));
      this.#tellWaiting();
      if (reply === null) return null;
      for (;;) {
        this.#waiting = true;
        const [word, token, number] = await box.next();
        this.#waiting = false;
        core.check();
        if (number !== 0 && number !== Number(reply[2])) continue; // of an earlier asking of ours
        if (word === 'granted') return await this.#confirm(token);
        if (word === 'timeout') return null;
        if (FINAL.includes(word)) throw typed(new Error(`${word.toUpperCase()} (told by a message)`));
        throw new Unreachable(`the wait has ended: ${word}`); // moved, gone, cancelled, again
      }
    } finally {
      box.stop();
    }
  }

  /** Waits by BLOCK in slices, on a connection of its own. */
  async #block(node) {
    const { core, request, deadline } = this;
    request.node = node;
    const link = this.#link = await core.open(node, nothing);
    try {
      for (;;) {
        const slice = Math.max(1, Math.floor(Math.min(core.settings.bound / 2, deadline - now())));
        if (request.ended) return null;
        this.#waiting = true;
        const reply = await link.post(request.wait('BLOCK', slice));
        this.#waiting = false;
        core.check();
        if (reply) return await this.#confirm(Number(reply[0]));
        if (now() >= deadline) return null;
      }
    } finally {
      link.die(new Closed('the wait is over'));
    }
  }

  /** Has the server renew it for us. */
  async #confirm(token) {
    const { core, request } = this;
    await core.call(request, request.renew(token), (error, lease, link, sent) => {
      if (!error) core.tie(request, link, token, sent, lease);
    });
    return request.tie;
  }
}

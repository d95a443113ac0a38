// SPDX-License-Identifier: MIT
// Takes a lock: asks for it, waits in the queue, confirms the grant; or gives up.
import { after, now, onAbort, pause } from './clock.mjs';
import { LockTimeout, NotHeld, Replaced, Unreachable, late, passes, typed } from './errors.mjs';
import { abandon } from './release.mjs';

const GRACE = 500; // so much longer a caller whose time is up waits for a reply that is on its way
const WARN_EVERY = 10_000;
const FINAL = ['deadlock', 'replaced', 'notheld', 'wrongtype', 'refused', 'noack']; // messages that are errors of the server
const POLL = 250; // between two requests of a waiter who gets no messages
const POLL_WITHOUT = 1_000; // and so long it does without a subscriber before another is tried
const nothing = () => {};

/** One caller's wait for one lock. A time-out of 0: one attempt. */
export class Take {
  #began = now();
  #stop = nothing;
  #abort = null;
  #queued = false;
  #waiting = false; // for its turn, and for nothing else
  #trouble = null; // the last that went wrong
  #box = null;
  #turn = null; // of a named owner: what ends it

  /** `make` makes the hold of the renewal. */
  constructor(core, request, timeout, make) {
    [this.core, this.request, this.timeout, this.make] = [core, request, timeout, make];
    this.deadline = timeout < 2 ** 40 ? this.#began + timeout : Infinity; // servers know no longer ones
    this.end = timeout ? this.deadline : this.#began + core.settings.replyTimeout;
  }

  /** What was made; null if it is taken. */
  result() {
    return new Promise((resolve, reject) => {
      [this.resolve, this.reject] = [resolve, reject];
      const { signal } = this.request;
      if (signal?.aborted) return this.#leave(signal.reason);
      if (signal) this.#abort = onAbort(signal, () => this.#leave(signal.reason));
      if (this.end < this.#began + 2 ** 31 - 1000) this.#stop = after(this.end + GRACE - this.#began, () => this.#ring());
      this.#run();
    });
  }

  async #run() {
    const { core, request } = this;
    try {
      if (request.name && !await this.#take()) return;
      const renewal = request.renewal ?? await this.#ask();
      if (request.ended) return;
      if (!renewal) return this.#queued ? this.#leave(null) : this.#settle(null, null); // queueGrace keeps the place
      if (request.name) core.named.get(request.name).renewal = renewal.gone ? null : renewal;
      const hold = this.make(renewal);
      core.tell('granted', request.key, now() - this.#began);
      this.#settle(null, hold);
    } catch (error) {
      if (request.asked && !(error instanceof Replaced)) this.#leave(error);
      else this.#settle(error, null);
    }
  }

  /**
   * Requests of one named owner for one lock come one after the other, and a second one re-enters what it holds: then
   * `request.renewal` is that. False if the wait has ended meanwhile.
   */
  async #take() {
    const { core, request } = this;
    const named = core.owner(request.name);
    const before = named.last;
    if (before && this.timeout === 0) {
      this.#settle(null, null); // another request of this owner is under way
      return false;
    }
    let over;
    const mine = new Promise((done) => { over = done; });
    named.last = mine;
    named.users += 1;
    this.#turn = () => {
      // Those behind come when those before have had their turn.
      Promise.resolve(before).then(() => {
        if (named.last === mine) named.last = null;
        over();
      });
      named.users -= 1;
      core.tidy(request.name);
    };
    this.#waiting = true;
    if (before) await before;
    while (named.renewal?.ending) await named.renewal.ending; // a release that comes later would end the next hold
    this.#waiting = false;
    if (request.ended) return false;
    core.check();
    const { renewal } = named;
    if (renewal) {
      if (request.most < renewal.request.most) {
        throw typed(new Error(`DEADLOCK ${request.owner} holds lock '${request.key}' together with others: release that hold first`));
      }
      if (request.permits > renewal.request.permits) {
        throw new RangeError(`permits must be at most ${renewal.request.permits}, which the owner's hold has, not ${request.permits}: release it, and ask again`);
      }
      request.renewal = renewal;
    }
    return true;
  }

  /** The first end is the one that counts. */
  #settle(error, hold) {
    const { core, request } = this;
    if (request.ended) return;
    request.ended = true;
    this.#stop();
    this.#abort?.();
    this.#turn?.();
    if (this.#queued) core.tell('waited', request.key);
    if (!hold) {
      this.#box?.put(['over', 0, 0]);
      core.tell('refused', request.key, now() - this.#began, error);
    }
    if (error) this.reject(error);
    else this.resolve(hold);
  }

  #leave(error) {
    if (this.request.ended) return;
    this.#settle(error, null);
    abandon(this.core, this.request);
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
        const unconfirmed = error instanceof NotHeld; // the grant has ended before it was confirmed
        if (timeout === 0 || (!unconfirmed && !passes(error))) {
          if (passes(error)) core.refreshRoutes(); // for the next one
          throw error;
        }
        this.#trouble = error;
        if (now() >= end) throw timeout ? this.#notInTime(error) : error;
        if (now() >= warned + WARN_EVERY) {
          core.settings.logger.warn(`still waiting for lock '${request.key}': ${error.message}`);
          warned = now();
        }
        await core.refreshRoutes();
        await pause(Math.min(end - now(), 20 + 80 * Math.random()));
      } finally {
        this.#waiting = false;
      }
    }
  }

  async #attempt() {
    const { core, request } = this;
    const once = this.timeout === 0;
    if (request.name) request.add(core.owner(request.name).alias);
    const unknown = core.ready();
    if (unknown) await unknown;
    const known = core.route(request.key);
    if (known.refused) await core.keepAlive(known); // a new hold could not be kept either
    // Others of ours wait for it: the place is asked for at once, with its messages.
    if (!once && !this.#queued && known.awaited.has(request.key) && known.subscriber && !known.subscriber.error) return this.#wait(known);
    if (!this.#queued) {
      const renewal = await this.#acquire();
      if (renewal || once) return renewal;
      if (request.ended) return null;
      this.#tellWaiting();
    }
    const node = core.route(request.key);
    if (!node.subscribeDenied) {
      try {
        await core.subscribe(node);
      } catch (error) {
        if (passes(error)) return this.#poll(POLL_WITHOUT);
        if (error.code !== 'NOPERM') throw error;
        if (!node.subscribeDenied) {
          core.settings.logger.warn(`messages cannot be heard, so each wait asks four times a second: ${error.message}`);
        }
        node.subscribeDenied = true;
      }
    }
    return node.subscribeDenied ? this.#poll(Infinity) : this.#wait(node);
  }

  /** Asks for the lock, or by the ticket for what became of the place: the renewal, or null. */
  async #acquire() {
    const { core, request } = this;
    // If an answer was lost, the server may have granted it then. How much is left (`dlock.max-hold-ms`) RENEW says.
    const again = request.asked;
    const reply = await core.call(request, request.acquire(this.timeout === 0), (error, granted, link, sent) => {
      if (granted && !again) core.granted(request, link, granted[0], sent, request.settings.lease);
    });
    if (reply && again) return this.#confirm(Number(reply[0]));
    return reply && request.renewal;
  }

  #tellWaiting() {
    if (this.#queued) return;
    this.#queued = true;
    this.core.tell('waiting', this.request.key);
  }

  /** Waits by NOTIFY. */
  async #wait(node) {
    const { core, request, deadline } = this;
    const box = this.#box = node.await(request);
    core.wake(node);
    try {
      if (!node.subscriber || node.subscriber.error) throw new Unreachable('messages are not heard'); // as we came
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
        if (number !== 0 && number !== Number(reply[2])) continue; // of an earlier request of ours
        if (word === 'granted') return await this.#confirm(token);
        if (word === 'timeout') return null;
        if (FINAL.includes(word)) throw typed(new Error(`${word.toUpperCase()} (told by a message)`));
        throw new Unreachable(`the place in the queue was lost: ${word}`); // moved, gone, cancelled, again
      }
    } finally {
      box.stop();
    }
  }

  /** Waits without messages: asks by the ticket, for so long. */
  async #poll(duration) {
    const { core, request, deadline } = this;
    for (const end = now() + duration; now() < deadline && now() < end;) {
      this.#waiting = true;
      await pause(Math.min(POLL, deadline - now()));
      this.#waiting = false;
      core.check();
      if (request.ended) return null;
      const renewal = await this.#acquire();
      if (renewal) return renewal;
    }
    if (now() < deadline) throw new Unreachable('messages are not heard');
    return null;
  }

  /** Has the server renew it for us. */
  async #confirm(token) {
    const { core, request } = this;
    await core.call(request, request.renew(token), (error, lease, link, sent) => {
      if (!error) core.granted(request, link, token, sent, lease);
    });
    return request.renewal;
  }
}

// SPDX-License-Identifier: MIT
/**
 * A lock over several masters that know nothing of each other.
 *
 *     const quorum = new Quorum(urls.map((url) => new Redis(url, { lazyConnect: true }))); // in the same order everywhere
 *     const hold = await quorum.acquire('stock', { lease: 10_000, wait: 5_000 }); // null: not in time
 *     try {
 *       while (hold.left() > 1_000 && (await work())) await hold.renew(10_000);
 *     } finally {
 *       await hold.release();
 *     }
 *
 * A client holds the lock if it holds it at a majority of the masters. The recipe and its reasons are in docs/cluster.md of
 * dlock. The clients are patterns: every hold has an owner and connections of its own. Times are in milliseconds.
 */
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

import { now } from './clock.mjs';
import { Unreachable } from './errors.mjs';
import { asyncDispose } from './hold.mjs';
import { ClientFactory } from './library.mjs';
import { known, milliseconds, text } from './settings.mjs';

export { Unreachable };

const nothing = () => {};
const EARLIER = 5; // the leases at the others end this much before the first one's
const [ROUNDING, DRIFT] = [2, 100]; // servers count whole milliseconds; no clock is faster than another by a hundredth
const SILENCE = 1_000; // who has been silent so lately is asked last

/** A lock over these masters. `replyTimeout` is how long one may take to connect, and to answer what need not wait. */
export class Quorum {
  #masters;

  constructor(clients, options = {}) {
    const { replyTimeout = 300 } = known(options, ['replyTimeout'], 'Quorum');
    milliseconds('replyTimeout', replyTimeout, 1);
    if (typeof clients?.[Symbol.iterator] !== 'function') throw new TypeError('clients must be a list of clients, one for each master');
    this.#masters = [...clients].map((client) => ({ client, factory: new ClientFactory(client, replyTimeout), silent: { at: -Infinity } }));
  }

  /**
   * A QuorumHold, or null after `wait` (0: one try). An AbortSignal ends it with its reason. Whatever ends it, it leaves
   * nothing behind.
   */
  async acquire(lock, options = {}) {
    const { lease = 10_000, wait = 0, signal } = known(options, ['lease', 'wait', 'signal'], 'a quorum');
    text('lock', lock);
    milliseconds('lease', lease, 1);
    const end = now() + milliseconds('wait', wait);
    for (;;) {
      // Each try has an owner of its own: a command that one try leaves behind may arrive late, and must not release what the
      // next try is granted.
      const owner = `${hostname().replaceAll('/', '-')}/${process.pid}/${randomUUID()}`;
      const masters = this.#masters.map((one) => new Master(one, [lock, owner]));
      const hold = new QuorumHold(lock, owner, masters);
      let [held, errors] = [false];
      try {
        held = await hold.take(lease, end, signal);
        if (held) return hold;
        errors = masters.flatMap((master) => master.error ?? []);
      } finally {
        if (!held) await hold.release();
      }
      const pause = 20 + 180 * Math.random(); // or those who have split the votes would do it again
      if (now() + pause < end) {
        await sleep(pause, null, { signal }).catch(() => signal.throwIfAborted()); // it has an error of its own
      } else if (2 * errors.length < masters.length) {
        return null;
      } else {
        throw new Unreachable(`no majority of the masters has voted: ${errors.join('; ')}`);
      }
    }
  }
}

/** A lock that is certainly held until `deadline`, by a clock that continues while the machine is suspended. */
export class QuorumHold {
  #masters;
  #first;
  #granted = new Map();
  #turn = Promise.resolve();
  #longest = 0; // lease that was asked for

  constructor(lock, owner, masters) {
    this.lock = lock;
    this.owner = owner;
    this.deadline = 0;
    this.#masters = masters;
    this.#first = masters[0];
  }

  /** Each master's fencing token, or null. */
  get tokens() { return this.#masters.map((master) => this.#granted.get(master) ?? null); }

  left() { return Math.max(0, this.deadline - now()); }

  /** Makes all leases new, the first master's last. False when no majority agrees: the old deadline stays. */
  renew(lease = 10_000) {
    const holding = () => [...this.#others(), this.#first].filter((master) => this.#granted.has(master));
    milliseconds('lease', lease, 1);
    return this.#inTurn(() => this.#vote(holding(), lease));
  }

  /**
   * Releases the lock at all masters. What has ended before is no error. A master that does not answer now may still grant
   * the lock later: the client repeats the release in the background, for as long as a lease may last.
   */
  release() {
    return this.#inTurn(async () => {
      const end = now() + this.#longest;
      await this.#end();
      if (this.#masters.some((master) => master.asked)) this.#later(end);
    });
  }

  async #end() {
    // Who is next at the first one finds the others free.
    for (const master of silentLast([...this.#others(), this.#first])) await master.leave();
    this.#granted.clear();
    this.deadline = 0;
    for (const master of this.#masters) master.close();
  }

  async #later(end) {
    while (now() < end && this.#masters.some((master) => master.asked)) {
      await sleep(SILENCE, null, { ref: false });
      await this.#inTurn(() => this.#end());
    }
  }

  /** For `await using`. */
  [asyncDispose]() { return this.release(); }

  /** Waits at the first master that is there, then asks the others. For Quorum. */
  async take(lease, end, signal) {
    for (const master of this.#masters) master.error = null;
    this.#longest = Math.max(this.#longest, lease);
    for (const master of silentLast(this.#masters)) {
      this.#first = master;
      // 0 would be without bound; and there is no timer of a month.
      const block = Math.min(Math.max(1, Math.floor(end - now())), 1e9);
      const grant = await master.ask(signal, block, 'ACQUIRE', lease, 'BLOCK', block);
      if (grant) {
        this.#granted = new Map([[master, Number(grant[0])]]);
        return this.#vote([master, ...this.#others()], lease, signal);
      }
      if (!master.error) return false;
    }
    return false;
  }

  /** Renews where there is a token (a wait's reply does not say when the lease began), and asks the others. */
  async #vote(masters, lease, signal) {
    this.#longest = Math.max(this.#longest, lease);
    const begun = now();
    const granted = new Map();
    let deadline = Infinity;
    for (const master of silentLast(masters)) {
      if (!(await master.reach(signal))) continue; // before we look at the clock: to connect is no part of the lease
      const sent = now();
      let length = master === this.#first ? lease : Math.max(1, Math.floor(lease - EARLIER - (sent - begun)));
      const token = this.#granted.get(master);
      const reply = token ? await master.ask(signal, 0, 'RENEW', length, 'TOKEN', token)
        : await master.ask(signal, 0, 'ACQUIRE', length);
      if (reply !== null) granted.set(master, token ?? Number(reply[0]));
      if (token && reply !== null) length = Math.min(length, Number(reply)); // dlock.max-hold-ms may have cut it
      if (master === this.#first) lease = length;
      deadline = Math.min(deadline, sent + length - ROUNDING - length / DRIFT);
    }
    if (2 * granted.size <= this.#masters.length || now() >= deadline) {
      this.deadline = Math.min(this.deadline, deadline); // some masters have received a lease that may be shorter
      return false;
    }
    this.#granted = granted;
    this.deadline = deadline;
    return true;
  }

  #others() { return this.#masters.filter((master) => master !== this.#first); }

  /** Who renews need not be who releases. */
  #inTurn(work) {
    const done = this.#turn.then(work);
    this.#turn = done.catch(nothing);
    return done;
  }
}

/** They keep their order. */
const silentLast = (masters) => {
  const lately = new Set(masters.filter((master) => now() < master.silent.at + SILENCE));
  return [...masters.filter((master) => !lately.has(master)), ...lately];
};

/** A connection for one owner. Opened when needed, thrown away after a time-out. */
class Master {
  wire = null;
  fail = nothing; // ends the call that is under way
  asked = false;
  unanswered = false;
  error = null;

  constructor({ client, factory, silent }, names) {
    this.client = client;
    this.factory = factory;
    this.silent = silent;
    this.names = names;
  }

  /** No place and no hold, if it has been asked and answers. */
  async leave() {
    if (!this.asked) return;
    if (this.unanswered) {
      this.close(true); // a wait ends with its connection
      await this.ask(null, 0, 'CANCEL');
      if (this.unanswered) return;
    }
    this.unanswered = true; // until it has answered
    await this.ask(null, 0, 'RELEASE', 'HOLDS', 0);
    this.asked = this.unanswered;
  }

  /** The reply. Null: it is a no, or there is an `error`. */
  async ask(signal, wait, name, ...words) {
    if (!(await this.reach(signal))) return null;
    return this.attempt(signal, async () => {
      this.asked = this.unanswered = true;
      const all = [`DLOCK.${name}`, ...this.names, ...words.map(String)];
      const reply = await this.inTime(signal, wait, () => this.wire.send(this.names[0], all));
      this.unanswered = false;
      return reply;
    });
  }

  /** Connects within the time for a reply: a master that hangs does not cost the whole wait. */
  async reach(signal) {
    this.error = null;
    if (!this.wire) await this.attempt(signal, () => this.inTime(signal, 0, () => this.connect()));
    return !this.error;
  }

  async attempt(signal, work) {
    try {
      return await work();
    } catch (error) {
      const refused = this.wire && !signal?.aborted && /^[A-Z]{2,}\b/.test(error.message);
      if (refused) this.unanswered = false;
      else this.close(this.unanswered);
      signal?.throwIfAborted();
      if (!refused) this.silent.at = now();
      const { host = 'localhost', port = 6379, path } = this.client.options?.socket ?? this.client.options ?? {};
      this.error = `${path ?? `${host}:${port}`}: ${error.message || error.code}`;
      return null;
    }
  }

  async connect() {
    const { fail } = this;
    const wire = await this.factory.open();
    if (this.fail !== fail) return wire.close(); // no caller waits for it any longer
    this.wire = wire;
    wire.ended.then(() => {
      if (this.wire !== wire) return;
      this.close();
      this.fail(new Error('the connection is closed'));
    });
  }

  /** The last words go behind a request without an answer: on another connection they might come before it. */
  close(lastWords) {
    const { wire } = this;
    this.wire = null;
    if (!wire) return;
    if (lastWords) {
      for (const [name, ...words] of [['CANCEL'], ['RELEASE', 'HOLDS', '0']]) {
        wire.send(this.names[0], [`DLOCK.${name}`, ...this.names, ...words]).catch(nothing);
      }
    }
    setImmediate(wire.close); // when they are on their way
  }

  async inTime(signal, wait, work) {
    signal?.throwIfAborted();
    let [timer, abort] = [];
    const over = new Promise((_, fail) => {
      this.fail = fail;
      abort = () => fail(signal.reason);
      signal?.addEventListener('abort', abort);
      // After a stall of this process a reply that has come meanwhile is read before the immediate.
      timer = setTimeout(() => { timer = setImmediate(fail, new Error('no answer in time')); }, wait + this.factory.timeout);
    });
    try {
      return await Promise.race([over, work()]);
    } finally {
      this.fail = nothing;
      clearTimeout(timer);
      clearImmediate(timer);
      signal?.removeEventListener('abort', abort);
    }
  }
}

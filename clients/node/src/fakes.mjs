// SPDX-License-Identifier: MIT
/**
 * Locks without a server, for unit tests: `FakeLocks` instead of `Locks`.
 *
 * They are fair to nobody and keep nothing: a lock is taken or free, waits end at their time-out, and `lose` takes a hold
 * away, as a server does after a failure. `commands` has what was guarded, and `reply` answers it.
 */
import { now, pause } from './clock.mjs';
import { Closed, Fenced, NotHeld } from './errors.mjs';
import { asyncDispose } from './hold.mjs';
import { Takes } from './locks.mjs';
import { Settings, shown } from './settings.mjs';
import { Request } from './take.mjs';

/** A lock that is held in this process. */
export class FakeHold {
  #locks;
  #abort = new AbortController();
  #lease;
  #timer;
  over = ''; // why it is held no more

  constructor(locks, key, token, { lease, maxHold }, { shared = false, limit = 1, permits = 1 }) {
    this.#locks = locks;
    this.#lease = lease;
    // It keeps the process alive, as the connections of `Locks` do: a test may wait for the loss.
    if (maxHold < Infinity) this.#timer = setTimeout(() => this.lose('maxHold is over'), Math.min(maxHold, 2 ** 31 - 1));
    this.key = key;
    this.token = token;
    this.owner = `fake/${token}`;
    this.limit = shared ? Infinity : limit;
    this.permits = permits;
  }

  get lost() { return this.signal.aborted; }

  get signal() { return this.#abort.signal; }

  left() { return this.over ? 0 : this.#lease; }

  async check() { if (this.over) throw new Fenced(`FENCED '${this.key}' is not held under this token`); }

  async guard(...command) {
    await this.check();
    this.#locks.commands.push(command);
    return this.#locks.reply(...command);
  }

  async release() { this.end('it was given back before'); }

  async releaseAfter(ms) {
    this.end('it was left to its lease');
    this.#locks.reserved.set(this.key, now() + ms);
  }

  async [asyncDispose]() { if (!this.over || this.lost) await this.release(); }

  end(reason) {
    if (this.over) throw new NotHeld(`NOTHELD '${this.key}' is not held: ${this.over}`);
    this.over = reason;
    clearTimeout(this.#timer);
    this.#locks.holds.delete(this);
  }

  lose(reason) {
    this.end(reason);
    this.#abort.abort(new NotHeld(`NOTHELD '${this.key}' is lost: ${reason}`));
  }
}

/** What a program uses of `Locks`, with the same arguments. */
export class FakeLocks extends Takes {
  holds = new Set();
  commands = [];
  reply = () => null;
  reserved = new Map(); // by `releaseAfter`
  #settings = new Settings({});
  #tokens = 0;
  #closed = false;

  constructor() { super((...how) => this.#take(...how)); }

  async #take(keys, options, wait) {
    const request = new Request(this.#settings, keys, options); // which checks them
    const end = now() + (request.wait ?? wait);
    for (;;) {
      if (this.#closed) throw new Closed('these locks are closed');
      request.signal?.throwIfAborted();
      if (keys.every((key) => this.#fits(key, options))) return keys.map((key) => this.#grant(key, request, options));
      if (now() >= end) return null;
      await pause(5);
    }
  }

  #grant(key, request, options) {
    this.#tokens += 1;
    const hold = new FakeHold(this, key, this.#tokens, request, options);
    this.holds.add(hold);
    return hold;
  }

  async holder(key) {
    const hold = [...this.holds].find((one) => one.key === key);
    return hold ? { owner: hold.owner, token: hold.token, left: hold.left() } : null;
  }

  /** Takes a hold away, as a server does after a failure. */
  lose(hold, reason = 'forced') {
    if (!(hold instanceof FakeHold)) throw new TypeError(`hold must be one of these locks, not ${shown(hold)}`);
    hold.lose(reason);
  }

  async close() {
    this.#closed = true;
    for (const hold of [...this.holds]) hold.lose('closed');
  }

  [asyncDispose]() { return this.close(); }

  #fits(key, { shared = false, limit = 1, permits = 1 }) {
    if ((this.reserved.get(key) ?? 0) > now()) return false;
    const others = [...this.holds].filter((hold) => hold.key === key);
    const all = others.reduce((sum, hold) => sum + hold.permits, permits);
    return [{ limit: shared ? Infinity : limit }, ...others].every((one) => all <= one.limit);
  }
}

// SPDX-License-Identifier: MIT
// Holds: until when one is believed, and the program's handle, which refers to that and not the other way.
import { now } from './clock.mjs';
import { Fenced, NotHeld } from './errors.mjs';
import { duration, text } from './settings.mjs';

export const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose'); // as compilers name it
const HOLD = Symbol('hold');

/** What bytes are as a string of a Map. */
export const bytes = (name) => (typeof name === 'string' ? Buffer.from(name) : name).toString('latin1');

/** What the client knows of one hold. */
export class Held {
  session = null;
  bound = Infinity; // by `maxHold`
  why = ''; // what was refused last
  over = ''; // why it is held no more
  isLost = false;
  isLeft = false;
  renewal = null; // the RENEW that is under way
  isTaken = false; // out of the session, by another one
  doubted = 0; // until then its end may be late news of a process that stood still
  handle = null;

  constructor(key, owner, token, lease, end) {
    Object.assign(this, { key, owner, token, lease, end, id: `${token}/${bytes(key)}` });
    this.told = this.since = now(); // when an answer told of it
  }

  /** Returns the end that is believed. A SESSION's least lease counts if it was sent after the answer that told of this hold. */
  until() {
    const { session, end } = this;
    return Math.min(session && session.sent >= this.told ? Math.max(end, session.until) : end, this.bound);
  }

  /** Takes it out of its session: from now on only its own end counts, and no longer than `cut`. */
  leave(cut = Infinity) {
    if (!this.session) return;
    this.end = Math.min(this.until(), cut);
    this.session.holds.delete(this.id);
    this.session = null;
  }

  /** Returns when it is to be kept: after a third of its lease. */
  get old() { return this.since + this.lease / 3; }

  get isOld() { return now() >= this.old; }
}

/** A reply as strings. */
const decoded = (reply) => {
  if (Buffer.isBuffer(reply)) return reply.toString();
  return Array.isArray(reply) ? reply.map(decoded) : reply;
};

/** A lock that is held. */
export class Hold {
  #sessions;
  #held;
  #abort = null;

  constructor(sessions, held) {
    [this.#sessions, this.#held] = [sessions, held];
    [this.key, this.owner, this.token] = [held.key, held.owner, held.token];
  }

  /** True if it was lost before it was given back. */
  get lost() { return this.#held.isLost; }

  /** An AbortSignal: aborted with `NotHeld` when the lock is lost. */
  get signal() {
    if (!this.#abort) {
      this.#abort = new AbortController();
      this.#abort.signal[HOLD] = this; // while the signal is in use the hold is not forgotten
      if (this.lost) this.abort();
    }
    return this.#abort.signal;
  }

  /** Returns the milliseconds for which it is held for sure, even if the server no longer answers. */
  left() { return this.#held.over ? 0 : Math.max(0, this.#held.until() - now()); }

  /**
   * Runs a command in one step with the look whether the lock is still held under this token, else `Fenced`. It is sent
   * once; if its reply is lost it may have run.
   */
  async guard(...command) {
    for (const [i, word] of command.entries()) {
      if (typeof word !== 'number') text(`command[${i}]`, word === '' ? '-' : word);
    }
    return decoded(await this.#ask('DLOCK.GUARD', ...command));
  }

  /** Asks the server whether the lock is still held under this token, else `Fenced`. */
  async check() { await this.#ask('DLOCK.CHECK'); }

  async #ask(name, ...words) {
    try {
      return await this.#sessions.call(this.key, [name, this.key, this.token, ...words]);
    } catch (error) {
      if (error instanceof Fenced) this.#sessions.lose(this.#held, 'the server has said so');
      throw error;
    }
  }

  /** Gives back what was granted here, and nothing else. `NotHeld` if it was lost. Without an answer it continues behind the call. */
  async release() { await this.#end(this.#sessions.released(this.#held)); }

  /** Ends this hold, and keeps the lock taken for that many milliseconds: for work that runs once a period. */
  async releaseAfter(ms) { await this.#end(this.#sessions.releasedAfter(this.#held, duration('ms', ms))); }

  async #end(errand) {
    await this.#sessions.carry(errand);
    this.#sessions.settings.tell('released', this.key, now() - this.#held.since);
  }

  async [asyncDispose]() { if (!this.#held.isLeft) await this.release(); }

  /** For the sessions. */
  abort() { this.#abort?.abort(new NotHeld(`NOTHELD lock '${this.key}' is lost: ${this.#held.over}`)); }
}

// SPDX-License-Identifier: MIT
// Holds: until when one is believed, and the program's handle, which refers to that and not the other way.
import { now } from './clock.mjs';
import { Fenced, NotHeld } from './errors.mjs';
import { duration, isName, shown } from './settings.mjs';

export const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose'); // as compilers name it
const holdOf = new WeakMap(); // by signal: while the program uses a hold's signal, the hold is not forgotten

/** Returns a name as a key of a Map, which compares Buffers by identity. */
export const bytes = (name) => (typeof name === 'string' ? Buffer.from(name) : name).toString('latin1');

/** What the client knows of one hold. The program has a `Hold`, to which this refers only weakly. */
export class Lease {
  session = null;
  joinedAt = 0; // when an answer told that it is in that session
  over = ''; // why it is no longer held
  isLost = false;
  isTaken = false; // out of the session, by another program
  renewal = null; // the attempts of the RENEW that is under way
  hold = null; // a WeakRef

  constructor(key, owner, token, { lease, maxHold }, end) {
    this.key = key;
    this.owner = owner;
    this.token = token;
    this.lease = lease;
    this.id = `${token}/${bytes(key)}`;
    this.grantedAt = now();
    this.maxEnd = this.grantedAt + maxHold;
    this.end = Math.min(end, this.maxEnd); // until then it is believed
  }

  /** Moves the believed end, never back. */
  extend(end) { this.end = Math.max(this.end, Math.min(end, this.maxEnd)); }

  /** Returns true if nothing refers to the program's hold. Until it has one, the hold is on its way to it. */
  isForgotten() { return this.hold !== null && !this.hold.deref(); }

  /** A hold that is older than a third of its lease is kept. */
  get renewAt() { return this.grantedAt + this.lease / 3; }

  get needsRenewal() { return now() >= this.renewAt; }
}

/** Returns a reply as strings. */
const decoded = (reply) => {
  if (Buffer.isBuffer(reply)) return reply.toString();
  return Array.isArray(reply) ? reply.map(decoded) : reply;
};

/** A lock that is held. */
export class Hold {
  #sessions;
  #lease;
  #abort = null;

  constructor(sessions, lease) {
    this.#sessions = sessions;
    this.#lease = lease;
    this.key = lease.key;
    this.owner = lease.owner;
    this.token = lease.token;
    lease.hold = new WeakRef(this);
  }

  /** True if the lock was lost before it was released. */
  get lost() { return this.#lease.isLost; }

  /** An AbortSignal: aborted with `NotHeld` when the lock is lost. */
  get signal() {
    if (!this.#abort) {
      this.#abort = new AbortController();
      holdOf.set(this.#abort.signal, this);
      if (this.lost) this.abort();
    }
    return this.#abort.signal;
  }

  /** Returns the milliseconds for which the lock is certainly held, even if the server no longer answers. */
  left() { return this.#lease.over ? 0 : Math.max(0, this.#lease.end - now()); }

  /**
   * Runs a command in one step with the check that the lock is still held under this token. Throws `Fenced` if it is not. The
   * command is sent once: if its reply is lost, it may have run.
   */
  async guard(...command) {
    for (const [i, word] of command.entries()) {
      if (typeof word !== 'number' && !isName(word)) throw new TypeError(`command[${i}] must be a string, a number or a Buffer, not ${shown(word)}`);
    }
    return decoded(await this.#ask('DLOCK.GUARD', ...command));
  }

  /** Asks the server whether the lock is still held under this token, else `Fenced`. */
  async check() { await this.#ask('DLOCK.CHECK'); }

  async #ask(name, ...words) {
    try {
      return await this.#sessions.call(this.key, [name, this.key, this.token, ...words]);
    } catch (error) {
      if (error instanceof Fenced) this.#sessions.lose(this.#lease, 'the server has said so');
      throw error;
    }
  }

  /**
   * Releases this grant. Throws `NotHeld` if it was lost. If the server does not answer in time, throws, and keeps trying in the
   * background.
   */
  async release() {
    await this.#sessions.release(this.#lease);
    this.#tellReleased();
  }

  /** Ends this hold, and leaves the lock taken for that many milliseconds: for work that is due once in a period. */
  async releaseAfter(ms) {
    await this.#sessions.releaseAfter(this.#lease, duration('ms', ms));
    this.#tellReleased();
  }

  #tellReleased() { this.#sessions.settings.tell('released', this.key, now() - this.#lease.grantedAt); }

  /** Releases the lock, unless the program has done so. */
  async [asyncDispose]() { if (!this.#lease.over || this.lost) await this.release(); }

  /** For an election: reports the loss, and releases what the server may still have. */
  expire() { if (!this.#lease.over) this.#sessions.expire(this.#lease); }

  /** For the sessions: aborts the signal. */
  abort() { this.#abort?.abort(new NotHeld(`NOTHELD lock '${this.key}' is lost: ${this.#lease.over}`)); }
}

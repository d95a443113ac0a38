// SPDX-License-Identifier: MIT
// Takes a lock, or several of one slot: from the first request to the grant, or to the end of the wait.
import { setMaxListeners } from 'node:events';

import { at, now, pause } from './clock.mjs';
import { LockTimeout, NoAck, Refused, Replaced, Unreachable, isTransient } from './errors.mjs';
import { Lease, bytes } from './hold.mjs';
import { duration, known, milliseconds, shown, text } from './settings.mjs';

const GRACE_MS = 500; // how much longer a caller whose time is up waits for the outcome
const WARN_EVERY_MS = 10_000;
const OPTIONS = ['wait', 'lease', 'maxHold', 'signal', 'actor', 'shared', 'limit', 'permits'];
const OLD = { timeout: 'wait', owner: 'actor' };
const noop = () => {};

/** The checked options of one call, for a lock or for several of one slot. */
export class Request {
  constructor(settings, keys, options) {
    const { wait, lease = settings.lease, maxHold = Infinity, signal, actor, shared = false, limit, permits } =
      known(options, OPTIONS, 'a lock', OLD);
    for (const key of keys) text('key', key);
    if (actor != null) text('actor', actor);
    if (signal != null && !(signal instanceof AbortSignal)) throw new TypeError(`signal must be an AbortSignal, not ${shown(signal)}`);
    if (typeof shared !== 'boolean') throw new TypeError(`shared must be true or false, not ${shown(shared)}`);
    if (limit != null && (!Number.isSafeInteger(limit) || limit < 1 || shared)) {
      throw new RangeError(`limit must be a whole number of 1 or more, and not beside shared, not ${shown(limit)}`);
    }
    if (permits != null && limit == null) throw new RangeError(`permits must be given with limit, not ${shown(permits)} alone`);
    if (permits != null && (!Number.isSafeInteger(permits) || permits < 1 || permits > limit)) {
      throw new RangeError(`permits must be a whole number of 1 or more, and at most limit, which is ${limit}, not ${shown(permits)}`);
    }
    if (signal) setMaxListeners(0, signal); // any number of waits may end with it: at eleven Node would warn of a leak
    this.keys = keys;
    this.names = keys.map(bytes);
    this.signal = signal;
    this.actor = actor ?? undefined;
    this.lease = duration('lease', lease);
    if (this.lease <= settings.clockMargin) {
      throw new RangeError(`lease must be longer than clockMargin, which is ${settings.clockMargin}, not ${shown(lease)}`);
    }
    this.wait = wait == null ? undefined : milliseconds('wait', wait);
    this.maxHold = maxHold === Infinity ? Infinity : duration('maxHold', maxHold);
    this.limit = shared ? ['SHARED'] : limit ? ['LIMIT', limit] : [];
    if (permits > 1) this.limit.push('PERMITS', permits); // older servers do not know the word
  }

  /** Returns the command. `block`: the milliseconds to wait, 0 for ever, null for a try. */
  words(session, owner, block) {
    const { keys } = this;
    const what = keys.length > 1 ? ['DLOCK.MACQUIRE', keys.length, ...keys] : [block === null ? 'DLOCK.ACQUIRE' : 'DLOCK.FAIRACQUIRE', keys[0]];
    return [...what, owner, this.lease, 'IN', session, ...(block === null ? [] : ['BLOCK', block]), ...this.limit];
  }
}

/** One request. Its owner is its own, so that no late command can reach another hold. */
export class Take {
  #done = false;
  #finish; // resolves or rejects the result
  #result;
  #error = null; // the last failure
  #asked = 0; // how often it was sent
  #onOutcome = noop; // ends the wait for the row that ends the current request
  #session = null; // in which it waits
  #waitsSince = 0;
  #hasWaited = false;
  #warnedAt = -Infinity;
  #leases = new Map(); // granted so far, by the index of the key

  constructor(sessions, request, wait) {
    this.sessions = sessions;
    this.request = request;
    this.wait = wait;
    this.owner = sessions.newOwner(request.actor);
    this.deadline = now() + (wait || sessions.settings.replyTimeout);
    this.#result = new Promise((resolve, reject) => { this.#finish = { resolve, reject }; });
  }

  /** Returns the leases, or null if others hold the lock. */
  async run() {
    const { signal } = this.request;
    const abort = () => this.fail(signal.reason);
    const stopTimer = at(this.deadline + GRACE_MS, () => this.#outOfTime());
    signal?.addEventListener('abort', abort);
    this.#ask();
    try {
      return await this.#result;
    } finally {
      stopTimer();
      signal?.removeEventListener('abort', abort);
    }
  }

  /** Fails the request, and cancels what the server may still have of it. `isRefused`: the server has said that it has nothing. */
  fail(error, isRefused = false) {
    if (this.#done) return;
    if (this.#asked && !isRefused) this.sessions.cancel(this.request, this.owner, this.#session);
    this.#end(() => this.#finish.reject(error));
  }

  /** One of its locks was granted. With the last one it holds them all. */
  granted(name, token, session, end) {
    const { request, sessions } = this;
    const index = request.names.indexOf(bytes(name));
    this.#leases.set(index, new Lease(request.keys[index], this.owner, token, request, end));
    if (this.#leases.size < request.keys.length) return;
    const leases = request.keys.map((_, i) => this.#leases.get(i));
    this.#leases.clear();
    for (const lease of leases) sessions.leases.set(lease.id, lease);
    this.#end(() => this.#finish.resolve(leases));
    for (const lease of leases) sessions.join(lease, session);
  }

  /** A row has told of an outcome that is no grant, or the session is gone. It may come before the answer to the request. */
  onOutcome(word) {
    this.#leaveSession();
    this.#onOutcome(word);
  }

  async #ask() {
    while (!this.#done) {
      const left = this.deadline - now();
      if (this.#asked && left <= 0) {
        this.#outOfTime();
        return;
      }
      try {
        await this.#askOnce(left);
      } catch (error) {
        await this.#failed(error, left);
      }
    }
  }

  /** Sends the request, and waits for its outcome. */
  async #askOnce(left) {
    const { sessions, request } = this;
    this.#asked += 1;
    const outcome = new Promise((done) => { this.#onOutcome = done; });
    sessions.takes.set(bytes(this.owner), this);
    const block = left === Infinity ? 0 : Math.max(1, Math.floor(left));
    const sentAt = now();
    const reply = await sessions.call(request.keys[0], request.words(sessions.name, this.owner, this.wait ? block : null));
    if (this.#done) return; // its rows were faster, or the caller has given up
    if (reply === null) {
      this.#taken();
      return;
    }
    const session = sessions.session(reply.at(-1), request.keys[0]);
    if (reply[0] && this.#asked === 1) {
      const end = sessions.believed(sentAt, request.lease);
      for (const [i, token] of [reply[0]].flat().entries()) this.granted(request.keys[i], token, session, end);
    } else { // a place; or a grant to an earlier attempt: only its row says how long it lasts
      await this.#waitIn(session, outcome);
    }
  }

  async #waitIn(session, outcome) {
    this.#session = session;
    this.#waitsSince = now();
    this.#error = null;
    session.waits.add(this);
    this.sessions.keep(session);
    if (!this.#hasWaited) this.sessions.settings.tell('waiting', this.request.keys[0]);
    this.#hasWaited = true;
    const word = await outcome;
    if (this.#done) return;
    this.#leaveSession();
    await this.#ended(word);
  }

  /** Without the lock, while there is time, it asks again. */
  async #ended(word) {
    this.#releasePart();
    if (word === 'replaced') {
      this.fail(new Replaced('REPLACED a newer request of the same owner has taken the place'), true);
    } else if (word === 'wrongtype') {
      this.fail(new Refused('WRONGTYPE the key holds something that is not a lock'));
    } else if (word === 'timeout' && this.deadline - now() < 20) {
      this.#taken();
    } else {
      if (word === 'again') this.#error = new NoAck('NOACK the server did not confirm the grant, or no longer serves the lock');
      if (!this.wait) this.fail(this.#error ?? new Unreachable(`the request has ended: ${word}`));
      else if (this.#asked > 1) await pause(50 * Math.random());
    }
  }

  async #failed(error, left) {
    if (this.#done) return;
    if (!this.wait || !isTransient(error)) {
      this.fail(error, error instanceof Replaced || (this.#asked === 1 && !isTransient(error)));
      return;
    }
    if (now() - this.#warnedAt >= WARN_EVERY_MS) {
      this.#warnedAt = now();
      this.sessions.settings.warn(`still waiting for lock '${this.request.keys[0]}': ${error.message}`);
    }
    this.#error = error;
    await pause(Math.min(left, 20 + 80 * Math.random()));
  }

  /** The deadline has passed, and no outcome has arrived. */
  #outOfTime() {
    if (this.#done) return;
    const why = this.#error ?? this.#session?.error;
    if (this.wait && !why && this.#session?.answeredAt > this.#waitsSince) {
      // The server has kept the place: others have the lock, though the row about the end is late.
      this.sessions.cancel(this.request, this.owner, this.#session);
      this.#taken();
      return;
    }
    const cause = why ?? new Unreachable('the server does not answer');
    const text = `lock '${this.request.keys[0]}' was not granted within ${this.wait} ms: ${cause.message}`;
    this.fail(this.wait ? new LockTimeout(text, { cause, taken: false }) : cause);
  }

  #taken() { this.#end(() => this.#finish.resolve(null)); }

  #end(finish) {
    this.#done = true;
    this.#releasePart();
    this.sessions.takes.delete(bytes(this.owner));
    this.#leaveSession();
    if (this.#hasWaited) this.sessions.settings.tell('waited', this.request.keys[0]);
    this.#onOutcome('');
    finish();
  }

  #leaveSession() {
    this.#session?.waits.delete(this);
    this.#session = null;
  }

  /** A part of several locks is of no use: it is released, and the next request has another owner. */
  #releasePart() {
    if (!this.#leases.size) return;
    for (const { key, owner, token, lease } of this.#leases.values()) this.sessions.releaseOrphan(key, owner, token, lease);
    this.#leases.clear();
    this.sessions.takes.delete(bytes(this.owner));
    this.owner = this.sessions.newOwner(this.request.actor);
  }
}

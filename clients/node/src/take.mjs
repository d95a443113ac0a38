// SPDX-License-Identifier: MIT
// Taking locks: what is asked for, and the steps from the first request to the grant, or to the end of the wait.
import { Bell, SLICE, now } from './clock.mjs';
import { Closed, DLockError, LockTimeout, NoAck, Replaced, Unreachable, passes, typed } from './errors.mjs';
import { Held, bytes } from './hold.mjs';
import { Errand } from './session.mjs';
import { duration, known, milliseconds, shown, text } from './settings.mjs';

export const GRACE = 500; // so much longer a caller whose time is up waits for the word about it
const WARN_EVERY = 10_000;
const OPTIONS = ['wait', 'lease', 'maxHold', 'signal', 'actor', 'shared', 'limit', 'permits', 'onLost'];
const OLD = { timeout: 'wait', owner: 'actor' };

/** A lock, or several of one slot, as the program asks for it: it may do so again and again. */
export class Request {
  constructor(settings, keys, options) {
    const { wait, lease = settings.lease, maxHold = Infinity, signal, actor, shared = false, limit, permits, onLost } =
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
    if (onLost != null && typeof onLost !== 'function') throw new TypeError(`onLost must be a function, not ${shown(onLost)}`);
    Object.assign(this, { keys, signal, onLost, actor: actor ?? undefined, lease: duration('lease', lease) });
    this.wait = wait == null ? undefined : milliseconds('wait', wait);
    this.maxHold = maxHold === Infinity ? Infinity : duration('maxHold', maxHold);
    this.names = keys.map(bytes);
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

/** One request, from its beginning to its end. Its owner is its own. */
export class Take {
  bell = new Bell();
  began = now();
  holds = []; // what was granted
  done = false;
  isTaken = false;
  error = null; // why not, or what went wrong last
  over; // resolved with the end
  #isWaiting = false;
  #hasWaited = false;
  #waitsSince = 0;
  #asked = 0;
  #pause = 0;
  #warned = -Infinity;
  #word = ''; // of a row that came before the answer
  #found = new Map();
  #session = null;
  #end;

  constructor(sessions, request, wait) {
    Object.assign(this, { sessions, request, wait, owner: sessions.owner(request.actor), key: request.keys[0] });
    this.deadline = this.began + (wait === 0 ? sessions.settings.replyTimeout : wait);
    this.over = new Promise((done) => { this.#end = done; });
  }

  next() {
    if (this.done) return null;
    const left = this.deadline - now();
    if (this.#isWaiting) return Math.min(left + GRACE, SLICE); // the end is `overdue`
    if (this.#asked && left <= 0) {
      this.#outOfTime();
      return null;
    }
    if (this.#pause > now()) return Math.min(this.#pause - now(), left);
    if (this.sessions.closed) {
      this.fail(new Closed('these locks are closed'));
      return null;
    }
    this.#asked += 1;
    this.#word = '';
    this.sessions.asked.set(bytes(this.owner), this); // a row may be read before the answer
    const block = this.wait === 0 ? null : left === Infinity ? 0 : Math.max(1, Math.floor(left));
    return this.request.words(this.sessions.name, this.owner, block);
  }

  /** Reads `[token, id]`, `[[token, …], id]`, `[0, place, id]`, null or an error. */
  answered(sent, error, reply) {
    const { sessions, request } = this;
    if (this.done) return; // its rows were faster, or nobody waits for it
    if (error) {
      this.#failed(error);
    } else if (reply === null) {
      this.isTaken = true;
      this.#finish();
    } else if (!reply[0] || this.#asked > 1) { // asked again, only the row says how long it lasts
      this.#wait(sessions.session(reply.at(-1), this.key));
    } else {
      const [session, end] = [sessions.session(reply.at(-1), this.key), sessions.believed(sent, request.lease)];
      for (const [i, token] of [reply[0]].flat().entries()) this.granted(request.keys[i], token, session, end);
    }
  }

  /** One of its locks was granted. With the last one it holds them all. */
  granted(name, token, session, end) {
    const { request, sessions } = this;
    const index = request.names.indexOf(bytes(name));
    this.#found.set(index, new Held(request.keys[index], this.owner, token, request.lease, end));
    if (this.#found.size < request.keys.length) return;
    this.holds = request.keys.map((_, i) => this.#found.get(i));
    for (const held of this.holds) {
      [held.onLost, held.bound] = [request.onLost, held.since + request.maxHold];
      sessions.held.set(held.id, held);
    }
    this.#finish();
    for (const held of this.holds) sessions.join(held, session);
  }

  /** A row tells of an outcome that is no grant, or the session is gone. While there is time it asks again. */
  ended(word) {
    this.#word = word;
    if (!this.#isWaiting) return; // its answer is yet to come
    this.#stopWaiting();
    this.#giveBackFound();
    if (word === 'replaced') {
      this.fail(new Replaced('REPLACED a newer request of the same owner has taken the place'));
    } else if (word === 'wrongtype') {
      this.fail(typed(new Error('WRONGTYPE the key holds something that is not a lock')));
    } else if (word === 'timeout' && this.deadline - now() < 20) {
      this.isTaken = true;
      this.#finish();
    } else {
      if (word === 'again') this.error = new NoAck('NOACK the server did not confirm the grant, or serves the lock no more');
      if (this.wait === 0) {
        this.fail(this.error ?? new Unreachable(`the request has ended: ${word}`));
        return;
      }
      this.#pause = now() + (this.#asked > 1 ? 50 * Math.random() : 0);
      this.bell.ring();
    }
  }

  /** Ends it with this error. What may be left of it is taken back. */
  fail(error) {
    const isRefused = this.#asked === 1 && !this.#session && error instanceof DLockError && error.code && !passes(error);
    [this.error, this.isTaken] = [error, false];
    this.#finish();
    if (this.#asked && !isRefused && !(error instanceof Replaced)) this.#cancel(); // a grant may be on its way
    this.#giveBackFound();
  }

  /** The program does not want it any more, wherever it stands. */
  leave(error) {
    if (this.done) return;
    this.error = error;
    this.#finish();
    if (this.#asked) this.#cancel();
    this.#giveBackFound();
  }

  /** Its time is up, and a word about it is missing. */
  overdue() { if (!this.done) this.#outOfTime(); }

  #wait(session) {
    [this.#session, this.#isWaiting, this.#waitsSince] = [session, true, now()];
    session.waits.add(this);
    if (this.#word) { // the outcome came first
      this.ended(this.#word);
      return;
    }
    if (!this.#hasWaited) this.sessions.settings.tell('waiting', this.key);
    this.#hasWaited = true;
    this.sessions.keep(session);
  }

  #stopWaiting() {
    this.#isWaiting = false;
    this.#session?.waits.delete(this);
  }

  #finish() {
    if (this.done) return;
    this.done = true;
    this.#stopWaiting();
    this.sessions.asked.delete(bytes(this.owner));
    if (this.#hasWaited) this.sessions.settings.tell('waited', this.key);
    this.bell.ring();
    this.#end();
  }

  #failed(error) {
    if (this.wait === 0 || !passes(error)) {
      this.fail(error);
      return;
    }
    if (now() - this.#warned >= WARN_EVERY) {
      this.sessions.settings.logger.warn(`still waiting for lock '${this.key}': ${error.message}`);
      this.#warned = now();
    }
    [this.error, this.#pause] = [error, now() + 20 + 80 * Math.random()];
  }

  #outOfTime() {
    const why = this.error ?? this.#session?.error;
    // The server has kept the place meanwhile: others have the lock, though the word about the end is late.
    this.isTaken = !why && this.wait !== 0 && this.#isWaiting && this.#session.heard > this.#waitsSince;
    if (!this.isTaken) {
      const cause = why ?? new Unreachable('the server does not answer');
      const text = `lock '${this.key}' was not granted within ${this.wait} ms: ${cause.message}`;
      this.error = this.wait === 0 ? cause : new LockTimeout(text, { cause, taken: false });
    }
    this.#finish();
    this.#cancel();
    this.#giveBackFound();
  }

  /** Half of several locks is none: what was granted goes back, and the next request has another owner. */
  #giveBackFound() {
    const found = this.#found;
    this.#found = new Map();
    if (this.holds.length || !found.size) return;
    for (const held of found.values()) this.sessions.giveBack(held.key, held.owner, held.token);
    this.sessions.asked.delete(bytes(this.owner));
    this.owner = this.sessions.owner(this.request.actor);
  }

  /** Leaves the queue. A grant that came before has a row that nobody knows, and is given back by its token. */
  #cancel() {
    const { sessions, key, owner } = this;
    const session = this.#session;
    const needed = sessions.patience(this.request.lease);
    sessions.errand(new Errand(key, ['DLOCK.CANCEL', key, owner], (_, error, reply) => {
      if (error || reply !== 0 || session?.loop) return;
      const words = ['DLOCK.SESSION', key, sessions.name, 1]; // it may be held, and nobody learns of it
      sessions.errand(new Errand(key, words, (sent, refusal, told) => { if (!refusal) sessions.told(sent, told, key); }, needed));
    }, needed));
  }
}

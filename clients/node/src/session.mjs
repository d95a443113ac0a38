// SPDX-License-Identifier: MIT
/*
 * Sessions: what the servers keep for this client, and all that follows from their rows.
 *
 * Nothing here waits or sends. Whoever runs a *job* (a `Loop`, a `Take`) asks it for its `next` step: the words of a command,
 * of which it gets the answer; milliseconds to wait, unless its bell rings before; or null, the end.
 */
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';

import { Bell, Clock, now } from './clock.mjs';
import { Closed, NotHeld, passes } from './errors.mjs';
import { bytes } from './hold.mjs';

const LINGER = 1_000; // so long a loop continues without work: the next turn begins without a new one
const QUIET = 100; // after an answer without rows that came early
const PAUSE = 100; // after a failure
const STALL = 500; // an end that is seen so late: this process stood still
const ROUNDING = 2; // servers count whole milliseconds
const nothing = () => {};

/** What one server keeps for this client, by the id that it drew. */
class Session {
  seen = 0; // the last row
  holds = new Map();
  waits = new Set();
  sent = -Infinity; // of the last SESSION, and the end of the least lease that it told
  until = -Infinity;
  heard = -Infinity; // when the last SESSION was sent that was answered, with holds or without
  longest = 0; // of the leases in it
  shortest = Infinity;
  looked = 0; // for holds that are forgotten
  loop = null;
  error = null; // of the last SESSION

  constructor(id, key) { [this.id, this.key] = [id, key]; }

  /** Returns a key that it serves. */
  anyKey() {
    const [wait] = this.waits;
    const [hold] = this.holds.values();
    return this.key = wait?.request.keys[0] ?? hold?.key ?? this.key;
  }

  get isNeeded() {
    if (this.waits.size) return true;
    for (const held of this.holds.values()) if (held.isOld) return true; // most often the first
    return false;
  }
}

/** A command that is repeated until the server has answered it, or until it means nothing any more. */
export class Errand {
  tries = 0;
  done = false;
  error = null;
  #then;

  constructor(key, words, then, isNeeded) {
    Object.assign(this, { key, words, isNeeded });
    this.#then = then;
  }

  answered(sent, error, reply) {
    this.tries += 1;
    this.error = error;
    this.done = !error || !passes(error);
    if (this.done) this.#then(sent, error, reply);
  }
}

/** All that this client holds and waits for. Who drives it gives it `call`, `start`, `errand` and `later`. */
export class Sessions {
  name = `${hostname().slice(0, 64).replaceAll('/', '-')}/${process.pid}/${randomBytes(16).toString('base64url')}`;
  byId = new Map();
  asked = new Map(); // takes, by owner
  held = new Map();
  closed = false;
  #number = 0;

  constructor(settings) {
    this.settings = settings;
    this.clock = new Clock(() => this.tick());
  }

  /** Throws an error if nothing may be asked any more. */
  check() { if (this.closed) throw new Closed('these locks are closed'); }

  /** Ends everything: what is held is reported lost, and lives on until its lease. */
  end() {
    for (const take of new Set(this.asked.values())) take.fail(new Closed('these locks are closed')); // and leaves its queue
    this.closed = true;
    if (this.held.size) this.settings.logger.warn(`closed with ${this.held.size} locks held: they are lost`);
    for (const held of [...this.held.values()]) this.lose(held, 'closed');
    for (const { loop } of this.byId.values()) loop?.bell.ring();
    this.clock.reset(Infinity);
  }

  // What is held.

  /** Returns an owner that nobody has used. What stands before `#` is the actor, for the search for deadlocks. */
  owner(actor) {
    const number = ++this.#number;
    if (actor === undefined) return `${this.name}/${number}`;
    if (typeof actor === 'string') return `${this.name}/${actor}#${number}`;
    return Buffer.concat([Buffer.from(`${this.name}/`), actor, Buffer.from(`#${number}`)]);
  }

  session(id, key) {
    let session = this.byId.get(id);
    if (!session) this.byId.set(id, session = new Session(id, key));
    return session;
  }

  /** Returns the believed end of a lease that the server counts from the arrival of a command. */
  believed(sent, left) { return sent + left - ROUNDING - this.settings.clockMargin; }

  /** The hold is in that session now. */
  join(held, session) {
    if (held.session !== session) {
      held.leave();
      [held.told, held.session, held.isTaken] = [now(), session, false];
      if (!session.holds.size) [session.longest, session.shortest] = [0, Infinity];
      session.holds.set(held.id, held);
      [session.longest, session.shortest] = [Math.max(session.longest, held.lease), Math.min(session.shortest, held.lease)];
    }
    if (held.isOld) this.keep(session);
    this.clock.set(session.loop ? held.until() : Math.min(held.until(), held.old));
  }

  /** Has a loop keep it from now on. */
  keep(session) {
    if (session.loop || this.closed) return;
    session.loop = new Loop(this, session);
    this.start(session.loop);
  }

  /** It is held no more, and the program learns of it. */
  lose(held, reason) {
    this.held.delete(held.id);
    held.leave();
    if (held.over) return;
    [held.over, held.isLost] = [reason, true];
    const message = `lock '${held.key}' of '${held.owner}' is lost: ${reason}`;
    if (this.closed) this.settings.debug(message);
    else this.settings.logger.warn(message);
    this.settings.tell('lost', held.key, reason);
    this.later(held);
  }

  /** Reports what has ended or is forgotten, and keeps what has grown old. */
  tick() {
    let alarm = Infinity;
    for (const held of [...this.held.values()]) {
      if (held.over || this.isForgotten(held)) continue;
      if (held.isOld && held.session) this.keep(held.session);
      const end = this.#endOf(held);
      if (end <= now()) this.expire(held);
      else alarm = Math.min(alarm, end, held.session && !held.session.loop ? held.old : end);
    }
    this.clock.reset(alarm);
  }

  /** Returns when a loss is to be reported. After a standstill of this process the server has the time of a reply to say more. */
  #endOf(held) {
    const end = held.until();
    if (end > now()) held.doubted = 0;
    else if (!held.doubted && now() - end > STALL && held.bound > now()) held.doubted = now() + this.settings.replyTimeout;
    return Math.max(end, held.doubted);
  }

  /** Reports a hold that nothing refers to: nobody can give it back. Its work may still run, so it is left to its lease. */
  isForgotten(held) {
    if (held.over || !held.handle || held.handle.deref()) return false; // without a handle it is on its way to the program
    this.lose(held, 'forgotten: nothing refers to the hold any more, and it was not released');
    this.errand(this.#left(held, held.lease));
    return true;
  }

  /** Its believed end has passed. The server may have it still, so it is given back. */
  expire(held) {
    const why = held.why || held.session?.error?.message;
    this.lose(held, held.bound <= now() ? 'maxHold is over' : `nobody has confirmed it before its end${why ? `: ${why}` : ''}`);
    if (!held.isTaken) this.giveBack(held.key, held.owner, held.token); // else it is somebody else's now
  }

  // What is said until it is answered.

  /** No session, place or hold of a client outlasts this without being kept. */
  patience(lease) {
    const end = now() + this.settings.hangTimeout + 2 * lease;
    return () => now() < end;
  }

  /** Releases what nobody has. */
  giveBack(key, owner, token) {
    this.errand(new Errand(key, ['DLOCK.RELEASE', key, owner, 'TOKEN', token], nothing, this.patience(this.settings.lease)));
  }

  /** Ends a hold at the program's wish. What is returned is to be said. */
  released(held) {
    this.#over(held, 'it was given back before');
    return new Errand(held.key, ['DLOCK.RELEASE', held.key, held.owner, 'TOKEN', held.token], (sent, error) => {
      this.held.delete(held.id);
      if (error && !(error instanceof NotHeld)) this.errand(this.#left(held, held.lease)); // it may not be given back
    }, this.patience(held.lease));
  }

  /** Ends a hold at the program's wish, and leaves the lock taken for so long. */
  releasedAfter(held, ms) {
    const { session } = held;
    this.#over(held, 'it was left to its lease');
    held.isLeft = true;
    return this.#left(held, ms, (error) => {
      if (!error || error instanceof NotHeld || !session) return;
      [held.over, held.isLeft] = ['', false]; // it is as it was
      this.held.set(held.id, held);
      this.join(held, session);
    });
  }

  #over(held, reason) {
    this.check();
    if (held.over) throw new NotHeld(`NOTHELD lock '${held.key}' is not held: ${held.over}`);
    held.over = reason;
    held.leave();
  }

  /** Has the server renew it no more: it ends by its lease. */
  #left(held, ms, then = nothing) {
    return new Errand(held.key, ['DLOCK.RENEW', held.key, held.owner, ms, 'TOKEN', held.token], (sent, error) => {
      this.held.delete(held.id);
      then(error);
    }, this.patience(ms));
  }

  /** Brings the hold into the session of whoever serves it now, and learns how long it lasts. */
  renew(held) {
    if (held.renewal || held.over) return;
    const renewal = held.renewal = {};
    const isNeeded = () => held.renewal === renewal && !held.over;
    const words = ['DLOCK.RENEW', held.key, held.owner, held.lease, 'TOKEN', held.token, 'IN', this.name];
    this.errand(new Errand(held.key, words, (sent, error, reply) => {
      if (!isNeeded()) return;
      held.renewal = null;
      if (error instanceof NotHeld) {
        this.lose(held, error.message);
      } else if (error) {
        held.why = error.message;
      } else {
        held.end = Math.max(held.end, this.believed(sent, reply[0]));
        this.join(held, this.session(reply[1], held.key));
      }
    }, isNeeded));
  }

  // What a server says.

  /** Reads an answer to SESSION, and returns the session that it is of. `isKept`: not by this one only. */
  told(sent, [id, , left, rows], key, isKept = false) {
    const session = this.session(id, key);
    session.heard = Math.max(session.heard, sent);
    for (const [row, word, name, owner, token, rowLeft] of rows) {
      if (row <= session.seen) continue;
      session.seen = row;
      this.#row(session, word.toString(), name, owner, token, this.believed(sent, rowLeft));
    }
    if (left === null || sent <= session.sent) return session;
    const until = this.believed(sent, left);
    if (until < session.until) { // what was believed of those that were known before stays true
      for (const held of session.holds.values()) held.end = Math.max(held.end, held.until());
    }
    [session.sent, session.until] = [sent, until];
    if (isKept && left < session.longest / 2) { // the least lease says little of the others
      for (const held of [...session.holds.values()]) if (left < held.lease / 2 && held.until() - now() < held.lease / 2) this.renew(held);
    }
    return session;
  }

  #row(session, word, name, owner, token, end) {
    const held = this.held.get(`${token}/${bytes(name)}`);
    const take = this.asked.get(bytes(owner));
    if (word === 'granted') {
      if (held?.over) return;
      if (held) {
        held.end = Math.max(held.end, end);
        this.join(held, session);
      } else if (take) {
        take.granted(name, token, session, end);
      } else { // a place that was left, or a command that came late
        this.giveBack(name, owner, token);
      }
    } else if (['timeout', 'cancelled', 'replaced', 'wrongtype', 'again'].includes(word)) {
      take?.ended(word);
    } else if (!held || held.over) {
      // it is known
    } else if (word === 'taken') {
      held.renewal = null; // its reply is older than this row
      [held.isTaken, held.why] = [true, 'it was taken out of the session'];
      held.leave(end);
      this.clock.set(held.end);
    } else if (word === 'moved') {
      held.renewal = null;
      held.leave();
      this.renew(held);
    } else {
      this.lose(held, word);
    }
  }

  /** The server of a key has another session: all that was in this one goes where the servers say. */
  gone(session) {
    for (const held of [...session.holds.values()]) {
      held.leave();
      this.renew(held);
    }
    for (const take of [...session.waits]) take.ended('gone');
  }

  /** Forgets a session without holds and waits. */
  tidy(session) { if (!session.loop && !session.holds.size && !session.waits.size) this.byId.delete(session.id); }
}

/** Keeps a session: SESSION again and again, as long as there are waits or holds that have grown old. */
class Loop {
  bell = new Bell();
  #isFirst = true;
  #isLast = false;
  #isOver = false;
  #needed = now();
  #notBefore = 0;
  #block = 0;
  #warned = false;

  constructor(sessions, session) { [this.sessions, this.session] = [sessions, session]; }

  next() {
    const { sessions, session } = this;
    const needed = session.isNeeded;
    if (sessions.closed || (this.#isOver && !needed)) {
      session.loop = null;
      for (const held of session.holds.values()) sessions.clock.set(held.old);
      return null;
    }
    if (this.#isOver) [this.#isOver, this.#isFirst] = [false, true]; // something has come in the last moment
    if (this.#notBefore > now()) return this.#notBefore - now();
    if (needed) this.#needed = now();
    const { settings } = sessions;
    this.key = session.anyKey();
    const words = (ms, ...rest) => ['DLOCK.SESSION', this.key, sessions.name, ms, 'SEEN', session.id, session.seen, ...rest];
    this.#isLast = this.#needed + LINGER < now();
    if (this.#isLast) return words(1); // what an answer that was lost has granted is renewed for nobody
    const lease = session.holds.size ? Math.min(settings.lease, session.shortest) : settings.lease;
    this.#block = this.#isFirst ? 0 : Math.floor(Math.min(1_000, lease / 3, settings.replyTimeout / 2));
    return this.#block ? words(settings.hangTimeout, 'BLOCK', this.#block) : words(settings.hangTimeout);
  }

  answered(sent, error, reply) {
    const { sessions, session } = this;
    if (sessions.closed) return;
    if (error) {
      this.#failed(error);
      return;
    }
    [session.error, this.#warned] = [null, false];
    const answer = sessions.told(sent, reply, session.key, !this.#isFirst);
    if (now() - session.looked >= LINGER) {
      session.looked = now();
      for (const held of [...session.holds.values()]) sessions.isForgotten(held);
    }
    if (answer !== session) {
      sessions.gone(session);
      this.#isOver = true;
    } else if (this.#isLast) {
      this.#isOver = true;
    } else if (!reply[3].length && !this.#isFirst && now() - sent < this.#block - 10) {
      this.#notBefore = sent + QUIET;
    }
    this.#isFirst = this.#isLast = false;
  }

  #failed(error) {
    const { sessions, session } = this;
    [this.#isOver, this.#isFirst] = [this.#isLast, true];
    [session.error, this.#notBefore] = [error, now() + PAUSE];
    if (!this.#warned) sessions.settings.logger.warn(`what is held and waited for is not kept: ${error.message}`);
    this.#warned = true;
    if (!passes(error)) for (const take of [...session.waits]) take.fail(error);
  }
}

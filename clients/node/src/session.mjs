// SPDX-License-Identifier: MIT
/*
 * Sessions: what the servers keep for this client, and what follows from their rows.
 *
 * Each method that talks to a server is an async function. Between two of its awaits nothing else changes the state.
 */
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';

import { Clock, at, inTime, now, pause } from './clock.mjs';
import { Closed, NotHeld, Unreachable, isAnswer, isTransient } from './errors.mjs';
import { Hold, bytes } from './hold.mjs';
import { Client, ClientFactory } from './library.mjs';
import { Take } from './take.mjs';

const BLOCK_MS = 1_000; // the longest wait of a SESSION for rows
const LINGER_MS = 1_000; // how long a session without work is still kept, since the next wait often follows soon
const PAUSE_MS = 100; // after a failure, and after an early answer without rows
const ROUNDING_MS = 2; // servers count whole milliseconds
const CLOSING_MS = 1_000; // how long close() waits for commands that are still unanswered
const OUTCOMES = ['timeout', 'cancelled', 'replaced', 'wrongtype', 'again']; // of waits, without a grant
const noop = () => {};

/** What one server keeps for this client, by the id that the server drew. */
class Session {
  seen = 0; // the number of the last row that was read
  leases = new Map(); // by id
  waits = new Set();
  answeredAt = -Infinity; // when the last SESSION was sent that was answered
  extendedAt = -Infinity; // when the one was sent whose answer extended the leases
  dueAt = 0; // when the server answers the SESSION that is under way
  error = null; // of the last SESSION
  isKept = false; // by a loop

  constructor(id, key) {
    this.id = id;
    this.key = key;
  }

  /** Returns a key that its server serves. */
  anyKey() {
    const [wait] = this.waits;
    const [lease] = this.leases.values();
    this.key = wait?.request.keys[0] ?? lease?.key ?? this.key;
    return this.key;
  }

  get isNeeded() {
    if (this.waits.size) return true;
    for (const lease of this.leases.values()) if (lease.needsRenewal) return true; // most often the first
    return false;
  }

  get shortestLease() {
    let shortest = Infinity;
    for (const { lease } of this.leases.values()) shortest = Math.min(shortest, lease);
    return shortest;
  }
}

/** Tracks everything that this client holds or waits for. */
export class Sessions {
  name = `${hostname().slice(0, 64).replaceAll('/', '-')}/${process.pid}/${randomBytes(16).toString('base64url')}`;
  takes = new Map(); // by owner
  leases = new Map(); // by id
  closed = false;
  #byId = new Map();
  #commands;
  #loops; // a client of its own: SESSION … BLOCK delays whatever is behind it
  #background = new Set(); // commands that are sent again until the server answers
  #left = new Map(); // by id, as long as a row may grant it: a hold that was left to its lease, and when that is to end
  #lastOwner = 0;
  #graceUntil = 0; // after a standstill: until then the news about an end may still be unread

  constructor(client, settings) {
    this.settings = settings;
    this.factory = new ClientFactory(client, settings.replyTimeout);
    this.#commands = new Client(this.factory);
    this.#loops = new Client(this.factory);
    this.clock = new Clock((isLate) => this.#tick(isLate));
  }

  async call(key, words) {
    if (this.closed) throw new Closed('these locks are closed');
    return this.#commands.call(key, words);
  }

  /** Returns the holds, or null if others have the lock. */
  async take(request, wait) {
    if (this.closed) throw new Closed('these locks are closed');
    request.signal?.throwIfAborted();
    const [key] = request.keys;
    const began = now();
    let leases;
    try {
      leases = await new Take(this, request, wait).run();
    } catch (error) {
      this.settings.tell('refused', key, now() - began, error);
      throw error;
    }
    if (!leases) {
      this.settings.tell('refused', key, now() - began, null);
      return null;
    }
    this.settings.tell('granted', key, now() - began);
    return leases.map((lease) => new Hold(this, lease));
  }

  /** Closes the client. Every hold is reported lost; on the server it lasts until its lease ends. */
  async close() {
    if (this.closed) return;
    for (const take of [...this.takes.values()]) take.fail(new Closed('these locks are closed')); // which leaves the queues
    this.closed = true;
    if (this.leases.size) this.settings.warn(`closed with ${this.leases.size} locks held: they are lost`);
    for (const lease of [...this.leases.values()]) this.lose(lease, 'closed');
    this.clock.reset(Infinity);
    const done = async () => { while (this.#background.size) await Promise.all(this.#background); };
    await inTime(CLOSING_MS, done, noop).catch(noop);
    this.#commands.close();
    this.#loops.close();
  }

  /** Returns an owner that nobody has used. What stands before `#` is the actor, for the search for deadlocks. */
  newOwner(actor) {
    this.#lastOwner += 1;
    if (actor === undefined) return `${this.name}/${this.#lastOwner}`;
    if (typeof actor === 'string') return `${this.name}/${actor}#${this.#lastOwner}`;
    return Buffer.concat([Buffer.from(`${this.name}/`), actor, Buffer.from(`#${this.#lastOwner}`)]);
  }

  session(id, key) {
    let session = this.#byId.get(id);
    if (!session) {
      session = new Session(id, key);
      this.#byId.set(id, session);
    }
    return session;
  }

  /** Returns the believed end of a lease that the server counts from the arrival of a command. */
  believed(sentAt, left) { return sentAt + left - ROUNDING_MS - this.settings.clockMargin; }

  /** The session has this lease from now on. */
  join(lease, session) {
    if (lease.session !== session) {
      this.#leave(lease);
      lease.session = session;
      lease.joinedAt = now();
      lease.isTaken = false;
      session.leases.set(lease.id, lease);
      this.#byId.set(session.id, session); // another row of the same answer may have emptied it
    }
    if (lease.needsRenewal) this.keep(session);
    this.clock.set(lease.needsRenewal ? lease.end : Math.min(lease.end, lease.renewAt));
  }

  /** Marks a hold as lost, and notifies the program. */
  lose(lease, reason) {
    this.leases.delete(lease.id);
    this.#leave(lease);
    if (lease.over) return;
    lease.over = reason;
    lease.isLost = true;
    const message = `lock '${lease.key}' of '${lease.owner}' is lost: ${reason}`;
    if (this.closed) this.settings.debug(message);
    else this.settings.warn(message);
    this.settings.tell('lost', lease.key, reason);
    setImmediate(() => lease.hold?.deref()?.abort()); // the program's listeners run outside of our own call stack
  }

  /** Takes the lease out of its session. */
  #leave(lease) {
    const { session } = lease;
    if (!session) return;
    lease.session = null;
    session.leases.delete(lease.id);
    this.#forget(session);
  }

  /** Forgets a session in which nothing is left. The server tells its rows again, if it still knows it. */
  #forget(session) { if (!session.isKept && !session.leases.size && !session.waits.size) this.#byId.delete(session.id); }

  /** Reports what has ended or was forgotten, and keeps what needs renewal. */
  #tick(isLate) {
    const { replyTimeout } = this.settings;
    if (isLate && now() > this.#graceUntil + replyTimeout) this.#graceUntil = now() + replyTimeout;
    let alarm = Infinity;
    for (const lease of [...this.leases.values()]) {
      const end = Math.max(lease.end, Math.min(this.#graceUntil, lease.maxEnd));
      if (lease.over) {
        // the program is releasing it
      } else if (lease.isForgotten()) {
        this.lose(lease, 'forgotten: nothing refers to the hold any more, and it was not released');
        this.#inBackground(this.#leaveToLease(lease, lease.lease)); // its work may still run
      } else if (end <= now()) {
        this.expire(lease);
      } else {
        if (lease.needsRenewal && lease.session) this.#keepInTime(lease);
        alarm = Math.min(alarm, end, lease.needsRenewal ? end : lease.renewAt);
      }
    }
    this.clock.reset(alarm);
  }

  /** Has a loop keep the lease. It may be shorter than the wait of the SESSION that is under way. */
  #keepInTime(lease) {
    this.keep(lease.session);
    if (lease.session.dueAt > lease.end - lease.lease / 6) this.renew(lease);
  }

  /** Reports the loss of a lock whose lease may have ended. The server may still keep the hold, so the client releases it. */
  expire(lease) {
    const { session, maxEnd, renewal, isTaken } = lease;
    const reasons = ['nobody has confirmed it before its end'];
    const refusal = isTaken ? 'it was taken out of the session' : renewal?.error?.message ?? session?.error?.message;
    if (refusal) reasons.push(refusal);
    if (session?.answeredAt > 0) reasons.push(`the last answer was sent ${((now() - session.answeredAt) / 1000).toFixed(1)} s ago`);
    this.lose(lease, maxEnd <= now() ? 'maxHold is over' : reasons.join(': '));
    if (!isTaken) this.releaseOrphan(lease.key, lease.owner, lease.token, lease.lease); // else it is another program's
  }

  // Commands that are sent again until the server has answered.

  /**
   * Sends a command until a server answers it, as long as it is needed. Returns when it was sent last, and the reply. Throws a refusal.
   * `attempts` has their number and the last error. `ends` says which errors end it.
   */
  async #insist(key, words, isNeeded, attempts = { count: 0 }, ends = isAnswer) {
    for (;;) {
      const sentAt = now();
      attempts.count += 1;
      try {
        return { sentAt, reply: await this.#commands.call(key, words) };
      } catch (error) {
        attempts.error = error;
        if (ends(error) || this.closed) throw error;
      }
      await pause(PAUSE_MS + this.#background.size / 10); // ten thousand a second are enough
      if (!isNeeded()) throw attempts.error;
    }
  }

  /** Returns what says whether the server may still know what a command is about: nothing outlasts this without being kept. */
  #patience(lease) {
    const end = now() + this.settings.hangTimeout + 2 * lease;
    return () => now() < end;
  }

  #inBackground(work) {
    const done = work.catch(noop).finally(() => this.#background.delete(done));
    this.#background.add(done);
  }

  /** Waits for the work as long as for a reply. After that the work continues in the background. */
  async #inForeground(work, attempts) {
    this.#inBackground(work);
    await inTime(this.settings.replyTimeout, () => work, () => attempts.error ?? new Unreachable('no answer in time'));
  }

  /** Releases a grant that no caller is waiting for. */
  releaseOrphan(key, owner, token, lease) {
    this.#inBackground(this.#insist(key, ['DLOCK.RELEASE', key, owner, 'TOKEN', token], this.#patience(lease)));
  }

  /** Leaves the queue. A grant that came first is a row of no take, and is released by its token. `session`: where the take waited. */
  cancel({ keys: [key], lease }, owner, session) {
    const isNeeded = this.#patience(lease);
    const leave = async () => {
      const { reply: wasThere } = await this.#insist(key, ['DLOCK.CANCEL', key, owner], isNeeded);
      if (wasThere || session?.isKept) return;
      // It may be held, and no loop reads its row.
      const { sentAt, reply } = await this.#insist(key, ['DLOCK.SESSION', key, this.name, 1], isNeeded);
      this.#forget(this.readReply(sentAt, reply, key, false));
    };
    this.#inBackground(leave());
  }

  async release(lease) {
    this.#end(lease, 'it was given back before');
    const attempts = { count: 0 };
    await this.#inForeground(this.#release(lease, attempts), attempts);
  }

  async #release(lease, attempts) {
    try {
      await this.#insist(lease.key, ['DLOCK.RELEASE', lease.key, lease.owner, 'TOKEN', lease.token], this.#patience(lease.lease), attempts);
    } catch (error) {
      if (error instanceof NotHeld && attempts.count > 1) return; // the answer to an earlier attempt was lost
      if (!(error instanceof NotHeld)) this.#inBackground(this.#leaveToLease(lease, lease.lease)); // it may not be released
      throw error;
    } finally {
      this.leases.delete(lease.id);
    }
  }

  async releaseAfter(lease, ms) {
    this.#end(lease, 'it was left to its lease');
    const [attempts, end] = [{ count: 0 }, now() + ms];
    const leave = this.#leaveToLease(lease, ms, attempts).catch((error) => {
      if (error instanceof NotHeld && attempts.count > 1 && now() >= end) return; // as above, and its time is over
      if (!(error instanceof NotHeld)) this.#inBackground(this.#leaveToLease(lease, lease.lease)); // else its session keeps it
      throw error;
    });
    await this.#inForeground(leave, attempts);
  }

  #end(lease, reason) {
    if (this.closed) throw new Closed('these locks are closed');
    if (lease.over) throw new NotHeld(`NOTHELD lock '${lease.key}' is not held: ${lease.over}`);
    lease.over = reason;
    this.#leave(lease);
  }

  /** Has the server renew the hold no more, so that its lease ends it. */
  async #leaveToLease(lease, ms, attempts) {
    const left = { lease, end: now() + ms };
    this.#left.set(lease.id, left);
    try {
      await this.#insist(lease.key, ['DLOCK.RENEW', lease.key, lease.owner, ms, 'TOKEN', lease.token], this.#patience(ms), attempts);
    } finally {
      this.leases.delete(lease.id);
      // No SESSION that was sent before the answer takes so long.
      at(now() + 2 * this.settings.replyTimeout, () => { if (this.#left.get(lease.id) === left) this.#left.delete(lease.id); });
    }
  }

  /**
   * Returns true if this hold was left to its lease. The server has said that it is in a session: a command of its owner may have come
   * late, and the server would renew what nobody can release. So it is left once more, to the same end.
   */
  #leaveAgain(id) {
    const left = this.#left.get(id);
    if (!left) return false;
    const { key, owner, token, lease } = left.lease;
    const ms = Math.max(1, Math.ceil(left.end - now()));
    this.#inBackground(this.#insist(key, ['DLOCK.RENEW', key, owner, ms, 'TOKEN', token], this.#patience(lease)));
    return true;
  }

  /** Brings the hold into the session of whoever serves it now. A row about it that comes meanwhile is newer than the reply. */
  renew(lease) {
    if (lease.over || lease.renewal) return;
    const renewal = { count: 0 };
    lease.renewal = renewal;
    const isNeeded = () => lease.renewal === renewal && !lease.over;
    const words = ['DLOCK.RENEW', lease.key, lease.owner, lease.lease, 'TOKEN', lease.token, 'IN', this.name];
    const ends = (error) => error instanceof NotHeld; // a refusal may pass: rights may come back
    this.#inBackground(this.#insist(lease.key, words, isNeeded, renewal, ends).then(({ sentAt, reply: [left, id] }) => {
      if (this.#leaveAgain(lease.id) || !isNeeded()) return;
      lease.renewal = null;
      lease.extend(this.believed(sentAt, left));
      this.join(lease, this.session(id, lease.key));
    }, (error) => { if (isNeeded()) this.lose(lease, error.message); }));
  }

  // What a server says.

  /** Starts the loop that keeps this session alive, unless it is running. It ends a while after the last wait, and the last old hold. */
  async keep(session) {
    if (session.isKept || this.closed) return;
    session.isKept = true;
    const { hangTimeout, replyTimeout } = this.settings;
    let neededAt = now();
    let isBlocking = false; // not at first, and not after a failure or a late answer
    let isLast = false;
    while (!this.closed && !(isLast && !session.isNeeded)) {
      if (session.isNeeded) neededAt = now();
      isLast = neededAt + LINGER_MS < now();
      const lease = session.shortestLease;
      const block = isBlocking && !isLast ? Math.max(1, Math.floor(Math.min(BLOCK_MS, lease / 6, replyTimeout / 2))) : 0;
      // With 1 the session ends soon: the server does not renew a grant whose answer was lost.
      const words = ['DLOCK.SESSION', session.anyKey(), this.name, isLast ? 1 : hangTimeout, 'SEEN', session.id, session.seen];
      if (block) words.push('BLOCK', block);
      const sentAt = now();
      session.dueAt = sentAt + block;
      try {
        const reply = await this.#loops.call(session.key, words, Math.min(block + replyTimeout, Math.max(500, lease / 2)));
        if (this.closed) break;
        session.error = null;
        const took = now() - sentAt;
        isBlocking = took < block + lease / 6;
        const answering = this.readReply(sentAt, reply, session.key, block > 0);
        if (answering !== session) {
          this.#recover(session);
          this.#forget(answering);
          isLast = true;
        }
        if (!reply[3].length && took < block - 10) await pause(PAUSE_MS - took);
      } catch (error) {
        if (this.closed) break;
        if (!session.error) this.settings.warn(`what is held and waited for is not kept: ${error.message}`);
        session.error = error;
        isBlocking = false;
        if (!isTransient(error)) for (const take of [...session.waits]) take.fail(error);
        await pause(PAUSE_MS);
      }
    }
    session.isKept = false;
    session.dueAt = 0;
    for (const lease of session.leases.values()) this.clock.set(lease.renewAt);
    this.#forget(session);
  }

  /** Reads an answer to SESSION, and returns the session that it is of. `isKept`: a loop has kept it for a while. */
  readReply(sentAt, [id, , left, rows], key, isKept) {
    const session = this.session(id, key);
    session.answeredAt = Math.max(session.answeredAt, sentAt);
    for (const [row, word, name, owner, token, rowLeft] of rows) {
      if (row <= session.seen) continue;
      session.seen = row;
      this.readRow(session, word.toString(), name, owner, token, this.believed(sentAt, rowLeft));
    }
    if (left === null || sentAt < session.extendedAt + PAUSE_MS) return session; // turns may follow each other fast
    session.extendedAt = sentAt;
    for (const lease of [...session.leases.values()]) {
      if (lease.joinedAt <= sentAt) lease.extend(this.believed(sentAt, left));
      // The shortest lease of the session says little of the others.
      if (isKept && left < lease.lease / 2 && lease.end - now() < lease.lease / 2) this.renew(lease);
    }
    return session;
  }

  readRow(session, word, name, owner, token, end) {
    const id = `${token}/${bytes(name)}`;
    const lease = this.leases.get(id);
    const take = this.takes.get(bytes(owner));
    if (word === 'granted') {
      if (this.#leaveAgain(id) || lease?.over) return;
      if (lease) {
        lease.extend(end);
        this.join(lease, session);
      } else if (take) {
        take.granted(name, token, session, end);
      } else { // the caller has given up, or the command arrived late
        this.releaseOrphan(name, owner, token, this.settings.lease);
      }
    } else if (OUTCOMES.includes(word)) {
      take?.onOutcome(word);
    } else if (lease && !lease.over) {
      lease.renewal = null; // its reply is older than this row
      if (word === 'taken') {
        lease.isTaken = true;
        this.#leave(lease);
        lease.end = Math.min(lease.end, end);
        this.clock.set(lease.end);
      } else if (word === 'moved') {
        this.#leave(lease);
        this.renew(lease);
      } else {
        this.lose(lease, word);
      }
    }
  }

  /** The server has lost this session. Renews its holds, and repeats its waits, wherever their keys are served now. */
  #recover(session) {
    for (const lease of [...session.leases.values()]) {
      this.#leave(lease);
      this.renew(lease);
    }
    for (const take of [...session.waits]) take.onOutcome('gone');
  }
}

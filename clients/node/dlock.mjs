// SPDX-License-Identifier: MIT
/**
 * Locks of the dlock module, by node-redis or ioredis. Copy this file.
 *
 *     const locks = new Locks(createClient({ url }));          // or new Redis(url); a list for a cluster or a pair
 *     await locks.using('stock', { timeout: 5000 }, async (hold) => {   // LockTimeout after 5 s
 *       await hold.guard('SET', 'stock:left', 41);             // runs only while the lock is held: else Fenced
 *       await fetch(url, { signal: hold.signal });             // aborted when the lock is lost
 *     });
 *
 * The clients are patterns: this opens connections of its own, two to each node, for all tasks together. The tasks
 * wait by NOTIFY. Times are in milliseconds.
 */
import { randomUUID } from 'node:crypto';

/** Whatever goes wrong with a lock. */
export class DLockError extends Error {
  get name() { return this.constructor.name; }
}
/** The lock is not, or no longer, held under this name and token. */
export class NotHeld extends DLockError {}
/** A guarded command was not run: the lock is not held under this token. */
export class Fenced extends DLockError {}
/** The wait could never end; the message names the circle. */
export class Deadlock extends DLockError {}
/** Somebody else asked under the same owner's name and has taken the place. Never asked again by itself. */
export class Replaced extends DLockError {}
/** The lock was not granted in time. The cause is the last trouble on the way, if there was any. */
export class LockTimeout extends DLockError {}
/** The connection is lost, or the server does not answer. */
export class Unreachable extends DLockError {}

const CODES = { NOTHELD: NotHeld, FENCED: Fenced, DEADLOCK: Deadlock, REPLACED: Replaced };
// What another node or a little time can mend. UNBLOCKED: the server has become a replica.
const PASSING = ['MOVED', 'ASK', 'TRYAGAIN', 'CLUSTERDOWN', 'READONLY', 'MASTERDOWN', 'LOADING', 'UNBLOCKED',
  'NOREPLICAS', 'MISCONF'];

const codeOf = (error) => /^[A-Z]{2,}\b/.exec(error.message)?.[0];
const passes = (error) => error instanceof Unreachable || PASSING.includes(codeOf(error));
const PATIENCE = 3000; // so long we wait for a connection, and for a reply
const GRACE = 500; // so long a caller who has given up waits for the answer, and an attempt for a server
const now = () => performance.now();
const late = () => new Promise((done) => { setTimeout(done, GRACE).unref(); });
const pause = () => new Promise((done) => setTimeout(done, 20 + 80 * Math.random()));

/** An error of the library as one of these types. A reply of the server begins with a code; anything else is trouble. */
function translated(error) {
  const code = codeOf(error);
  if (CODES[code]) return new CODES[code](error.message);
  return code ? error : new Unreachable(error.message, { cause: error });
}

// ---- connections ------------------------------------------------------------------------------------------------

// Neither library is to reconnect or to send again by itself: after a loss all who wait have to ask anew.
const nodeRedis = {
  dial: (client, to, connectTimeout) => client.duplicate({
    url: undefined, // it would overrule `to`
    socket: { ...client.options?.socket, ...to, connectTimeout, reconnectStrategy: false },
    commandOptions: {},
  }),
  send: (wire, words) => wire.sendCommand(words),
  listen: (wire, channel, heard) => wire.subscribe(channel, heard, true),
  close: (wire) => wire.isOpen && wire.destroy(),
};
const ioredis = {
  dial: (client, to, connectTimeout) => client.duplicate({
    ...to, connectTimeout, lazyConnect: true, retryStrategy: null, reconnectOnError: null, autoResubscribe: false,
    autoResendUnfulfilledCommands: false,
  }),
  send: (wire, words) => wire.call(...words),
  listen(wire, channel, heard) {
    wire.on('messageBuffer', (_, message) => heard(message));
    return wire.subscribe(channel);
  },
  close: (wire) => wire.disconnect(),
};

/** Two connections to a node: over one we ask, over the other we hear. They end together. */
async function open(client, to, heard, ended) {
  const library = 'call' in client ? ioredis : nodeRedis;
  const channel = `dlock:${randomUUID()}`;
  const [wire, ear] = [0, 1].map(() => library.dial(client, to, PATIENCE));
  const asked = new Set(); // what fails when the connections end, whenever the library notices it
  let [closed, answered] = [false, now()];
  const close = (why) => {
    if (closed) return;
    closed = true;
    [wire, ear].forEach(library.close);
    for (const fail of asked) fail(why instanceof Error ? why : new Error('The connection is closed'));
    ended();
  };
  /** Ends the connections if nothing comes for too long: nobody knows any more what the server has heard. */
  const inTime = async (work) => {
    let [fail, late] = [];
    const over = new Promise((_, no) => { fail = no; });
    const arm = (ms) => {
      // After a stall of this process replies that have come meanwhile are read before the immediate, or some of them.
      late = setTimeout(() => {
        late = setImmediate(() => (now() < answered + PATIENCE ? arm(answered + PATIENCE - now()) : close()));
      }, ms);
    };
    arm(PATIENCE);
    asked.add(fail);
    if (closed) fail(new Error('The connection is closed'));
    try {
      const reply = await Promise.race([over, work()]);
      answered = now();
      return reply;
    } catch (error) {
      if (codeOf(error)) answered = now();
      throw translated(error);
    } finally {
      asked.delete(fail);
      clearTimeout(late);
      clearImmediate(late);
    }
  };
  [wire, ear].forEach((one) => one.on('error', close).on('end', close));
  try {
    await inTime(() => Promise.all([wire.connect(), ear.connect()]));
    await inTime(() => library.listen(ear, channel, heard));
  } catch (error) {
    close();
    throw error;
  }
  const text = (word) => (Buffer.isBuffer(word) ? word : String(word));
  return { channel, close, send: (words) => inTime(() => library.send(wire, words.map(text))) };
}

/** The cluster's slot of a key: CRC-16 of the first non-empty `{…}` in it, or of all of it. */
function slotOf(key) {
  let bytes = Buffer.from(key);
  const from = bytes.indexOf('{') + 1;
  const to = bytes.indexOf('}', from);
  if (from > 0 && to > from) bytes = bytes.subarray(from, to);
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1) & 0xffff;
  }
  return crc % 16384;
}

// ---- locks ------------------------------------------------------------------------------------------------------

/** One owner's wish for one lock, as words of commands. */
class Request {
  constructor(settings, key, { owner, shared, limit, session }) {
    Object.assign(this, { settings, key, owner: owner ?? randomUUID(), named: owner != null, before: 0 });
    this.limit = shared ? ['SHARED'] : limit ? ['LIMIT', limit] : [];
    this.session = session ? ['SESSION'] : [];
    this.id = [key, this.owner].map((name) => Buffer.from(name).toString('latin1')).join('\n');
  }

  /** What the owner held before is not ours to give back, nor to tie to our connection. */
  within([token, holds]) {
    Object.assign(this, { outer: Number(token), before: Number(holds), session: [] });
  }

  words(name, ...rest) { return [`DLOCK.${name}`, this.key, this.owner, ...rest]; }

  /** The same answer and no second hold, however often it is asked (HOLDS). */
  ask(channel) {
    const { first, claim } = this.settings;
    const wait = channel ? ['NOTIFY', channel, 'CLAIM', claim] : [];
    return this.words(channel ? 'FAIRACQUIRE' : 'ACQUIRE', first, ...wait, 'HOLDS', this.before + 1, ...this.limit,
      ...this.session);
  }

  renew(token) {
    const tie = this.before ? [] : [...this.session, 'AUTO', this.settings.auto];
    return this.words('RENEW', this.settings.lease, 'TOKEN', token, ...tie);
  }
}

/** What is told to somebody who waits; null: ask again. */
class Mailbox {
  #news = [];
  #wake = () => {};

  put(one) {
    this.#news.push(one);
    this.#wake();
  }

  take(until, signal) {
    return new Promise((done) => {
      const wake = () => {
        clearTimeout(timer);
        signal.removeEventListener('abort', wake);
        this.#wake = () => {};
        done(this.#news.shift() ?? null);
      };
      const timer = setTimeout(wake, Math.max(0, until - now()));
      signal.addEventListener('abort', wake);
      this.#wake = wake;
      if (this.#news.length || signal.aborted) wake();
    });
  }
}

/** Locks on one server, a cluster (some of its nodes), or a primary and its replicas. */
export class Locks {
  #clients;
  #settings;
  #links = new Map();
  #slots = new Map(); // which node serves a slot, as far as errors have told
  #start = 0; // the client to begin with where nothing is known
  #waiting = new Map();
  #leaving = new Map(); // whose earlier request is on its way out: what it says last must not meet the next one
  #closed = false;

  /**
   * `lease` is what a lock has left when this program dies or loses the server; `auto`, how long a program that hangs
   * keeps it; `claim`, how long a place in the queue is kept while we are away.
   */
  constructor(clients, { lease = 10_000, auto = 60_000, claim = 5_000 } = {}) {
    this.#clients = [clients].flat();
    const first = Math.min(lease, 3_000); // the lease until we have confirmed; a lost message is noticed within it
    this.#settings = { lease, auto: Math.max(auto, lease), claim, first };
  }

  /**
   * Waits for the lock. Options: timeout, signal (an AbortSignal), shared, limit (a semaphore of so many), session (the
   * hold ends with the connection), owner. Nested locks of one task should have one owner: only then can the server
   * see a circle (Deadlock); tasks of their own need owners of their own.
   */
  async lock(key, options = {}) {
    const last = {};
    const hold = await this.#take(key, options, options.timeout ?? Infinity, false, last);
    if (!hold) throw new LockTimeout(`${key} was not granted within ${options.timeout} ms`, { cause: last.error });
    return hold;
  }

  /** The lock if it can be had within the timeout (none, or 0: at once), else null. */
  tryLock(key, options = {}) {
    return options.timeout ? this.#take(key, options, options.timeout, false) : this.#take(key, options, Infinity, true);
  }

  /** The value of work(hold), under the lock. Giving it back never hides an error of the work. */
  using(key, options, work) {
    return this.usingAll([key], options, (holds) => work(holds.get(key)));
  }

  /**
   * The value of work(a Map with a hold for each key). The locks may be of any slots: they are taken in one fixed
   * order under one owner, all within the timeout, and given back in reverse. The server sees no circle that goes over
   * several nodes: it is the order that prevents them, so take several locks of a cluster by this.
   */
  async usingAll(keys, options, work) {
    const end = now() + (options.timeout ?? Infinity);
    const sorted = [...new Set(keys)].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    const owner = options.owner ?? randomUUID();
    const holds = new Map();
    const giveBack = async () => {
      let failed;
      for (const hold of [...holds.values()].reverse()) await hold.release().catch((error) => { failed ??= error; });
      return failed;
    };
    let result;
    try {
      for (const key of sorted) {
        const timeout = options.timeout && Math.max(1, end - now());
        holds.set(key, await this.lock(key, { ...options, owner: sorted[1] ? owner : options.owner, timeout }));
      }
      result = await work(holds);
    } catch (error) {
      await giveBack();
      throw error;
    }
    const failed = await giveBack();
    if (failed) throw failed;
    return result;
  }

  /** Ends the connections. What is still held lives on until its lease. */
  async close() {
    this.#closed = true;
    for (const link of await Promise.allSettled(this.#links.values())) link.value?.close();
  }

  async #take(key, options, timeout, atOnce, last = {}) {
    const { signal } = options;
    signal?.throwIfAborted();
    const over = new AbortController();
    const end = () => over.abort();
    const timer = timeout < Infinity && setTimeout(end, Math.min(timeout, 2 ** 31 - 1));
    signal?.addEventListener('abort', end);
    try {
      const taking = this.#wait(new Request(this.#settings, key, options), over.signal, atOnce, last);
      const tooLate = new Promise((done) => { over.signal.addEventListener('abort', () => done(late())); });
      const hold = await Promise.race([taking, tooLate]);
      if (hold) return hold;
      // The server does not answer, and the caller need not wait until it has left.
      if (hold === undefined) {
        taking.catch(() => {});
        last.error ??= new Unreachable('the server has not answered');
      }
      signal?.throwIfAborted();
      return null;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
    }
  }

  /** A Hold, or null. Whatever ends it, it leaves nothing behind. */
  async #wait(request, over, atOnce, last) {
    const before = this.#leaving.get(request.id);
    if (before && atOnce) throw new Unreachable('an earlier request of this owner is still on its way out');
    await before;
    const mailbox = new Mailbox();
    const mailboxes = this.#waiting.get(request.id) ?? new Set();
    this.#waiting.set(request.id, mailboxes.add(mailbox));
    const began = now();
    let asked = false;
    try {
      while (!over.aborted) {
        try {
          if (!asked && request.named) {
            const held = await this.call(request.key, () => request.words('HELD'));
            if (held) request.within(held);
          }
          asked = true;
          const granted = await this.#ask(request, mailbox, over, atOnce);
          if (granted && !over.aborted) return new Hold(this, request, ...granted);
          if (atOnce) break;
        } catch (error) {
          if (error instanceof NotHeld && !request.before) continue; // we were slower than the first lease
          if (!passes(error) || (atOnce && now() > began + GRACE)) throw error;
          last.error = error;
          await pause();
        }
      }
      if (asked && (over.aborted || !atOnce)) await this.#leave(request);
      return null;
    } catch (error) {
      // Else the place is somebody else's. It goes on without the caller where nobody answers.
      if (asked && !(error instanceof Replaced)) await Promise.race([this.#leave(request), late()]);
      throw error;
    } finally {
      mailboxes.delete(mailbox);
      if (!mailboxes.size) this.#waiting.delete(request.id);
    }
  }

  /** Asks once, waits a while for the message, and confirms the grant: [token, when]. */
  async #ask(request, mailbox, over, atOnce) {
    const reply = await this.call(request.key, (channel) => request.ask(!atOnce && channel));
    let token = Number(reply?.[0] ?? 0);
    const until = now() + this.#settings.first / 2;
    while (reply && !token) {
      const news = await mailbox.take(until, over);
      if (!news) return null;
      if (news.wait !== Number(reply[2])) continue; // of an earlier asking of ours
      const code = news.word.toUpperCase();
      if (CODES[code]) throw new CODES[code](`${code} (told by a message)`);
      if (code === 'WRONGTYPE' || code === 'REFUSED') throw new DLockError(code);
      if (code !== 'GRANTED') return null; // moved, gone, cancelled
      token = news.token;
    }
    if (!token) return null;
    const confirmed = now();
    await this.call(request.key, () => request.renew(token));
    // An upgrade is a new grant: the outer hold has ended with its token, and all of this one is ours.
    if (token !== request.outer) request.before = 0;
    return [token, confirmed];
  }

  #leave(request) {
    const left = this.#withdraw(request).finally(() => {
      if (this.#leaving.get(request.id) === left) this.#leaving.delete(request.id);
    });
    this.#leaving.set(request.id, left);
    return left;
  }

  /** No place, and no hold beyond those of before. We have the answers to all that we have asked. */
  async #withdraw(request) {
    const say = async (...words) => {
      for (let tries = 0; tries < 3; tries++) {
        try {
          return await this.call(request.key, () => request.words(...words));
        } catch (error) {
          if (!passes(error)) return null;
          await pause();
        }
      }
    };
    await say('CANCEL');
    await say('RELEASE', 'HOLDS', request.before);
    // An upgrade that came first has ended the outer hold: nobody knows its token.
    const held = request.before && (await say('HELD'));
    if (held && Number(held[0]) !== request.outer) await say('RELEASE', 'TOKEN', held[0], 'HOLDS', 0);
  }

  /** The reply of whoever serves the key. What was not executed is sent on to where the server says. For Hold. */
  async call(key, words) {
    const slot = slotOf(key);
    for (let hops = 0; ; hops++) {
      const start = `#${this.#start % this.#clients.length}`;
      const name = this.#slots.get(slot) ?? start;
      let link;
      try {
        link = await this.#link(name);
        return await link.send(words(link.channel));
      } catch (error) {
        const [code, , to] = error.message.split(' ');
        if (code === 'MOVED' && hops < 5) {
          this.#slots.set(slot, to);
        } else if (code === 'ASK' && hops < 5) {
          const other = await this.#link(to);
          return (await Promise.all([other.send(['ASKING']), other.send(words(other.channel))]))[1];
        } else {
          if (passes(error)) {
            this.#slots.delete(slot);
            if (name === start) this.#start++;
          }
          if (['READONLY', 'MASTERDOWN'].includes(code)) link.close(); // whoever is the primary now: not this one
          throw error;
        }
      }
    }
  }

  #link(name) {
    if (this.#closed) throw new DLockError('these locks are closed');
    const known = this.#links.get(name);
    if (known) return known;
    const end = name.lastIndexOf(':');
    const [client, to] = name.startsWith('#') ? [this.#clients[name.slice(1)], {}]
      : [this.#clients[0], { host: name.slice(0, end), port: Number(name.slice(end + 1)) }];
    const link = open(client, to, (message) => this.#hear(message), () => {
      if (this.#links.get(name) === link) this.#links.delete(name);
      for (const mailbox of [...this.#waiting.values()].flatMap((set) => [...set])) mailbox.put(null);
    });
    this.#links.set(name, link);
    return link;
  }

  /** `word token keylen:key ownerlen:owner number` */
  #hear(message) {
    let rest = message.toString('latin1');
    const until = (end) => {
      const at = rest.indexOf(end);
      const word = rest.slice(0, at);
      rest = rest.slice(at + 1);
      return word;
    };
    const name = () => {
      const length = Number(until(':'));
      const word = rest.slice(0, length);
      rest = rest.slice(length + 1);
      return word;
    };
    const [word, token] = [until(' '), Number(until(' '))];
    const id = `${name()}\n${name()}`;
    for (const mailbox of this.#waiting.get(id) ?? []) mailbox.put({ word, token, wait: Number(rest) });
  }
}

/** A lock that is held. `token` is its fencing token; `signal`, an AbortSignal, tells of its loss (reason: NotHeld). */
export class Hold {
  #locks;
  #request;
  #lost = new AbortController();
  #until;
  #timer;
  #end;
  #trouble;

  constructor(locks, request, token, confirmed) {
    [this.#locks, this.#request] = [locks, request];
    Object.assign(this, { key: request.key, owner: request.owner, token, signal: this.#lost.signal });
    this.#confirmed(confirmed);
  }

  /** Runs a command in one step with the look whether the lock is still held under this token. */
  guard(...command) {
    return this.#locks.call(this.key, () => ['DLOCK.GUARD', this.key, this.token, ...command]);
  }

  /** Gives back what was granted here, and nothing else. NotHeld if it was lost. */
  async release() {
    this.#stop();
    const words = this.#request.words('RELEASE', 'TOKEN', this.token, 'HOLDS', this.#request.before);
    for (let unsure = false; ;) {
      try {
        await this.#locks.call(this.key, () => words);
        return;
      } catch (error) {
        if (error instanceof NotHeld && unsure) return; // an earlier one may have been heard
        if (!passes(error) || now() > this.#until) throw error;
        unsure ||= error instanceof Unreachable;
      }
      await pause();
    }
  }

  /** For `await using`. */
  [Symbol.asyncDispose ?? Symbol('asyncDispose')]() { return this.release(); }

  #confirmed(at) {
    const { lease } = this.#request.settings;
    this.#until = at + lease;
    clearTimeout(this.#end);
    clearImmediate(this.#end);
    this.#end = setTimeout(() => {
      // A reply that has come in time is read before the immediate.
      this.#end = setImmediate(() => this.#lose(new NotHeld('the lease has ended', { cause: this.#trouble })));
    }, this.#until - now()).unref();
    this.#again(at + lease / 3 - now());
  }

  #stop() {
    for (const timer of [this.#timer, this.#end]) clearTimeout(timer);
    clearImmediate(this.#end);
    this.#timer = null;
  }

  #lose(reason) {
    this.#stop();
    this.#lost.abort(reason);
  }

  #again(ms) {
    this.#timer = setTimeout(() => this.#keep(), Math.max(0, ms)).unref();
  }

  /** Says it again in time: so a new connection is tied to the hold after a loss, and the end is noticed. */
  async #keep() {
    const [at, timer] = [now(), this.#timer];
    let failed;
    await this.#locks.call(this.key, () => this.#request.renew(this.token)).catch((error) => { failed = error; });
    if (this.#timer !== timer) return; // it was given back or has ended meanwhile
    this.#trouble = failed;
    if (!failed) this.#confirmed(at);
    else if (failed instanceof NotHeld) this.#lose(failed);
    else this.#again(20 + 80 * Math.random());
  }
}

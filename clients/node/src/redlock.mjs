// SPDX-License-Identifier: MIT
/**
 * The names of node-redlock 5 on these locks: a program changes the line that imports it. The README says what differs.
 *
 *     import Redlock from 'dlock-redis/redlock';
 *     const redlock = new Redlock([client], { retryCount: 10 });
 *     await redlock.using(['stock'], 5000, async (signal) => { … });
 */
import { EventEmitter } from 'node:events';

import { DLockError, Fenced, NotHeld } from './errors.mjs';
import { Locks } from './locks.mjs';
import { Quorum } from './quorum.mjs';
import { checkWork, finished, milliseconds, text } from './settings.mjs';

const nothing = () => {};

/** The lock is taken. */
export class ResourceLockedError extends Error {
  get name() { return 'ResourceLockedError'; }
}

/** It could not be done. `attempts` is empty: there is one, and it waits in the queue. */
export class ExecutionError extends Error {
  constructor(message, attempts = [], options) {
    super(message, options);
    this.attempts = attempts;
  }

  get name() { return 'ExecutionError'; }
}

const DEFAULTS = { driftFactor: 0.01, retryCount: 10, retryDelay: 200, retryJitter: 100, automaticExtensionThreshold: 500 };

/** Until `expiration`, of Date.now(). */
export class Lock {
  constructor(redlock, resources, value, attempts, expiration, holds = []) {
    this.redlock = redlock;
    this.resources = resources;
    this.value = value;
    this.attempts = attempts;
    this.expiration = expiration;
    Object.defineProperty(this, 'holds', { value: holds });
  }

  release() { return this.redlock.release(this); }

  extend(duration) { return this.redlock.extend(this, duration); }
}

export default class Redlock extends EventEmitter {
  #one; // Locks on one server, or
  #many; // a quorum
  #timers = new Map(); // by the holds: where nobody extends them they end

  constructor(clients, settings = {}) {
    super();
    this.on('error', nothing); // or what is only told would end the program
    this.clients = new Set(clients);
    if (!this.clients.size) throw new Error('Redlock must be instantiated with at least one redis client.');
    this.settings = { ...DEFAULTS, ...settings };
    for (const [name, value] of Object.entries(this.settings)) {
      if (name in DEFAULTS && typeof value !== 'number') throw new TypeError(`${name} must be a number, not ${value}`);
    }
    if (this.clients.size === 1) this.#one = new Locks([...this.clients][0], { logger: { warn: nothing } });
    else this.#many = new Quorum(this.clients);
  }

  /** Also ends the clients. */
  async quit() {
    await this.#one?.close();
    await Promise.all([...this.clients].map((client) => client.quit?.())); // a function has none
  }

  async acquire(resources, duration, settings) {
    whole(duration);
    const { retryCount, retryDelay } = { ...this.settings, ...settings };
    const end = Date.now() + (retryCount === -1 ? Infinity : retryCount * retryDelay);
    const holds = [];
    try {
      for (const key of [...new Set(resources)].sort()) {
        const wait = Math.max(0, end - Date.now());
        text('resources', key);
        const hold = await (this.#one ? this.#one.tryLock(key, { wait, lease: Math.max(duration, 1_000) })
          : this.#many.acquire(key, { lease: duration, wait: Math.min(wait, 2 ** 31) }));
        if (!hold) throw new ResourceLockedError(`The resource '${key}' is locked.`);
        holds.push(hold);
      }
      // The first ones may have ended while the last one was waited for. With one client its session keeps them.
      for (const hold of this.#many && holds.length > 1 ? holds : []) {
        if (!(await hold.renew(duration))) throw new ResourceLockedError('A resource was lost while another one was waited for.');
      }
    } catch (error) {
      await Promise.allSettled(holds.map((hold) => hold.release()));
      throw this.#failed(error, 'The operation was unable to achieve a quorum during its retry window.');
    }
    const left = this.#one ? duration : Math.min(...holds.map((hold) => hold.left()));
    return this.#lock(resources, holds[0].owner, Date.now() + left - duration, duration, holds, settings);
  }

  async release(lock) {
    this.#disarm(lock);
    lock.expiration = 0;
    const ended = await Promise.allSettled([...lock.holds].reverse().map((hold) => hold.release()));
    const failed = ended.find(({ status }) => status === 'rejected');
    if (failed) throw this.#failed(failed.reason, 'The operation was unable to achieve a quorum during its retry window.');
    return { attempts: [] };
  }

  async extend(lock, duration, settings) {
    whole(duration);
    if (lock.expiration < Date.now()) throw new ExecutionError('Cannot extend an already-expired lock.');
    const start = Date.now();
    try {
      for (const hold of lock.holds) {
        if (this.#one) await hold.check();
        else if (!(await hold.renew(duration))) throw new NotHeld('NOTHELD at no majority of the masters');
      }
      if (!lock.holds.every((hold) => hold.left())) throw new NotHeld('NOTHELD it ended while it was extended');
    } catch (error) {
      throw this.#failed(error, 'The operation was unable to achieve a quorum during its retry window.');
    }
    this.#disarm(lock);
    lock.expiration = 0;
    return this.#lock(lock.resources, lock.value, start, duration, lock.holds, settings);
  }

  /** Extends the lock while the routine runs. Its signal is aborted, with `signal.error`, when that fails. */
  async using(resources, duration, settingsOrRoutine, routine = settingsOrRoutine) {
    whole(duration);
    const settings = typeof settingsOrRoutine === 'function' ? this.settings : { ...this.settings, ...settingsOrRoutine };
    if (typeof routine !== 'function') throw new Error('INVARIANT: routine is not a function.');
    checkWork(routine);
    if (settings.automaticExtensionThreshold > duration - 100) {
      throw new Error('A lock `duration` must be at least 100ms greater than the `automaticExtensionThreshold` setting.');
    }
    const controller = new AbortController();
    const { signal } = controller;
    const lose = (error) => {
      signal.error ??= error instanceof ExecutionError ? error : new ExecutionError(error.message, [], { cause: error });
      controller.abort(signal.error);
    };
    let [timer, extension] = [];
    let lock = await this.acquire(resources, duration, settings);
    for (const hold of lock.holds) hold.signal?.addEventListener('abort', () => lose(hold.signal.reason));
    const extend = async () => {
      try {
        lock = await lock.extend(duration);
        queue();
      } catch (error) {
        if (lock.expiration > Date.now() && !signal.aborted) queue(50);
        else lose(error);
      }
    };
    const queue = (after = lock.expiration - Date.now() - settings.automaticExtensionThreshold) => {
      timer = setTimeout(() => { extension = extend(); }, Math.max(0, after));
    };
    queue();
    const end = async () => {
      clearTimeout(timer);
      await extension;
      clearTimeout(timer);
      await lock.release();
    };
    let done;
    try {
      done = finished(await routine(signal));
    } catch (error) {
      await end().catch(nothing); // an error of the routine comes first
      throw error;
    }
    await end(); // the loss of the lock is an error, as in node-redlock
    return done;
  }

  /** It ends at its expiration, as if nobody had kept it. */
  #lock(resources, value, start, duration, holds, settings) {
    const drift = Math.round((settings?.driftFactor ?? this.settings.driftFactor) * duration) + 2;
    const lock = new Lock(this, [...resources], value, [], start + duration - drift, holds);
    const end = () => {
      this.#timers.delete(holds);
      for (const hold of holds) hold.release().catch(nothing);
    };
    const left = start + duration - Date.now();
    if (left < 2 ** 31) this.#timers.set(holds, setTimeout(end, left).unref());
    return lock;
  }

  #disarm({ holds }) {
    clearTimeout(this.#timers.get(holds));
    this.#timers.delete(holds);
  }

  #failed(error, message) {
    const lost = error instanceof NotHeld || error instanceof Fenced;
    const told = lost ? new ResourceLockedError(error.message, { cause: error }) : error;
    this.emit('error', told);
    return told instanceof ResourceLockedError || told instanceof DLockError ? new ExecutionError(message, [], { cause: told }) : told; // bad input
  }
}

export { Redlock };

function whole(duration) {
  if (Math.floor(duration) !== duration) throw new Error('Duration must be an integer value in milliseconds.');
  milliseconds('duration', duration, 1);
}

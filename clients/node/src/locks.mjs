// SPDX-License-Identifier: MIT
// The program's side.
import { LockTimeout } from './errors.mjs';
import { asyncDispose } from './hold.mjs';
import { usingAll } from './many.mjs';
import { Sessions } from './session.mjs';
import { Settings, checkWork, finished, text } from './settings.mjs';
import { Request } from './take.mjs';

/** The methods that take locks, by `take(keys, options, wait)`: it returns a hold for each key, or null. */
export class Takes {
  #take;
  #isCluster;

  constructor(take, isCluster = false) {
    this.#take = take;
    this.#isCluster = isCluster;
  }

  /** Waits for the lock, without `wait` for ever. Returns a Hold, or throws `LockTimeout`. */
  async lock(key, options = {}) { return must(await this.#take([key], options, Infinity), key, options)[0]; }

  /** Returns a Hold, or null if the lock is taken. Waits for `wait` milliseconds, if that is set. */
  async tryLock(key, options = {}) { return (await this.#take([key], options, 0))?.[0] ?? null; }

  /** Does the work under the lock, and releases it. Never hides an error of the work. */
  async using(key, options, work) {
    if (typeof options === 'function') return this.using(key, {}, options);
    checkWork(work);
    const holds = must(await this.#take([key], options, Infinity), key, options);
    return during(holds, ([hold]) => work(hold));
  }

  /** The same under many locks: all or none of a slot in one step, slots in one fixed order. The work has a Map of holds. */
  async usingAll(keys, options, work) {
    if (typeof options === 'function') return this.usingAll(keys, {}, options);
    checkWork(work);
    const take = async (group, left) => {
      const how = left === undefined ? options : { ...options, wait: left };
      return must(await this.#take(group, how, Infinity), group[0], options);
    };
    return usingAll(take, this.#isCluster, keys, options.wait ?? options.timeout, work, during);
  }
}

/** Locks by a client of ioredis or node-redis. Make one for a program. */
export class Locks extends Takes {
  #sessions;

  constructor(client, options = {}) {
    const sessions = new Sessions(client, new Settings(options));
    super((keys, how, wait) => {
      const request = new Request(sessions.settings, keys, how);
      return sessions.take(request, request.wait ?? wait);
    }, sessions.factory.isCluster);
    this.#sessions = sessions;
  }

  /** Returns the holder whose lease ends last (its owner, its token, the milliseconds that are left), or null. */
  async holder(key) {
    const held = await this.#sessions.call(text('key', key), ['DLOCK.HELD', key]);
    return held && { owner: held[3].toString(), token: held[0], left: held[2] };
  }

  /** Closes the client. Every hold is reported lost; on the server it lasts until its lease ends. */
  async close() { await this.#sessions.close(); }

  [asyncDispose]() { return this.close(); }
}

function must(holds, key, { wait, timeout = wait }) {
  if (!holds) throw new LockTimeout(`lock '${key}' was not granted within ${timeout} ms: it is taken`, { taken: true });
  return holds;
}

/** Does the work, and then releases the holds. An error of the work comes first. */
async function during(holds, work) {
  const end = () => Promise.allSettled([...holds].reverse().map((hold) => hold[asyncDispose]()));
  let done;
  try {
    done = finished(await work(holds));
  } catch (error) {
    await end();
    throw error;
  }
  for (const { reason } of await end()) if (reason) throw reason;
  return done;
}

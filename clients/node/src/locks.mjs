// SPDX-License-Identifier: MIT
import { now } from './clock.mjs';
import { Core } from './core.mjs';
import { DLockError, Fenced, LockTimeout, NotHeld } from './errors.mjs';
import { Source } from './library.mjs';
import { usingAll } from './many.mjs';
import { checkWork, finished } from './work.mjs';
import { Request, Settings, text } from './request.mjs';

export const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose'); // as compilers name it

const HOLD = Symbol('hold');

/** A lock that is held. */
export class Hold {
  #core;
  #request;
  #renewal;
  #since = now();
  #over = ''; // why it is no more
  #abort = null;
  #reason;

  /** `forgotten`: stands for one that the program has forgotten. */
  constructor(core, request, renewal, forgotten = false) {
    [this.#core, this.#request, this.#renewal] = [core, request, renewal];
    [this.key, this.owner, this.token] = [request.key, renewal.request.owner, renewal.token];
    if (!forgotten) core.adopt(renewal, this, Hold.#again(core, request, renewal));
  }

  static #again(core, request, renewal) { return () => new Hold(core, request, renewal, true); }

  /** True if it was lost before it was given back. */
  get lost() { return this.#reason !== undefined; }

  /** An AbortSignal: aborted with `NotHeld` when the lock is lost. */
  get signal() {
    if (!this.#abort) {
      this.#abort = new AbortController();
      this.#abort.signal[HOLD] = this; // while the signal is in use the hold is not forgotten
      if (this.lost) this.#abort.abort(this.#reason);
    }
    return this.#abort.signal;
  }

  /** For so many milliseconds it is ours for sure, if nothing is heard of the server any more. */
  left() { return this.#over ? 0 : Math.max(0, this.#renewal.end() - now()); }

  /**
   * Runs a command in one step with the look whether the lock is still held under this token, else `Fenced`. It is sent
   * once; if its reply is lost it may have run.
   */
  async guard(...command) {
    for (const [i, word] of command.entries()) {
      if (typeof word !== 'number') text(`command[${i}]`, word === '' ? '-' : word);
    }
    return this.#ask('GUARD', ...command);
  }

  /** Asks the server whether the lock is still held under this token, else `Fenced`. */
  async check() { await this.#ask('CHECK'); }

  async #ask(name, ...words) {
    this.#core.check();
    return this.#core.call({ key: this.key }, [`DLOCK.${name}`, this.key, this.token, ...words], (error) => {
      if (error instanceof Fenced) this.#core.lose(this.#renewal, 'the server has said so');
    });
  }

  /** Gives back what was granted here, and nothing else. `NotHeld` if it was lost. */
  async release() {
    this.#core.check();
    if (this.#over) throw new NotHeld(`NOTHELD lock '${this.key}' is over: ${this.#over}`);
    this.#over = 'it was given back';
    await this.#core.release(this.#renewal, this);
    this.#core.tell('released', this.key, now() - this.#since);
  }

  [asyncDispose]() { return this.release(); }

  /** For the keeper. */
  reportLost(reason) {
    if (this.#over) return;
    this.#over = reason;
    this.#reason = new NotHeld(`NOTHELD lock '${this.key}' is lost: ${reason}`);
    const { settings, closed } = this.#core;
    if (closed) settings.debug(this.#reason.message);
    else settings.logger.warn(`lock '${this.key}' of '${this.owner}' is lost: ${reason}`);
    this.#core.tell('lost', this.key, reason);
    const { onLost } = this.#request;
    // What belongs to the program holds up nothing of ours.
    setImmediate(async () => {
      this.#abort?.abort(this.#reason);
      try {
        await onLost?.(this);
      } catch (error) {
        settings.logger.warn(`onLost has failed: ${error}`);
      }
    });
  }
}

/** Locks by a client of ioredis or node-redis. Make one for a program. */
export class Locks {
  #core;

  constructor(client, options = {}) {
    const settings = new Settings(options);
    this.#core = new Core(new Source(client, settings.replyTimeout), settings);
  }

  /** Waits for the lock: a Hold, or `LockTimeout`. Without a time-out it waits for ever. */
  async lock(key, options = {}) {
    const request = new Request(this.#core.settings, key, options, this.#core.suffix);
    return must(await this.#take(request, request.timeout ?? Infinity), request);
  }

  /** A Hold, or null if it is taken. With a time-out it waits so long. */
  async tryLock(key, options = {}) {
    const request = new Request(this.#core.settings, key, options, this.#core.suffix);
    return this.#take(request, request.timeout ?? 0);
  }

  /** Does the work under the lock, and gives it back. Never hides an error of the work. */
  async using(key, options, work) {
    if (typeof options === 'function') [options, work] = [{}, options];
    checkWork(work);
    return during(await this.lock(key, options), work);
  }

  /** The same under locks of any slots, taken in one fixed order under one owner: the work has a Map of their holds. */
  async usingAll(keys, options, work) { return usingAll(this, keys, options, work); }

  /** Who holds it, under which token, and for how many milliseconds yet: the last of them to end; null: nobody. */
  async holder(key) {
    const held = await this.#core.call({ key: text('key', key) }, ['DLOCK.HELD', key]);
    return held && { owner: held[3], token: Number(held[0]), left: Number(held[2]) };
  }

  /** Ends it: every call from now on is an error. What is still held is told lost, and lives on until its lease. */
  async close() { if (!this.#core.closed) this.#core.end(); }

  [asyncDispose]() { return this.close(); }

  async #take(request, timeout) {
    this.#core.check();
    return this.#core.take(request, timeout, (renewal) => new Hold(this.#core, request, renewal));
  }
}

function must(hold, { key, timeout }) {
  if (!hold) throw new LockTimeout(`lock '${key}' was not granted within ${timeout} ms: it is taken`);
  return hold;
}

/** The work, and then the hold is given back: an error of the work comes first. */
export async function during(hold, work) {
  let done;
  try {
    done = finished(await work(hold));
  } catch (error) {
    await hold.release().catch((why) => { if (!(why instanceof DLockError)) throw why; });
    throw error;
  }
  await hold.release();
  return done;
}

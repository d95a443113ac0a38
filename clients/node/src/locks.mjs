// SPDX-License-Identifier: MIT
// The program's side: locks, and who carries what sessions and takes have to say.
import { at, now, onAbort, pause } from './clock.mjs';
import { LockTimeout, NotHeld } from './errors.mjs';
import { Hold, asyncDispose } from './hold.mjs';
import { Template, Wire } from './library.mjs';
import { usingAll } from './many.mjs';
import { Sessions } from './session.mjs';
import { Settings, checkWork, finished, text } from './settings.mjs';
import { GRACE, Request, Take } from './take.mjs';

const LAST = 1_000; // so long a close waits for what is yet to be said
const nothing = () => {};

/** Sessions on two clients: a loop's SESSION blocks, and holds up all that is behind it. */
class Driver extends Sessions {
  #commands;
  #loops;
  #errands = new Set();

  constructor(client, settings) {
    super(settings);
    this.template = new Template(client, settings.replyTimeout);
    [this.#commands, this.#loops] = [new Wire(this.template), new Wire(this.template)];
  }

  async call(key, words) {
    this.check();
    return this.#commands.call(key, words);
  }

  async #run(job, call) {
    for (let step; (step = job.next()) !== null;) {
      if (typeof step === 'number') {
        await job.bell.sleep(step);
        continue;
      }
      const sent = now();
      let [reply, failure] = [null, null];
      try {
        reply = await call(job.key, step);
      } catch (error) {
        failure = error;
      }
      job.answered(sent, failure, reply);
    }
  }

  start(loop) {
    const bound = 1.5 * this.settings.replyTimeout; // it blocks for half of that
    this.#run(loop, (key, words) => this.#loops.call(key, words, bound)).then(() => this.tidy(loop.session));
  }

  /** Returns the holds, or null if it is taken. */
  async take(request, wait) {
    this.check();
    const { signal, keys: [key] } = request;
    signal?.throwIfAborted();
    const take = new Take(this, request, wait);
    const stopSignal = signal ? onAbort(signal, () => take.leave(signal.reason)) : nothing;
    const stopTimer = at(take.deadline + GRACE, () => take.overdue());
    this.#run(take, (_, words) => this.#commands.call(key, words));
    await take.over;
    stopSignal();
    stopTimer();
    const [took, { holds, isTaken, error }] = [now() - take.began, take];
    if (holds.length) {
      this.settings.tell('granted', key, took);
      return holds.map((held) => {
        const hold = new Hold(this, held);
        held.handle = new WeakRef(hold);
        if (held.isLost) hold.abort();
        return hold;
      });
    }
    this.settings.tell('refused', key, took, isTaken ? null : error);
    if (isTaken) return null;
    throw error;
  }

  async #say(errand) {
    const sent = now();
    try {
      errand.answered(sent, null, await this.#commands.call(errand.key, errand.words));
    } catch (error) {
      errand.answered(sent, error, null);
    }
  }

  /** Says it until it is answered; after the time for a reply in the background. */
  async carry(errand) {
    const until = now() + this.settings.replyTimeout;
    for (;;) {
      await this.#say(errand);
      if (errand.done || now() >= until) break;
      await pause(20);
    }
    if (!errand.done) this.errand(errand);
    if (errand.error && !(errand.error instanceof NotHeld && errand.tries > 1)) throw errand.error;
  }

  /** Says it until it is answered, while that means something. */
  errand(errand) {
    const done = (async () => {
      while (!errand.done && !this.closed && errand.isNeeded()) {
        await this.#say(errand);
        if (!errand.done) await pause(100 + this.#errands.size / 10); // ten thousand a second are enough
      }
    })().finally(() => this.#errands.delete(done));
    this.#errands.add(done);
  }

  /** Tells the program where it holds up nothing of ours. */
  later(held) {
    setImmediate(async () => {
      const hold = held.handle?.deref() ?? new Hold(this, held); // one that stands for what was forgotten
      hold.abort();
      try {
        await held.onLost?.(hold);
      } catch (error) {
        this.settings.logger.warn(`onLost has failed: ${error}`);
      }
    });
  }

  async close() {
    if (this.closed) return;
    this.end();
    if (this.#errands.size) await Promise.race([Promise.allSettled(this.#errands), pause(LAST)]);
    for (const wire of [this.#commands, this.#loops]) wire.close();
  }
}

/** Locks by a client of ioredis or node-redis. Make one for a program. */
export class Locks {
  #driver;

  constructor(client, options = {}) { this.#driver = new Driver(client, new Settings(options)); }

  /** Waits for the lock: a Hold, or `LockTimeout`. Without `wait` it waits for ever. */
  async lock(key, options = {}) { return must(await this.#take([key], options, Infinity), key, options)[0]; }

  /** A Hold, or null if it is taken. With `wait` it waits so long. */
  async tryLock(key, options = {}) { return (await this.#take([key], options, 0))?.[0] ?? null; }

  /** Does the work under the lock, and gives it back. Never hides an error of the work. */
  async using(key, options, work) {
    if (typeof options === 'function') [options, work] = [{}, options];
    checkWork(work);
    return during(await this.#take([key], options, Infinity).then((holds) => must(holds, key, options)), ([hold]) => work(hold));
  }

  /** The same under many locks: all or none of a slot in one step, slots in one fixed order. The work has a Map of holds. */
  async usingAll(keys, options, work) {
    if (typeof options === 'function') [options, work] = [{}, options];
    checkWork(work);
    const wait = options.wait ?? options.timeout;
    const take = async (group, left) => {
      const how = left === undefined ? options : { ...options, wait: left };
      return must(await this.#take(group, how, Infinity), group[0], options);
    };
    return usingAll(take, this.#driver.template.isCluster, keys, wait, work, during);
  }

  /** Who holds it, under which token, and for how many milliseconds yet: the last of them to end; null: nobody. */
  async holder(key) {
    const held = await this.#driver.call(text('key', key), ['DLOCK.HELD', key]);
    return held && { owner: held[3].toString(), token: held[0], left: held[2] };
  }

  /** Ends it: every call from now on is an error. What is still held is reported lost, and lives on until its lease. */
  async close() { await this.#driver.close(); }

  [asyncDispose]() { return this.close(); }

  async #take(keys, options, wait) {
    const request = new Request(this.#driver.settings, keys, options);
    return this.#driver.take(request, request.wait ?? wait);
  }
}

function must(holds, key, { wait, timeout = wait }) {
  if (!holds) throw new LockTimeout(`lock '${key}' was not granted within ${timeout} ms: it is taken`, { taken: true });
  return holds;
}

/** The work, and then the holds are given back: an error of the work comes first. */
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

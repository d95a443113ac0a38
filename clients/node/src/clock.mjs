// SPDX-License-Identifier: MIT
// Times: a clock that counts what leases count, what sleeps until then, and the earliest moment at which something is due.
import { uptime } from 'node:os';

export const SLICE = 1_000; // so long one sleeps at most: timers stand still while the machine is suspended

const sinceBoot = () => uptime() * 1000 - performance.now();
const ROUNDING = 50; // the machine's own clock has hundredths of a second

const boot = sinceBoot();
let [skew, asleep] = [Date.now() - performance.now(), 0];

/**
 * Returns milliseconds, of a clock that goes on while the machine is suspended: Node's own stands still then. Where the wall
 * clock runs away from that one, the machine was suspended or the wall clock was set; the time since its start decides.
 */
export function now() {
  const awake = performance.now();
  const difference = Date.now() - awake;
  if (Math.abs(difference - skew) > ROUNDING) {
    skew = difference;
    const slept = sinceBoot() - boot;
    if (slept > asleep + ROUNDING) asleep = slept;
  }
  return awake + asleep;
}

/**
 * Starts a timer, and returns a function that ends it. After a stall of this process timers ring before what has come
 * meanwhile is read: the work is done after that. It keeps no process alive.
 */
export function after(delay, work) {
  let immediate;
  const timer = setTimeout(() => { immediate = setImmediate(work); }, Math.min(Math.max(0, delay), 2 ** 31 - 1));
  timer.unref();
  return () => {
    clearTimeout(timer);
    clearImmediate(immediate);
  };
}

/** Sleeps. */
export const pause = (delay) => new Promise((done) => { setTimeout(done, Math.max(0, delay)); });

/** Wakes a sleeper, at once or when it lies down. */
export class Bell {
  #rung = false;
  #wake = null;

  ring() {
    this.#rung = true;
    this.#wake?.();
  }

  async sleep(delay) {
    if (!this.#rung) {
      await new Promise((done) => {
        const timer = setTimeout(done, Math.max(0, delay));
        this.#wake = () => {
          clearTimeout(timer);
          done();
        };
      });
    }
    [this.#rung, this.#wake] = [false, null];
  }
}

/** Calls `tick` when the earliest alarm is due. It waits for no server. */
export class Clock {
  alarm = Infinity;
  #disarm = null;
  #tick;

  constructor(tick) { this.#tick = tick; }

  /** Sets the alarm, if nothing is due before. */
  set(due) { if (due < this.alarm) this.reset(due); }

  reset(due) {
    this.#disarm?.();
    this.alarm = due;
    if (due === Infinity) return;
    this.#disarm = after(Math.min(due - now(), SLICE), () => (this.alarm <= now() ? this.#tick() : this.reset(this.alarm)));
  }
}

const waiting = new WeakMap(); // by signal, all that is to be done when it is aborted: with ten listeners Node warns of a leak

/** Does the work when the signal is aborted. Returns a function that ends that. */
export function onAbort(signal, work) {
  let works = waiting.get(signal);
  if (!works) {
    works = new Set();
    waiting.set(signal, works);
    works.ring = () => { for (const one of [...works]) one(); };
    signal.addEventListener('abort', works.ring);
  }
  works.add(work);
  return () => {
    works.delete(work);
    if (works.size) return;
    signal.removeEventListener('abort', works.ring);
    waiting.delete(signal);
  };
}

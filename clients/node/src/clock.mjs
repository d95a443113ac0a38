// SPDX-License-Identifier: MIT
// Times: a clock that counts what leases count, what sleeps until then, and the earliest moment at which something is due.
import { uptime } from 'node:os';

import { Unreachable } from './errors.mjs';

export const SLICE = 1_000; // the longest sleep: timers stand still while the machine is suspended

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
 * Does the work at that time. Returns a function that cancels it. After a stall of this process timers ring before what has
 * arrived meanwhile is read: the work is done after that. It keeps no process alive.
 */
export function at(due, work) {
  let timer;
  const sleep = () => {
    const left = due - now();
    if (left > 0) timer = setTimeout(sleep, Math.min(left, SLICE)).unref();
    else timer = setImmediate(work);
  };
  if (due < Infinity) sleep();
  return () => {
    clearTimeout(timer);
    clearImmediate(timer);
  };
}

/** Returns what the work returns, if that takes no longer than `bound`. */
export function inTime(bound, work, what) {
  return new Promise((resolve, reject) => {
    const stop = at(now() + bound, () => reject(new Unreachable(what)));
    work().then(resolve, reject).finally(stop);
  });
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
    this.#disarm = at(due, this.#tick);
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

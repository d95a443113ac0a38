// SPDX-License-Identifier: MIT
// Times: a clock that counts what leases count, timers by it, and the earliest moment at which something is due.
import { uptime } from 'node:os';

const SLICE_MS = 1_000; // the longest sleep: timers stop while the machine is suspended
const STALL_MS = 500; // an alarm that is this late: this process stalled
const ROUNDING_MS = 50; // the time since the machine's start has hundredths of a second

const sinceBoot = () => uptime() * 1000 - performance.now();

const boot = sinceBoot();
let skew = Date.now() - performance.now();
let asleep = 0;

/**
 * Returns milliseconds of a clock that counts while the machine is suspended, as Node's own does not. Where the wall clock runs
 * away from that one, the machine was suspended or the wall clock was set; the time since its start decides.
 */
export function now() {
  const awake = performance.now();
  const difference = Date.now() - awake;
  if (Math.abs(difference - skew) > ROUNDING_MS) {
    skew = difference;
    const slept = sinceBoot() - boot;
    if (slept > asleep + ROUNDING_MS) asleep = slept;
  }
  return awake + asleep;
}

export const pause = (delay) => new Promise((done) => { setTimeout(done, Math.max(0, delay)); });

/**
 * Does the work at that time. Returns a function that cancels it. After a stall of this process timers ring before what has
 * arrived meanwhile is read: the work is done after that. It keeps no process alive.
 */
export function at(due, work) {
  let timer;
  const sleep = () => {
    const left = due - now();
    if (left > 0) timer = setTimeout(sleep, Math.min(left, SLICE_MS)).unref();
    else timer = setImmediate(work);
  };
  if (due < Infinity) sleep();
  return () => {
    clearTimeout(timer);
    clearImmediate(timer);
  };
}

/**
 * Returns what the work returns, if that takes no longer than `timeout`. Otherwise throws what `late` returns, and the work
 * continues.
 */
export function inTime(timeout, work, late) {
  return new Promise((resolve, reject) => {
    const stop = at(now() + timeout, () => reject(late()));
    work().then(resolve, reject).finally(stop);
  });
}

/** Calls `tick` when the earliest alarm is due. It waits for no server. */
export class Clock {
  #due = Infinity;
  #stop = () => {};
  #tick;

  /** Calls `tick` when the alarm is due, and passes whether that is late. */
  constructor(tick) { this.#tick = tick; }

  /** Sets the alarm, if nothing is due earlier. */
  set(due) { if (due < this.#due) this.reset(due); }

  reset(due) {
    this.#stop();
    this.#due = due;
    this.#stop = at(due, () => this.#tick(now() - due > STALL_MS));
  }
}

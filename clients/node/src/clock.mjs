// SPDX-License-Identifier: MIT
import { uptime } from 'node:os';

const sinceBoot = () => uptime() * 1000 - performance.now();
const ROUNDING = 50; // the machine's own clock has hundredths of a second

const boot = sinceBoot();
let [skew, asleep] = [Date.now() - performance.now(), 0];

/**
 * Milliseconds, of a clock that goes on while the machine is suspended: Node's own stands still then. Where the wall
 * clock runs away from that one, the machine was suspended or the wall clock was set; the time since its start tells.
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
 * A timer, and a function that ends it. After a stall of this process timers ring before what has come meanwhile is read:
 * the work is done after that. It keeps no process alive.
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

const waiting = new WeakMap(); // by signal, all that is to be done when it is aborted: with ten listeners Node warns of a leak

/** Does the work when the signal is aborted; a function that ends that. */
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

// SPDX-License-Identifier: MIT
// Locks of any slots in one fixed order, by bytes: no server sees a circle that goes over several, and the order prevents it.
import { randomUUID } from 'node:crypto';

import { now } from './clock.mjs';
import { text } from './request.mjs';
import { checkWork } from './work.mjs';

/** Does the work with a Map of holds, one for each key, under one owner. They are given back in reverse. */
export async function usingAll(locks, keys, options, work) {
  if (typeof options === 'function') [options, work] = [{}, options];
  checkWork(work);
  const named = new Map([...keys].map((key) => [Buffer.from(text('keys', key)).toString('latin1'), key]));
  const inOrder = [...named.keys()].sort().map((name) => named.get(name));
  const mine = { ...options, owner: options.owner ?? randomUUID() };
  const end = now() + (options.timeout ?? Infinity);
  const holds = new Map();
  const next = (i) => {
    if (i === inOrder.length) return work(holds);
    const left = end === Infinity ? options.timeout : Math.max(1, end - now());
    return locks.using(inOrder[i], { ...mine, timeout: left }, (hold) => {
      holds.set(inOrder[i], hold);
      return next(i + 1);
    });
  };
  return next(0);
}

// SPDX-License-Identifier: MIT
// Work that is done under a lock, and is done when its function has returned: not that of a generator.
import { types } from 'node:util';

/** An error for what is no such function. */
export function checkWork(work) {
  if (typeof work !== 'function') throw new TypeError(`work must be a function, not ${work}`);
  if (types.isGeneratorFunction(work)) throw new TypeError('work must not be a generator: it would run when the lock is given back');
}

/** What the work has returned, if it is done. */
export function finished(value) {
  if (types.isGeneratorObject(value)) throw new TypeError('work must not return a generator: it would run when the lock is given back');
  return value;
}

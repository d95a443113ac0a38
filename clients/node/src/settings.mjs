// SPDX-License-Identifier: MIT
// What a program may set and ask for, checked. A bad argument is an error that names it.
import { debuglog, inspect, types } from 'node:util';

export const shown = (value) => inspect(value, { depth: 0, breakLength: Infinity });
const LONGEST = 3e12; // milliseconds: the server's own limit is a little more

/** Returns the argument if it is a time; the longest one is as good as infinite. */
export function milliseconds(name, value, least = 0) {
  if (typeof value === 'number' && value >= least) return value > LONGEST ? Infinity : value; // NaN is not
  throw new (typeof value === 'number' ? RangeError : TypeError)(`${name} must be milliseconds, ${least} or more, not ${shown(value)}`);
}

/** Returns the argument if it is a time that ends. */
export function duration(name, value) {
  if (milliseconds(name, value, 1) === Infinity) throw new RangeError(`${name} must be less than 95 years, not ${shown(value)}`);
  return Math.ceil(value);
}

export const isName = (value) => typeof value === 'string' || Buffer.isBuffer(value);

/** Returns the argument if it is a name that is not empty. */
export function text(name, value) {
  if (!isName(value)) throw new TypeError(`${name} must be a string or a Buffer, not ${shown(value)}`);
  if (!value.length) throw new RangeError(`${name} must not be empty`);
  return value;
}

/** Returns the options if they are some of these. Names of earlier versions work for one version, with a warning. */
export function known(options, names, what, renamed = {}) {
  if (options === null || typeof options !== 'object') throw new TypeError(`options must be an object, not ${shown(options)}`);
  let given = options;
  for (const name in options) {
    if (names.includes(name)) continue;
    if (!(name in renamed)) throw new TypeError(`${name} is no option of ${what}`);
    const to = renamed[name];
    process.emitWarning(names.includes(to) ? `${name} is called ${to} now` : `${name} is ${to} now`, 'DeprecationWarning');
    given = { ...given };
    if (names.includes(to)) given[to] ??= options[name];
    delete given[name];
  }
  return given;
}

/** Throws an error for what is no function whose work is done when it has returned. */
export function checkWork(work) {
  if (typeof work !== 'function') throw new TypeError(`work must be a function, not ${shown(work)}`);
  if (types.isGeneratorFunction(work)) throw new TypeError('work must not be a generator: the lock would be given back before the work');
}

/** Returns what the work has returned, if it is done. */
export function finished(value) {
  if (types.isGeneratorObject(value)) throw new TypeError('work must not return a generator: the lock would be given back before the work');
  return value;
}

const debug = debuglog('dlock');
const LOGGER = {
  debug: (message) => debug('%s', message),
  warn: (message) => process.emitWarning(message, 'DLockWarning'),
};
const SETTINGS = ['lease', 'hangTimeout', 'replyTimeout', 'clockMargin', 'observer', 'logger'];

/** The settings of `Locks`. */
export class Settings {
  constructor(options) {
    const { lease = 10_000, hangTimeout = 30_000, replyTimeout = 3_000, clockMargin = 100, observer = {}, logger = LOGGER } =
      known(options, SETTINGS, 'Locks', { queueGrace: "the server's dlock.claim-window-ms" });
    this.observer = observer;
    this.logger = logger;
    this.lease = duration('lease', lease);
    this.replyTimeout = duration('replyTimeout', replyTimeout);
    this.hangTimeout = duration('hangTimeout', hangTimeout);
    this.clockMargin = milliseconds('clockMargin', clockMargin);
    if (this.clockMargin >= this.lease) {
      throw new RangeError(`clockMargin must be shorter than the lease, which is ${this.lease}, not ${shown(clockMargin)}`);
    }
    if (typeof logger?.warn !== 'function') throw new TypeError(`logger must have a function warn, not ${shown(logger)}`);
  }

  debug(message) { this.#try(() => this.logger.debug?.(message)); }

  warn(message) { this.#try(() => this.logger.warn(message)); }

  /** Calls the observer. */
  tell(what, ...about) { this.#try(() => this.observer[what]?.(...about)); }

  /** A logger or an observer of the program may fail, and nothing else does. */
  #try(work) {
    try {
      work();
    } catch (error) {
      process.emitWarning(`the logger or the observer has failed: ${error}`, 'DLockWarning');
    }
  }
}

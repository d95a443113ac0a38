// SPDX-License-Identifier: MIT
// What is asked for, as words of commands; and what a program may ask for.
import { randomUUID } from 'node:crypto';
import { debuglog, inspect } from 'node:util';

const shown = (value) => inspect(value, { depth: 0, breakLength: Infinity });

/** The argument, if it is a time. */
export function milliseconds(name, value, least = 0) {
  if (typeof value === 'number' && value >= least) return value; // NaN is not
  throw new (typeof value === 'number' ? RangeError : TypeError)(`${name} must be milliseconds, ${least} or more, not ${shown(value)}`);
}

/** The argument, if it is a name. */
export function text(name, value) {
  if (typeof value !== 'string' && !Buffer.isBuffer(value)) throw new TypeError(`${name} must be a string or a Buffer, not ${shown(value)}`);
  if (!value.length) throw new RangeError(`${name} must not be empty`);
  return value;
}

/** The options, if they are some of these. */
export function known(options, names, what) {
  if (options === null || typeof options !== 'object') throw new TypeError(`options must be an object, not ${shown(options)}`);
  for (const name in options) if (!names.includes(name)) throw new TypeError(`${name} is no option of ${what}`);
  return options;
}

const debug = debuglog('dlock');
const LOGGER = {
  debug: (message) => debug('%s', message),
  warn: (message) => process.emitWarning(message, 'DLockWarning'),
};
const SETTINGS = ['lease', 'auto', 'claim', 'bound', 'allowance', 'observer', 'logger'];

/** See `Locks`. */
export class Settings {
  constructor(options) {
    const { lease = 10_000, auto = 60_000, claim = 5_000, bound = 3_000, allowance = 100, observer = {}, logger = LOGGER }
      = known(options, SETTINGS, 'Locks');
    for (const [name, value] of Object.entries({ lease, auto, claim, bound })) {
      milliseconds(name, value, 1);
      if (value >= 2 ** 31) throw new RangeError(`${name} must be less than 2^31 milliseconds, not ${shown(value)}`);
    }
    milliseconds('allowance', allowance);
    if (typeof logger?.warn !== 'function') throw new TypeError(`logger must have a function warn, not ${shown(logger)}`);
    Object.assign(this, { bound, allowance, observer, logger, lease: Math.ceil(lease), claim: Math.ceil(claim) });
    this.auto = Math.max(Math.ceil(auto), this.lease);
    this.first = Math.min(this.lease, 3_000); // the lease until whoever has waited has confirmed the grant
    this.interval = Math.min(1_000, lease / 3);
  }

  /** The same for one lock. AUTO's leases are a second at least. */
  withLease(lease) {
    this.interval = Math.min(this.interval, Math.max(lease, 1_000) / 3);
    return Object.assign(Object.create(this), { lease: Math.ceil(lease), first: Math.min(Math.ceil(lease), 3_000), auto: Math.max(this.auto, Math.ceil(lease)) });
  }

  debug(message) { this.logger.debug?.(message); }
}

const OPTIONS = ['timeout', 'lease', 'signal', 'owner', 'shared', 'limit', 'session', 'onLost'];

/** One owner's wish for one lock. */
export class Request {
  looked = true; // whether we know what its owner held before
  outer = 0; // the token and the count of that
  before = 0;
  asked = false;
  ended = false; // nobody waits for it any more
  node = null; // that was asked last
  asking = false; // behind ASKING, since its slot is on the way there
  tie = null;

  constructor(settings, key, options) {
    const { timeout, lease, signal, owner, shared = false, limit, session = false, onLost } = known(options, OPTIONS, 'a lock');
    text('key', key);
    if (timeout != null) milliseconds('timeout', timeout);
    if (lease != null) settings = settings.withLease(milliseconds('lease', lease, 1));
    if (signal != null && !(signal instanceof AbortSignal)) throw new TypeError(`signal must be an AbortSignal, not ${shown(signal)}`);
    if (owner != null) text('owner', owner);
    if (typeof shared !== 'boolean') throw new TypeError(`shared must be true or false, not ${shown(shared)}`);
    if (typeof session !== 'boolean') throw new TypeError(`session must be true or false, not ${shown(session)}`);
    if (limit != null && (!Number.isSafeInteger(limit) || limit < 1 || shared)) {
      throw new RangeError(`limit must be a whole number of 1 or more, and not beside shared, not ${shown(limit)}`);
    }
    if (onLost != null && typeof onLost !== 'function') throw new TypeError(`onLost must be a function, not ${shown(onLost)}`);
    [this.settings, this.key, this.timeout, this.signal, this.onLost] = [settings, key, timeout, signal, onLost];
    [this.owner, this.looked] = [owner ?? randomUUID(), owner == null];
    this.limit = shared ? ['SHARED'] : limit ? ['LIMIT', limit] : [];
    this.session = session ? ['SESSION'] : [];
  }

  get id() { return [this.key, this.owner].map((name) => Buffer.from(name).toString('latin1')).join('\n'); }

  /** What the owner held before is not ours to give back. */
  within(held) {
    this.looked = true;
    if (held) [this.outer, this.before] = [Number(held[0]), Number(held[1])];
  }

  words(name, ...rest) { return [`DLOCK.${name}`, this.key, this.owner, ...rest]; }

  take(atOnce) {
    const { lease, auto, claim } = this.settings;
    const words = [lease, ...this.session, 'AUTO', auto, 'HOLDS', this.before + 1, ...this.limit];
    return atOnce ? this.words('ACQUIRE', ...words) : this.words('FAIRACQUIRE', ...words, 'CLAIM', claim);
  }

  wait(...how) {
    const { first, claim } = this.settings;
    return this.words('FAIRACQUIRE', first, ...how, 'CLAIM', claim, 'HOLDS', this.before + 1, ...this.limit);
  }

  renew(token) {
    const { lease, auto } = this.settings;
    return this.words('RENEW', lease, 'TOKEN', token, ...this.session, 'AUTO', auto);
  }

  release(...token) { return this.words('RELEASE', 'HOLDS', this.before, ...token); }
}

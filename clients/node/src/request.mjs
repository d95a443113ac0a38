// SPDX-License-Identifier: MIT
// What is asked for, as words of commands; and what a program may ask for.
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
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
const RENAMED = { auto: 'hangTimeout', claim: 'queueGrace', bound: 'replyTimeout', allowance: 'clockMargin' };
const SETTINGS = ['lease', ...Object.values(RENAMED), ...Object.keys(RENAMED), 'observer', 'logger'];

/** The names that settings had before work for one version, with a warning. */
export function renamed(options) {
  const given = { ...options };
  for (const [old, name] of Object.entries(RENAMED)) {
    if (given[old] === undefined) continue;
    if (given[name] !== undefined) throw new TypeError(`${old} is the old name of ${name}: give one of them`);
    process.emitWarning(`the setting ${old} is called ${name} now`, 'DeprecationWarning');
    given[name] = given[old];
  }
  return given;
}

/** See `Locks`. */
export class Settings {
  constructor(options) {
    const {
      lease = 10_000, hangTimeout = 60_000, queueGrace = 5_000, replyTimeout = 3_000, clockMargin = 100, observer = {}, logger = LOGGER,
    } = renamed(known(options, SETTINGS, 'Locks'));
    for (const [name, value] of Object.entries({ lease, hangTimeout, queueGrace, replyTimeout })) {
      milliseconds(name, value, 1);
      if (value >= 2 ** 31) throw new RangeError(`${name} must be less than 2^31 milliseconds, not ${shown(value)}`);
    }
    milliseconds('clockMargin', clockMargin);
    if (typeof logger?.warn !== 'function') throw new TypeError(`logger must have a function warn, not ${shown(logger)}`);
    Object.assign(this, { replyTimeout, clockMargin, observer, logger, lease: Math.ceil(lease), queueGrace: Math.ceil(queueGrace) });
    this.hangTimeout = Math.max(Math.ceil(hangTimeout), this.lease);
    this.first = Math.min(this.lease, 3_000); // the lease until a caller that has waited has confirmed the grant
    this.interval = Math.min(1_000, lease / 3);
  }

  /** The same for one lock. AUTO's leases are a second at least. */
  withLease(lease) {
    this.interval = Math.min(this.interval, Math.max(lease, 1_000) / 3);
    return Object.assign(Object.create(this), { lease: Math.ceil(lease), first: Math.min(Math.ceil(lease), 3_000), hangTimeout: Math.max(this.hangTimeout, Math.ceil(lease)) });
  }

  debug(message) { this.logger.debug?.(message); }
}

const OPTIONS = ['timeout', 'lease', 'signal', 'owner', 'shared', 'limit', 'permits', 'ephemeral', 'onLost'];

/** What the names of all owners of this process begin with. */
export const PROCESS = `${hostname().replaceAll('/', '-')}/${process.pid}/`;

/** The option by which an election names an owner that nobody else is. */
export const PARTY = Symbol('party');

export const joined = (...names) => (names.some(Buffer.isBuffer) ? Buffer.concat(names.map((name) => Buffer.from(name))) : names.join(''));
const bytes = (name) => Buffer.from(name).toString('latin1');

/** One owner's request for one lock. */
export class Request {
  asked = false;
  ended = false; // nobody waits for it any more
  node = null; // that was asked last
  link = null; // and on which link
  renewal = null;
  #name; // its owner's, as the program has it
  name = null; // what its owner is found by, if the program has named it: it may re-enter

  constructor(settings, key, options, suffix = '') {
    const { timeout, lease, signal, owner, shared = false, limit, permits, ephemeral = false, onLost } = known(options, OPTIONS, 'a lock');
    text('key', key);
    if (timeout != null) milliseconds('timeout', timeout);
    if (lease != null) settings = settings.withLease(milliseconds('lease', lease, 1));
    if (signal != null && !(signal instanceof AbortSignal)) throw new TypeError(`signal must be an AbortSignal, not ${shown(signal)}`);
    if (owner != null) text('owner', owner);
    if (typeof shared !== 'boolean') throw new TypeError(`shared must be true or false, not ${shown(shared)}`);
    if (typeof ephemeral !== 'boolean') throw new TypeError(`ephemeral must be true or false, not ${shown(ephemeral)}`);
    if (limit != null && (!Number.isSafeInteger(limit) || limit < 1 || shared)) {
      throw new RangeError(`limit must be a whole number of 1 or more, and not beside shared, not ${shown(limit)}`);
    }
    if (permits != null && limit == null) throw new RangeError(`permits must be given with limit, not ${shown(permits)} alone`);
    if (permits != null && (!Number.isSafeInteger(permits) || permits < 1 || permits > limit)) {
      throw new RangeError(`permits must be a whole number of 1 or more, and at most limit, which is ${limit}, not ${shown(permits)}`);
    }
    if (onLost != null && typeof onLost !== 'function') throw new TypeError(`onLost must be a function, not ${shown(onLost)}`);
    [this.settings, this.key, this.timeout, this.signal, this.onLost] = [settings, key, timeout, signal, onLost];
    const party = options[PARTY] ? `${options[PARTY]}#` : '';
    this.owner = this.#name = owner == null ? `${PROCESS}${party}${randomUUID()}` : joined(PROCESS, owner, suffix);
    if (owner != null) this.name = this.id;
    this.limit = shared ? ['SHARED'] : limit ? ['LIMIT', limit] : [];
    if (permits > 1) this.limit.push('PERMITS', permits); // older servers do not know the word
    this.most = shared ? Infinity : limit ?? 1; // permits at once
    this.permits = permits ?? 1;
    this.ephemeral = ephemeral ? ['EPHEMERAL'] : [];
  }

  get id() { return `${bytes(this.key)}\n${bytes(this.owner)}`; }

  /** From now on servers know a named owner by its name with this at the end. */
  add(alias) { if (alias) this.owner = joined(this.#name, alias); }

  words(name, ...rest) { return [`DLOCK.${name}`, this.key, this.owner, ...rest]; }

  /** HOLDS 1: a request that is sent again counts once. */
  acquire(once) {
    const { lease, hangTimeout, queueGrace } = this.settings;
    const words = [lease, ...this.ephemeral, 'AUTO', hangTimeout, 'HOLDS', 1, ...this.limit];
    return once ? this.words('ACQUIRE', ...words) : this.words('FAIRACQUIRE', ...words, 'CLAIM', queueGrace);
  }

  wait(...how) {
    const { first, queueGrace } = this.settings;
    return this.words('FAIRACQUIRE', first, ...how, 'CLAIM', queueGrace, 'HOLDS', 1, ...this.limit);
  }

  renew(token) {
    const { lease, hangTimeout } = this.settings;
    return this.words('RENEW', lease, 'TOKEN', token, ...this.ephemeral, 'AUTO', hangTimeout);
  }

  /** Renews it for the last time: for no connection. */
  leaveToLease(token) { return this.words('RENEW', this.settings.lease, 'TOKEN', token); }

  /** Without a token: whatever this owner holds. */
  release(...token) { return this.words('RELEASE', 'HOLDS', 0, ...token); }
}

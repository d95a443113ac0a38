// SPDX-License-Identifier: MIT
// What can go wrong with a lock, and which errors a retry may fix.

/** Whatever goes wrong with a lock. `code` is the first word of the server's error, if the server said it. */
export class DLockError extends Error {
  constructor(message, options) {
    super(message, options);
    this.code = codeOf(message) ?? options?.cause?.code;
  }

  get name() { return this.constructor.name; }
}
/** The lock is not, or no longer, held under this name and token. */
export class NotHeld extends DLockError {}
/** A guarded command was not run: the lock is not held under this token. */
export class Fenced extends DLockError {}
/** The wait could never end; the message names the circle. */
export class Deadlock extends DLockError {}
/** Another request under the same owner's name has taken the place of this one. The client never repeats it by itself. */
export class Replaced extends DLockError {}
/** One of the server's caps on places and holders is reached. */
export class QueueFull extends DLockError {}
/** The server grants nothing for now, since it is drained or was promoted a moment ago. A wait asks again. */
export class Quarantine extends DLockError {}
/** Too few replicas have confirmed: as after a lost reply, what was asked may be in force. */
export class NoAck extends DLockError {}
/** Any other error of the server, in its own words: a wrong password, a missing permission, no module. */
export class Refused extends DLockError {}
/** The lock was not granted in time. `taken`: others had it. If not, no server could say so, and `cause` is what went wrong. */
export class LockTimeout extends DLockError {
  constructor(message, { taken = true, ...options } = {}) {
    super(message, options);
    this.taken = taken;
  }
}
/** No connection, or no answer. */
export class Unreachable extends DLockError {}
/** These locks are closed. */
export class Closed extends DLockError {}

const TYPES = {
  NOTHELD: NotHeld, FENCED: Fenced, DEADLOCK: Deadlock, REPLACED: Replaced, QUEUEFULL: QueueFull,
  QUARANTINE: Quarantine, NOACK: NoAck,
};
// Errors that another connection, another node or a little time can fix. UNBLOCKED: the server has become a replica.
const PASSING = new Set(['MOVED', 'ASK', 'TRYAGAIN', 'CLUSTERDOWN', 'READONLY', 'MASTERDOWN', 'LOADING', 'UNBLOCKED',
  'NOREPLICAS', 'MISCONF', 'BUSY', 'NOACK', 'QUARANTINE']);

const codeOf = (message) => /^[A-Z]{2,}(?=[ :]|$)/.exec(message)?.[0];

/**
 * Returns an error of the server or of a library as one of these types. The server's message begins with a code. An error of
 * Node has its code next to the message, which is empty where several addresses of a host have refused.
 */
export function typed(error) {
  if (error instanceof DLockError || error instanceof TypeError || error instanceof RangeError) return error; // the program's
  const code = codeOf(String(error?.message));
  return new (code ? TYPES[code] ?? Refused : Unreachable)(String(error?.message || error?.code || error), { cause: error });
}

const MISTAKES = [TypeError, RangeError, SyntaxError, ReferenceError, URIError];

/** Returns true for errors that time does not fix: an unknown host, an untrusted certificate, a mistake in a program. */
function isFinal(error) {
  for (let one = error; one; one = one.cause) {
    if (MISTAKES.some((type) => one instanceof type) || /MODULE_NOT_FOUND$/.test(one.code ?? '')) return true;
    if (one.code === 'ENOTFOUND' || /CERT|_SIGNATURE|^ERR_SSL|^EPROTO$/.test(one.code ?? '')) return true;
  }
  return false;
}

/** Returns true for a refusal that may pass. A server with too many clients refuses a connection with the code of any error. */
const isPassing = ({ code, message }) => PASSING.has(code) || message.startsWith('ERR max number of clients');

/** Returns true for what a server has said, and will not say in another way. A refused login is about the connection. */
export const isAnswer = (error) => !(error instanceof Unreachable) && !isPassing(error) && !/^(WRONGPASS|NOAUTH)$/.test(error.code);

/** Returns true for errors that a retry may fix. */
export const isTransient = (error) => (error instanceof Unreachable ? !isFinal(error) : isPassing(error));

// SPDX-License-Identifier: MIT
/// <reference types="node" />

/** A name: of a lock, or of an actor. */
export type Name = string | Buffer;

/** A client, cluster or Sentinel of ioredis or node-redis: whatever makes more of its kind. */
export interface Duplicable { duplicate(...options: never[]): unknown }
/** What `Locks` makes its own clients like. A function makes one for each of them. */
export type Client = Duplicable | (() => Duplicable | Promise<Duplicable>);

/** Is called with what happens, at once: it must not block. Times are in milliseconds. */
export interface Observer {
  /** The lock is taken, and a wait for it begins. */
  waiting?(key: Name): void;
  /** A wait that has begun has ended: with the lock or without. */
  waited?(key: Name): void;
  /** The lock was granted so long after it was asked for. */
  granted?(key: Name, after: number): void;
  /** It was not: it is taken (null), or for this reason. */
  refused?(key: Name, after: number, error: unknown): void;
  /** The program released it after so long. */
  released?(key: Name, after: number): void;
  /** It was held, and is no more. */
  lost?(key: Name, reason: string): void;
}

/** Where warnings go: `console` and the usual loggers are such. */
export interface Logger {
  warn(message: string): void;
  debug?(message: string): void;
}

export interface Settings {
  /** What a lock has left when the program dies or loses the server. 10,000 ms unless set. */
  lease?: number;
  /** How long a program that hangs keeps its locks. At most the server's `dlock.max-claim-ms`. 30,000 ms unless set. */
  hangTimeout?: number;
  /** How long a connect or a reply may take. 3,000 ms unless set. */
  replyTimeout?: number;
  /** How early a lease is treated as ended, for clock drift. Shorter than the lease. 100 ms unless set. */
  clockMargin?: number;
  /** @deprecated It is the server's dlock.claim-window-ms now. */
  queueGrace?: number;
  observer?: Observer;
  /** `process.emitWarning` and `NODE_DEBUG=dlock` unless set. */
  logger?: Logger;
}

export interface LockOptions {
  /** Milliseconds to wait. Without it `lock` waits for ever, and `tryLock` not at all. */
  wait?: number;
  /** For this lock alone, instead of the setting. Longer than `clockMargin`. */
  lease?: number;
  /** How long the client keeps the hold at most: then it reports the hold lost, and releases it. */
  maxHold?: number;
  /** Ends the wait with its reason; nothing is left behind. */
  signal?: AbortSignal;
  /** Readers that share. */
  shared?: boolean;
  /** At most this many holders. */
  limit?: number;
  /** The hold takes this many of `limit`, all at once. 1 unless set. */
  permits?: number;
  /** Names the task that asks. Give nested locks of one task the same name, so that the server can detect deadlocks. */
  actor?: Name;
  /** @deprecated `wait` */
  timeout?: number;
  /** @deprecated `actor` */
  owner?: Name;
}

/** A lock that is held. */
export interface Hold extends AsyncDisposable {
  readonly key: Name;
  /** The owner's name at the server: `host/pid/…`. */
  readonly owner: Name;
  /** The fencing token: higher than that of every earlier grant. */
  readonly token: number;
  /** True if the lock was lost before it was released. */
  readonly lost: boolean;
  /** Aborted with `NotHeld` when the lock is lost. */
  readonly signal: AbortSignal;
  /** Returns the milliseconds for which the lock is certainly held, even if the server no longer answers. */
  left(): number;
  /** Runs a command, and checks in the same step that the lock is still held under this token: otherwise throws `Fenced`. */
  guard(...command: (string | number | Buffer)[]): Promise<unknown>;
  /** Asks the server whether the lock is still held under this token, else `Fenced`. */
  check(): Promise<void>;
  /**
   * Releases this grant. Throws `NotHeld` if it was lost. If the server does not answer in time, throws, and keeps trying in the
   * background.
   */
  release(): Promise<void>;
  /** Ends this hold, and leaves the lock taken for that many milliseconds: for work that is due once in a period. */
  releaseAfter(ms: number): Promise<void>;
}

/** Locks by a client of ioredis or node-redis. Make one for a program. */
export class Locks implements AsyncDisposable {
  constructor(client: Client, settings?: Settings);
  /** Waits for the lock. Throws `LockTimeout` if it is not granted in time. */
  lock(key: Name, options?: LockOptions): Promise<Hold>;
  /** Returns null if the lock is taken. Waits for `wait` milliseconds, if that is set. */
  tryLock(key: Name, options?: LockOptions): Promise<Hold | null>;
  /** Does the work under the lock, and releases it. Never hides an error of the work. */
  using<T>(key: Name, options: LockOptions, work: (hold: Hold) => T | Promise<T>): Promise<T>;
  using<T>(key: Name, work: (hold: Hold) => T | Promise<T>): Promise<T>;
  /** The same under many locks: all or none of a slot in one step, and slots in one fixed order. */
  usingAll<K extends Name, T>(keys: Iterable<K>, options: LockOptions, work: (holds: Map<K, Hold>) => T | Promise<T>): Promise<T>;
  usingAll<K extends Name, T>(keys: Iterable<K>, work: (holds: Map<K, Hold>) => T | Promise<T>): Promise<T>;
  /** Returns the holder whose lease ends last, or null. `left` is in milliseconds. */
  holder(key: Name): Promise<{ owner: string; token: number; left: number } | null>;
  /** Closes the client. Every hold is reported lost; on the server it lasts until its lease ends. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Whatever goes wrong with a lock. */
export class DLockError extends Error {
  /** The first word of the server's error, if the server said it. */
  readonly code?: string;
}
/** The lock is not, or no longer, held under this name and token. */
export class NotHeld extends DLockError {}
/** A guarded command was not run: the lock is not held under this token. */
export class Fenced extends DLockError {}
/** The wait could never end; the message names the circle. */
export class Deadlock extends DLockError {}
/** Another request under the same owner's name has taken the place of this one. */
export class Replaced extends DLockError {}
/** One of the server's caps on places and holders is reached. */
export class QueueFull extends DLockError {}
/** The server grants nothing for now, and this request may not wait. */
export class Quarantine extends DLockError {}
/** Too few replicas have confirmed: as after a lost reply, what was asked may be in force. */
export class NoAck extends DLockError {}
/** Any other error of the server, in its own words. */
export class Refused extends DLockError {}
/** Not granted in time. `taken`: others had it. If not, no server could say so, and `cause` is what went wrong. */
export class LockTimeout extends DLockError {
  readonly taken: boolean;
}
/** No connection, or no answer. */
export class Unreachable extends DLockError {}
/** These locks are closed. */
export class Closed extends DLockError {}

// SPDX-License-Identifier: MIT
import { Hold, LockOptions, Locks, Name } from './index.mjs';

/** Locks without a server, for unit tests: a lock is taken or free, in this process. */
export class FakeLocks implements Pick<Locks, keyof Locks> {
  constructor();
  /** What was guarded. */
  readonly commands: (string | number | Buffer)[][];
  /** Answers what is guarded; at first with null. */
  reply: (...command: (string | number | Buffer)[]) => unknown;
  /** What is held. */
  readonly holds: Set<Hold>;
  lock(key: Name, options?: LockOptions): Promise<Hold>;
  tryLock(key: Name, options?: LockOptions): Promise<Hold | null>;
  using<T>(key: Name, options: LockOptions, work: (hold: Hold) => T | Promise<T>): Promise<T>;
  using<T>(key: Name, work: (hold: Hold) => T | Promise<T>): Promise<T>;
  usingAll<K extends Name, T>(keys: Iterable<K>, options: LockOptions, work: (holds: Map<K, Hold>) => T | Promise<T>): Promise<T>;
  usingAll<K extends Name, T>(keys: Iterable<K>, work: (holds: Map<K, Hold>) => T | Promise<T>): Promise<T>;
  holder(key: Name): Promise<{ owner: string; token: number; left: number } | null>;
  /** Takes a hold away, as a server does after a failure. */
  lose(hold: Hold, reason?: string): void;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

// SPDX-License-Identifier: MIT
/// <reference types="node" />
import { EventEmitter } from 'node:events';
import { Client, Name } from './index.mjs';

export interface Settings {
  readonly driftFactor: number;
  readonly retryCount: number;
  readonly retryDelay: number;
  readonly retryJitter: number;
  readonly automaticExtensionThreshold: number;
}
/** Empty: there is one attempt, and it waits in the queue. */
export type Attempts = readonly [];
export type RedlockAbortSignal = AbortSignal & { error?: Error };

export class ResourceLockedError extends Error {}
export class ExecutionError extends Error {
  constructor(message: string, attempts?: Attempts);
  readonly attempts: Attempts;
}

export interface Lock {
  readonly redlock: Redlock;
  readonly resources: Name[];
  readonly value: string;
  readonly attempts: Attempts;
  /** Of Date.now(). */
  expiration: number;
  release(): Promise<{ attempts: Attempts }>;
  extend(duration: number): Promise<Lock>;
}

declare class Redlock extends EventEmitter {
  constructor(clients: Iterable<Client>, settings?: Partial<Settings>);
  readonly clients: Set<Client>;
  readonly settings: Settings;
  quit(): Promise<void>;
  acquire(resources: Name[], duration: number, settings?: Partial<Settings>): Promise<Lock>;
  release(lock: Lock, settings?: Partial<Settings>): Promise<{ attempts: Attempts }>;
  extend(existing: Lock, duration: number, settings?: Partial<Settings>): Promise<Lock>;
  using<T>(resources: Name[], duration: number, settings: Partial<Settings>, routine: (signal: RedlockAbortSignal) => Promise<T>): Promise<T>;
  using<T>(resources: Name[], duration: number, routine: (signal: RedlockAbortSignal) => Promise<T>): Promise<T>;
}
export { Redlock };
export default Redlock;

// SPDX-License-Identifier: MIT
import { Hold, Locks, Name } from './index.mjs';

/** The leader, and the term since which it leads. */
export interface Leader {
  name: string;
  term: number;
}

/** Who of many leads. The leader's fencing token is the term. */
export class Election {
  constructor(locks: Locks, key: Name, options?: { name?: string });
  readonly key: Name;
  readonly name: string;
  /** Waits until this one leads: the hold, whose `token` is the term, and whose `signal` is aborted when it steps down. */
  campaign(options?: { signal?: AbortSignal }): Promise<Hold>;
  /** The same, or null if it was not elected in time. */
  campaign(options: { signal?: AbortSignal; wait: number }): Promise<Hold | null>;
  /**
   * Does the work as the leader, again after each loss, until it is done as the leader. Its errors come through, except those
   * that a loss causes: `NotHeld`, `Fenced`, and whatever the term's signal aborts.
   */
  lead<T>(work: (term: Hold) => T | Promise<T>, options?: { signal?: AbortSignal }): Promise<T>;
  /** True for sure, even if the server no longer answers. */
  readonly isLeader: boolean;
  /** This one's, or null. */
  readonly term: number | null;
  /** Returns the leader, as the server sees it now, or null. */
  leader(): Promise<Leader | null>;
  /** Yields each leader from now on (null: none), as a poll every second finds it. */
  observe(options?: { every?: number; signal?: AbortSignal }): AsyncIterableIterator<Leader | null>;
  /** Gives it up. That it was lost before is no error. */
  resign(): Promise<void>;
}

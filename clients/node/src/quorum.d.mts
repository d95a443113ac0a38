// SPDX-License-Identifier: MIT
import { Client, Name, Unreachable } from './index.mjs';

export { Unreachable };

export interface QuorumOptions {
  /** Milliseconds. 10,000 unless set. */
  lease?: number;
  /** Milliseconds to wait; 0, if not set: one try. */
  wait?: number;
  signal?: AbortSignal;
}

/** A lock over several masters that know nothing of each other. */
export class Quorum {
  /** `replyTimeout`: how long a master may take to connect, and to answer what need not wait. 300 ms unless set. */
  constructor(clients: Iterable<Client>, options?: { replyTimeout?: number });
  /** A hold, or null after `wait`. `Unreachable` if no majority of the masters could vote. */
  acquire(lock: Name, options?: QuorumOptions): Promise<QuorumHold | null>;
}

/** A lock that is held at a majority of the masters. */
export interface QuorumHold extends AsyncDisposable {
  readonly lock: Name;
  readonly owner: string;
  /** Each master's fencing token, or null. */
  readonly tokens: (number | null)[];
  /** Returns the milliseconds for which the lock is certainly held. */
  left(): number;
  /** Makes all leases new. False when no majority agrees: the old deadline stays. */
  renew(lease?: number): Promise<boolean>;
  /** Releases the lock at all masters. What has ended before is no error. */
  release(): Promise<void>;
}

// SPDX-License-Identifier: MIT
/**
 * Locks of the dlock module for Redis and Valkey, by ioredis or node-redis.
 *
 *     const locks = new Locks(new Redis());                             // or createClient(), a cluster or a Sentinel of either
 *     await locks.using('stock', { wait: 5000 }, async (hold) => {      // LockTimeout after 5 s
 *       await hold.guard('SET', 'stock:left', 41);                      // runs only while the lock is held: else Fenced
 *     });
 *
 * Times are in milliseconds.
 */
export {
  Closed, DLockError, Deadlock, Fenced, LockTimeout, NoAck, NotHeld, Quarantine, QueueFull, Refused, Replaced, Unreachable,
} from './errors.mjs';
export { Hold } from './hold.mjs';
export { Locks } from './locks.mjs';

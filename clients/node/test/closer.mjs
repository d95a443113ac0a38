// `closer.mjs LIBRARY HOST PORT KEY`: says when it holds the lock; told that its server hangs it tries another, and closes.
import { once } from 'node:events';

import { makeLocksAt } from './stage.mjs';

const [library, host, port, key] = process.argv.slice(2);
const locks = makeLocksAt(library, [host, port], {}, { replyTimeout: 500, logger: { warn() {} } });
await locks.lock(key);
console.log('it is held');
await once(process.stdin, 'data');
await locks.tryLock(`${key}:2`).catch(() => {});
await locks.close();
process.stdin.destroy();

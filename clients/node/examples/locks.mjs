// The code of README.md. ../test/library.test.mjs runs it, and sees that it is the same.
import { randomUUID } from 'node:crypto';

import { Fenced, Locks, LockTimeout } from 'dlock-redis';
import { Quorum } from 'dlock-redis/quorum';

export async function sell({ client, notify }) {
  const locks = new Locks(client, { lease: 10_000, hangTimeout: 30_000 });
  try {
    await locks.using('{stock}lock', { wait: 5000 }, async (hold) => {
      const left = Number(await hold.guard('GET', '{stock}left'));
      await notify(left, { signal: hold.signal }); // aborted when the lock is lost
      await hold.guard('SET', '{stock}left', left - 1); // else Fenced: nothing is written
    });
  } catch (error) {
    if (error instanceof LockTimeout) return 'busy';
    if (error instanceof Fenced) return 'lost';
    throw error;
  } finally {
    await locks.close();
  }
  return 'sold';
}

export async function transfer({ locks, from, to, move }) {
  await locks.usingAll([from, to], { wait: 5000 }, async (holds) => {
    await move(holds.get(from).token, holds.get(to).token);
  });
}

export async function sellAtMany({ clients, work }) {
  const quorum = new Quorum(clients, { replyTimeout: 300 }); // in the same order for every program
  const hold = await quorum.acquire('stock', { lease: 10_000, wait: 5_000 }); // null: not in time
  if (!hold) return 'busy';
  try {
    while (hold.left() > 1_000 && (await work())) await hold.renew(10_000);
  } finally {
    await hold.release();
  }
  return 'sold';
}

export async function tryPlainly({ client, work }) {
  const [key, owner] = ['report', randomUUID()];
  const granted = await client.sendCommand(['DLOCK.ACQUIRE', key, owner, '10000', 'HOLDS', '1']);
  if (!granted) return false; // another owner holds it
  const [token] = granted;
  try {
    await work(token);
  } finally {
    await client.sendCommand(['DLOCK.RELEASE', key, owner, 'TOKEN', String(token)]);
  }
  return true;
}

// Compiled, not run: the types of a program that imports.
import { Cluster, Redis } from 'ioredis';
import { createClient, createCluster, createSentinel } from 'redis';

import { Fenced, Hold, Locks, LockTimeout, Observer } from 'dlock-redis';
import { FakeLocks } from 'dlock-redis/fakes';
import { Election } from 'dlock-redis/leader';
import { Quorum } from 'dlock-redis/quorum';
import Redlock from 'dlock-redis/redlock';

const observer: Observer = { granted: (key, after) => console.log(key, after) };
export const all: Locks[] = [new Locks(new Redis()), new Locks(new Cluster([])), new Locks(createClient()),
  new Locks(createCluster({ rootNodes: [] })), new Locks(createSentinel({ name: 'one', sentinelRootNodes: [] })), new Locks(async () => createClient())];

export async function work(locks = new Locks(new Redis(), { lease: 1000, observer, logger: console })): Promise<number> {
  await using hold: Hold = await locks.lock('key', { wait: 5, maxHold: 9, actor: 'me', signal: AbortSignal.timeout(5) });
  const some: Hold | null = await locks.tryLock(Buffer.from('key'), { shared: true });
  await hold.guard('SET', 'x', 1);
  await hold.releaseAfter(5);
  const sum: number = await locks.usingAll(['a', 'b'], async (holds) => holds.get('a')!.token + (some?.left() ?? 0));
  const quorum = await new Quorum([new Redis()]).acquire('key', { wait: 1 });
  if (await quorum?.renew()) return sum;
  // @ts-expect-error: no such option
  await locks.lock('key', { waits: 5 });
  // @ts-expect-error: seconds as text
  await locks.lock('key', { wait: '5s' });
  // @ts-expect-error: no client
  return locks.using('key', () => 1).catch((error) => (error instanceof LockTimeout || error instanceof Fenced ? 1 : new Locks({})));
}

export async function compatible(redlock = new Redlock([new Redis()], { retryCount: 3 })): Promise<string> {
  const lock = await (await redlock.acquire(['key'], 1000)).extend(1000);
  await lock.release();
  return redlock.using(['key'], 1000, async (signal) => String(signal.error));
}

export async function leads(locks: Locks): Promise<void> {
  const election = new Election(locks, 'key', { name: 'me' });
  for await (const leader of election.observe()) console.log(leader?.term);
  await election.lead((term) => term.guard('SET', 'x', term.token));
}

/** What takes Locks takes these as well. */
export async function tests(locks = new FakeLocks()): Promise<void> {
  const work = async (some: Pick<Locks, keyof Locks>): Promise<void> => some.using('key', async (hold) => { await hold.guard('SET', 'x', 1); });
  await work(locks);
  locks.lose(await locks.lock('key'));
}

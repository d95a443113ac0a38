// Compiled, not run: the types of a program with `module: commonjs`, for which TypeScript before 5.9 reads no `exports`.
import { Redis } from 'ioredis';

import { Hold, Locks } from 'dlock-redis';
import { FakeLocks } from 'dlock-redis/fakes';
import { Election } from 'dlock-redis/leader';
import { Quorum } from 'dlock-redis/quorum';
import Redlock from 'dlock-redis/redlock';

export const tokens = async (): Promise<(number | null)[] | undefined> => (await new Quorum([new Redis()]).acquire('key'))?.tokens;
export async function work(locks = new Locks(new Redis()), redlock = new Redlock([new Redis()])): Promise<number> {
  const hold: Hold = await locks.lock('key');
  await new Election(locks, 'leader').lead((term) => term.guard('SET', 'x', term.token));
  const lock = await redlock.acquire(['key'], 1000);
  // @ts-expect-error: no such method
  await lock.giveBack();
  await new FakeLocks().close();
  return hold.token;
}

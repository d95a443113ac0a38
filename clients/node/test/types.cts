// Compiled, not run: the types of a program that requires.
import dlock = require('dlock-redis');
import quorum = require('dlock-redis/quorum');
import ioredis = require('ioredis');

export const locks: dlock.Locks = new dlock.Locks(new ioredis.Redis());
export const tokens = async (): Promise<(number | null)[] | undefined> => (await new quorum.Quorum([new ioredis.Redis()]).acquire('key'))?.tokens;

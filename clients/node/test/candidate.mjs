// `candidate.mjs LIBRARY HOST PORT KEY NAME`: campaigns, and writes its term as long as it leads, until it is killed.
import { setTimeout as sleep } from 'node:timers/promises';

import { Election } from 'dlock-redis/leader';
import { makeLocksAt } from './stage.mjs';

const [library, host, port, key, name] = process.argv.slice(2);
const election = new Election(makeLocksAt(library, [host, port], {}, { lease: 6_000, hangTimeout: 30_000 }), key, { name });
await election.lead(async (term) => {
  // It looks at no signal: what holds it back is the guard.
  for (;;) {
    await term.guard('RPUSH', `${key}:log`, term.token).catch((error) => { if (error.code === 'FENCED') throw error; });
    await sleep(5);
  }
});

// A program of a run of failovers: `failover.mjs ioredis`, `failover.mjs node-redis`.
//
// It keeps ten locks, and three workers take others in turn, until stdin ends. Each grant, release and loss is a line on stdout, with
// the machine's monotonic clock in microseconds: so others can judge who has held what at the same time.
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';

import Redis from 'ioredis';
import { createCluster, createSentinel } from 'redis';

import { Locks } from 'dlock-redis';

const [, , library] = process.argv;
const { DLOCK_CLUSTER, DLOCK_LEASE_MS, DLOCK_SENTINELS, DLOCK_TAG } = process.env;
const [AFTER_AN_ERROR, TO_END] = [100, 2000];

const turns = [0, 1, 2].map((i) => `{${DLOCK_TAG}}turn:${i}`);
const own = [`{${DLOCK_TAG}}own:node-${library}`];

const CLIENTS = {
  ioredis: {
    sentinel: (sentinels) => new Redis({ sentinels, name: 'locks' }),
    cluster: (nodes) => new Redis.Cluster(nodes),
  },
  'node-redis': {
    sentinel: (sentinelRootNodes) => createSentinel({ name: 'locks', sentinelRootNodes }),
    cluster: (nodes) => createCluster({ rootNodes: nodes.map((socket) => ({ socket })) }),
  },
};

async function connect() {
  const addresses = (DLOCK_SENTINELS ?? DLOCK_CLUSTER).split(',').map((one) => one.split(':'));
  const nodes = addresses.map(([host, port]) => ({ host, port: Number(port) }));
  const client = CLIENTS[library][DLOCK_SENTINELS ? 'sentinel' : 'cluster'](nodes);
  client.on('error', () => {}); // only a pattern for the locks' own connections
  if (library === 'node-redis') await client.connect();
  return client;
}

const say = (line) => process.stdout.write(`${line}\n`);

function tell(what, hold) {
  const now = process.hrtime.bigint() / 1000n;
  say(`${what} ${hold.key} ${hold.token} ${now}`);
}

const complain = (error) => process.stderr.write(`${String(error).replace(/\s+/g, ' ')}\n`);

let isEnding = false;
const locks = new Locks(await connect(), { lease: Number(DLOCK_LEASE_MS), hangTimeout: 20_000 });

async function take(key) {
  const hold = await locks.lock(key);
  hold.signal.addEventListener('abort', () => isEnding || tell('lost', hold));
  return hold;
}

async function work(keys, shortest, longest, pause) {
  while (!isEnding) {
    try {
      const hold = await take(keys[Math.floor(keys.length * Math.random())]);
      tell('have', hold);
      await sleep(shortest + (longest - shortest) * Math.random());
      tell('free', hold);
      await hold.release();
    } catch (error) {
      complain(error);
      await sleep(AFTER_AN_ERROR);
    }
    await sleep(pause);
  }
}

const kept = [];
for (let i = 0; i < 10; i++) kept.push(await take(`{${DLOCK_TAG}}kept:node-${library}:${i}`));
say('ready');
const workers = [work(turns, 5, 15, 0), work(turns, 5, 15, 0), work(own, 5, 5, 20)];
await once(process.stdin.resume(), 'end');

isEnding = true;
const held = kept.filter((hold) => !hold.lost);
for (const hold of held) say(`kept ${hold.key} ${hold.token}`);
say('end');
await Promise.race([Promise.all([...workers, ...held.map((hold) => hold.release().catch(complain))]), sleep(TO_END)]);
process.exit();

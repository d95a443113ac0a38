// Compares dlock-redis with node-redlock and redis-semaphore, on one server in one run. Prints Markdown.
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

import Redis from 'ioredis';
import { createClient } from 'redis';
import { Mutex } from 'redis-semaphore';
import Redlock5 from 'redlock';

import { Locks } from 'dlock-redis';

const [host, port] = process.env.DLOCK_SINGLE.split(':');
const [PAIRS, ROUNDS, SECONDS] = [3000, 5, 5];
const name = () => `bench:${randomUUID()}`;
const now = () => performance.now();
const silent = { warn() {} };
const watch = new Redis({ host, port: Number(port) });

async function command(line) {
  const [at, control] = process.env.DLOCK_CONTROL.split(':');
  const socket = net.connect(Number(control), at);
  socket.write(`${line}\n`);
  const [answer] = await once(createInterface(socket), 'line');
  socket.destroy();
  return answer.split(' ')[1];
}

// Each: something that takes a lock, does the work and gives it back, and its end.
const locksOf = (client) => {
  const locks = new Locks(client, { logger: silent });
  return { pair: (key, work) => locks.using(key, work), end: () => locks.close(), locks };
};
const KINDS = {
  'dlock-redis, ioredis': (at = port) => locksOf(new Redis({ host, port: Number(at), lazyConnect: true })),
  'dlock-redis, node-redis': (at = port) => locksOf(createClient({ socket: { host, port: Number(at) } })),
  'node-redlock 5': () => {
    const client = new Redis({ host, port: Number(port) });
    const redlock = new Redlock5([client], { retryCount: -1 });
    redlock.on('error', () => {});
    const pair = async (key, work) => {
      const lock = await redlock.acquire([key], 10_000);
      await work();
      await lock.release();
    };
    return { pair, end: () => client.quit() };
  },
  'redis-semaphore': () => {
    const client = new Redis({ host, port: Number(port) });
    const pair = async (key, work) => {
      const mutex = new Mutex(client, key, { acquireTimeout: 3_600_000 });
      await mutex.acquire();
      await work();
      await mutex.release();
    };
    return { pair, end: () => client.quit() };
  },
};
// No lock, but what the library can do in two round trips.
const bare = (client, set, end) => ({
  pair: async (key, work) => {
    await set(client, key);
    await work();
    await client.del(key);
  },
  end: () => end(client),
});
const FLOORS = {
  'SET and DEL, ioredis': () => bare(new Redis({ host, port: Number(port) }), (client, key) => client.set(key, 'x', 'PX', 10_000, 'NX'), (client) => client.quit()),
  'SET and DEL, node-redis': () => {
    const client = createClient({ socket: { host, port: Number(port) } });
    const connected = client.connect();
    return bare(client, async (one, key) => {
      await connected;
      await one.set(key, 'x', { PX: 10_000, NX: true });
    }, (one) => one.close());
  },
};
const ALL = { ...KINDS, ...FLOORS };
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

/** A field of the server's INFO. */
const told = async (field) => Number(new RegExp(`^${field}:(.*)`, 'm').exec(await watch.call('INFO', 'everything'))[1]);
const connections = async () => [...(await watch.client('LIST')).matchAll(/^id=(\d+)/gm)].map(([, id]) => Number(id));
/** The id of the newest connection. Those of the last measurement may still be ending. */
const newest = async () => Math.max(...await connections());
const since = async (before) => (await connections()).filter((id) => id > before).length;
/** Microseconds of the processor that the server has used. */
const ofServer = async () => 1e6 * (await told('used_cpu_user') + await told('used_cpu_sys'));

/** Pairs a second, and microseconds of the processor for each, the client's and the server's: a busy machine changes these less. */
async function uncontended(kind) {
  const [one, key] = [ALL[kind](), name()];
  for (let i = 0; i < 300; i++) await one.pair(key, () => {});
  const [served, began, before] = [await ofServer(), now(), process.cpuUsage()];
  for (let i = 0; i < PAIRS; i++) await one.pair(key, () => {});
  const [took, { user, system }] = [now() - began, process.cpuUsage(before)];
  const server = await ofServer() - served;
  await one.end();
  return { rate: PAIRS / took * 1000, client: (user + system) / PAIRS, server: server / PAIRS };
}

/** Waits in milliseconds, sorted, and the turns of each worker within the time. Waits that outlast it also count. */
async function contended(kind, workers) {
  const [one, key, waits, turns] = [KINDS[kind](), name(), [], Array(workers).fill(0)];
  await one.pair(key, () => {});
  const end = now() + 1000 * SECONDS;
  await Promise.all(turns.map(async (_, number) => {
    for (let began = now(); began < end; began = now()) {
      await one.pair(key, () => {
        waits.push(now() - began);
        turns[number] += now() < end;
      });
    }
  }));
  await one.end();
  return [waits.sort((a, b) => a - b), turns];
}

/** Round trips that 32 tasks need together to acquire and release 32 free locks. */
async function thirtyTwoAt50ms(kind) {
  const path = await command(`path ${host}:${port}`);
  await command(`delay ${path} 50`);
  const one = KINDS[kind](path.split(':')[1]);
  await one.pair(name(), () => {});
  const began = now();
  await Promise.all(Array.from({ length: 32 }, () => one.pair(name(), () => {})));
  const took = now() - began;
  await one.end();
  return took / 50;
}

/** Connections while this many tasks wait for one held lock. They take it in turn in the end. */
async function waiting(kind, count) {
  const [before, { locks, end }, key] = [await newest(), KINDS[kind](), name()];
  const hold = await locks.lock(key);
  const turns = Array.from({ length: count }, () => locks.using(key, () => {}));
  while (await told('dlock_places_queued') < count) await sleep(10);
  const seen = await since(before);
  await hold.release();
  await Promise.all(turns);
  await end();
  return seen;
}

/** Commands a second on the wire while this many locks are held, connections, and losses. */
async function held(kind, count) {
  const path = await command(`path ${host}:${port}`);
  const before = await newest();
  const { locks, end } = KINDS[kind](path.split(':')[1]);
  const holds = await Promise.all(Array.from({ length: count }, (_, i) => locks.lock(`${name()}:${i}`)));
  const seen = await since(before);
  const first = Number(await command(`commands ${path}`));
  await sleep(10_000);
  const rate = (Number(await command(`commands ${path}`)) - first) / 10;
  const lost = holds.filter((hold) => hold.lost).length;
  await end();
  return [rate, seen, lost];
}

const kinds = Object.keys(KINDS);
const ours = kinds.slice(0, 2);
console.log(`\n${process.env.DLOCK_SERVER}, Node ${process.version}; medians of ${ROUNDS} interleaved rounds\n`);
const seen = Object.fromEntries(Object.keys(ALL).map((kind) => [kind, []]));
for (let round = 0; round < ROUNDS; round++) for (const kind in ALL) seen[kind].push(await uncontended(kind));
const theirs = median(seen['node-redlock 5'].map(({ rate }) => rate));
console.log('| uncontended | pairs a second | least, most | of node-redlock | client µs a pair | server µs a pair |\n|---|---|---|---|---|---|');
for (const kind in ALL) {
  const [rates, client, server] = ['rate', 'client', 'server'].map((what) => seen[kind].map((one) => one[what]));
  const [rate, all] = [median(rates), rates.map(Math.round)];
  console.log(`| ${kind} | ${Math.round(rate)} | ${Math.min(...all)}, ${Math.max(...all)} | ${(rate / theirs).toFixed(2)} | ${median(client).toFixed(0)} | ${median(server).toFixed(1)} |`);
}
console.log('\n| workers on one lock | | turns a second | wait p50 ms | p99 ms | p99.9 ms | longest ms | fewest and most turns |\n|---|---|---|---|---|---|---|---|');
for (const workers of [16, 100]) {
  for (const kind of kinds) {
    const [waits, turns] = await contended(kind, workers);
    const at = (part) => waits[Math.min(waits.length - 1, Math.floor(waits.length * part))].toFixed(1);
    console.log(`| ${workers} | ${kind} | ${Math.round(turns.reduce((a, b) => a + b) / SECONDS)} | ${at(0.5)} | ${at(0.99)} | ${at(0.999)} | ${at(1)} | ${Math.min(...turns)}, ${Math.max(...turns)} |`);
  }
}
console.log('\n| tasks that wait for one held lock | | connections |\n|---|---|---|');
for (const count of [1, 100, 1_000]) {
  for (const kind of ours) console.log(`| ${count} | ${kind} | ${await waiting(kind, count)} |`);
}
for (const kind of ours) console.log(`\n32 tasks on free locks at 50 ms, ${kind}: ${(await thirtyTwoAt50ms(kind)).toFixed(2)} round trips together`);
console.log('\n| locks held in one process | | commands a second | connections | lost |\n|---|---|---|---|---|');
for (const kind of ours) {
  for (const count of [100, 10_000]) {
    const [rate, seen, lost] = await held(kind, count);
    console.log(`| ${count} | ${kind} | ${rate.toFixed(1)} | ${seen} | ${lost} |`);
  }
}
watch.disconnect();

// Ways to a server that need more than an address: TLS, and Sentinels that say who is the primary.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { after, describe, it } from 'node:test';
import tls from 'node:tls';

import Redis from 'ioredis';
import { createClient, createSentinel } from 'redis';

import { Locks, Unreachable } from 'dlock-redis';
import { LONG, PATIENCE, Server, addresses, ask, closeConnections, control, isOf, isOld, libraries, primary, until } from './stage.mjs';

const directory = mkdtempSync(join(tmpdir(), 'dlock-'));
const inside = (name) => join(directory, name);
const ending = [];
// The former primary of a planned failover answers for eleven seconds more, and only a Sentinel says that it is one.
const settings = { lease: 2 * LONG, hangTimeout: 60_000 };

after(async () => {
  for (const end of ending.reverse()) await end();
  await closeConnections();
  rmSync(directory, { recursive: true });
});

/** Where TLS ends that leads to the single server, and whose certificate is to be trusted. */
async function overTls() {
  const words = 'req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test -addext'.split(' ');
  execFileSync('openssl', [...words, 'subjectAltName=IP:127.0.0.1', '-keyout', inside('key'), '-out', inside('ca')], { stdio: 'ignore' });
  const ca = readFileSync(inside('ca'));
  const [[host, port]] = addresses('DLOCK_SINGLE');
  const server = tls.createServer({ cert: ca, key: readFileSync(inside('key')) }, (near) => {
    const far = net.connect(Number(port), host);
    for (const [from, to] of [[near, far], [far, near]]) from.on('error', () => {}).on('close', () => to.end()).pipe(to);
  }).on('tlsClientError', () => {}).listen(0, '127.0.0.1');
  await once(server, 'listening');
  ending.push(() => server.close());
  return { ca, url: `rediss://127.0.0.1:${server.address().port}` };
}

const SECURE = {
  ioredis: (url, ca) => new Redis(url, { lazyConnect: true, tls: ca && { ca } }),
  'node-redis': (url, ca) => createClient({ url, socket: { ca } }),
};

/** A Sentinel that watches the pair, and begins nothing by itself. */
async function sentinelOfThePair() {
  const port = await control('port');
  writeFileSync(inside('conf'), [
    `port ${port}`, 'bind 127.0.0.1', `dir ${directory}`, `sentinel monitor pair ${(await primary()).join(' ')} 1`,
    'sentinel down-after-milliseconds pair 600000', 'sentinel failover-timeout pair 20000', '',
  ].join('\n'));
  const child = spawn('timeout', ['180', 'redis-server', inside('conf'), '--sentinel'], { stdio: 'ignore' });
  const ended = once(child, 'exit');
  ending.push(async () => {
    child.kill();
    await ended;
    // A Sentinel kills all connections that a new replica has: the stage makes others.
    await until(() => control('switch').catch(() => null), 'the stage has connections to the pair again');
  });
  const address = ['127.0.0.1', port];
  await until(async () => {
    const replicas = await ask(address, 'SENTINEL', 'REPLICAS', 'pair').catch(() => []);
    return replicas.some((one) => one['master-link-status'] === 'ok');
  }, 'the Sentinel knows the replica');
  return address;
}

/** The Sentinel has the replica made primary, and the old one its replica. */
async function promote(sentinel) {
  const before = await primary();
  await until(() => ask(sentinel, 'SENTINEL', 'FAILOVER', 'pair').catch(() => null), 'it begins'); // not while another one ends
  await until(async () => {
    const role = await ask(before, 'ROLE').catch(() => []);
    return role[0] === 'slave' && role[3] === 'connected' && String(await primary()) !== String(before);
  }, 'the replica is primary');
}

const sentinelAt = async ([host, port]) => {
  const sentinel = createSentinel({ name: 'pair', sentinelRootNodes: [{ host, port }] }).on('error', () => {});
  await sentinel.connect();
  ending.push(() => sentinel.destroy());
  return sentinel;
};
/** Accepts connections, and never answers. */
async function silent() {
  const sockets = [];
  const server = net.createServer((socket) => sockets.push(socket.on('error', () => {}).resume())).listen(0, '127.0.0.1');
  await once(server, 'listening');
  ending.push(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return ['127.0.0.1', server.address().port];
}

const OF_SEVERAL = {
  ioredis: (sentinels) => new Redis({ sentinels, name: 'pair', lazyConnect: true }),
  'node-redis': (sentinelRootNodes) => {
    const sentinelClientOptions = { socket: { connectTimeout: 1_000, socketTimeout: 1_000 }, pingInterval: 300 };
    return createSentinel({ name: 'pair', sentinelRootNodes, sentinelClientOptions }).on('error', () => {});
  },
};
/** What Locks is made of. */
const BY_SENTINEL = {
  ioredis: async ([host, port]) => new Redis({ sentinels: [{ host, port }], name: 'pair', lazyConnect: true }),
  'node-redis': sentinelAt,
  'node-redis by a function': async (address) => {
    const sentinel = await sentinelAt(address);
    const toPrimary = () => {
      const socket = sentinel.getMasterNode();
      if (!socket) throw new Error('no primary is known');
      return createClient({ socket });
    };
    return toPrimary;
  },
};

if (isOf('rest')) {
  describe('tls', () => {
    for (const library of libraries) {
      it(`a_lock_by_tls (${library})`, { timeout: 2 * PATIENCE }, async () => {
        const server = new Server('single');
        const { ca, url } = await overTls();
        const locks = new Locks(SECURE[library](url, ca), settings);
        await locks.using(server.key, async (hold) => assert.deepEqual(await server.owners(), [hold.owner]));
        await server.hold();
        const wait = locks.lock(server.key);
        await server.awaitQueued(1);
        await server.handOver();
        await (await wait).release(); // the loop's client has TLS as well
        await locks.close();
        await server.awaitGone();
        // A client that does not trust the certificate fails at once: a retry would not help.
        const wary = new Locks(SECURE[library](url), settings);
        await assert.rejects(wary.lock(server.key), (error) => error instanceof Unreachable && /certificate/i.test(error.message));
        await wary.close();
      });
    }
  });
}

const skip = !process.env.PATH.split(delimiter).some((one) => existsSync(join(one, 'redis-server'))) && 'there is no Sentinel';
if (isOf('nodes')) {
  describe('sentinel', { skip }, () => {
    let sentinel;
    for (const library of Object.keys(BY_SENTINEL).filter((one) => libraries.includes(one.split(' ')[0]) && !(one === 'node-redis' && isOld(one)))) {
      it(`a_sentinel_promotes_the_replica (${library})`, { timeout: 4 * PATIENCE }, async () => {
        sentinel ??= await sentinelOfThePair();
        const server = new Server('pair');
        const locks = new Locks(await BY_SENTINEL[library](sentinel), settings);
        const hold = await locks.lock(server.key);
        const wait = locks.lock(server.key, { wait: 2 * PATIENCE });
        await server.awaitQueued(1);
        const [next] = await server.queue();
        // After a sync without a disk the stream begins up to a second later.
        await until(async () => {
          const shown = await Promise.all(addresses('DLOCK_PAIR').map((one) => ask(one, 'DLOCK.INFO', server.key)));
          return shown.every((one) => one?.holders.length && one.queue.length);
        }, 'the replica knows it, too');
        await promote(sentinel);
        await until(async () => (await server.holder().catch(() => null))?.in, 'the new primary has its session'); // connections end
        assert.equal((await server.holder()).token, hold.token);
        assert.ok(!hold.lost);
        await server.awaitQueued(1);
        assert.deepEqual(await server.queue(), [next]);
        await hold.release();
        await (await wait).release();
        await server.awaitGone();
        await locks.close();
      });
    }
    for (const library of libraries.filter((one) => !isOld(one))) {
      it(`a_silent_sentinel_takes_a_part_of_the_time (${library})`, { timeout: 4 * PATIENCE }, async () => {
        sentinel ??= await sentinelOfThePair();
        const of = (...all) => OF_SEVERAL[library](all.map(([host, port]) => ({ host, port })));
        const [one, another] = [await silent(), await silent()];
        const { key } = new Server('pair');
        const locks = new Locks(of(one, sentinel), { ...settings, replyTimeout: 8_000 });
        await (await locks.tryLock(key)).release(); // which makes one attempt
        await locks.close();
        const patient = new Locks(of(one, another, sentinel), { ...settings, replyTimeout: 3_000 });
        await (await patient.lock(`${key}:2`, { wait: PATIENCE })).release();
        await patient.close();
      });
    }
  });
}

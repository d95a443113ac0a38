// What the README says of the libraries, and its code.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import net from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import Redis from 'ioredis';
import { createClient, createCluster } from 'redis';

import * as esm from 'dlock-redis';
import { Locks, Unreachable } from 'dlock-redis';
import { FakeLocks } from 'dlock-redis/fakes';
import { Quorum } from 'dlock-redis/quorum';
import { lead } from '../examples/leader.mjs';
import { sell, sellAtMany, transfer, tryPlainly } from '../examples/locks.mjs';
import { Server, closeConnections, limits, until } from './stage.mjs';

after(closeConnections);

const address = (name) => process.env[name].split(',')[0].split(':');
const [host, port] = address('DLOCK_SINGLE');
const nodeRedis = () => createClient({ url: `redis://${host}:${port}` }).on('error', () => {}).connect();
const ioredis = () => new Redis(Number(port), host);

/** Where nobody listens. */
async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port: free } = server.address();
  await new Promise((done) => { server.close(done); });
  return free;
}

test('code_of_the_readme', async () => {
  const files = ['README.md', 'examples/locks.mjs', 'examples/leader.mjs', 'examples/nest.mjs', 'test/redlock.test.mjs', 'test/connect.test.mjs'];
  const [readme, ...sources] = await Promise.all(files
    .map((name) => readFile(new URL(`../${name}`, import.meta.url), 'utf8')));
  const examples = sources.join('');
  const plain = (text) => text.split('\n').map((line) => line.trim()).filter(Boolean).join('\n');
  const blocks = [...readme.matchAll(/```js\n(.*?)```/gs)].map(([, block]) => plain(block));
  assert.ok(blocks.length >= 5);
  for (const block of blocks) assert.ok(plain(examples).includes(block), block);
});

test('required_is_the_same', async () => {
  const cjs = createRequire(import.meta.url)('dlock-redis');
  assert.equal(cjs.Locks, esm.Locks);
  const locks = new cjs.Locks(new Redis({ host, port: Number(port), lazyConnect: true }));
  const { key } = new Server('single');
  await locks.using(key, () => assert.rejects(locks.lock(key, { wait: 1 }), cjs.LockTimeout));
  await locks.close();
});

test('locks_without_a_server', async () => {
  const locks = new FakeLocks();
  const hold = await locks.lock('x');
  assert.equal(await locks.tryLock('x'), null);
  await assert.rejects(locks.lock('x', { wait: 5 }), (error) => error instanceof esm.LockTimeout && error.taken);
  await hold.guard('SET', 'y', 1);
  assert.deepEqual(locks.commands, [['SET', 'y', 1]]);
  assert.equal(await hold.guard('GET', 'y'), null);
  locks.reply = (name, key) => `${name} ${key}`;
  assert.equal(await hold.guard('GET', 'y'), 'GET y');
  await assert.rejects(locks.lock(undefined), TypeError);
  await assert.rejects(locks.lock('z', { retryCount: 3 }), /retryCount is no option/);
  assert.throws(() => locks.lose(undefined), TypeError);
  const bounded = await locks.lock('bounded', { lease: 7_000, maxHold: 20 });
  assert.equal(bounded.left(), 7_000);
  await once(bounded.signal, 'abort');
  locks.lose(hold);
  assert.deepEqual([hold.lost, hold.signal.aborted, hold.left()], [true, true, 0]);
  await assert.rejects(hold.guard('SET', 'y', 2), esm.Fenced);
  await assert.rejects(hold.release(), esm.NotHeld);
  assert.equal(await locks.usingAll(['b', 'a'], (holds) => holds.get('b').token - holds.get('a').token), 1);
  const [one, two] = [await locks.lock('s', { limit: 3, permits: 2 }), await locks.lock('s', { limit: 3 })];
  assert.equal(await locks.tryLock('s', { limit: 3 }), null);
  await one.releaseAfter(20);
  assert.equal(await locks.tryLock('s', { limit: 3 }), null);
  await two.release();
  await (await locks.lock('s', { wait: 5_000 })).release();
  await locks.close();
  await assert.rejects(locks.lock('x'), esm.Closed);
});

/** What a program prints. */
const printed = async (name) =>
  (await promisify(execFile)(process.execPath, [fileURLToPath(new URL(`../examples/${name}.mjs`, import.meta.url))])).stdout;

test('example_of_metrics', async () => {
  const seen = await printed('metrics');
  for (const line of ['dlock.granted.after  1', 'dlock.held  1', 'dlock.refused taken 2', 'dlock.waiting  0']) {
    assert.ok(seen.includes(`${line}\n`), seen);
  }
});

test('example_of_nest', async () => assert.equal(await printed('nest'), 'OK\nClosed\n'));

test('the_database_is_the_clients', async () => {
  const { key } = new Server('single');
  const patterns = [new Redis(`redis://${host}:${port}/3`, { lazyConnect: true }), createClient({ url: `redis://${host}:${port}/3` }),
    () => createClient({ url: `redis://${host}:${port}/3` })];
  const watch = new Redis(`redis://${host}:${port}/3`);
  for (const pattern of patterns) {
    const locks = new Locks(pattern);
    await locks.using(key, async (hold) => {
      assert.deepEqual([await watch.exists(key), (await locks.holder(key)).token], [1, hold.token]);
      await assert.rejects(locks.lock(key, { wait: 1 }), esm.LockTimeout);
    });
    assert.equal(await watch.exists(key), 0);
    await locks.close();
  }
  watch.disconnect();
});

test('what_is_closed_while_it_connects_leaves_no_socket', async () => {
  const sockets = [];
  const server = net.createServer((socket) => sockets.push(socket.on('error', () => {}).resume())).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const lookup = (_, { all }, done) => setTimeout(() => done(null, all ? [{ address: '127.0.0.1', family: 4 }] : '127.0.0.1', 4), 300);
  const slow = createClient({ socket: { host: 'a-slow-name', port: server.address().port, lookup } }).on('error', () => {});
  const cancel = new AbortController();
  const asked = new Quorum([slow]).acquire('x', { lease: 60_000, signal: cancel.signal });
  setTimeout(() => cancel.abort(new Error('enough')), 50);
  await assert.rejects(asked, /enough/);
  await until(() => sockets.length === 1 && sockets[0].destroyed, 'it has connected, and is closed');
  server.close();
});

test('what_is_made_too_late_leaves_no_socket', async () => {
  const sockets = [];
  const server = net.createServer((socket) => sockets.push(socket.on('error', () => {}).resume())).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const there = { host: '127.0.0.1', port: server.address().port };
  for (const made of [new Redis({ ...there, lazyConnect: true }), createClient({ socket: there }).on('error', () => {})]) {
    let done = false;
    const make = async () => {
      await sleep(300);
      done = true;
      return made;
    };
    await assert.rejects(new Quorum([make], { replyTimeout: 50 }).acquire('x', { lease: 60_000 }), Unreachable);
    await until(() => done, 'it is made');
    await sleep(300);
    assert.ok(sockets.every((socket) => socket.destroyed));
  }
  server.close();
});

test('who_refuses_at_several_addresses_is_asked_again', async () => {
  const lookup = (_, { all }, done) => {
    const address = (host) => ({ address: host, family: 4 });
    return all ? done(null, ['127.0.0.1', '127.0.0.2'].map(address)) : done(null, '127.0.0.1', 4);
  };
  const locks = new Locks(createClient({ socket: { host: 'several', port: await freePort(), lookup } }), { logger: { warn() {} } });
  await assert.rejects(locks.lock('x', { wait: 500 }), (error) => error instanceof esm.LockTimeout && error.cause instanceof Unreachable);
  await locks.close();
});

test('a_cluster_that_is_down_is_asked_again', async () => {
  const cluster = new Redis.Cluster([{ host: '127.0.0.1', port: await freePort() }], { lazyConnect: true }).on('error', () => {});
  const locks = new Locks(cluster, { logger: { warn() {} } });
  await assert.rejects(locks.lock('x', { wait: 3_000 }), (error) => error instanceof esm.LockTimeout && error.cause instanceof Unreachable);
  await locks.close();
  cluster.disconnect();
});

test('node_redis_makes_no_timer_for_a_command', async (t) => {
  const client = createClient({ url: `redis://${host}:${port}`, commandOptions: { timeout: 400 } });
  const locks = new Locks(client);
  const { key } = new Server('single');
  const made = t.mock.method(AbortSignal, 'timeout');
  for (let i = 0; i < 5; i++) await locks.using(key, (hold) => hold.check());
  await locks.close();
  assert.equal(made.mock.callCount(), 0);
});

for (const [library, open, close] of [['node-redis', nodeRedis, (client) => client.destroy()], ['ioredis', ioredis, (client) => client.disconnect()]]) {
  test(`a_client_that_the_program_uses_stays_open (${library})`, async () => {
    const client = await open();
    await client.ping();
    const locks = new Locks(() => client);
    await locks.using(new Server('single').key, () => {});
    await locks.close();
    assert.equal(await client.ping(), 'PONG');
    close(client);
  });
}

test('what_is_no_client_is_told', async () => {
  for (const one of [null, {}, 'redis://localhost', { duplicate() {}, getMasterNode() {} }]) assert.throws(() => new Locks(one), /client must be/);
  assert.throws(() => new Locks(() => {}, { lease: '10s' }), /lease must be/);
  assert.throws(() => new Locks(() => {}, { leases: 1 }), /leases is no option/);
  await assert.rejects(new Locks(() => ({})).lock('x', { wait: 1_000 }), /client must make/);
  await until(async () => {
    const nowhere = new Locks(new Redis({ host: 'no-such-host.invalid', lazyConnect: true }));
    const began = performance.now();
    await assert.rejects(nowhere.lock('x'), (error) => error instanceof esm.Unreachable || error instanceof esm.LockTimeout).finally(() => nowhere.close());
    return performance.now() - began < 5_000; // else this process has stalled, as it does not each time
  }, 'it is told in time');
});

test('sell', async () => {
  const server = new Server('single');
  const client = createClient({ url: `redis://${host}:${port}` });
  await server.ask('SET', '{stock}left', 3);
  let notified;
  const notify = async (left, { signal }) => { notified = [left, signal.aborted]; };
  assert.equal(await sell({ client, notify }), 'sold');
  assert.deepEqual([notified, await server.ask('GET', '{stock}left')], [[3, false], '2']);
  const lose = () => server.ask('DLOCK.FORCERELEASE', '{stock}lock');
  assert.equal(await sell({ client, notify: lose }), 'lost');
  assert.equal(await server.ask('GET', '{stock}left'), '2');
});

test('transfer', async () => {
  const client = new Redis({ host, port: Number(port), lazyConnect: true });
  const locks = new Locks(client);
  let tokens;
  await transfer({ locks, from: 'one', to: 'another', move: (...both) => { tokens = both; } });
  assert.ok(tokens[0] > tokens[1], 'another comes before one');
  await locks.close();
});

test('sellAtMany', async () => {
  const clients = process.env.DLOCK_MASTERS.split(',').map((one) => createClient({ url: `redis://${one}` }));
  const server = new Server('single');
  let left = 3;
  const work = async () => {
    assert.equal((await server.owners('stock')).length, 1);
    return left-- > 0;
  };
  await until(async () => {
    left = 3;
    // A master that is late by the bound has no vote.
    return (await sellAtMany({ clients, work }).catch((error) => { if (!(error instanceof Unreachable)) throw error; })) === 'sold';
  }, 'it is sold');
  assert.equal(left, -1);
  await server.awaitGone('stock');
});

test('lead', async () => {
  const locks = new Locks(new Redis({ host, port: Number(port), lazyConnect: true }));
  const server = new Server('single');
  const over = new AbortController();
  let term;
  const tick = (one) => {
    term = one;
    over.abort();
    return 'ticked';
  };
  await lead({ locks, tick, signal: over.signal });
  assert.equal(await server.ask('GET', '{scheduler}last'), 'ticked');
  assert.ok(term > 0);
  await server.awaitGone('{scheduler}leader');
  await locks.close();
});

test('tryPlainly', async () => {
  const client = await nodeRedis();
  const server = new Server('single');
  assert.equal(await tryPlainly({ client, work: () => server.owners('report') }), true);
  await server.hold('report');
  assert.equal(await tryPlainly({ client, work: () => assert.fail('another has it') }), false);
  await server.handOver('other', 'report');
  client.destroy();
});

test('both_libraries_find_the_node_of_a_key', async () => {
  const [first, at] = address('DLOCK_CLUSTER');
  const { key } = new Server('cluster');
  const words = ['DLOCK.ACQUIRE', key, 'owner', '60000', 'HOLDS', '1'];
  const one = await createCluster({ rootNodes: [{ url: `redis://${first}:${at}` }] }).on('error', () => {}).connect();
  const two = new Redis.Cluster([{ host: first, port: Number(at) }]);
  const granted = await one.sendCommand(key, false, words);
  assert.deepEqual(await two.call(...words), granted);
  one.destroy();
  two.disconnect();
});

// A command that blocks is the last that the server reads of a connection until it is answered.
for (const [library, open, ask, close] of [
  ['node-redis', nodeRedis, (client, ...words) => client.sendCommand(words), (client) => client.destroy()],
  ['ioredis', ioredis, (client, ...words) => client.call(...words), (client) => client.disconnect()],
]) {
  test(`a_shared_wait_holds_up_the_release (${library})`, async () => {
    const client = await open();
    const { key } = new Server('single');
    await ask(client, 'DLOCK.ACQUIRE', key, 'its holder', '60000');
    const wait = ask(client, 'DLOCK.ACQUIRE', key, 'its waiter', '60000', 'BLOCK', '500');
    const release = ask(client, 'DLOCK.RELEASE', key, 'its holder');
    assert.equal(await wait, null, 'its time is up before the server has read the release');
    assert.equal(await release, 0);
    close(client);
  });
}

// Neither timeout nor abortSignal does.
test('node_redis_ends_no_wait_that_was_sent', async () => {
  const client = await nodeRedis();
  const server = new Server('single');
  await server.hold();
  const cancel = new AbortController();
  const wait = client.withCommandOptions({ timeout: 200, abortSignal: cancel.signal })
    .sendCommand(['DLOCK.ACQUIRE', server.key, 'waiter', '60000', 'BLOCK', '0']);
  await server.awaitQueued(1);
  await until(async () => (await server.info()).queue[0]['waited-ms'] > 1000, 'it waits past the time-out');
  cancel.abort();
  assert.equal(await server.handOver(), 'waiter');
  assert.equal((await wait).length, 2);
  client.destroy();
});

// The server waits on after commandTimeout, and grants to nobody; disconnect ends the wait.
test('ioredis_time_out_leaves_an_orphan', async () => {
  const server = new Server('single');
  await server.hold();
  const gaveUp = async (owner) => {
    const client = new Redis({ host, port: Number(port), commandTimeout: 200 });
    await once(client, 'ready', { signal: AbortSignal.timeout(limits.patience) });
    await assert.rejects(client.call('DLOCK.ACQUIRE', server.key, owner, '60000', 'BLOCK', '0'), /timed out/);
    await server.awaitQueued(1);
    return client;
  };
  const client = await gaveUp('orphan');
  assert.equal(await server.handOver(), 'orphan');
  const again = await gaveUp('waiter');
  assert.deepEqual(await server.queue(), ['waiter']);
  again.disconnect();
  await server.awaitQueued(0);
  client.disconnect();
});

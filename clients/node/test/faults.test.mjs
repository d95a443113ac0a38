// What goes wrong beside the cases that all languages have.
import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';

import { Refused, Unreachable } from 'dlock-redis';
import { LONG, Server, addresses, closeConnections, control, libraries, makeLocksAt, proxy, until } from './stage.mjs';

const LEASE = 6_000;
const tests = [];
const test = (name, body) => tests.push([name, body]);

test('what_is_said_last_does_not_meet_the_next_request', async ({ server, make, open }) => {
  const path = await open();
  const locks = make(path.address, {}, { lease: LEASE });
  await (await locks.lock(server.key)).release();
  path.freeze();
  await assert.rejects(locks.tryLock(server.key, { owner: 'me' }), Unreachable);
  path.thaw();
  const hold = await locks.lock(server.key, { owner: 'me' });
  await until(async () => {
    const holder = await server.holder();
    assert.equal(holder?.token, hold.token);
    return holder['held-ms'] > LEASE / 2;
  }, 'it is not given back');
  await hold.release();
  await server.awaitGone();
});

test('a_grant_that_may_not_be_confirmed_is_given_back', async ({ server, make }) => {
  const user = server.key.slice(1, 9);
  await server.ask('ACL', 'SETUSER', user, 'on', '>word', '~*', '&*', '+@all', '-dlock.renew');
  await server.hold();
  const wait = make(undefined, { user, password: 'word' }).lock(server.key);
  wait.catch(() => {});
  await server.awaitQueued(1);
  await server.handOver();
  await assert.rejects(wait, (error) => error instanceof Refused && error.code === 'NOPERM');
  await server.awaitGone();
  await server.ask('ACL', 'DELUSER', user);
});

/** The name by which a test sees its client's connections. */
async function linkOf(server) { return (await server.holder()).client; }

test('an_orphan_ends_and_the_others_are_kept', async ({ server, make, open }) => {
  const path = await open();
  const locks = make(path.address, {}, { lease: LEASE });
  const hold = await locks.lock(server.key);
  const first = await linkOf(server);
  // Somebody else says it on our connection: a hold that the client knows nothing of.
  path.inject('DLOCK.ACQUIRE', `${server.key}:orphan`, 'nobody', '600000', 'AUTO', '600000');
  await until(async () => ![first, 0].includes(await linkOf(server)), 'its own hold goes to another connection');
  assert.equal((await server.holder()).token, hold.token);
  await hold.release();
  await server.ask('DLOCK.FORCERELEASE', `${server.key}:orphan`);
});

test('what_others_tie_is_tied_again', async ({ server, make }) => {
  const hold = await make(undefined, {}, { lease: LONG }).lock(server.key);
  // In one step: the client looks every second.
  const [, { holders: [untied] }] = await (await server.node()).multi()
    .addCommand(['DLOCK.RENEW', server.key, hold.owner, '60000']).addCommand(['DLOCK.INFO', server.key]).exec();
  assert.equal(untied.auto, 0);
  await until(async () => (await server.holder()).auto === 1, 'it is tied anew');
  assert.equal((await server.holder()).token, hold.token);
  await server.ask('RENAME', server.key, `${server.key}:2`);
  await until(() => hold.lost, 'a lock with another name is lost');
  await server.ask('DEL', `${server.key}:2`);
});

test('silent_messages_cost_no_more_than_the_time_out', async ({ server, make, open }) => {
  const path = await open();
  const locks = make(path.address, {}, { lease: LONG });
  await (await locks.lock(`${server.key}:other`)).release();
  await server.hold();
  const wait = locks.lock(server.key);
  await server.awaitQueued(1);
  path.deafen();
  await server.handOver();
  await (await wait).release();
  await server.awaitGone();
});

test('many_that_are_left_stop_no_keeper', async ({ server, make }) => {
  const path = await control(`path ${addresses('DLOCK_SINGLE')[0].join(':')}`);
  await control(`delay ${path} 200`);
  const locks = make(path.split(':'), {}, { lease: LEASE });
  const hold = await locks.lock(server.key);
  const keys = Array.from({ length: 40 }, (_, i) => `${server.key}:${i}`);
  const aborter = new AbortController();
  const readers = await Promise.all(keys.map((key) => locks.lock(key, { owner: key, shared: true })));
  // Upgrades that wait for another reader, and are given up.
  for (const key of keys) await server.ask('DLOCK.ACQUIRE', key, 'other', 60_000, 'SHARED');
  const waits = keys.map((key) => locks.lock(key, { owner: key, signal: aborter.signal }));
  const ended = Promise.allSettled(waits);
  await until(async () => (await Promise.all(keys.map((key) => server.info(key)))).every(({ queue }) => queue.length), 'all wait');
  const began = (await server.holder())['held-ms'];
  aborter.abort();
  assert.ok((await ended).every(({ status }) => status === 'rejected'));
  await until(async () => {
    const holder = await server.holder();
    assert.equal(holder?.token, hold.token);
    assert.ok(!hold.lost);
    return holder['held-ms'] > began + 2 * LEASE;
  }, 'two leases have passed');
  for (const key of keys) assert.equal((await server.info(key)).queue.length, 0);
  for (const one of [hold, ...readers]) await one.release();
  await control(`close ${path}`);
});

after(closeConnections);

describe('faults', { concurrency: 8 }, () => {
  for (const [name, body] of tests) {
    for (const library of libraries) {
      it(`${name} (${library})`, { timeout: 120_000 }, async () => {
        const closing = [];
        const later = (one) => closing[closing.push(one) - 1];
        const [single] = addresses('DLOCK_SINGLE');
        try {
          await body({
            server: new Server('single'),
            make: (address = single, login = {}, settings = {}) => later(makeLocksAt(library, address, login, settings)),
            open: async () => later(await proxy(single)),
          });
        } finally {
          for (const one of closing) await one.close();
        }
      });
    }
  }
});

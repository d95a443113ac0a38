// What does not answer, and who may not: nobody waits for it longer than he has said, or believes longer than is so.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { DLockError, LockTimeout, NotHeld, Unreachable } from './dlock.mjs';
import { Server, addresses, closeConnections, libraries, makeLocksAt, proxy, until } from './stage.mjs';

const LEASE = 1_500;
const LATE = 1_000; // so much after its end a loss is told where a busy machine stops us; it is 200 ms where it does not
const tests = [];
const test = (name, body) => tests.push([name, body]);

/** It ends so soon. A timer of ours is as late as theirs, however busy the machine. */
const within = (ms, promise) => Promise.race([
  promise, sleep(ms, null, { ref: false }).then(() => assert.fail(`not within ${ms} ms`)),
]);

const told = (hold) => (hold.signal.aborted ? null : once(hold.signal, 'abort'));

for (const how of ['hung from the start', 'hung later']) {
  test(`a_server_that_hangs_keeps_no_caller: ${how}`, async ({ server, make, open }) => {
    const path = await open();
    const locks = make([path.address]);
    if (how === 'hung later') await (await locks.lock(server.key)).release();
    path.freeze();
    await within(5_000, assert.rejects(locks.tryLock(server.key), Unreachable));
    const refused = (error) => error instanceof LockTimeout && error.cause instanceof Unreachable;
    await within(3_000, assert.rejects(locks.lock(server.key, { timeout: 2_000 }), refused));
    assert.equal(await within(3_000, locks.tryLock(server.key, { timeout: 2_000 })), null);
  });
}

test('what_is_said_last_does_not_meet_the_next_request', async ({ server, make, open }) => {
  const path = await open();
  const locks = make([path.address]);
  await (await locks.lock(server.key)).release();
  path.freeze();
  await assert.rejects(locks.tryLock(server.key, { owner: 'me' }), Unreachable);
  path.thaw();
  const hold = await locks.lock(server.key, { owner: 'me' });
  await until(async () => {
    const holder = await server.holder();
    assert.equal(holder?.token, hold.token);
    return holder['held-ms'] > 2 * LEASE;
  }, 'it is kept');
  await hold.release();
  await server.awaitGone();
});

test('a_loss_is_told_by_the_clock', async ({ server, make, open }) => {
  const path = await open();
  const healthy = new Server('single');
  const [locks, others] = [make([path.address]), make()];
  const [hold, other] = [await locks.lock(server.key), await others.lock(healthy.key)];
  await until(async () => (await server.holder())['held-ms'] > LEASE, 'it is kept');
  path.freeze();
  await within(LEASE + LATE, told(hold));
  assert.ok(hold.signal.reason instanceof NotHeld);
  await until(async () => (await healthy.holder())['held-ms'] > 5 * LEASE, 'another is kept');
  assert.ok(!other.signal.aborted);
  await other.release();
});

test('one_hung_node_of_three', async ({ make }) => {
  const servers = new Map();
  await until(async () => {
    const server = new Server('cluster');
    servers.set(await server.node(), server);
    return servers.size === 3;
  }, 'there is a key for each node');
  const locks = make(addresses('DLOCK_CLUSTER').slice(0, 2));
  const [[node, hung], ...others] = [...servers];
  const hold = await locks.lock(hung.key);
  const kept = await Promise.all(others.map(([, server]) => locks.lock(server.key)));
  await node.sendCommand(['CLIENT', 'PAUSE', '600000', 'WRITE']);
  try {
    await within(LEASE + LATE, told(hold));
    await until(async () => {
      const holders = await Promise.all(others.map(([, server]) => server.holder()));
      return holders.every((holder) => holder['held-ms'] > 10 * LEASE);
    }, 'the others are kept for ten leases');
    assert.ok(kept.every((one) => !one.signal.aborted));
    for (const one of kept) await one.release();
  } finally {
    await node.sendCommand(['CLIENT', 'UNPAUSE']);
  }
  await hung.awaitGone();
});

test('refused_at_once', async ({ server, make }) => {
  const user = server.key.slice(1, 9);
  const commands = ['~*', '+@all'];
  const cases = [
    [/WRONGPASS/, ['~*', '&*', '+@all'], 'wrong'],
    [/NOPERM/, ['~*', '&*', '+@all', '-dlock.fairacquire', '-dlock.acquire'], 'right'],
    [/NOPERM/, [...commands, 'resetchannels'], 'right'],
    [/NOPERM/, [...commands, '&*', '-dlock.renew'], 'right'],
  ];
  for (const [words, rules, password] of cases) {
    await server.ask('ACL', 'SETUSER', user, 'reset', 'on', '>right', ...rules);
    for (const [locks, options] of [{}, { timeout: 20_000 }].map((one) => [make(undefined, { username: user, password }), one])) {
      // A tenth of a second where nothing else is done.
      await within(5_000, assert.rejects(locks.lock(server.key, options), (error) => {
        assert.match(error.message, words);
        return !(error instanceof LockTimeout);
      }));
      await within(5_000, assert.rejects(locks.tryLock(server.key), words));
    }
    await server.awaitGone();
  }
  await server.ask('ACL', 'DELUSER', user);
});

test('nothing_is_taken_after_the_end', async ({ server, make }) => {
  const locks = make();
  const hold = await locks.lock(server.key);
  const waiting = assert.rejects(locks.lock(server.key), DLockError);
  await server.awaitQueued(1);
  await locks.close();
  await within(LEASE + LATE, told(hold));
  await waiting;
  for (const taken of [locks.lock(server.key), locks.lock(server.key, { timeout: 20_000 }), locks.tryLock(server.key)]) {
    await within(5_000, assert.rejects(taken, (error) => /closed/.test(error.message) && !(error instanceof LockTimeout)));
  }
  await server.awaitGone();
});

after(closeConnections);

// A node that hangs is for its test alone.
for (const alone of [false, true]) {
  describe(alone ? 'a node hangs' : 'faults', { concurrency: alone ? 1 : 8 }, () => {
    for (const [name, body] of tests.filter(([one]) => one.startsWith('one_hung') === alone)) {
      for (const library of libraries) {
        it(`${name} (${library})`, { timeout: 120_000 }, async () => {
          const closing = [];
          const later = (one) => closing[closing.push(one) - 1];
          const single = addresses('DLOCK_SINGLE');
          try {
            await body({
              server: new Server('single'),
              make: (all = single, login = {}) => later(makeLocksAt(library, all, login, { lease: LEASE })),
              open: async () => later(await proxy(single[0])),
            });
          } finally {
            for (const one of closing) await one.close();
          }
        });
      }
    }
  });
}

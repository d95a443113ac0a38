// The names of node-redlock: what its users rely upon.
import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';

import Redis from 'ioredis';

import Redlock from 'dlock-redis/redlock';
import { ExecutionError, ResourceLockedError } from 'dlock-redis/redlock';
import { Master, PATIENCE, Server, addresses, closeConnections, until } from './stage.mjs';

const clients = (all) => all.map(([host, port]) => new Redis({ host, port: Number(port), lazyConnect: true }));
const single = () => clients(addresses('DLOCK_SINGLE'));

const tests = {
  async acquire_extend_release({ server, make }) {
    const redlock = make(single());
    let lock = await redlock.acquire([server.key, `${server.key}:2`], 30_000);
    assert.ok(lock.expiration > Date.now() + 20_000 && lock.expiration < Date.now() + 30_000);
    assert.deepEqual([(await server.owners()).length, (await server.owners(`${server.key}:2`)).length], [1, 1]);
    const before = lock;
    lock = await lock.extend(60_000);
    assert.deepEqual([before.expiration, lock.value], [0, before.value]);
    assert.ok(lock.expiration > Date.now() + 40_000);
    await assert.rejects(before.extend(5_000), ExecutionError);
    await lock.release();
    assert.equal(lock.expiration, 0);
    await server.awaitGone();
    await server.awaitGone(`${server.key}:2`);
    await assert.rejects(lock.release(), ExecutionError);
  },

  async it_ends_where_nobody_extends_it({ server, make }) {
    const redlock = make(single());
    const lock = await redlock.acquire([server.key], 3_000);
    await (await redlock.acquire([server.key], 30_000, { retryCount: -1 })).release(); // after the expiration of the first
    assert.ok(lock.expiration < Date.now());
    await assert.rejects(lock.extend(3_000), ExecutionError);
    await server.awaitGone();
  },

  async it_is_taken({ server, make }) {
    const redlock = make(single(), { retryCount: 2, retryDelay: 1_000 });
    const errors = [];
    redlock.on('error', (error) => errors.push(error));
    await server.hold(`${server.key}:2`);
    await assert.rejects(redlock.acquire([server.key, `${server.key}:2`], 1_000), (error) => error instanceof ExecutionError);
    assert.ok(errors[0] instanceof ResourceLockedError);
    await server.awaitGone();
    await assert.rejects(redlock.acquire([`${server.key}:2`], 1_000, { retryCount: 0 }), ExecutionError);
    const waiting = redlock.acquire([`${server.key}:2`], 1_000, { retryCount: -1 });
    await server.awaitQueued(1, `${server.key}:2`);
    await server.handOver('other', `${server.key}:2`);
    await (await waiting).release();
    await assert.rejects(redlock.acquire([server.key], 1.5), /integer/);
    await assert.rejects(redlock.acquire([''], 1_000), /resources/);
    await assert.rejects(redlock.using([server.key], 300, async () => {}), /automaticExtensionThreshold/);
  },

  async using_extends_and_aborts({ server, make }) {
    const redlock = make(single());
    const done = await redlock.using([server.key], 6_000, { automaticExtensionThreshold: 4_000 }, async (signal) => {
      await until(async () => (await server.holder())['held-ms'] > 12_500, 'it is held over two durations');
      assert.equal(signal.aborted, false);
      return 'done';
    });
    assert.equal(done, 'done');
    await server.awaitGone();
    // The usual threshold is half a second: a stall that lasts longer aborts it, and it is tried again.
    await until(async () => {
      let kept = false;
      await redlock.using([server.key], 2_000, { retryCount: -1 }, async (signal) => {
        await until(async () => signal.aborted || ((await server.holder())?.['held-ms'] ?? 0) > 4_500, 'it is held or lost');
        kept = !signal.aborted;
      }).catch(() => { kept = false; });
      return kept;
    }, 'it is held over two durations');
    const lost = redlock.using([server.key], 4_000, async (signal) => {
      await server.ask('DLOCK.FORCERELEASE', server.key);
      await until(() => signal.aborted, 'it is told');
      assert.ok(signal.error instanceof Error);
    });
    await assert.rejects(lost, ExecutionError); // using() rejects even if the work ignores the signal
    const failed = redlock.using([server.key], 4_000, async (signal) => {
      await server.ask('DLOCK.FORCERELEASE', server.key);
      await until(() => signal.aborted, 'it is told');
      throw signal.error;
    });
    await assert.rejects(failed, /lost/);
  },

  async over_three_masters({ make }) {
    const key = new Server('single').key;
    const masters = addresses('DLOCK_MASTERS').map((address) => new Master(address, key));
    const redlock = make(clients(addresses('DLOCK_MASTERS')));
    await redlock.using([key], 12_000, { automaticExtensionThreshold: 10_000, retryCount: -1 }, async (signal) => {
      for (const master of masters) assert.equal((await master.owners()).length, 1);
      await assert.rejects(redlock.acquire([key], 1_000, { retryCount: 0 }), ExecutionError);
      await until(async () => (await masters[0].holder())['held-ms'] > 24_500, 'it is extended');
      assert.equal(signal.aborted, false);
    });
    for (const master of masters) await master.awaitGone();
  },

  async no_lock_that_ended_while_another_was_waited_for({ make }) {
    const { key } = new Server('single');
    const [one, other] = [make(clients(addresses('DLOCK_MASTERS'))), make(clients(addresses('DLOCK_MASTERS')))];
    await other.acquire([`${key}b`], 3_000);
    await assert.rejects(one.acquire([`${key}a`, `${key}b`], 1_500, { retryCount: -1 }), ExecutionError);
  },
};

after(closeConnections);

describe('redlock', { concurrency: 4 }, () => {
  for (const [name, body] of Object.entries(tests)) {
    it(name, { timeout: 4 * PATIENCE }, async () => {
      const made = [];
      try {
        await body({ server: new Server('single'), make: (...how) => made[made.push(new Redlock(...how)) - 1] });
      } finally {
        for (const one of made) await one.quit();
      }
    });
  }
});

// The tests that every language has, by the same names: see clients/DESIGN.md.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { hostname } from 'node:os';
import { after, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { LockTimeout } from 'dlock-redis';
import { LEASE, LONG, PATIENCE, Server, closeConnections, isOf, isOld, libraries, makeLocks, until } from './stage.mjs';

const everywhere = ['single', 'cluster'];
const tests = [];

/** A test in each of these places, with a server, locks, and a function that makes more of them. */
function test(name, places, body) { tests.push({ name, places, body }); }

after(closeConnections);

/** Another process that wants the lock; killed by SIGKILL. */
function child(library, place, key) {
  const program = fileURLToPath(new URL('process.mjs', import.meta.url));
  const one = spawn(process.execPath, [program, library, place, key], { stdio: ['ignore', 'ignore', 'inherit'] });
  const ended = once(one, 'exit');
  return () => {
    one.kill('SIGKILL');
    return ended;
  };
}

/** Waits for the lock; a refusal is for whoever awaits it later. */
function start(locks, key, options) {
  const wait = locks.lock(key, { wait: 2 * PATIENCE, ...options });
  wait.catch(() => {});
  return wait;
}

/** The next in the queue gets the lock in the step of the release. After its own release nobody holds the lock. */
async function handOverTo(server, wait) {
  const [next] = await server.queue();
  assert.equal(await server.handOver(), next);
  const hold = await wait;
  assert.equal(hold.owner, next);
  await hold.release();
  await server.awaitGone();
}

/** Waits until the lock has been held under its token for more than this many leases, and the server keeps it. */
async function awaitKept(server, hold, leases) {
  await until(async () => {
    const holder = (await server.info()).holders.find((one) => one.token === hold.token);
    assert.ok(holder, 'it is held under its token');
    return holder['held-ms'] > leases * LEASE && holder.in;
  }, 'it is kept');
  assert.ok(!hold.signal.aborted);
}

test('counts_to_a_thousand', everywhere, async ({ server, make }) => {
  const locks = make({ lease: LONG });
  const count = `${server.key}:count`;
  const work = async () => {
    for (let i = 0; i < 20; i++) {
      await locks.using(server.key, {}, async () => {
        await server.ask('SET', count, Number(await server.ask('GET', count)) + 1);
      });
    }
  };
  await Promise.all(Array.from({ length: 50 }, work));
  assert.equal(await server.ask('GET', count), '1000');
  await server.awaitGone();
});

test('wait_longer_than_the_time_out', everywhere, async ({ server, make }) => {
  await server.hold();
  const first = start(make(), server.key);
  await server.awaitQueued(1);
  const second = start(make(), server.key);
  await server.awaitQueued(2);
  await until(async () => (await server.info()).queue[0]['waited-ms'] > 2000, 'it has waited for five time-outs');
  const line = await server.queue();
  assert.equal(await server.handOver(), line[0]);
  const hold = await first;
  assert.equal(hold.owner, line[0]);
  assert.equal((await server.holder()).holds, 1);
  await hold.release();
  await (await second).release();
  await server.awaitGone();
});

test('cancelled_wait', everywhere, async ({ server, locks, make }) => {
  await server.hold();
  const cancel = new AbortController();
  const first = start(locks, server.key, { signal: cancel.signal });
  await server.awaitQueued(1);
  const second = start(make(), server.key);
  await server.awaitQueued(2);
  const reason = new Error('enough');
  cancel.abort(reason);
  await assert.rejects(first, reason);
  assert.equal((await server.queue()).length, 1);
  await handOverTo(server, second);
  await assert.rejects(locks.lock(server.key, { signal: AbortSignal.abort(reason) }), reason);
  await server.awaitGone();
});

test('cancel_at_the_grant', everywhere, async ({ server, locks }) => {
  for (let i = 0; i < 30; i++) {
    await server.hold();
    const cancel = new AbortController();
    const wait = start(locks, server.key, { signal: cancel.signal });
    await server.awaitQueued(1);
    const over = server.handOver();
    await sleep(Math.random() * 3); // so that all orders come about
    cancel.abort();
    await over;
    const hold = await wait.catch((error) => assert.equal(error.name, 'AbortError'));
    await hold?.release();
    await server.awaitGone();
  }
});

test('killed_waiter', everywhere, async ({ server, locks, child }) => {
  await server.hold();
  const kill = child();
  await server.awaitQueued(1);
  const after = start(locks, server.key);
  await server.awaitQueued(2);
  await kill();
  await until(async () => {
    const { queue } = await server.info();
    return queue.length === 1 || queue[0].kind === 'absent';
  }, 'the server has noticed');
  await server.handOver();
  const hold = await after;
  assert.deepEqual([await server.owners(), await server.queue()], [[hold.owner], []]);
  await hold.release();
  await server.awaitGone();
});

test('killed_at_the_grant', everywhere, async ({ server, locks, child }) => {
  for (const delay of [0, 1, 3]) {
    await server.hold();
    const kill = child();
    await server.awaitQueued(1);
    const after = start(locks, server.key);
    await server.awaitQueued(2);
    const over = server.handOver();
    await sleep(delay);
    await kill();
    await over;
    // It had the lock for no longer than its first lease, or its place for no longer than its claim.
    const hold = await after;
    assert.deepEqual([await server.owners(), await server.queue()], [[hold.owner], []]);
    await hold.release();
    await server.awaitGone();
  }
});

test('killed_holder', everywhere, async ({ server, locks, child }) => {
  const messages = await server.messages();
  try {
    const kill = child();
    await until(async () => (await server.holder())?.alive === 1, 'it is held and kept');
    const { token } = await server.holder();
    const after = start(locks, server.key);
    await server.awaitQueued(1);
    await kill();
    assert.equal(await messages.next(), `expired ${token}`);
    await (await after).release();
    await server.awaitGone();
  } finally {
    messages.close();
  }
});

test('an_error_of_the_work_comes_through', everywhere, async ({ server, locks }) => {
  // And not that of giving back.
  const lost = locks.using(server.key, {}, async () => {
    await server.ask('DLOCK.FORCERELEASE', server.key);
    throw new RangeError('of the work');
  });
  await assert.rejects(lost, RangeError);
});

test('an_owner_begins_with_host_and_process', ['single'], async ({ server, locks }) => {
  const begin = `${hostname()}/${process.pid}/`;
  const hold = await locks.lock(server.key, { actor: 'me' });
  assert.deepEqual(await server.owners(), [hold.owner]);
  assert.ok(hold.owner.startsWith(begin) && /\/me#\d+$/.test(hold.owner), hold.owner);
  await hold.release();
  const other = await locks.lock(server.key, { actor: Buffer.from([255, 47, 0]) });
  assert.ok(other.owner.includes(Buffer.from([47, 255, 47, 0, 35])));
  await awaitKept(server, other, 1);
  await other.release();
  await server.awaitGone();
});

test('many_over_several_slots', everywhere, async ({ server, locks }) => {
  const keys = [0, 1, 2, 3].map((i) => `{${i}${server.key.slice(1, -5)}}m`);
  const work = async (names) => {
    for (let i = 0; i < 15; i++) {
      assert.equal(await locks.usingAll(names, {}, (holds) => new Set(names.map((name) => holds.get(name).token)).size), 4);
    }
  };
  await Promise.all([work(keys), work([...keys].reverse())]);
  await server.hold(keys[2]);
  await assert.rejects(locks.usingAll(keys, { wait: 4_000 }, () => assert.fail('not all are free')), LockTimeout);
  await server.awaitQueued(0, keys[2]);
  assert.deepEqual(await Promise.all(keys.map((key) => server.owners(key))), [[], [], ['other'], []]);
});

test('a_thousand_waits_in_one_session', everywhere, async ({ server, make }) => {
  const locks = make({ lease: LONG });
  await server.hold();
  const served = [];
  const works = Array.from({ length: 1000 }, () => locks.using(server.key, {}, (hold) => served.push(hold.owner)));
  await server.awaitQueued(1000);
  const { queue } = await server.info();
  assert.equal(new Set(queue.map((place) => place.in)).size, 1); // one session, which one connection keeps
  await server.handOver();
  await Promise.all(works);
  assert.deepEqual(served.join('\n'), queue.map((place) => place.owner).join('\n'));
  await server.awaitGone();
});

test('hold_over_a_slot_on_its_way', ['cluster'], async ({ server, locks }) => {
  await server.whileTheSlotMoves(async (askThere) => {
    const hold = await locks.lock(server.key);
    const there = async () => {
      const { holders: [holder] } = await askThere('DLOCK.INFO', server.key);
      assert.equal(holder?.token, hold.token);
      return holder;
    };
    await until(async () => {
      const holder = await there();
      return holder.in && holder['held-ms'] > 1.5 * LEASE;
    }, 'it is kept there');
    assert.ok(!hold.lost);
    await hold.release();
  });
  await server.awaitGone();
});

test('wait_over_a_pause', ['single'], async ({ server, locks }) => {
  await server.awaitGone();
  await server.ask('CLIENT', 'PAUSE', 600_000, 'WRITE');
  try {
    // The server answers nothing, and the caller gets an answer all the same.
    await assert.rejects(locks.tryLock(server.key, { wait: 100 }), (error) => error instanceof LockTimeout && Boolean(error.cause));
    const reason = new Error('enough');
    const cancel = new AbortController();
    const wait = start(locks, server.key, { signal: cancel.signal });
    cancel.abort(reason);
    await assert.rejects(wait, reason);
  } finally {
    await server.ask('CLIENT', 'UNPAUSE');
  }
  await server.awaitGone();
});

// A thousand waiters need this process to themselves: when it stalls for longer than a claim or a first lease, the server does
// not serve them in order.
function partOf(name, place) {
  if (/_over_a_/.test(name)) return place === 'single' ? 'single' : 'nodes';
  if (/a_thousand_waits/.test(name)) return place === 'single' ? 'many' : 'nodes';
  return 'rest';
}

for (const alone of [false, true]) {
  describe(alone ? 'servers move about' : 'servers stay', { concurrency: alone ? 1 : 8 }, () => {
    for (const { name, places, body } of tests) {
      for (const library of libraries) {
        for (const place of places.filter((one) => !(one === 'cluster' && isOld(library)) && (partOf(name, one) !== 'rest') === alone && isOf(partOf(name, one)))) {
          it(`${name} (${library}, ${place})`, { timeout: 10 * PATIENCE }, async () => {
            const made = [];
            const make = (options) => made[made.push(makeLocks(library, place, options)) - 1];
            const server = new Server(place);
            const kills = [];
            const start = () => kills[kills.push(child(library, place, server.key)) - 1];
            try {
              await body({ server, make, locks: make(), child: start });
            } finally {
              for (const kill of kills) await kill();
              for (const one of made) await one.close();
            }
          });
        }
      }
    }
  });
}

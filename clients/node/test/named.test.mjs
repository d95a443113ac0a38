// The tests that every language has, by the same names: see ../README.md.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { hostname } from 'node:os';
import { after, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { Deadlock, Fenced, LockTimeout, NotHeld, Replaced } from 'dlock-redis';
import { Keeper } from '../node_modules/dlock-redis/src/keep.mjs';
import { LEASE, LONG, PATIENCE, Server, closeConnections, isOf, libraries, makeLocks, until } from './stage.mjs';

const everywhere = ['single', 'cluster'];
const tests = [];

/** A test in each of these places, with a server, locks, and a function that makes more of them. */
function test(name, places, body) { tests.push({ name, places, body }); }

after(closeConnections);

/** Another process that wants the lock; killed by SIGKILL. */
function child(library, place, key, how) {
  const program = fileURLToPath(new URL('process.mjs', import.meta.url));
  const one = spawn(process.execPath, [program, library, place, key, how], { stdio: ['ignore', 'ignore', 'inherit'] });
  const ended = once(one, 'exit');
  return () => {
    one.kill('SIGKILL');
    return ended;
  };
}

/** Waits for the lock; a refusal is for whoever awaits it later. */
function start(locks, key, options) {
  const wait = locks.lock(key, { timeout: 2 * PATIENCE, ...options });
  wait.catch(() => {});
  return wait;
}

/** The next in the queue has it in the step of the release, and then nobody has. */
async function handOverTo(server, wait) {
  const [next] = await server.queue();
  assert.equal(await server.handOver(), next);
  const hold = await wait;
  assert.equal(hold.owner, next);
  await hold.release();
  await server.awaitGone();
}

/** Waits until it has been held for more than so many leases, under its token, and is kept by the server. */
async function awaitKept(server, hold, leases) {
  await until(async () => {
    const holder = (await server.info()).holders.find((one) => one.token === hold.token);
    assert.ok(holder, 'it is held under its token');
    return holder['held-ms'] > leases * LEASE && holder.auto === 1;
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

test('first_come_first_served', everywhere, async ({ server, locks }) => {
  await server.hold();
  const waits = [];
  for (let i = 0; i < 8; i++) {
    waits.push(start(locks, server.key));
    await server.awaitQueued(i + 1);
  }
  const line = await server.queue();
  const served = [await server.handOver()];
  for (const wait of waits) {
    const hold = await wait;
    if (served.length < line.length) served.push(await server.handOver(hold.owner));
  }
  assert.deepEqual(served, line);
});

test('try_lock_does_not_wait', everywhere, async ({ server, locks }) => {
  await server.hold();
  assert.equal(await locks.tryLock(server.key), null);
  assert.deepEqual(await server.queue(), []);
  await server.handOver();
  const hold = await locks.tryLock(server.key);
  assert.deepEqual(await server.owners(), [hold.owner]);
  await hold.release();
  await server.awaitGone();
});

test('wait_longer_than_the_time_out', everywhere, async ({ server, make }) => {
  await server.hold();
  const first = start(make(), server.key);
  await server.awaitQueued(1);
  const { client } = (await server.info()).queue[0];
  const second = start(make(), server.key);
  await server.awaitQueued(2);
  await until(async () => (await server.info()).queue[0]['waited-ms'] > 2000, 'it has waited for five time-outs');
  const line = await server.queue();
  // The library's time-out has cut nothing.
  assert.equal((await server.info()).queue[0].client, client);
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

test('deadline_passes', everywhere, async ({ server, locks, make }) => {
  await server.hold();
  const first = locks.tryLock(server.key, { timeout: 8_000 });
  await server.awaitQueued(1);
  const second = start(make(), server.key);
  await until(async () => (await server.queue()).length === 2 || (await first) === null, 'both have asked');
  assert.equal(await first, null);
  await server.awaitQueued(1);
  await handOverTo(server, second);
  await server.hold();
  await assert.rejects(locks.lock(server.key, { timeout: 100 }), LockTimeout);
  await server.awaitQueued(0);
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
  const kill = child('plain');
  await server.awaitQueued(1);
  const after = start(locks, server.key);
  await server.awaitQueued(2);
  await kill();
  await until(async () => {
    const { queue } = await server.info();
    return queue.length === 1 || queue[0].client === 0;
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
    const kill = child('plain');
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
  for (const [how, reason] of [['session', 'session'], ['plain', 'expired']]) {
    const messages = await server.messages();
    try {
      const kill = child(how);
      // It has confirmed it: else it would end by its first lease.
      await until(async () => (await server.holder())?.auto === 1, 'it is held and kept');
      const { token } = await server.holder();
      const after = start(locks, server.key);
      await server.awaitQueued(1);
      await kill();
      assert.equal(await messages.next(), `${reason} ${token}`);
      await (await after).release();
      await server.awaitGone();
    } finally {
      messages.close();
    }
  }
});

test('cut_connection', everywhere, async ({ server, locks, make }) => {
  const hold = await make({ lease: LONG }).lock(server.key);
  const { client } = await server.holder();
  await (await server.node()).sendCommand(['CLIENT', 'KILL', 'ID', String(client)]);
  const another = await until(async () => {
    const holder = await server.holder();
    return holder.client !== 0 && holder.client !== client && holder;
  }, 'another connection keeps it');
  assert.deepEqual([another.token, another.auto], [hold.token, 1]);
  await awaitKept(server, hold, 1.5);
  await hold.release();
  const told = await locks.lock(server.key, { session: true });
  await (await server.node()).sendCommand(['CLIENT', 'KILL', 'ID', String((await server.holder()).client)]);
  await assertLost(told);
});

async function assertLost(hold) {
  if (!hold.signal.aborted) await once(hold.signal, 'abort', { signal: AbortSignal.timeout(PATIENCE) });
  assert.ok(hold.signal.reason instanceof NotHeld);
  await assert.rejects(hold.release(), NotHeld);
}

test('forced_release', everywhere, async ({ server, locks }) => {
  const hold = await locks.lock(server.key);
  await server.ask('DLOCK.FORCERELEASE', server.key);
  await assertLost(hold);
});

test('no_write_after_the_loss', everywhere, async ({ server, locks }) => {
  const data = `${server.key}:data`;
  const late = await locks.lock(server.key);
  assert.equal(await late.guard('SET', data, 'late'), 'OK');
  await server.ask('DLOCK.FORCERELEASE', server.key);
  await locks.using(server.key, {}, async (hold) => {
    await hold.guard('SET', data, 'next');
    await assert.rejects(late.guard('SET', data, 'too late'), Fenced);
    assert.equal(await server.ask('GET', data), 'next');
  });
});

test('replaced_is_final', everywhere, async ({ server, locks }) => {
  await server.hold();
  const wait = start(locks, server.key, { owner: 'one name' });
  await server.awaitQueued(1);
  const node = (await server.node()).duplicate();
  await node.connect();
  try {
    const [owner] = await server.queue();
    const other = node.sendCommand(['DLOCK.FAIRACQUIRE', server.key, owner, '600000', 'BLOCK', '0']);
    await assert.rejects(wait, Replaced);
    // The place is the other's, and stays it.
    assert.deepEqual(await server.queue(), [owner]);
    assert.equal(await server.handOver(), owner);
    assert.equal((await other).length, 2);
  } finally {
    node.destroy();
  }
});

test('errors_of_its_own', everywhere, async ({ server, locks }) => {
  const [a, b] = ['a', 'b'].map((name) => `${server.key}:${name}`);
  const one = await locks.lock(a, { owner: 'one' });
  const two = await locks.lock(b, { owner: 'two' });
  const wait = start(locks, b, { owner: 'one' });
  await server.awaitQueued(1, b);
  await assert.rejects(locks.lock(a, { owner: 'two' }), (error) => error instanceof Deadlock && /one/.test(error.message));
  assert.deepEqual(await server.queue(a), []);
  await two.release();
  await (await wait).release();
  await server.ask('DLOCK.FORCERELEASE', a);
  await assert.rejects(one.guard('SET', `${a}:x`, 1), Fenced);
  await assert.rejects(one.release(), NotHeld);
});

test('gives_back_only_its_own', everywhere, async ({ server, locks }) => {
  await server.hold(server.key, 'another reader', 'SHARED');
  const me = { owner: 'me', shared: true };
  const outer = await locks.lock(server.key, me);
  assert.equal(await locks.tryLock(server.key, { timeout: 3_000 }), null);
  await server.awaitQueued(0);
  assert.deepEqual((await server.owners()).sort(), ['another reader', outer.owner].sort());
  // Counted here: the server knows of one hold.
  const inner = await locks.lock(server.key, me);
  assert.equal(inner.token, outer.token);
  assert.equal((await server.ask('DLOCK.HELD', server.key, outer.owner))[1], 1);
  await inner.release();
  await assert.rejects(inner.release(), NotHeld);
  await awaitKept(server, outer, 1.5);
  await outer.release();
  // The error of the work comes through, not that of giving back.
  const lost = locks.using(`${server.key}:2`, {}, async () => {
    await server.ask('DLOCK.FORCERELEASE', `${server.key}:2`);
    throw new RangeError('of the work');
  });
  await assert.rejects(lost, RangeError);
});

test('an_upgrade_is_refused_at_once', ['single'], async ({ server, locks }) => {
  const outer = await locks.lock(server.key, { owner: 'me', shared: true });
  await assert.rejects(locks.lock(server.key, { owner: 'me' }), (error) => error instanceof Deadlock && /release that hold first/.test(error.message));
  assert.ok(!outer.lost);
  await outer.release();
  await server.awaitGone();
});

test('a_name_is_nobody_elses', ['single'], async ({ server, locks, make }) => {
  const begin = `${hostname()}/${process.pid}/`;
  const hold = await locks.lock(server.key, { owner: 'me' });
  assert.equal(await make().tryLock(server.key, { owner: 'me' }), null);
  assert.deepEqual(await server.owners(), [hold.owner]);
  assert.ok(hold.owner.startsWith(`${begin}me#`), hold.owner);
  await hold.release();
  assert.ok((await locks.lock(server.key)).owner.startsWith(begin));
  await server.ask('DLOCK.FORCERELEASE', server.key);
});

test('a_named_owner_asks_in_turn', ['single'], async ({ server, locks }) => {
  await server.hold();
  const waits = [1, 2].map(() => start(locks, server.key, { owner: 'me' }));
  await server.awaitQueued(1);
  assert.equal(await locks.tryLock(server.key, { owner: 'me' }), null);
  await server.handOver();
  const [one, two] = await Promise.all(waits);
  assert.equal(one.token, two.token);
  await one.release();
  await awaitKept(server, two, 1);
  // What is being given back ends no later hold.
  const released = two.release();
  const three = await locks.lock(server.key, { owner: 'me' });
  await released;
  await awaitKept(server, three, 1);
  await three.release();
  await server.awaitGone();
});

test('shared_and_counted', everywhere, async ({ server, locks }) => {
  const readers = [];
  for (let i = 0; i < 3; i++) readers.push(await locks.lock(server.key, { shared: true }));
  const writing = start(locks, server.key);
  await server.awaitQueued(1);
  assert.equal(await locks.tryLock(server.key, { shared: true }), null, 'not past the writer');
  for (const reader of readers) await reader.release();
  const writer = await writing;
  assert.equal(await locks.tryLock(server.key, { shared: true }), null);
  await writer.release();
  const permits = [];
  for (let i = 0; i < 3; i++) permits.push(await locks.lock(server.key, { limit: 3 }));
  assert.equal(await locks.tryLock(server.key, { limit: 3 }), null);
  const fourth = start(locks, server.key, { limit: 3 });
  await server.awaitQueued(1);
  await permits.pop().release();
  permits.push(await fourth);
  assert.equal((await server.owners()).length, 3);
  for (const permit of permits) await permit.release();
  await server.awaitGone();
});

test('many_over_several_slots', everywhere, async ({ server, locks }) => {
  const keys = [0, 1, 2, 3].map((i) => `{${i}${server.key.slice(1, -5)}}m`);
  const work = async (names) => {
    for (let i = 0; i < 15; i++) {
      const [tokens, owners] = await locks.usingAll(names, {}, (holds) => ['token', 'owner']
        .map((what) => new Set(names.map((name) => holds.get(name)[what]))));
      assert.deepEqual([tokens.size, owners.size], [4, 1]);
    }
  };
  await Promise.all([work(keys), work([...keys].reverse())]);
  await server.hold(keys[2]);
  await assert.rejects(locks.usingAll(keys, { timeout: 4_000 }, () => assert.fail('not all are free')), LockTimeout);
  await server.awaitQueued(0, keys[2]);
  assert.deepEqual(await Promise.all(keys.map((key) => server.owners(key))), [[], [], ['other'], []]);
});

test('a_thousand_waits_on_one_connection', everywhere, async ({ server, make }) => {
  const locks = make({ lease: LONG, queueGrace: LONG });
  await server.hold();
  const served = [];
  const works = Array.from({ length: 1000 }, () => locks.using(server.key, {}, (hold) => served.push(hold.owner)));
  await server.awaitQueued(1000);
  const { queue } = await server.info();
  assert.equal(new Set(queue.map((place) => place.client)).size, 1);
  await server.handOver();
  await Promise.all(works);
  assert.deepEqual(served.join('\n'), queue.map((place) => place.owner).join('\n'));
  await server.awaitGone();
});

/** A key that another node of the cluster serves. */
const keyElsewhere = (server) => until(async () => {
  const another = new Server('cluster');
  return await another.node() !== await server.node() && another.key;
}, 'there is one');

async function holdsOver(what, { server, make }) {
  const locks = make({ lease: LONG });
  const hold = await locks.lock(server.key);
  const elsewhere = server.place === 'cluster' && await locks.lock(await keyElsewhere(server), { session: true });
  await server.fault(what);
  // The new server knows nothing of connections: until the client has said it again nobody renews.
  await awaitKept(server, hold, 0);
  assert.ok((await server.holder()).client);
  // The connections to the others have not ended.
  if (elsewhere) await elsewhere.release();
  assert.equal(await hold.guard('SET', `${server.key}:x`, 1), 'OK');
  await hold.release();
  await server.awaitGone();
}

async function waitsOver(what, { server, locks, make }) {
  await server.hold();
  const waits = [];
  for (const one of [locks, make()]) {
    waits.push(start(one, server.key, { timeout: 4 * PATIENCE }));
    await server.awaitQueued(waits.length);
  }
  const line = await server.queue();
  await server.fault(what);
  await until(async () => (await server.info()).queue.filter((place) => place.client).length === 2, 'both are back');
  assert.deepEqual(await server.queue(), line);
  assert.equal(await server.handOver(), line[0]);
  for (const [i, wait] of waits.entries()) {
    const hold = await wait;
    assert.equal(hold.owner, line[i]);
    await hold.release();
  }
  await server.awaitGone();
}

test('lock_over_a_slot_on_its_way', ['cluster'], async ({ server, locks }) => {
  await server.whileTheSlotMoves(async (askThere) => {
    const hold = await locks.lock(server.key);
    const there = () => askThere('DLOCK.HELD', server.key, hold.owner);
    assert.equal((await there())[0], hold.token);
    assert.equal(await hold.guard('EXISTS', server.key), 1);
    await hold.release();
    assert.equal(await there(), null);
  });
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
    const { client } = await there();
    await askThere('CLIENT', 'KILL', 'ID', String(client));
    await until(async () => {
      const holder = await there();
      return holder.auto === 1 && ![0, client].includes(holder.client) && holder['held-ms'] > 1.5 * LEASE;
    }, 'another connection keeps it');
    assert.ok(!hold.lost);
    await hold.release();
  });
  await server.awaitGone();
});

test('reentry_over_a_slot_move', ['cluster'], async ({ server, make }) => {
  const locks = make({ lease: LONG });
  const outer = await locks.lock(server.key, { owner: 'me' });
  const { round } = Keeper.prototype;
  Keeper.prototype.round = async () => {}; // they do not know of it yet
  let inner;
  try {
    await server.fault('move');
    inner = await locks.lock(server.key, { owner: 'me' });
  } finally {
    Keeper.prototype.round = round;
  }
  assert.equal(inner.token, outer.token);
  await awaitKept(server, inner, 1);
  await server.ask('DLOCK.FORCERELEASE', server.key);
  await assertLost(outer);
  await assertLost(inner);
});

test('wait_over_a_lost_message', ['single'], async ({ server, locks }) => {
  await server.hold();
  const wait = start(locks, server.key);
  await server.awaitQueued(1);
  // The grant is published when nobody is there to hear it.
  await (await server.node()).multi().addCommand(['CLIENT', 'KILL', 'TYPE', 'pubsub'])
    .addCommand(['DLOCK.RELEASE', server.key, 'other']).exec();
  const hold = await wait;
  const { token, holds } = await server.holder();
  assert.deepEqual([token, holds], [hold.token, 1]);
  await hold.release();
  await server.awaitGone();
});

test('wait_over_a_pause', ['single'], async ({ server, locks }) => {
  await server.awaitGone();
  await server.ask('CLIENT', 'PAUSE', 600_000, 'WRITE');
  try {
    // The server answers nothing, and the caller gets an answer all the same.
    await assert.rejects(locks.tryLock(server.key, { timeout: 100 }), (error) => error instanceof LockTimeout && Boolean(error.cause));
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

test('hold_over_a_failover', ['cluster', 'pair'], (stage) => holdsOver('failover', stage));
test('wait_over_a_failover', ['cluster', 'pair'], (stage) => waitsOver('failover', stage));
test('wait_over_a_crash', ['cluster'], (stage) => waitsOver('crash', stage));
test('hold_over_a_slot_move', ['cluster'], (stage) => holdsOver('move', stage));
test('wait_over_a_slot_move', ['cluster'], (stage) => waitsOver('move', stage));

// A thousand that wait need this process for themselves: when it stands still for longer than a claim or a first lease they
// are not served in order.
function partOf(name, place) {
  if (/_over_a_/.test(name)) return place === 'single' ? 'single' : 'nodes';
  if (/a_thousand_waits/.test(name)) return place === 'single' ? 'many' : 'nodes';
  return 'rest';
}

for (const alone of [false, true]) {
  describe(alone ? 'servers move about' : 'servers stay', { concurrency: alone ? 1 : 8 }, () => {
    for (const { name, places, body } of tests) {
      for (const library of libraries) {
        for (const place of places.filter((one) => (partOf(name, one) !== 'rest') === alone && isOf(partOf(name, one)))) {
          it(`${name} (${library}, ${place})`, { timeout: 10 * PATIENCE }, async () => {
            const made = [];
            const make = (options) => made[made.push(makeLocks(library, place, options)) - 1];
            const server = new Server(place);
            const kills = [];
            const start = (how) => kills[kills.push(child(library, place, server.key, how)) - 1];
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

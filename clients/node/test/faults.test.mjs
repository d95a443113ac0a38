// Faults that are not in the cases of all languages.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { after, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import Redis from 'ioredis';

import { Unreachable } from 'dlock-redis';
import { Election } from 'dlock-redis/leader';
import Redlock from 'dlock-redis/redlock';
import {
  LEASE, LONG, PATIENCE, Server, addresses, closeConnections, control, libraries, makeLocksAt, makeLocksBy, proxy, until,
} from './stage.mjs';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc');

const tests = [];
const test = (name, body) => tests.push([name, body]);

test('what_others_do_to_a_hold_is_reported', async ({ server, make }) => {
  const locks = make(undefined, {}, { lease: 3_000 });
  const hold = await locks.lock(server.key);
  await until(async () => (await server.holder()).alive, 'it is kept');
  await server.ask('DLOCK.RENEW', server.key, hold.owner, 60_000); // out of the session
  await until(() => hold.lost, 'it is lost at its end');
  assert.match(hold.signal.reason.message, /taken out of the session/);
  assert.equal((await server.holder()).token, hold.token); // the client does not release it: it belongs to another program
  await server.ask('DEL', server.key);
  const renamed = await locks.lock(server.key);
  await server.ask('RENAME', server.key, `${server.key}:2`);
  await until(() => renamed.lost, 'a lock with another name is lost');
  await server.ask('DEL', `${server.key}:2`);
});

test('a_command_that_comes_late_keeps_no_lock_that_was_left', async ({ server, make }) => {
  const locks = make();
  const kept = await locks.lock(`${server.key}:kept`);
  const hold = await locks.lock(server.key);
  await until(async () => (await server.holder()).alive, 'the session is kept');
  await hold.releaseAfter(LONG);
  const session = hold.owner.replace(/\/\d+$/, '');
  await server.ask('DLOCK.RENEW', server.key, hold.owner, LEASE, 'TOKEN', hold.token, 'IN', session);
  await until(async () => (await server.holder()).in === '', 'it is left again');
  assert.equal((await server.holder()).token, hold.token);
  await server.ask('DEL', server.key);
  await kept.release();
});

test('many_that_are_left_stop_no_keeper', async ({ server, make }) => {
  const path = await control(`path ${addresses('DLOCK_SINGLE')[0].join(':')}`);
  await control(`delay ${path} 200`);
  // To leave one after the other would take 24 s.
  const lease = 2 * LEASE;
  const locks = make(path.split(':'), {}, { lease });
  const hold = await locks.lock(server.key);
  const keys = Array.from({ length: 60 }, (_, i) => `${server.key}:${i}`);
  const aborter = new AbortController();
  for (const key of keys) await server.hold(key);
  const waits = keys.map((key) => locks.lock(key, { signal: aborter.signal }));
  const ended = Promise.allSettled(waits);
  await until(async () => (await Promise.all(keys.map((key) => server.info(key)))).every(({ queue }) => queue.length), 'all wait');
  const began = (await server.holder())['held-ms'];
  aborter.abort();
  assert.ok((await ended).every(({ status }) => status === 'rejected'));
  await until(async () => {
    const holder = await server.holder();
    assert.equal(holder?.token, hold.token);
    assert.ok(!hold.lost);
    return holder['held-ms'] > began + 2 * lease;
  }, 'two leases have passed');
  for (const key of keys) assert.equal((await server.info(key)).queue.length, 0);
  for (const key of keys) await server.ask('DEL', key);
  await hold.release();
  await control(`close ${path}`);
});

test('who_hangs_up_is_not_asked_all_the_time', async ({ server, make, open }) => {
  let met = 0;
  const path = await open(() => { met++; });
  const hold = await make(path.address, {}, { lease: LEASE }).lock(server.key);
  met = 0;
  path.hangUp();
  await until(() => hold.lost, 'it is told by the clock');
  assert.ok(met < 200, `${met} connections`);
});

/** Where a Sentinel would send a client: to a path that falls silent, and then to the server itself. */
test('what_hangs_is_asked_for_elsewhere', async ({ server, by, open }) => {
  const path = await open();
  let hangs = false;
  const [single] = addresses('DLOCK_SINGLE');
  const locks = by(async () => (hangs ? single : path.address), { lease: LEASE, replyTimeout: 1_000 });
  const hold = await locks.lock(server.key);
  hangs = true;
  path.freeze();
  await until(async () => hold.lost || (await server.holder())['held-ms'] > 1.5 * LEASE, 'another connection keeps it');
  assert.ok(!hold.lost);
  await hold.release().catch((error) => assert.ok(error instanceof Unreachable)); // the release continues after the call
  await server.awaitGone();
});

test('a_connect_that_hangs_is_begun_again', async ({ server, by, open }) => {
  const path = await open();
  path.freeze();
  let asked = 0;
  const [single] = addresses('DLOCK_SINGLE');
  const locks = by(async () => (asked++ ? single : path.address), { lease: LEASE, replyTimeout: 1_000 });
  const hold = await locks.lock(server.key, { wait: PATIENCE / 2 });
  await hold.release();
  path.thaw();
});

test('a_process_ends_while_its_server_hangs', async ({ server, open, library }) => {
  const path = await open();
  const program = fileURLToPath(new URL('closer.mjs', import.meta.url));
  const child = spawn(process.execPath, [program, library, ...path.address, server.key], { stdio: ['pipe', 'pipe', 'inherit'] });
  try {
    await once(child.stdout, 'data');
    path.freeze();
    child.stdin.write('it hangs');
    await until(() => child.exitCode === 0, 'it ends');
  } finally {
    child.kill('SIGKILL');
  }
});

test('a_lease_may_be_longer_than_any_session', async ({ server, make }) => {
  const locks = make(undefined, {}, { lease: 900_000 }); // a session ends ten minutes after its last command, at the latest
  await server.hold();
  const wait = locks.lock(server.key);
  await server.awaitQueued(1);
  await server.handOver();
  await (await wait).release();
});

test('one_lost_answer_costs_no_short_hold', async ({ server, make }) => {
  const path = await control(`path ${addresses('DLOCK_SINGLE')[0].join(':')}`);
  const locks = make(path.split(':'), {}, { lease: 3_000 });
  const hold = await locks.lock(server.key);
  for (let leases = 1; leases < 4; leases++) {
    await until(async () => hold.lost || (await server.holder())['held-ms'] > leases * 3_000, 'it is kept');
    await control(`strand ${path}`); // the open connections fall silent
  }
  await until(async () => hold.lost || (await server.holder())['held-ms'] > 12_000, 'it is kept by others');
  assert.ok(!hold.lost, hold.signal.reason?.message);
  await hold.release().catch((error) => assert.ok(error instanceof Unreachable)); // by a silent connection, after the call
  await server.awaitGone();
  await control(`close ${path}`);
});

test('a_try_whose_answer_is_lost_leaves_no_lock', async ({ server, make }) => {
  const path = await control(`path ${addresses('DLOCK_SINGLE')[0].join(':')}`);
  const locks = make(path.split(':'), {}, { lease: 600_000, replyTimeout: 1_000 });
  await (await locks.lock(`${server.key}:2`)).release(); // it is connected
  await control(`delay ${path} 2400`);
  await assert.rejects(locks.tryLock(server.key), Unreachable);
  await until(() => server.holder(), 'it was granted');
  await control(`delay ${path} 0`);
  await server.awaitGone();
  await control(`close ${path}`);
});

test('a_closed_client_holds_up_nobody_in_the_queue', async ({ server, make }) => {
  const [one, another] = [make(), make()];
  await server.hold();
  const closed = one.lock(server.key);
  closed.catch(() => {});
  await server.awaitQueued(1);
  const next = another.lock(server.key);
  await server.awaitQueued(2);
  await one.close();
  assert.equal((await server.queue()).length, 1); // an absent place would reserve the lock for five seconds
  await server.handOver();
  await (await next).release();
});

test('what_is_still_held_after_a_pause_is_kept', async ({ server, make }) => {
  const locks = make(undefined, {}, { lease: 1_500, logger: { warn() {} } });
  const hold = await locks.lock(server.key);
  const gone = await locks.lock(`${server.key}:gone`);
  await until(async () => (await server.holder()).alive, 'it is kept');
  await server.ask('DEL', gone.key);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3_000); // the program stalls, and the server renews
  await until(() => gone.lost, 'what is lost is reported');
  await until(() => hold.lost || hold.left() > 0, 'it is asked for');
  assert.ok(!hold.lost);
  await hold.release();
});

test('a_candidate_campaigns_after_a_pause', async ({ server, make }) => {
  const election = new Election(make(undefined, {}, { lease: 1_500, logger: { warn() {} } }), server.key);
  const term = await election.campaign();
  await until(async () => (await server.holder()).alive, 'it is kept');
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3_000); // the program stalls, and the server renews
  assert.ok(!election.isLeader && !term.lost);
  const next = await election.campaign({ wait: PATIENCE / 2 }); // it does not wait for itself
  assert.ok(next.token > term.token && election.term === next.token);
  assert.ok(term.lost && term.signal.aborted); // who still works for the old term learns of its end
  await election.resign();
  await server.awaitGone();
});

test('eleven_waits_on_one_signal_warn_of_nothing', async ({ server, make }) => {
  const warned = [];
  const warn = (warning) => warned.push(warning.name);
  process.on('warning', warn);
  await server.hold();
  const aborter = new AbortController();
  const locks = make();
  const ended = Promise.allSettled(Array.from({ length: 11 }, () => locks.lock(server.key, { signal: aborter.signal })));
  await server.awaitQueued(11);
  aborter.abort();
  assert.ok((await ended).every(({ status }) => status === 'rejected'));
  await server.awaitQueued(0);
  process.off('warning', warn);
  assert.ok(!warned.includes('MaxListenersExceededWarning'), `${warned}`);
  assert.equal(await locks.tryLock(server.key), null);
});

/** Calls `make` and collects the garbage: the test itself no longer refers to what `make` has created. */
async function forget(make) {
  await (async () => { await make(); })();
  for (let i = 0; i < 10; i++) {
    collect();
    await sleep(10);
  }
}

test('two_holds_of_locks_that_nothing_refers_to', async ({ server, make }) => {
  const all = async () => [await make().lock(server.key), await make().lock(`${server.key}:2`)];
  const holds = await all();
  for (let i = 0; i < 5; i++) {
    collect();
    await sleep(20);
  }
  await until(async () => (await server.holder())['held-ms'] > 1.5 * LEASE, 'both are kept');
  assert.ok(holds.every((hold) => !hold.lost));
  for (const hold of holds) await hold.release();
});

test('a_signal_that_is_in_use_keeps_its_hold', async ({ server, make }) => {
  const locks = make(addresses('DLOCK_SINGLE')[0], {}, { lease: LEASE });
  let signal;
  await forget(async () => { ({ signal } = await locks.lock(server.key)); });
  await until(async () => (await server.holder())['held-ms'] > 2 * LEASE, 'what nobody keeps has ended');
  assert.ok(!signal.aborted);
});

test('no_generator_is_work', async ({ server, make }) => {
  const locks = make(addresses('DLOCK_SINGLE')[0]);
  const wrong = /generator/;
  const election = new Election(locks, server.key);
  const redlock = new Redlock([new Redis({ host: addresses('DLOCK_SINGLE')[0][0], port: Number(addresses('DLOCK_SINGLE')[0][1]), lazyConnect: true })]);
  function* generator() { yield 1; }
  async function* later() { yield 1; }
  for (const work of [generator, later, () => generator(), async () => later()]) {
    await assert.rejects(election.lead(work), wrong);
    await assert.rejects(redlock.using([server.key], 5_000, work), wrong);
  }
  await redlock.quit();
  await server.awaitGone();
});

test('no_time_mends_a_mistake', async ({ by }) => {
  for (const mistake of [new SyntaxError('no address'), new Error('it does not connect', { cause: new RangeError('a bad port') }),
    Object.assign(new Error('Cannot find module'), { code: 'ERR_MODULE_NOT_FOUND' })]) {
    const wait = by(async () => { throw mistake; }).lock('key');
    await assert.rejects(Promise.race([wait, sleep(LONG, null, { ref: false })]), ({ message }) => message === mistake.message);
  }
});

test('old_names_warn', async ({ server, make }) => {
  const warned = [];
  const warn = (warning) => warned.push(warning.message);
  process.on('warning', warn);
  const locks = make(addresses('DLOCK_SINGLE')[0], {}, { queueGrace: 2_000 });
  await (await locks.lock(server.key, { timeout: 5_000, owner: 'me' })).release();
  await server.hold();
  await assert.rejects(locks.lock(server.key, { timeout: 10 }), /within 10 ms/);
  await new Promise((done) => { setImmediate(done); });
  process.off('warning', warn);
  for (const words of ["queueGrace is the server's dlock.claim-window-ms now", 'timeout is called wait now', 'owner is called actor now']) {
    assert.ok(warned.includes(words), `${warned}`);
  }
  await assert.rejects(locks.lock(server.key, { ephemeral: true }), /ephemeral is no option/);
});

after(closeConnections);

const standsStill = ([name]) => /pause/.test(name); // it stalls this process, and with it all tests that run at the same time
for (const alone of [false, true]) describe(alone ? 'standstills' : 'faults', { concurrency: alone ? 1 : 8 }, () => {
  for (const [name, body] of tests.filter((one) => standsStill(one) === alone)) {
    for (const library of libraries) {
      it(`${name} (${library})`, { timeout: 120_000 }, async () => {
        const closing = [];
        const later = (one) => closing[closing.push(one) - 1];
        const [single] = addresses('DLOCK_SINGLE');
        try {
          await body({
            library,
            server: new Server('single'),
            make: (address = single, login = {}, settings = {}) => later(makeLocksAt(library, address, login, settings)),
            by: (where, settings) => later(makeLocksBy(library, where, settings)),
            open: async (met) => later(await proxy(single, met)),
          });
        } finally {
          for (const one of closing) await one.close();
        }
      });
    }
  }
});

// What goes wrong beside the cases that all languages have.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';
import { after, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import Redis from 'ioredis';

import { Locks, Unreachable } from 'dlock-redis';
import { Election } from 'dlock-redis/leader';
import Redlock from 'dlock-redis/redlock';
import {
  LONG, Master, PATIENCE, Server, addresses, closeConnections, control, libraries, makeLocksAt, makeLocksBy, proxy, until,
} from './stage.mjs';

const inside = (name) => import(new URL(`../node_modules/dlock-redis/src/${name}.mjs`, import.meta.url));
const [{ Core }, { Node }] = await Promise.all(['core', 'node'].map(inside));

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc');

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

test('a_link_that_ends_while_it_is_replaced_leaves_no_connection', async ({ server, make, open }) => {
  const path = await open();
  const logger = { warn() {} };
  const locks = make(path.address, { name: server.key.slice(1, 9) }, { lease: LONG, logger });
  const hold = await locks.lock(server.key);
  const first = await linkOf(server);
  let [asked, go] = [0];
  const gate = new Promise((done) => { go = done; });
  const { openLink } = Core.prototype;
  Core.prototype.openLink = async function opening(node) {
    if (this.settings.logger === logger && ++asked === 1) await gate;
    return openLink.call(this, node);
  };
  try {
    path.inject('DLOCK.ACQUIRE', `${server.key}:orphan`, 'nobody', '600000', 'AUTO', '600000');
    await until(() => asked, 'it is replaced');
    await server.ask('CLIENT', 'KILL', 'ID', first);
    const other = locks.lock(`${server.key}:other`);
    await Promise.race([other, sleep(1_000)]);
    go();
    await other;
    await until(async () => ![first, 0].includes(await linkOf(server)), 'it is tied anew');
    const list = await server.ask('CLIENT', 'LIST');
    assert.equal(list.split(`name=${server.key.slice(1, 9)} `).length - 1, 1);
  } finally {
    Core.prototype.openLink = openLink;
  }
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

test('a_subscriber_that_was_opened_before_the_link_is_not_believed', async ({ server, by, open }) => {
  const [a, b] = addresses('DLOCK_MASTERS').slice(0, 2).map((address) => new Master(address, server.key));
  for (const master of [a, b]) await master.hold();
  const path = await open();
  let [dialled, arrive] = [0];
  const late = new Promise((done) => { arrive = done; });
  // The link goes to one server, and after it was cut to another one; the subscriber is long on its way to the first.
  const locks = by(async () => {
    dialled++;
    if (dialled === 1) return path.address;
    if (dialled > 2) return b.address;
    await late;
    return a.address;
  });
  const wait = locks.lock(server.key, { timeout: PATIENCE });
  wait.catch(() => {});
  await until(() => dialled === 2, 'the subscriber is on its way');
  path.hangUp();
  await (await locks.lock(`${server.key}:other`)).release();
  arrive();
  await b.awaitQueued(1);
  await b.handOver();
  await (await wait).release();
  await b.awaitGone();
});

test('what_others_publish_is_ignored', async () => {
  for (const message of ['', 'granted', 'granted 1 what', 'granted 1 3:key 5:owner 7']) new Node('').notify(Buffer.from(message));
});

test('a_try_at_a_busy_server_is_one_attempt', async ({ server, make }) => {
  const refused = async (locks, text) => {
    const times = [];
    // A busy machine is late by itself.
    for (let i = 0; i < 20 && !(Math.min(...times) < 250); i++) {
      const began = performance.now();
      await assert.rejects(locks.tryLock(server.key), (error) => error.message.includes(text) || assert.fail(error));
      times.push(performance.now() - began);
    }
    assert.ok(Math.min(...times) < 250, `${text}: ${times}`);
  };
  for (const words of ['BUSY a script runs', 'LOADING it begins', 'MASTERDOWN it is away']) {
    const answers = createServer((socket) => {
      socket.on('error', () => {});
      let [left, lines] = [0, ''];
      createInterface(socket).on('line', (line) => {
        if (!left) [left, lines] = [2 * Number(line.slice(1)), '']; // each word has a line of its length before it
        else lines += line;
        if (lines && !--left) socket.write(lines.includes('DLOCK.') ? `-${words}\r\n` : '+OK\r\n');
      });
    }).listen(0, '127.0.0.1');
    await once(answers, 'listening');
    await refused(make(['127.0.0.1', answers.address().port]), words);
    answers.close();
  }
});

/** Where a Sentinel would send a client: to a path that falls silent, and then to the server itself. */
test('what_hangs_is_asked_for_elsewhere', async ({ server, by, open }) => {
  const path = await open();
  let hangs = false;
  const [single] = addresses('DLOCK_SINGLE');
  const locks = by(async () => (hangs ? single : path.address), { lease: LONG, replyTimeout: 60_000 });
  const hold = await locks.lock(server.key);
  const first = await linkOf(server);
  hangs = true;
  path.freeze();
  await until(async () => hold.lost || ![first, 0].includes(await linkOf(server)), 'another connection keeps it');
  assert.ok(!hold.lost);
  await hold.release();
  await server.awaitGone();
});

test('a_connect_that_hangs_is_begun_again', async ({ server, by, open }) => {
  const path = await open();
  path.freeze();
  let asked = 0;
  const [single] = addresses('DLOCK_SINGLE');
  const locks = by(async () => (asked++ ? single : path.address), { lease: LEASE, replyTimeout: 60_000 });
  const hold = await locks.lock(server.key, { timeout: PATIENCE / 2 });
  await hold.release();
  path.thaw();
});

test('what_is_still_held_after_a_pause_is_kept', async ({ server, make }) => {
  const locks = make(undefined, {}, { lease: 1_000, logger: { warn() {} } });
  const hold = await locks.lock(server.key);
  const gone = await locks.lock(`${server.key}:gone`);
  await server.ask('DEL', gone.key);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3_000); // the program stands still, and the server renews
  await until(() => gone.lost, 'what is lost is reported');
  await until(() => hold.lost || hold.left() > 0, 'it is asked for');
  assert.ok(!hold.lost);
  await hold.release();
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

/** Nothing of the test refers any more to what the function has made. */
async function forget(make) {
  await (async () => { await make(); })();
  for (let i = 0; i < 10; i++) {
    collect();
    await sleep(10);
  }
}

test('a_forgotten_hold_is_left_to_its_lease', async ({ server, make }) => { // what it protects may still run
  const warned = [];
  const lost = [];
  const locks = make(addresses('DLOCK_SINGLE')[0], {}, { lease: LONG, logger: { warn: (message) => warned.push(message) } });
  let token;
  const onLost = (hold) => lost.push(hold.token);
  await forget(async () => { ({ token } = await locks.lock(server.key, { owner: 'me', onLost })); });
  await until(() => lost.length, 'it is told');
  assert.deepEqual(lost, [token]);
  assert.match(warned.join(), /lost: forgotten/);
  await until(async () => {
    const holder = await server.holder();
    assert.equal(holder?.token, token);
    return !holder.auto;
  }, 'the server renews it no more');
  assert.equal(await locks.tryLock(server.key, { owner: 'me' }), null); // nor does its owner have it again
  await (await locks.lock(server.key, { owner: 'me', timeout: 2 * PATIENCE })).release();
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
    await assert.rejects(locks.using(server.key, {}, work), wrong);
    await assert.rejects(locks.usingAll([server.key], {}, work), wrong);
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

test('old_names_of_settings_warn', async () => {
  const warned = [];
  const warn = (warning) => warned.push(warning.message);
  process.on('warning', warn);
  new Locks(() => null, { auto: 30_000, claim: 2_000, bound: 1_000, allowance: 50 });
  await new Promise((done) => { setImmediate(done); });
  process.off('warning', warn);
  for (const name of ['hangTimeout', 'queueGrace', 'replyTimeout', 'clockMargin']) {
    assert.ok(warned.some((message) => message.includes(`is called ${name} now`)), `${warned}`);
  }
  assert.throws(() => new Locks(() => null, { bound: 1, replyTimeout: 1 }), TypeError);
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

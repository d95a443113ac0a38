// What the locks do with their own clients, and with the answers of a server that a test writes. No server runs.
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { Closed, LockTimeout, Locks, NotHeld, Refused, Unreachable } from 'dlock-redis';
import { FakeLocks } from 'dlock-redis/fakes';
import { Election } from 'dlock-redis/leader';
import Redlock, { ExecutionError } from 'dlock-redis/redlock';
import { until } from './stage.mjs';

const inside = (name) => import(new URL(`../node_modules/dlock-redis/src/${name}.mjs`, import.meta.url));
const [{ Client }, { Sessions }] = await Promise.all(['library', 'session'].map(inside));
setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc');
const nothing = () => {};
const alive = setInterval(nothing, 1_000); // our timers keep no process alive
after(() => clearInterval(alive));

/** What makes clients that never answer. */
function silent(isCluster) {
  const clients = [];
  const open = async () => {
    const one = { open: true, ended: new Promise(nothing), send: () => new Promise(nothing), close() { this.open = false; } };
    return clients[clients.push(one) - 1];
  };
  return { clients, factory: { timeout: 20, isCluster, open } };
}

for (const isCluster of [false, true]) {
  const place = isCluster ? 'a cluster' : 'one server';
  test(`a_client_without_an_answer_is_closed (${place})`, async () => {
    const { clients, factory } = silent(isCluster);
    const client = new Client(factory);
    for (let i = 0; i < 4; i++) await assert.rejects(client.call('key', ['PING']), Unreachable);
    assert.ok(clients.length >= 4);
    await until(() => clients.filter((client) => client.open).length <= 1, 'only the next one is open');
    client.close();
  });

  test(`close_ends_a_client_that_was_left (${place})`, async () => {
    const { clients, factory } = silent(isCluster);
    const client = new Client(factory);
    await assert.rejects(client.call('key', ['PING']), Unreachable);
    client.close();
    await sleep(0);
    assert.deepEqual(clients.filter((client) => client.open), []);
  });
}

test('who_connects_too_late_sends_nothing', async () => {
  const sent = [];
  const open = async () => {
    await sleep(50);
    return { ended: new Promise(nothing), send: async (key, words) => sent.push(words), close: nothing };
  };
  const client = new Client({ timeout: 20, open });
  await assert.rejects(client.call('key', ['PING']), Unreachable);
  await sleep(60);
  assert.deepEqual(sent, []);
  client.close();
});

/** Locks of a server that the test writes. `answers`: by command, what returns the reply to its words. `sent`: the commands. */
function scripted(answers, settings) {
  const sent = [];
  const make = () => Object.assign(new EventEmitter(), {
    status: 'ready', options: {}, duplicate: make, sendCommand: nothing, connect: async () => {}, call: async () => 'PONG', disconnect: nothing,
    async callBuffer(...words) {
      sent.push(words);
      return answers[words[0].slice('DLOCK.'.length)](words);
    },
  });
  return { sent, client: make(), locks: new Locks(make(), { logger: { warn: nothing }, ...settings }) };
}
const forEver = () => new Promise(nothing);
const commands = (sent, name) => sent.filter((words) => words[0] === `DLOCK.${name}`);

test('a_try_without_an_answer_is_cancelled', async () => {
  const { locks, sent } = scripted({ ACQUIRE: forEver, CANCEL: () => 1 }, { replyTimeout: 20 });
  await assert.rejects(locks.tryLock('key'), Unreachable);
  await until(() => commands(sent, 'CANCEL').length, 'it is cancelled');
  const [[, , owner]] = commands(sent, 'ACQUIRE');
  assert.deepEqual(commands(sent, 'CANCEL'), [['DLOCK.CANCEL', 'key', owner]]);
  await locks.close();
});

test('close_leaves_the_queues', async () => {
  const waits = { FAIRACQUIRE: () => [0, 1, 7], SESSION: () => sleep(20, [7, 0, null, []]), CANCEL: () => 1 };
  const { locks, sent } = scripted(waits);
  const waiting = locks.lock('key');
  waiting.catch(nothing);
  await until(() => commands(sent, 'SESSION').length, 'it waits');
  await locks.close();
  await assert.rejects(waiting, Closed);
  const [[, , owner]] = commands(sent, 'FAIRACQUIRE');
  assert.deepEqual(commands(sent, 'CANCEL'), [['DLOCK.CANCEL', 'key', owner]]);
});

test('a_row_is_newer_than_a_renewal_that_was_sent_before_it', async () => {
  let answer;
  const renewal = new Promise((done) => { answer = done; });
  const tokens = { a: 1, b: 2 };
  let owner;
  const { locks } = scripted({
    ACQUIRE: ([, key, name]) => {
      if (key === 'a') owner = name;
      return [tokens[key], 7];
    },
    // The server has begun the session again, and a stranger has taken the lock a out of it.
    SESSION: ([, , , , , id]) => (id === 7 ? [8, 0, null, []] : sleep(50, [8, 1, 2_000, [[1, Buffer.from('taken'), 'a', owner, 1, 200]]])),
    RENEW: ([, key]) => (key === 'a' ? renewal : [2_000, 8]),
    RELEASE: () => 0,
  }, { lease: 2_000, clockMargin: 0 });
  const [taken, kept] = [await locks.tryLock('a'), await locks.tryLock('b')];
  await until(() => taken.left() > 0 && taken.left() < 250, 'it is taken');
  answer([2_000, 8]);
  await until(() => taken.lost || taken.left() > 500, 'it is lost');
  assert.ok(taken.lost && !kept.lost);
  await locks.close();
});

test('an_answer_that_is_read_late_renews_nothing_by_itself', async () => {
  let last = 0;
  const { locks, sent } = scripted({
    ACQUIRE: () => [last += 1, 7],
    SESSION: (words) => (words.includes('BLOCK') ? sleep(100, [7, 0, 2_900, []]) : [7, 0, 2_900, []]),
    RENEW: () => [3_000, 7],
  }, { lease: 3_000 });
  for (let i = 0; i < 10; i++) await locks.tryLock(`key ${i}`);
  await until(() => sent.at(-1).includes('BLOCK'), 'the server keeps them');
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_700); // this process stalls
  const { length } = sent;
  await until(() => sent.length > length, 'the answer is read');
  assert.deepEqual(commands(sent, 'RENEW'), []);
  await locks.close();
});

test('a_lease_is_longer_than_the_margin_of_the_clock', async () => {
  const refused = (name) => ({ name: 'RangeError', message: new RegExp(`^${name} must be`) });
  for (const lease of [50, 100]) { // else the lock would never be held
    assert.throws(() => scripted({}, { lease }), refused('clockMargin'));
    const { locks, sent } = scripted({});
    await assert.rejects(locks.tryLock('key', { lease }), refused('lease'));
    assert.deepEqual(sent, []);
    await locks.close();
  }
  scripted({}, { lease: 50, clockMargin: 0 });
});

test('a_redlock_is_not_extended_after_its_end', async () => {
  let answer;
  const checked = new Promise((done) => { answer = done; });
  const { client, sent } = scripted({ FAIRACQUIRE: () => [1, 7], CHECK: () => checked, RELEASE: () => 0, SESSION: () => sleep(50, [7, 0, 1_000, []]) });
  const redlock = new Redlock([() => client], { driftFactor: 0 });
  const lock = await redlock.acquire(['key'], 500);
  const extended = lock.extend(500);
  extended.catch(nothing);
  await until(() => commands(sent, 'RELEASE').length, 'its own timer has released it');
  answer('OK');
  await assert.rejects(extended, ExecutionError);
  await redlock.quit();
});

test('an_error_of_the_work_comes_through_after_a_loss', async () => {
  const locks = new FakeLocks();
  let terms = 0;
  const lead = (error) => new Election(locks, 'key').lead((term) => {
    terms += 1;
    if (terms > 1) return 'done';
    locks.lose(term);
    throw error ?? term.signal.reason;
  });
  await assert.rejects(lead(new TypeError('of the work')), TypeError);
  terms = 0;
  assert.equal(await lead(), 'done'); // that it was lost is no error: it leads again
});

test('two_campaigns_of_one_candidate', async () => {
  const election = new Election(new FakeLocks(), 'key');
  const term = await Promise.all([election.campaign(), election.campaign({ wait: 20 })]).then(([one]) => one);
  assert.equal(election.term, term.token);
  await election.resign();
});

test('an_observer_ends_at_once', async () => {
  const over = new AbortController();
  const began = performance.now();
  for await (const leader of new Election(new FakeLocks(), 'key').observe({ every: 15_000, signal: over.signal })) {
    assert.equal(leader, null);
    setTimeout(() => over.abort(), 20);
  }
  assert.ok(performance.now() - began < 10_000);
});

test('a_hold_that_is_shorter_than_the_wait_for_rows_is_kept', async () => {
  const answers = {
    FAIRACQUIRE: () => [0, 1, 7],
    SESSION: (words) => (words.includes('BLOCK') ? sleep(Number(words.at(-1)), [7, 0, 900, []]) : [7, 0, null, []]),
    ACQUIRE: () => [1, 7], RENEW: () => [1_000, 7], RELEASE: () => 0, CANCEL: () => 1,
  };
  const { locks, sent } = scripted(answers);
  locks.lock('taken').catch(nothing);
  await until(() => commands(sent, 'SESSION').at(-1)?.includes('BLOCK'), 'the session is kept');
  const hold = await locks.tryLock('key', { lease: 1_000 });
  await until(() => commands(sent, 'SESSION').length > 6, 'the server has answered');
  assert.ok(!hold.lost);
  assert.ok(commands(sent, 'SESSION').at(-1).at(-1) < 1_000 / 5, 'the next wait is shorter');
  await hold.release();
  await locks.close();
});

test('the_reason_of_a_loss_is_in_numbers', async () => {
  let isSilent = false;
  const { locks } = scripted({
    ACQUIRE: () => [1, 7], SESSION: (words) => (isSilent ? forEver() : sleep(words.includes('BLOCK') ? 50 : 0, [7, 0, 1_000, []])), RELEASE: () => 0,
  }, { lease: 1_000 });
  const hold = await locks.tryLock('key');
  await sleep(600); // it is kept
  isSilent = true;
  await until(() => hold.lost, 'it is lost');
  assert.equal(hold.signal.aborted, true);
  assert.match(hold.signal.reason.message, /nobody has confirmed it before its end: .*the last answer was sent (0\.[6-9]|[1-9]\.\d) s ago/);
  await locks.close();
});

test('a_session_with_nothing_in_it_leaves_no_memory', async (t) => {
  let id = 0; // the server forgets it after each release
  const { locks } = scripted({ ACQUIRE: () => [1, id += 1], RELEASE: () => 0 });
  const seen = [];
  const { session } = Sessions.prototype;
  Sessions.prototype.session = function remember(...about) {
    const one = session.apply(this, about);
    seen.push(new WeakRef(one));
    return one;
  };
  t.after(() => { Sessions.prototype.session = session; });
  for (let i = 0; i < 20; i++) await (await locks.tryLock('key')).release();
  await until(() => {
    collect();
    return seen.filter((one) => one.deref()).length <= 1;
  }, 'they are collected');
  assert.equal(seen.length, 20);
  await locks.close();
});

test('a_release_outlasts_a_name_that_is_not_found', async () => {
  let tries = 0;
  const notFound = () => Promise.reject(Object.assign(new Error('getaddrinfo ENOTFOUND locks.example'), { code: 'ENOTFOUND' }));
  const { locks, sent } = scripted({ ACQUIRE: () => [1, 7], RELEASE: () => ((tries += 1) < 3 ? notFound() : 0) });
  await (await locks.tryLock('key')).release();
  assert.equal(commands(sent, 'RELEASE').length, 3);
  await locks.close();
});

for (const [ms, isLost] of [[60_000, true], [1, false]]) {
  test(`a_lock_that_was_left_is_lost_if_it_ends_too_early (${ms} ms)`, async () => {
    let tries = 0;
    const error = () => ((tries += 1) === 1 ? Object.assign(new Error('reset'), { code: 'ECONNRESET' }) : new Error('NOTHELD no'));
    const { locks } = scripted({ ACQUIRE: () => [1, 7], RENEW: () => Promise.reject(error()) });
    const ended = (await locks.tryLock('key')).releaseAfter(ms);
    await (isLost ? assert.rejects(ended, NotHeld) : ended);
    assert.equal(tries, 2);
    await locks.close();
  });
}

test('a_hold_that_may_not_be_left_for_so_long_is_left_to_its_lease', async () => {
  const { locks, sent } = scripted({
    ACQUIRE: () => [1, 7], RENEW: ([, , , ms]) => (ms > 10_000 ? Promise.reject(new Error('ERR lease-ms must be at most 10000')) : [ms]),
  });
  const hold = await locks.tryLock('key');
  await assert.rejects(hold.releaseAfter(60_000), Refused);
  await until(() => commands(sent, 'RENEW').length > 1, 'nobody renews it');
  const renewals = [60_000, 10_000].map((ms) => ['DLOCK.RENEW', 'key', hold.owner, ms, 'TOKEN', 1]); // not IN the session
  assert.deepEqual(commands(sent, 'RENEW'), renewals);
  await locks.close();
});

for (const [how, leave] of [['by the program', (hold) => hold.releaseAfter(60_000)], ['when it is forgotten', nothing]]) {
  test(`a_late_row_releases_no_lock_that_was_left_to_its_lease (${how})`, async () => {
    const owners = {};
    let isLeft = false;
    let row = 0;
    const { locks, sent } = scripted({
      ACQUIRE: ([, key, owner]) => {
        owners[key] = owner;
        return [key === 'left' ? 1 : 2, 7];
      },
      SESSION: () => sleep(20, [7, row += 1, 3_000, isLeft ? [[row, Buffer.from('granted'), 'left', owners.left, 1, 60_000]] : []]),
      RENEW: (words) => {
        isLeft ||= !words.includes('IN');
        return [60_000, 7];
      },
      RELEASE: () => 0,
    }, { lease: 3_000, replyTimeout: 1_000 });
    const kept = await locks.tryLock('kept');
    await (async () => { await leave(await locks.tryLock('left')); })();
    await until(() => {
      collect();
      return isLeft;
    }, 'it is left');
    const { length } = commands(sent, 'SESSION');
    await until(() => commands(sent, 'SESSION').length > length + 2, 'a row that grants it is read');
    assert.deepEqual(commands(sent, 'RELEASE'), []);
    const [[, , , ms], ...again] = commands(sent, 'RENEW');
    assert.ok(again.length, 'the row may be new: the session is not to renew what nobody can release');
    for (const words of again) {
      assert.deepEqual(words, ['DLOCK.RENEW', 'left', owners.left, words[3], 'TOKEN', 1]);
      assert.ok(words[3] > ms - 2_000 && words[3] <= ms, `its end stays where it was: ${words[3]} of ${ms} ms`);
    }
    await until(() => commands(sent, 'RELEASE').length, 'no row of before can come any more: it is not remembered for ever');
    await kept.release();
    await locks.close();
  });
}

for (const ms of [60_000, 1]) {
  test(`a_late_renewal_keeps_no_lock_that_was_left_to_its_lease (${ms} ms)`, async () => {
    let answer;
    const late = new Promise((done) => { answer = done; });
    const { locks, sent } = scripted({
      ACQUIRE: () => [1, 7],
      SESSION: () => sleep(20, [8, 0, null, []]), // the server has begun the session again
      RENEW: (words) => (words.includes('IN') ? late : words[3]),
    }, { lease: 3_000 });
    const hold = await locks.tryLock('key');
    await until(() => commands(sent, 'RENEW').length, 'it is renewed');
    await hold.releaseAfter(ms);
    await sleep(10);
    answer([3_000, 8]); // by another connection: it was left before
    await until(() => commands(sent, 'RENEW').length > 2, 'it is left once more');
    const [, , words] = commands(sent, 'RENEW');
    assert.deepEqual(words, ['DLOCK.RENEW', 'key', hold.owner, words[3], 'TOKEN', 1]);
    assert.ok(words[3] > ms - 2_000 && words[3] >= 1 && words[3] <= ms, `its end stays where it was: ${words[3]} of ${ms} ms`);
    await locks.close();
  });
}

test('a_renewal_ends_with_its_hold', async () => {
  const { locks, sent } = scripted({
    ACQUIRE: () => [1, 7],
    SESSION: () => sleep(20, [8, 0, null, []]),
    RENEW: (words) => { if (words.includes('IN')) throw new Error('LOADING it begins'); },
  }, { lease: 3_000 });
  const hold = await locks.tryLock('key');
  await until(() => commands(sent, 'RENEW').length, 'it is renewed');
  await sleep(20); // it pauses before the next attempt
  await hold.releaseAfter(60_000);
  await sleep(300);
  assert.ok(!commands(sent, 'RENEW').at(-1).includes('IN'), 'the session does not get back what was left');
  await locks.close();
});

test('a_renewal_that_is_refused_is_said_again', async () => {
  const tries = { one: 0, two: 0 };
  const { locks } = scripted({
    ACQUIRE: ([, key]) => [key === 'one' ? 1 : 2, 7],
    SESSION: () => sleep(50, [8, 0, 3_000, []]), // the server has begun the session again
    RENEW: ([, key]) => ((tries[key] += 1) > 3 && key === 'one' ? [3_000, 8] : Promise.reject(new Error('NOPERM no RENEW'))),
    RELEASE: () => 0,
  }, { lease: 3_000 });
  const [one, two] = [await locks.tryLock('one'), await locks.tryLock('two')];
  await until(() => two.lost, 'its lease is over');
  assert.match(two.signal.reason.message, /nobody has confirmed it before its end: NOPERM no RENEW/);
  assert.ok(tries.one === 4 && tries.two > 4 && !one.lost);
  await locks.close();
});

for (const message of ['ERR max number of clients reached', 'ERR max number of clients + cluster connections reached']) {
  test(`a_server_that_is_full_is_asked_again (${message})`, async () => {
    let tries = 0;
    const full = () => Promise.reject(new Error(message));
    const { locks, sent } = scripted({ ACQUIRE: () => [1, 7], RELEASE: () => ((tries += 1) < 3 ? full() : 0), FAIRACQUIRE: full, CANCEL: () => 0 });
    const hold = await locks.tryLock('key');
    await assert.rejects(locks.lock('key', { wait: 300 }), ({ constructor, cause }) => constructor === LockTimeout && cause.message === message);
    assert.ok(commands(sent, 'FAIRACQUIRE').length > 1);
    await hold.release();
    assert.equal(commands(sent, 'RELEASE').length, 3);
    await locks.close();
  });
}

test('a_logger_that_fails_ends_no_wait', async () => {
  const { locks } = scripted({ FAIRACQUIRE: () => { throw new Error('LOADING it begins'); }, CANCEL: () => 0, RELEASE: () => 0 },
    { logger: { warn() { throw new Error('of the logger'); } } });
  await assert.rejects(locks.lock('key', { wait: 100 }), LockTimeout);
  await locks.close();
});

test('a_hold_that_is_released_is_released_once', async () => {
  const { locks, sent } = scripted({ FAIRACQUIRE: () => [1, 7], RELEASE: () => 0 });
  const releases = async (hold) => {
    await hold.release();
    return 'done';
  };
  assert.equal(await locks.using('key', releases), 'done');
  assert.equal(await new FakeLocks().using('key', releases), 'done');
  assert.equal(commands(sent, 'RELEASE').length, 1);
  await locks.close();
});

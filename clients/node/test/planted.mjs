// Each case fails on a client with a fault: a case that nothing fails proves nothing.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Deadlock, LockTimeout, Locks, NoAck, Refused, Replaced, Unreachable } from 'dlock-redis';
import { DIRECTORY, GONE, Case, steps } from './cases.mjs';
import { closeConnections, limits, makeLocks, makeLocksAt } from './stage.mjs';

const inside = (name) => import(new URL(`../node_modules/dlock-redis/src/${name}.mjs`, import.meta.url));
const [{ Clock }, { Hold, Lease }, { Client }, { Sessions }, { Request, Take }] = await Promise.all(['clock', 'hold', 'library', 'session', 'take'].map(inside));
const read = (file) => JSON.parse(readFileSync(new URL(file, DIRECTORY), 'utf8'));
const cases = new Map([...read('cases.json'), ...read('sessions.json')].filter(({ name }) => !(name in GONE)).map((one) => [one.name, one]));
const nothing = () => {};
const none = async () => null;

let restore = [];
/** Another method, made of the old one. */
function plant({ prototype }, name, make) {
  const old = prototype[name];
  restore.push(() => { prototype[name] = old; });
  prototype[name] = make(old);
}
/** Locks with other settings. */
const set = (settings) => ({
  locks: (library, place, given) => makeLocks(library, place, { ...given, ...settings }),
  at: (library, address, options, given) => makeLocksAt(library, address, options, { ...given, ...settings }),
});
/** Other commands are sent. */
const says = (change) => () => plant(Client, 'call', (old) => function call(key, words, bound) { return old.call(this, key, change(words), bound); });
/** A program that asks does this. */
const asks = (make) => {
  for (const name of ['tryLock', 'lock']) plant(Locks, name, make);
};
const waits = (change) => () => asks((old) => function ask(key, options) { return old.call(this, key, { ...options, wait: change(options.wait) }); });

const noBound = () => set({ replyTimeout: 20_000 });
const shortBound = () => set({ replyTimeout: 150, lease: 30_000 });
const saysNothing = () => set({ logger: { warn: nothing } });
const saysTaken = () => asks(() => none);
const isTaken = (type) => () => asks((old) => function ask(...about) {
  return old.apply(this, about).catch((error) => { if (error instanceof type) return null; throw error; });
});
const noClock = () => plant(Clock, 'reset', () => nothing);
const FINAL = [Refused, Replaced, Deadlock];
const allPasses = () => asks((old) => async function ask(key, options) {
  for (const end = Date.now() + (options.wait || 3_000); ;) {
    try {
      return await old.call(this, key, options);
    } catch (error) {
      if (!FINAL.some((type) => error instanceof type) || Date.now() > end) throw new LockTimeout('not in time', { cause: error, taken: false });
      await sleep(50);
    }
  }
});
const isFinal = (code) => () => plant(Client, 'call', (old) => function call(...about) {
  return old.apply(this, about).catch((error) => { throw error.code === code ? new Refused('ERR it is no time to ask again') : error; });
});
/** Plants one keeper for all clients: while it waits for a silent one, it keeps none of the others. */
function oneKeeper() {
  let turn = Promise.resolve();
  plant(Client, 'call', (old) => function call(key, words) {
    if (words[0] !== 'DLOCK.SESSION') return old.call(this, key, words, 20_000);
    const done = turn.then(() => old.call(this, key, words, 20_000));
    turn = done.catch(nothing);
    return done;
  });
}
const renewsEach = () => plant(Sessions, 'readReply', (old) => function readReply(...about) {
  const session = old.apply(this, about);
  for (const lease of [...session.leases.values()]) this.renew(lease);
  return session;
});
const hearsNoLoss = () => plant(Sessions, 'lose', (old) => function lose(lease, reason) {
  if (!['forced', 'removed', 'expired'].includes(reason)) old.call(this, lease, reason);
});
/** And so the hold is believed for as long as the others of its session. */
const hearsOfNoTaking = () => plant(Sessions, 'readRow', (old) => function readRow(session, word, ...about) {
  if (word !== 'taken') old.call(this, session, word, ...about);
});
const keepsNothing = () => plant(Sessions, 'keep', () => nothing);
const renewsNothingAnew = () => plant(Sessions, 'renew', () => nothing);
const waitsForEver = () => plant(Take, 'onOutcome', () => nothing);
const endsQuietly = () => plant(Sessions, 'close', () => none);
/** Each lock has connections of its own. */
const aClientALock = () => ({
  at(...about) {
    const all = [makeLocksAt(...about)];
    const another = () => all[all.push(makeLocksAt(...about)) - 1];
    const close = () => Promise.all(all.map((one) => one.close()));
    return { using: (...how) => another().using(...how), tryLock: (...how) => all[0].tryLock(...how), lock: (...how) => all[0].lock(...how), close };
  },
});
const forgets = () => plant(Lease, 'isForgotten', () => () => false);
/** A wait is never over, and is never left. */
const leavesNothing = () => {
  says((words) => {
    if (words[0] === 'DLOCK.CANCEL') return ['PING'];
    if (words[0] === 'DLOCK.SESSION' && words[3] === 1) return words.with(3, 60_000);
    return words.map((word, i) => (words[i - 1] === 'BLOCK' && words[0] === 'DLOCK.FAIRACQUIRE' ? 0 : word));
  })();
  plant(Sessions, 'releaseOrphan', () => nothing);
};
/** Whatever a server has answered, the place may be gone. */
const hearsNothing = () => plant(Sessions, 'readReply', (old) => function readReply(...about) {
  return Object.assign(old.apply(this, about), { answeredAt: -Infinity });
});
const without = (word, count) => says((words) => (words.includes(word) ? words.toSpliced(words.indexOf(word), count) : words));
const onePermit = without('PERMITS', 2);
const alwaysAlone = () => plant(Request, 'words', (old) => function words(...about) {
  this.limit = [];
  return old.apply(this, about);
});
const noActor = () => plant(Sessions, 'newOwner', (old) => function newOwner() { return old.call(this); });
const asksAgainAndAgain = () => asks((old) => async function ask(key, options) {
  for (;;) {
    const hold = await old.call(this, key, { ...options, wait: 1 }).catch((error) => { if (error instanceof LockTimeout) return null; throw error; });
    if (hold) return hold;
    await sleep(50);
  }
});
function triesByWaiting() {
  waits((wait) => wait || 100)();
  leavesNothing();
}
const triesForASecond = waits((wait) => wait || 1_000);
const counts32Bits = waits((wait) => wait | 0);
const guardsNothing = says((words) => (words[0] === 'DLOCK.GUARD' ? words.slice(3) : words));
const hidesWhy = () => plant(Client, 'call', (old) => function call(key, words, bound) {
  const reply = old.call(this, key, words, bound);
  return words[0] === 'DLOCK.SESSION' ? reply.catch(() => { throw new Unreachable('it failed'); }) : reply;
});
/** And so it is kept for as long as the client lives. */
const keepsWhatIsNotReleased = says((words) => (words[0] === 'DLOCK.RENEW' && !words.includes('IN') ? ['PING'] : words));
const asksTwice = () => plant(Client, 'call', (old) => async function call(key, words, bound) {
  if (words[0].endsWith('ACQUIRE')) await old.call(this, key, ['DLOCK.HELD', key]);
  return old.call(this, key, words, bound);
});
const asksAsNew = () => plant(Take, 'granted', (old) => function granted(name, token, session) {
  old.call(this, name, token, session, this.sessions.believed(performance.now(), this.request.lease));
});
/** What is said last ends whatever its owner has, who has one name for all. */
function oneName() {
  plant(Sessions, 'newOwner', () => function newOwner() { return `${this.name}/me`; });
  says((words) => (words[0] === 'DLOCK.CANCEL' ? ['DLOCK.RELEASE', ...words.slice(1)] : words))();
}
const givesNothingBack = () => plant(Sessions, 'releaseOrphan', () => nothing);
const releasesNothing = says((words) => (words[0] === 'DLOCK.RELEASE' ? ['PING'] : words));
const saysNoLast = says((words) => (words[0] === 'DLOCK.SESSION' && words[3] === 1 ? words.with(3, 120_000) : words));
function asksUnderAnotherName() {
  givesNothingBack();
  const seen = new Set();
  says((words) => {
    if (!words[0].endsWith('ACQUIRE')) return words;
    const isNew = !seen.has(words[2]);
    seen.add(words[2]);
    return isNew ? words : words.with(2, `${words[2]}+`);
  })();
}
const takesAnyWork = () => plant(Locks, 'using', () => none);
const noMaxHold = () => asks((old) => function ask(key, options) { return old.call(this, key, { ...options, maxHold: undefined }); });
const releasesAtOnce = () => plant(Hold, 'releaseAfter', () => function releaseAfter() { return this.release(); });
const oneAfterTheOther = () => plant(Locks, 'usingAll', () => function usingAll(keys, options, work) {
  const all = new Map();
  const next = (i) => (i === keys.length ? work(all) : this.using(keys[i], options, (hold) => next(i + 1, all.set(keys[i], hold))));
  return next(0);
});
const takesAnything = () => ({
  at: (...about) => ({ close: none, tryLock: none, locks: makeLocksAt(...about).close() }),
});

const releasesTwice = () => plant(Hold, Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose'), () => function dispose() { return this.release(); });

const FAULTS = {
  closed_try: saysTaken, closed_two_seconds: isTaken(LockTimeout), closed_without_bound: saysNothing, hung_try: noBound,
  hung_later: noBound, silent_path: noClock, slow_path: shortBound, wrong_password: allPasses,
  no_right_to_the_command: allPasses, no_module: allPasses, two_dead_links_of_five: oneKeeper,
  one_hung_node_of_three: oneKeeper, two_thousand_holds_at_200_ms: renewsEach, forced: hearsNoLoss,
  deleted: hearsNoLoss, expired: hearsNoLoss, cut_and_kept: keepsNothing, cut_wait: keepsNothing,
  after_close: endsQuietly, the_replica_frozen: isTaken(NoAck),
  a_hold_that_may_not_last: hearsOfNoTaking, a_thousand_cycles: aClientALock, dropped: forgets,
  a_time_out_leaves_no_place: leavesNothing, a_late_word: hearsNothing, bad_arguments: takesAnything,
  several_permits: onePermit, a_large_request_is_not_overtaken: onePermit, permits_outlast_a_cut: onePermit,
  hold_over_a_failover: renewsNothingAnew, hold_over_a_switch: renewsNothingAnew, hold_over_a_slot_move: renewsNothingAnew,
  wait_over_a_failover: waitsForEver, wait_over_a_switch: waitsForEver, wait_over_a_crash: waitsForEver,
  wait_over_a_slot_move: waitsForEver,
  first_come_first_served: asksAgainAndAgain, a_try_takes_no_place: triesByWaiting, a_time_out_in_the_queue: leavesNothing,
  readers_and_a_writer: alwaysAlone, a_semaphore_of_three: alwaysAlone,
  two_that_wait_for_each_other: allPasses, replaced: allPasses, no_write_after_the_loss: guardsNothing,
  no_right_to_release: keepsWhatIsNotReleased, a_turn_takes_three_commands: asksTwice,
  no_time_out_is_too_long: counts32Bits, sixty_forgotten_at_200_ms: forgets,
  a_try_at_a_closed_port: triesForASecond, a_try_at_a_replica: triesForASecond, a_try_without_replicas: triesForASecond,
  a_try_at_a_busy_server: triesForASecond, a_hold_over_a_busy_server: isFinal('BUSY'),
  a_try_at_a_loading_server: triesForASecond, a_wait_at_a_loading_server: isFinal('LOADING'),
  a_wait_at_a_drained_server: isFinal('QUARANTINE'),
  asked_again_after_a_lost_reply: asksAsNew,
  late_commands_of_open_connections: oneName, a_late_request_is_given_back: givesNothingBack, a_loss_is_given_back: givesNothingBack,
  released_while_the_server_is_away: releasesNothing, released_during_a_failover: releasesNothing, a_hold_over_a_crash: renewsNothingAnew,
  an_overflow_of_rows: renewsNothingAnew, a_row_that_nobody_knows: givesNothingBack, the_last_word: saysNoLast,
  a_free_lock_takes_two_commands: asksTwice, said_twice: asksUnderAnotherName, two_actors_of_one_client: noActor,
  an_actor_that_waits_for_itself: noActor, forgotten_and_left_to_its_lease: forgets, work_that_is_yet_to_be_done: takesAnyWork,
  max_hold: noMaxHold, release_after: releasesAtOnce, many_of_one_slot: oneAfterTheOther, a_refused_session_is_the_reason: hidesWhy,
  a_short_hold_beside_a_long_one: renewsNothingAnew, released_by_the_work_itself: releasesTwice,
};
const LONG = ['two_thousand_holds_at_200_ms', 'a_thousand_cycles', 'two_dead_links_of_five', 'one_hung_node_of_three', 'cut_and_kept',
  'a_time_out_in_the_queue', 'a_turn_takes_three_commands', 'sixty_forgotten_at_200_ms', 'asked_again_after_a_lost_reply',
  'late_commands_of_open_connections', 'an_overflow_of_rows', 'a_hold_over_a_crash', 'a_short_hold_beside_a_long_one'];

after(closeConnections);

test('every_case_has_its_fault', () => assert.deepEqual(Object.keys(FAULTS).sort(), [...cases.keys()].sort()));

for (const [name, fault] of Object.entries(FAULTS)) {
  test(name, { timeout: 120_000 }, async (t) => {
    Object.assign(limits, { patience: LONG.includes(name) ? 20_000 : 6_000, late: 500 });
    const one = cases.get(name);
    const run = new Case('ioredis', one, fault() ?? set({}));
    try {
      // A wait without a time-out gets one: the test must not wait for ever.
      const bounded = one.steps.map((step) => (step.do === 'lock' && step.timeout === null ? { ...step, timeout: 3 } : step));
      await assert.rejects(run.run(steps(bounded)), (error) => t.diagnostic(`${name}: ${error.message.split('\n')[0]}`) ?? true);
    } finally {
      for (const back of restore) back();
      restore = [];
      await run.finish();
    }
  });
}

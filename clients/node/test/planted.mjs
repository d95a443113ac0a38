// Each case fails on a client with a fault: a case that nothing fails proves nothing.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Deadlock, LockTimeout, NoAck, Refused, Replaced, Unreachable } from 'dlock-redis';
import { Case, steps } from './cases.mjs';
import { closeConnections, limits, makeLocks, makeLocksAt } from './stage.mjs';

const inside = (name) => import(new URL(`../node_modules/dlock-redis/src/${name}.mjs`, import.meta.url));
const [{ Core }, { Keeper }, { Link }, { Node }, { Request }] = await Promise.all(['core', 'keep', 'link', 'node', 'request'].map(inside));
const cases = new Map(JSON.parse(readFileSync(process.env.DLOCK_CASES, 'utf8')).map((one) => [one.name, one]));
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

const noBound = () => set({ replyTimeout: 20_000 });
const shortBound = () => set({ replyTimeout: 150, lease: 30_000 });
const saysNothing = () => set({ logger: { warn: nothing } });
const saysTaken = () => plant(Core, 'take', () => none);
const noCause = () => plant(Core, 'take', (old) => function take(...about) {
  return old.apply(this, about).catch((error) => { throw error instanceof LockTimeout ? new LockTimeout('it is taken') : error; });
});
const unconfirmedIsTaken = () => plant(Core, 'take', (old) => function take(...about) {
  return old.apply(this, about).catch((error) => { if (error instanceof NoAck) return null; throw error; });
});
const noClock = () => plant(Core, 'expire', () => nothing);
const FINAL = [Refused, Replaced, Deadlock];
const allPasses = () => plant(Core, 'take', (old) => async function take(request, timeout, ...rest) {
  for (const end = Date.now() + (timeout || 3_000); ;) {
    try {
      return await old.call(this, request, timeout, ...rest);
    } catch (error) {
      if (!FINAL.some((type) => error instanceof type) || Date.now() > end) throw new LockTimeout('not in time', { cause: error });
      request.ended = false;
      await sleep(50);
    }
  }
});
const isFinal = (code) => () => plant(Core, 'take', (old) => function take(...about) {
  return old.apply(this, about).catch((error) => { throw error.cause?.message.startsWith(code) ? error.cause : error; });
});
const deniedIsFinal = () => plant(Link, 'listen', () => async () => { throw new Refused('ERR no channel'); });
/** Of all clients: whoever waits for one that is silent keeps none of the others. */
function oneKeeper() {
  let turn = Promise.resolve();
  plant(Keeper, 'round', (old) => function round() {
    const done = turn.then(() => old.call(this));
    turn = done.catch(nothing);
    return done;
  });
  return noBound();
}
const renewsEach = () => plant(Keeper, 'round', (old) => function round() {
  for (const renewal of this.core.of(this.node)) renewal.detach();
  return old.call(this);
});
const hearsNoLoss = () => plant(Keeper, 'kept', (old) => function kept(link, sent, [count, left]) {
  link.renewals = Math.min(count, link.renewals);
  old.call(this, link, sent, [link.renewals, left, []]);
});
const believesTheLeast = () => plant(Keeper, 'kept', (old) => function kept(link, ...about) {
  old.call(this, link, ...about);
  link.short = false;
});
const renewsNothingAnew = () => plant(Keeper, 'renew', () => none);
function waitsForEver() {
  plant(Node, 'notifyAll', () => nothing);
  plant(Node, 'notify', (old) => function notify(message) { if (String(message).startsWith('granted')) old.call(this, message); });
}
const endsQuietly = () => plant(Core, 'end', () => nothing);
const aLinkALock = () => plant(Core, 'call', (old) => function call(...about) {
  for (const node of this.nodes.values()) if (node.link?.renewals === 0) node.link = null;
  return old.apply(this, about);
});
const forgets = () => plant(Core, 'dropForgotten', () => nothing);
const leavesNothing = () => plant(Link, 'post', (old) => function post(words, ...rest) {
  return old.call(this, words[0] === 'DLOCK.CANCEL' ? ['PING'] : words, ...rest);
});
/** Whatever a program asks for, this is asked for. */
const asks = (change) => () => plant(Core, 'take', (old) => function take(request, ...rest) {
  change(request);
  return old.call(this, request, ...rest);
});
const onePermit = asks((request) => { request.limit = request.limit.slice(0, 2); });
const reEntersAnything = asks((request) => { request.permits = 1; });
const alwaysAlone = asks((request) => { request.limit = []; });
const noEphemeral = asks((request) => { request.ephemeral = []; });
const noSuffix = asks((request) => { if (request.name) request.owner = request.owner.split('#')[0]; });
const neverReEnters = asks((request) => { request.name = null; });
const asksAgainAndAgain = () => plant(Core, 'take', (old) => async function take(request, ...rest) {
  for (;;) {
    const hold = await old.call(this, request, 0, ...rest.slice(1));
    if (hold) return hold;
    request.ended = false;
    await sleep(50);
  }
});
function triesByWaiting() {
  plant(Core, 'take', (old) => function take(request, timeout, make) { return old.call(this, request, timeout || 100, make); });
  leavesNothing();
}
const triesForASecond = () => plant(Core, 'take', (old) => function take(request, timeout, make) { return old.call(this, request, timeout || 1000, make); });
const counts32Bits = () => plant(Core, 'take', (old) => function take(request, timeout, make) { return old.call(this, request, timeout | 0, make); });
const releasesAll = () => plant(Core, 'release', (old) => function release(renewal, hold) {
  renewal.holds = [];
  return old.call(this, renewal, hold);
});
const guardsNothing = () => plant(Core, 'call', (old) => function call(request, words, ...rest) {
  return old.call(this, request, words[0] === 'DLOCK.GUARD' ? words.slice(words.indexOf('SET')) : words, ...rest);
});
const hidesWhy = () => plant(Keeper, 'round', (old) => function round() {
  return old.call(this).catch(() => { throw new Unreachable('it failed'); });
});
/** And so it is kept for as long as the client lives. */
const keepsWhatIsNotReleased = () => plant(Core, 'lose', (old) => function lose(renewal, reason) {
  if (reason !== 'it cannot be given back') old.call(this, renewal, reason);
});
const diesWithoutPing = () => plant(Link, 'post', (old) => function post(words, ...rest) {
  const reply = old.call(this, words, ...rest);
  if (words[0] === 'PING') reply.catch((error) => this.die(error));
  return reply;
});
const forgetsTheOthers = () => plant(Node, 'await', (old) => function waits(request) {
  const box = old.call(this, request);
  this.awaited.clear();
  return box;
});
const keepsTheName = () => plant(Request, 'add', () => nothing);
const keepsTheNameWithoutALink = () => plant(Core, 'rename', (old) => function rename(request) {
  const link = request.renewal?.node.link;
  return link && !link.error ? old.call(this, request) : nothing;
});
/** And each answer is that of the first time. */
const asksAsNew = () => plant(Core, 'call', (old) => function call(request, ...rest) {
  const answer = old.call(this, request, ...rest);
  Object.defineProperty(request, 'asked', { get: () => false, set: nothing, configurable: true });
  return answer;
});
const takesAnything = () => ({
  at: (...about) => ({ close: none, tryLock: none, locks: makeLocksAt(...about).close() }),
});

const FAULTS = {
  closed_try: saysTaken, closed_two_seconds: noCause, closed_without_bound: saysNothing, hung_try: noBound,
  hung_later: noBound, silent_path: noClock, slow_path: shortBound, wrong_password: allPasses,
  no_right_to_the_command: allPasses, no_module: allPasses, no_channel: deniedIsFinal, two_dead_links_of_five: oneKeeper,
  one_hung_node_of_three: oneKeeper, two_thousand_holds_at_200_ms: renewsEach, forced: hearsNoLoss,
  deleted: hearsNoLoss, expired: hearsNoLoss, cut_and_kept: renewsNothingAnew, cut_wait: waitsForEver,
  after_close: endsQuietly, the_replica_frozen: unconfirmedIsTaken,
  a_hold_that_may_not_last: believesTheLeast, a_thousand_cycles: aLinkALock, dropped: forgets,
  a_time_out_leaves_no_place: leavesNothing, bad_arguments: takesAnything,
  several_permits: onePermit, a_large_request_is_not_overtaken: onePermit, permits_outlast_a_cut: onePermit,
  permits_of_an_owner: reEntersAnything,
  hold_over_a_failover: renewsNothingAnew, hold_over_a_switch: renewsNothingAnew, hold_over_a_slot_move: renewsNothingAnew,
  wait_over_a_failover: waitsForEver, wait_over_a_switch: waitsForEver, wait_over_a_crash: waitsForEver,
  wait_over_a_slot_move: waitsForEver, an_ephemeral_hold_over_a_failover_elsewhere: renewsNothingAnew,
  first_come_first_served: asksAgainAndAgain, a_try_takes_no_place: triesByWaiting, a_time_out_in_the_queue: leavesNothing,
  an_ephemeral_hold_ends_with_its_connection: noEphemeral, readers_and_a_writer: alwaysAlone, a_semaphore_of_three: alwaysAlone,
  an_inner_hold_ends_no_outer_one: releasesAll, two_that_wait_for_each_other: allPasses, replaced: allPasses,
  a_name_is_of_one_client: noSuffix, no_write_after_the_loss: guardsNothing, a_refused_keep_is_the_reason: hidesWhy,
  no_right_to_release: keepsWhatIsNotReleased, no_right_to_renew: allPasses, no_right_to_ping: diesWithoutPing,
  closed_without_a_channel: endsQuietly, a_turn_takes_three_commands: forgetsTheOthers, a_re_entry_sends_nothing: neverReEnters,
  no_time_out_is_too_long: counts32Bits, sixty_forgotten_at_200_ms: forgets,
  a_try_at_a_closed_port: triesForASecond, a_try_at_a_replica: triesForASecond, a_try_without_replicas: triesForASecond,
  a_try_at_a_busy_server: triesForASecond, a_hold_over_a_busy_server: isFinal('BUSY'),
  a_try_at_a_loading_server: triesForASecond, a_wait_at_a_loading_server: isFinal('LOADING'),
  a_late_release_ends_no_later_hold: keepsTheName, a_late_release_of_a_lost_hold: keepsTheName,
  asked_again_after_a_lost_reply: asksAsNew, taken_again_after_a_loss: keepsTheNameWithoutALink,
};
const LONG = ['two_thousand_holds_at_200_ms', 'a_thousand_cycles', 'two_dead_links_of_five', 'one_hung_node_of_three', 'cut_and_kept',
  'a_time_out_in_the_queue', 'a_turn_takes_three_commands', 'sixty_forgotten_at_200_ms', 'a_late_release_ends_no_later_hold',
  'asked_again_after_a_lost_reply', 'taken_again_after_a_loss'];

after(closeConnections);

test('every_case_has_its_fault', () => assert.deepEqual(Object.keys(FAULTS).sort(), [...cases.keys()].sort()));

for (const [name, fault] of Object.entries(FAULTS)) {
  test(name, { timeout: 120_000 }, async (t) => {
    Object.assign(limits, { patience: LONG.includes(name) ? 20_000 : 6_000, late: 500 });
    const one = cases.get(name);
    const run = new Case('ioredis', one, fault() ?? set({}));
    try {
      // Who waits for ever is not waited for.
      const bounded = one.steps.map((step) => (step.do === 'lock' && step.timeout === null ? { ...step, timeout: 3 } : step));
      await assert.rejects(run.run(steps(bounded)), (error) => t.diagnostic(`${name}: ${error.message.split('\n')[0]}`) ?? true);
    } finally {
      for (const back of restore) back();
      restore = [];
      await run.finish();
    }
  });
}

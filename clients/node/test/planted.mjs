// Each case fails on a client with a fault: a case that nothing fails proves nothing.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { LockTimeout, NoAck, Refused } from 'dlock-redis';
import { Case, steps } from './cases.mjs';
import { closeConnections, limits, makeLocks, makeLocksAt } from './stage.mjs';

const inside = (name) => import(new URL(`../node_modules/dlock-redis/src/${name}.mjs`, import.meta.url));
const [{ Core }, { Keeper }, { Link }, { Node }] = await Promise.all(['core', 'keep', 'link', 'node'].map(inside));
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
const allPasses = () => plant(Core, 'take', (old) => async function take(request, timeout, ...rest) {
  for (const end = Date.now() + (timeout || 3_000); ;) {
    try {
      return await old.call(this, request, timeout, ...rest);
    } catch (error) {
      if (!(error instanceof Refused) || Date.now() > end) throw new LockTimeout('not in time', { cause: error });
      request.ended = false;
      await sleep(50);
    }
  }
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
const waitsForEver = () => plant(Node, 'notifyAll', () => nothing);
const endsQuietly = () => plant(Core, 'end', () => nothing);
const aLinkALock = () => plant(Core, 'call', (old) => function call(...about) {
  for (const node of this.nodes.values()) if (node.link?.renewals === 0) node.link = null;
  return old.apply(this, about);
});
const forgets = () => plant(Core, 'dropForgotten', () => nothing);
const leavesNothing = () => plant(Link, 'post', (old) => function post(words, ...rest) {
  return old.call(this, words[0] === 'DLOCK.CANCEL' ? ['PING'] : words, ...rest);
});
const onePermit = () => plant(Core, 'take', (old) => function take(request, ...rest) {
  request.limit = request.limit.slice(0, 2);
  return old.call(this, request, ...rest);
});
const reEntersAnything = () => plant(Core, 'take', (old) => function take(request, ...rest) {
  request.permits = 1;
  return old.call(this, request, ...rest);
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
};
const LONG = ['two_thousand_holds_at_200_ms', 'a_thousand_cycles', 'two_dead_links_of_five', 'one_hung_node_of_three', 'cut_and_kept'];

after(closeConnections);

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

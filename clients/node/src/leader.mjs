// SPDX-License-Identifier: MIT
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

import { Fenced, NotHeld } from './errors.mjs';
import { checkWork, duration, finished, known, text } from './settings.mjs';

const nothing = () => {};
/** Returns the candidate's name in an owner's: behind machine, process and session, and before what each campaign adds. */
const nameOf = (owner) => owner.replace(/^[^/]+\/\d+\/[^/]+\//, '').replace(/(#[^#]*){1,2}$/, '');

const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds

/** True if the work has failed because it led no more. */
function isOfLoss(error) {
  for (let one = error; one; one = one.cause) if (one instanceof NotHeld || one instanceof Fenced || one.name === 'AbortError') return true;
  return false;
}

const same = (one, another) => one?.term === another?.term;

/**
 * Who of many leads. The leader holds a lock; its fencing token is the term, higher than that of every leader before. It
 * steps down `clockMargin` (of its Locks) before its lease ends, whoever answers or not.
 *
 *     const election = new Election(locks, 'scheduler', { name: hostname() });
 *     await election.lead(async (term) => {
 *       while (!term.signal.aborted) await term.guard('SET', 'scheduler:last', await tick(term.signal));
 *     });
 */
export class Election {
  #locks;
  #hold = null;

  constructor(locks, key, options = {}) {
    const { name = 'a candidate' } = known(options, ['name'], 'an election');
    if (typeof locks?.holder !== 'function') throw new TypeError('locks must be Locks');
    this.#locks = locks;
    this.key = text('key', key);
    this.name = text('name', name);
  }

  /** Waits until this one leads; null after `wait`. The hold's `token` is the term, its `signal` is aborted when it steps down. */
  async campaign({ signal, wait = Infinity } = {}) {
    if (this.isLeader) return this.#hold;
    this.#hold?.expire?.(); // after a stall the server may still have the last term: else this candidate would wait for itself
    const actor = `${this.name}#${randomUUID()}`; // two of one name are two
    const hold = await this.#locks.tryLock(this.key, { actor, wait, signal });
    if (hold) this.#hold = hold; // without one this candidate may lead by another campaign
    return hold;
  }

  /**
   * Does the work as the leader, again after each loss, until it is done as the leader. Its errors come through, except those
   * that a loss causes: `NotHeld`, `Fenced`, and whatever the term's signal aborts.
   */
  async lead(work, { signal } = {}) {
    checkWork(work);
    for (;;) {
      const term = await this.campaign({ signal });
      let done;
      try {
        done = finished(await work(term));
      } catch (error) {
        if (!term.lost || !isOfLoss(error)) {
          await this.resign().catch(nothing); // an error of the work comes first
          throw error;
        }
      }
      const { lost } = term;
      await this.resign();
      if (!lost) return done;
    }
  }

  /** True for sure, even if the server no longer answers. */
  get isLeader() { return this.#hold !== null && this.#hold.left() > 0; }

  /** This one's, or null. */
  get term() { return this.isLeader ? this.#hold.token : null; }

  /** Returns the leader, as the server sees it now: its name and its term, or null. */
  async leader() {
    const holder = await this.#locks.holder(this.key);
    return holder && { name: nameOf(String(holder.owner)), term: holder.token };
  }

  /** Yields each leader from now on (null: none), as a poll every second finds it. */
  async* observe({ every = 1_000, signal } = {}) {
    const pause = Math.min(duration('every', every), LONGEST_TIMER);
    for (let before; !signal?.aborted; await sleep(pause, null, { signal }).catch(nothing)) { // an abort ends it
      const leader = await this.leader();
      if (before !== undefined && same(before, leader)) continue;
      yield before = leader;
    }
  }

  /** Gives it up. That it was lost before is no error. */
  async resign() {
    const hold = this.#hold;
    this.#hold = null;
    await hold?.release().catch((error) => { if (!(error instanceof NotHeld)) throw error; });
  }
}

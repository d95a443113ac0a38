// What a case of ../../cases/cases.json has made so far. Each step is a method.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { Closed, Deadlock, Fenced, LockTimeout, NoAck, NotHeld, Quarantine, Refused, Replaced, Unreachable } from 'dlock-redis';
import { Server, addresses, control, limits, makeLocks, makeLocksAt, primary, until } from './stage.mjs';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc');

export const DIRECTORY = new URL(process.env.DLOCK_CASES ? `file://${process.env.DLOCK_CASES}` : '../../cases/cases.json', import.meta.url);

/** What these cases of all languages look for is gone with the connection of our own, or never was here. */
export const GONE = {
  no_right_to_ping: 'nothing is pinged; and a session has no EPHEMERAL holds',
  an_ephemeral_hold_over_a_failover_elsewhere: 'a session has no EPHEMERAL holds',
  an_ephemeral_hold_ends_with_its_connection: 'a session has no EPHEMERAL holds',
  a_refused_renewal_is_the_reason: 'the session renews; sessions.json has a refused SESSION',
  no_right_to_renew: 'a grant after a wait has a row, and is not confirmed by RENEW',
  a_fork: 'Node does not fork a process: a child is another program',
};

export class Case {
  constructor(library, { at = 'single' }, make = { locks: makeLocks, at: makeLocksAt }) {
    Object.assign(this, { library, place: at, make, server: new Server(at) });
    Object.assign(this, { paths: {}, clients: {}, holds: {}, starts: {}, marks: {}, keys: {}, names: {} });
    Object.assign(this, { nodes: [], frozen: [], users: [], set: [], log: [] });
  }

  async run(steps) {
    for (const { do: what, as, ...rest } of steps) await this[what]({ ...rest, ...(as && { name: as }) });
  }

  async finish() {
    for (const address of this.frozen) await control(`thaw ${address}`);
    for (const path of Object.values(this.paths)) await control(`close ${path}`);
    for (const client of Object.values(this.clients)) await client.close();
    for (const user of this.users) await this.server.ask('ACL', 'DELUSER', user);
    for (const [name, value] of this.set.reverse()) await this.server.ask('CONFIG', 'SET', name, value);
  }

  key(key = 'lock') { return this.keys[key] ?? `${this.server.key}:${key}`; }

  // What is done to the servers and on the way to them.

  async path({ name, to = 'single' }) {
    const ofPair = { replica: () => this.#replica(), primary: async () => (await primary()).join(':') };
    const target = ofPair[to] ? await ofPair[to]() : addresses(`DLOCK_${to.toUpperCase()}`)[0].join(':');
    this.paths[name] = await control(`path ${target}`);
  }

  async #replica() {
    const serving = (await primary()).join(':');
    return process.env.DLOCK_PAIR.split(',').find((one) => one !== serving);
  }

  close({ path }) { return control(`close ${this.paths[path]}`); }

  silence({ path }) { return control(`silence ${this.paths[path]}`); }

  strand({ path }) { return control(`strand ${this.paths[path]}`); }

  sound({ path }) { return control(`sound ${this.paths[path]}`); }

  cut({ path }) { return control(`cut ${this.paths[path]}`); }

  delay({ path, ms }) { return control(`delay ${this.paths[path]} ${ms}`); }

  async freeze({ key, replica }) {
    const { host, port } = (await this.server.node(this.key(key))).options.socket;
    this.frozen.push(replica ? await this.#replica() : `${host}:${port}`);
    await control(`freeze ${this.frozen.at(-1)}`);
  }

  /** Of the server, until the case ends: in this order, and taken back in the other. */
  async settings(settings) {
    for (const [name, value] of Object.entries(settings)) {
      const now = await this.server.ask('CONFIG', 'GET', name);
      this.set.push([name, now[name] ?? now[1]]);
      await this.server.ask('CONFIG', 'SET', name, value);
    }
  }

  thaw() { return control(`thaw ${this.frozen.pop()}`); }

  /** How many commands came this way since the last look. */
  async commands({ path, at_most: atMost = Infinity }) {
    const seen = Number(await control(`commands ${this.paths[path]}`));
    assert.ok(seen - (this.marks.commands ?? 0) <= atMost, `${seen - this.marks.commands} commands`);
    this.marks.commands = seen;
  }

  fault({ what, key }) { return control(what === 'switch' ? what : `${what} ${this.key(key)}`); }

  /** What stands for something of this case in a plain command. */
  async words(words) {
    const meant = { KEY: this.key(), DATA: this.key('data'), USER: this.users.at(-1) };
    if (words.includes('SESSION')) meant.SESSION = (await this.#holder()).in; // of the lock's holder
    if (words.includes('OWNER')) [meant.OWNER] = await this.server.queue(this.key()); // of the first in the queue
    return words.map((word) => meant[word] ?? word);
  }

  async #holder(key) { return (await this.server.info(this.key(key))).holders[0]; }

  async ask({ words, replies }) {
    const reply = await this.server.ask(...await this.words(words));
    if (replies !== undefined) assert.equal(reply, replies);
  }

  other({ key, shared }) { return this.server.hold(this.key(key), 'other', ...(shared ? ['SHARED'] : [])); }

  hand_over({ key }) { return this.server.handOver('other', this.key(key)); }

  async user({ rule, ...rest }) {
    const user = this.server.key.slice(1, 9) + this.users.length;
    await this.server.ask('ACL', 'SETUSER', user, 'on', '>word', '~*', '&*', '+@all', rule);
    this.users.push(user);
    await this.client({ user, password: 'word', ...rest });
  }

  // What the server shows.

  async queued({ count, key, absent }) {
    if (!absent) return this.server.awaitQueued(count, this.key(key));
    return until(async () => (await this.server.info(this.key(key))).queue.length === count, `${count} are queued`);
  }

  free({ key }) { return this.server.awaitGone(this.key(key)); }

  outlasts({ ms, key }) {
    return until(async () => {
      const { holders: [holder] } = await this.server.info(this.key(key));
      assert.ok(holder, `${this.key(key)} is still held`);
      return holder['held-ms'] > ms;
    }, `it is held for ${ms} ms`);
  }

  /** It is in a session: the server renews it. */
  renewed({ key }) { return until(async () => (await this.#holder(key))?.in, 'it is renewed'); }

  /** It is held, and its session is not alive. */
  unkept({ key }) { return until(async () => !(await this.#holder(key)).alive, 'nobody keeps it'); }

  /** More happens in the session of the lock's holder than a server remembers. */
  async overflow() {
    const [session, one] = [(await this.#holder()).in, this.key('overflow')];
    const node = await this.server.node(one);
    for (let i = 0; i < 5100; i += 100) {
      await Promise.all(Array.from({ length: 100 }, (_, j) => Promise.all([
        node.sendCommand(['DLOCK.ACQUIRE', one, `overflow/${i + j}`, '60000', 'IN', session]), node.sendCommand(['DEL', one]),
      ])));
    }
  }

  async connections({ name, same }) {
    const list = await this.server.ask('CLIENT', 'LIST');
    const seen = [list.split(`name=${this.names.client} `).length - 1, process.getActiveResourcesInfo().length];
    if (name) {
      this.marks[name] = seen;
    } else {
      assert.ok(seen[0] <= this.marks[same][0] && seen[1] <= this.marks[same][1] + 2, `${this.marks[same]} then ${seen}`);
    }
  }

  // What the client does.

  async client({ name = 'client', path, lease = 10, auto = 60, user, password }) {
    const say = (message) => this.log.push(message);
    const settings = { lease: 1000 * lease, hangTimeout: 1000 * auto, logger: { debug: say, warn: say } };
    this.names[name] = `${this.server.key.slice(1, 13)}-${name}`;
    const address = path ? this.paths[path].split(':') : addresses('DLOCK_SINGLE')[0];
    this.clients[name] = this.place !== 'single' && !path ? this.make.locks(this.library, this.place, settings)
      : this.make.at(this.library, address, { user, password, name: this.names[name] }, settings);
  }

  async judge(gives, work, { name = 'hold', text = '', cause, within = Infinity, at_once: atOnce }) {
    let took = atOnce ? Infinity : 0;
    for (let i = 0; i < 20 && took >= 250; i++) { // a busy machine is late by itself: one of twenty is enough
      const asked = performance.now();
      await work().catch(() => {});
      took = performance.now() - asked;
    }
    assert.ok(took < 250, `it took ${took} ms`);
    const began = performance.now();
    let got;
    try {
      const hold = await work();
      got = hold === null ? 'none' : 'hold';
      if (hold) this.holds[name] = [hold];
    } catch (error) {
      if (error instanceof LockTimeout) got = error.taken ? 'none' : 'timeout';
      else if (error instanceof NotHeld) got = 'not held';
      else if (error instanceof NoAck) got = 'unconfirmed';
      else if (error instanceof Fenced) got = 'fenced';
      else if (error instanceof Replaced) got = 'replaced';
      else if (error instanceof Deadlock) got = 'deadlock';
      else if (error instanceof Refused || error instanceof Quarantine) got = 'refusal';
      else if (error instanceof Unreachable || error instanceof Closed) got = 'failure';
      else throw error;
      assert.ok(error.message.includes(text), error.message);
      assert.ok(!cause || error.cause);
    }
    assert.equal(got, gives);
    assert.ok(performance.now() - began < 1000 * within + limits.late, `it took ${performance.now() - began} ms`);
  }

  async lock({ gives, client = 'client', key, timeout = limits.patience / 1000, slots, ...rest }) {
    while (slots && !this.keys[key]) { // of another node than the ones before
      const server = new Server(this.place);
      const node = await server.node();
      if (this.nodes.includes(node)) continue;
      this.nodes.push(node);
      this.keys[key] = server.key;
    }
    const options = { wait: time(timeout), ...optionsOf(rest) };
    await this.judge(gives, () => this.clients[client].tryLock(this.key(key), options), rest);
  }

  async many({ keys, gives, client = 'client', timeout = limits.patience / 1000, ...rest }) {
    await this.judge(gives, () => this.#allOf(this.clients[client], keys, timeout), rest);
  }

  /** A hold of all of them, for as long as the case likes. */
  #allOf(locks, keys, timeout) {
    return new Promise((done, fail) => {
      let end;
      const over = new Promise((ended) => { end = ended; });
      const ended = locks.usingAll(keys.map((key) => this.key(key)), { wait: time(timeout) }, () => {
        done({ release: () => { end(); return ended; } });
        return over;
      });
      ended.catch(fail);
    });
  }

  start({ name, client = 'client', key, keys, timeout = limits.patience / 1000, ...rest }) {
    const locks = this.clients[client];
    this.starts[name] = keys ? this.#allOf(locks, keys, timeout) : locks.lock(this.key(key), { wait: time(timeout), ...optionsOf(rest) });
    this.starts[name].catch(() => {});
  }

  joined({ start, gives, ...rest }) {
    return this.judge(gives, () => soon(this.starts[start], limits.patience, 'it ends'), rest);
  }

  async release({ hold = 'hold', gives, text, after }) {
    for (const one of this.holds[hold]) {
      if (after !== undefined) {
        await one.releaseAfter(1000 * after);
        continue;
      }
      await (gives ? this.judge(gives, () => one.release(), { text }) : one.release());
    }
  }

  /** The work releases its lock. To do so again is an error, and to leave the block is none. */
  block({ key, client = 'client' }) {
    return this.clients[client].using(this.key(key), async (hold) => {
      await hold.release();
      await assert.rejects(hold.release(), NotHeld);
    });
  }

  async guard({ hold, words, gives }) {
    for (const one of this.holds[hold]) {
      const work = async () => one.guard(...await this.words(words));
      await (gives ? this.judge(gives, work, {}) : work());
    }
  }

  async holds_({ count, name, client = 'client' }) {
    this.holds[name] = [];
    for (let i = 0; i < count; i += 500) { // a lease counts from the request, and a busy machine is late for thousands of replies
      const taken = Array.from({ length: Math.min(500, count - i) }, (_, j) => this.clients[client].lock(this.key(String(i + j))));
      this.holds[name].push(...await soon(Promise.all(taken), limits.patience, 'all are held'));
    }
  }

  async lost({ hold, within, text = '' }) {
    for (const { signal } of this.holds[hold]) {
      if (!signal.aborted) await soon(once(signal, 'abort'), 1000 * within + limits.late, 'it is told');
      assert.ok(signal.reason.message.includes(text.replace('max_hold', 'maxHold')), signal.reason.message);
    }
  }

  kept({ hold }) { assert.deepEqual(this.holds[hold].filter((one) => one.lost).map((one) => one.key), []); }

  async forget({ hold }) {
    delete this.holds[hold];
    for (let i = 0; i < 10; i++) {
      collect();
      await sleep(10);
    }
  }

  end({ client = 'client' }) { return this.clients[client].close(); }

  async cycles({ workers, count, client = 'client' }) {
    const work = async () => { for (let i = 0; i < count; i++) await this.clients[client].using(this.key(), {}, () => {}); };
    await soon(Promise.all(Array.from({ length: workers }, work)), limits.patience, 'all is done');
  }

  async objects({ count, client = 'client' }) {
    for (let i = 0; i < count; i++) await this.clients[client].using(this.key(String(i)), {}, () => {});
  }

  async logged({ text, at_least: atLeast, at_most: atMost = Infinity }) {
    const seen = () => this.log.filter((message) => message.includes(text)).length;
    await until(() => seen() >= atLeast, `it says '${text}'`);
    assert.ok(seen() <= atMost, this.log.join('\n'));
  }

  /** Work that returns before it is done is refused, before it begins or when it has returned. */
  async early({ client = 'client' }) {
    function* generates() { yield 1; }
    async function* generatesLater() { yield 1; }
    for (const work of [generates, generatesLater, () => generates(), async () => generatesLater()]) {
      await assert.rejects(this.clients[client].using(this.key(), work), /before the work/);
      await assert.rejects(this.clients[client].usingAll([this.key()], work), /before the work/);
    }
  }

  bad({ names, key = 'lock', timeout = 0, ...options }) {
    const bad = { ...optionsOf(options), wait: timeout === 'NaN' ? NaN : timeout };
    return assert.rejects(soon(this.clients.client.tryLock(key && this.key(key), bad), 1000, 'an error'), (error) => {
      assert.ok(error instanceof TypeError || error instanceof RangeError, error.message);
      assert.match(error.message, new RegExp(names === 'timeout' ? 'wait' : names));
      return true;
    });
  }
}

/** The steps that are named like what a case has. */
export const steps = (all) => all.map((step) => (step.do === 'holds' ? { ...step, do: 'holds_' } : step));

/** What a step asks for, in the words of these locks. The cases' word for an actor was `owner`. */
function optionsOf({ owner, actor = owner, limit, permits, shared, lease, max_hold: maxHold }) {
  return { actor, limit, permits, shared, ...(lease && { lease: 1000 * lease }), ...(maxHold && { maxHold: 1000 * maxHold }) };
}

const time = (seconds) => (seconds === null ? Infinity : 1000 * seconds);

const soon = (promise, ms, what) => {
  let timer;
  const late = new Promise((_, fail) => { timer = setTimeout(() => fail(new assert.AssertionError({ message: `not in time: ${what}` })), ms); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

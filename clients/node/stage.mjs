// The servers of a test, what they show, and the libraries under one hat.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

import Redis from 'ioredis';
import Redis5 from 'ioredis-5';
import { createClient } from 'redis';
import { createClient as createClient5 } from 'redis-5';

import { Locks } from './dlock.mjs';
import { Quorum } from './quorum.mjs';

export const PATIENCE = 30_000;
export const LEASE = 3_000; // no stall of this process takes two thirds of it: a lease that ends is told
export const LONG = 15_000; // no fault takes so long, however busy the machine
const SETTINGS = { lease: LEASE, auto: 30_000, claim: 2_000 };

/** A client that asks nothing by itself, with this time-out for its replies, and perhaps a name and a password. */
const nodeRedis = (create) => (host, port, timeout, login) =>
  create({ socket: { host, port }, commandOptions: { timeout }, ...login });
const ioredis = (Client) => (host, port, commandTimeout, login) =>
  new Client({ host, port, lazyConnect: true, commandTimeout, ...login });
const LIBRARIES = {
  'node-redis': nodeRedis(createClient),
  'node-redis 5': nodeRedis(createClient5),
  ioredis: ioredis(Redis),
  'ioredis 5': ioredis(Redis5),
};
export const libraries = Object.keys(LIBRARIES);

export const addresses = (name) => process.env[name].split(',').map((one) => one.split(':'));

/** Locks by one of the libraries, over the servers at these addresses. */
export function makeLocksAt(library, all, login, { lease = LEASE, claim = SETTINGS.claim, timeout = 10_000 } = {}) {
  const clients = all.map(([host, port]) => LIBRARIES[library](host, Number(port), timeout, login));
  return new Locks(clients, { ...SETTINGS, lease, claim });
}

/** In one of the places. Of a cluster two nodes are named, and the others are found. */
export const makeLocks = (library, place, options) =>
  makeLocksAt(library, addresses(`DLOCK_${place.toUpperCase()}`).slice(0, 2), {}, options);

/** A way to a server. While it is frozen nothing comes through, and nobody is told. `met` is called for each connection. */
export async function proxy([host, port], met = () => {}) {
  const sockets = [];
  let [frozen, pattern] = [false];
  const freeze = () => {
    frozen = true;
    for (const socket of sockets) socket.pause();
  };
  const listener = net.createServer((near) => {
    met();
    const far = net.connect(Number(port), host);
    if (frozen) for (const socket of [near, far]) socket.pause();
    for (const [from, to] of [[near, far], [far, near]]) {
      sockets.push(from.on('error', () => {}));
      from.on('end', () => to.end()).on('close', () => to.end());
      from.on('data', (bytes) => {
        if (pattern && bytes.includes(pattern)) freeze();
        if (frozen) from.unshift(bytes);
        else to.write(bytes);
      });
    }
  }).listen(0, '127.0.0.1');
  await once(listener, 'listening');
  return {
    address: ['127.0.0.1', listener.address().port],
    freeze,
    /** Lets through what comes before these words, and not them. */
    freezeAt(words) { pattern = words; },
    thaw() {
      [frozen, pattern] = [false];
      for (const socket of sockets) socket.resume();
    },
    close() {
      listener.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

/** A lock over the servers at these addresses. */
export const makeQuorum = (library, all, bound) =>
  new Quorum(all.map(([host, port]) => LIBRARIES[library](host, Number(port), 400)), { bound });

/** The first value of the condition that is not false. */
export async function until(condition, what) {
  for (const end = performance.now() + PATIENCE; ;) {
    const value = await condition();
    if (value) return value;
    assert.ok(performance.now() < end, `gave up waiting until ${what}`);
    await sleep(5);
  }
}

/** Has something done to the servers. */
async function control(line) {
  const [[host, port]] = addresses('DLOCK_CONTROL');
  const socket = net.connect(Number(port), host);
  socket.write(`${line}\n`);
  const [answer] = await once(createInterface(socket), 'line');
  socket.destroy();
  assert.match(answer, /^ok/);
}

const nodes = new Map();

/** A connection to a server; the tests share them. */
function connection(address) {
  const [host, port] = address;
  if (!nodes.has(port)) {
    const node = createClient({ RESP: 3, socket: { host, port: Number(port) }, disableOfflineQueue: true });
    nodes.set(port, node.on('error', () => {}).connect().catch(() => nodes.delete(port)).then(() => node));
  }
  return nodes.get(port);
}

export async function closeConnections() {
  for (const node of nodes.values()) (await node).destroy();
}

/** What the servers show of the lock of one test. */
export class Server {
  constructor(place) {
    this.place = place;
    this.key = `{${randomBytes(6).toString('hex')}}lock`;
  }

  /** failover, crash, move; in the pair the first is `switch`. */
  fault(what) { return control(this.place === 'pair' ? 'switch' : `${what} ${this.key}`); }

  /** Who serves this key now; some nodes may know it later than others. */
  node(key = this.key) {
    return until(async () => {
      for (const address of addresses(`DLOCK_${this.place.toUpperCase()}`)) {
        const node = await connection(address);
        try {
          const [role] = await Promise.all([node.sendCommand(['ROLE']), node.sendCommand(['EXISTS', key])]);
          if (role[0] === 'master') return node;
        } catch { /* MOVED, or it is down */ }
      }
      return null;
    }, `${key} is served`);
  }

  /** The reply to a command; its second word is the key. */
  async ask(...words) { return (await this.node(words[0].startsWith('CLIENT') ? undefined : words[1])).sendCommand(words.map(String)); }

  async info(key = this.key) {
    return (await this.ask('DLOCK.INFO', key, 'COUNT', 5000)) ?? { holders: [], queue: [] };
  }

  async holder() { return (await this.info()).holders[0]; }

  async owners(key) { return (await this.info(key)).holders.map((holder) => holder.owner); }

  async queue(key) { return (await this.info(key)).queue.map((place) => place.owner); }

  awaitQueued(count, key) {
    return until(async () => (await this.info(key)).queue.length === count, `${count} are queued`);
  }

  awaitGone(key = this.key) {
    return until(async () => (await this.ask('DLOCK.INFO', key)) === null, 'nobody holds it and nobody waits');
  }

  /** Somebody else takes it, for longer than any test lasts. */
  async hold(key = this.key, owner = 'other', ...options) {
    assert.ok(await this.ask('DLOCK.ACQUIRE', key, owner, 600_000, ...options), 'the lock is taken');
  }

  /** While the work is done the slot of the key is on its way to another master, and so is nothing that was there. */
  async whileTheSlotMoves(work) {
    const source = await this.node();
    const target = await until(async () => {
      const others = await Promise.all(addresses('DLOCK_CLUSTER').map(connection));
      const roles = await Promise.all(others.map((one) => one.sendCommand(['ROLE']).catch(() => [])));
      return others.find((one, i) => one !== source && roles[i][0] === 'master');
    }, 'there is another master');
    const [from, to] = await Promise.all([source, target].map((one) => one.sendCommand(['CLUSTER', 'MYID'])));
    const slot = String(await source.sendCommand(['CLUSTER', 'KEYSLOT', this.key]));
    await target.sendCommand(['CLUSTER', 'SETSLOT', slot, 'IMPORTING', from]);
    await source.sendCommand(['CLUSTER', 'SETSLOT', slot, 'MIGRATING', to]);
    await work(async (...words) => (await Promise.all([['ASKING'], words].map((one) => target.sendCommand(one))))[1]);
    for (const one of [source, target]) await one.sendCommand(['CLUSTER', 'SETSLOT', slot, 'STABLE']);
  }

  /** Gives it back, and says who has it in the same step. */
  async handOver(owner = 'other', key = this.key) {
    const node = await this.node(key);
    const [, held] = await node.multi().addCommand(['DLOCK.RELEASE', key, owner, 'HOLDS', '0'])
      .addCommand(['DLOCK.HELD', key]).exec();
    return held && held[3];
  }

  /** The unlock messages of the lock from now on: a function that awaits the next. */
  async messages() {
    const ear = (await this.node()).duplicate();
    await ear.on('error', () => {}).connect();
    const [heard, wakes] = [[], []];
    const hear = (message) => (wakes.length ? wakes.shift()(message) : heard.push(message));
    await ear[this.place === 'cluster' ? 'sSubscribe' : 'subscribe'](`__dlock@0__:${this.key}`, hear);
    return {
      next: () => new Promise((done) => { heard.length ? done(heard.shift()) : wakes.push(done); }),
      close: () => ear.destroy(),
    };
  }
}

/** One of the servers that know nothing of each other. */
export class Master extends Server {
  constructor(address, key) {
    super('single');
    Object.assign(this, { address, key });
  }

  node() { return connection(this.address); }

  held(owner) { return this.ask('DLOCK.HELD', this.key, owner); }
}

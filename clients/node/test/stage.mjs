// The servers of a test, what they show, and the libraries under one hat.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

import Redis from 'ioredis';
import { createClient, createCluster, createSentinel } from 'redis';

import { Locks } from 'dlock-redis';
import { Quorum } from 'dlock-redis/quorum';

export const PATIENCE = 1000 * Number(process.env.PATIENCE ?? 30);
// A busy machine is late by itself. The delays that the cases look for also exceed this.
export const limits = { patience: PATIENCE, late: 1000 * Number(process.env.DLOCK_LATE ?? 4) };
export const LEASE = 6_000; // no stall of this process takes two thirds of it, or the client would report a loss
export const LONG = 15_000; // no fault takes so long, however busy the machine
/**
 * Returns true if this part of the tests runs now. `single` stops the single server, and `nodes` stops nodes of the cluster
 * and the pair: no test that needs these servers runs at the same time. `many` needs a process to itself. The tests of the
 * `rest` run side by side.
 */
export const isOf = (part) => (process.env.DLOCK_PART ?? part) === part;
const SETTINGS = { lease: LEASE, hangTimeout: 30_000 };

export const addresses = (name) => process.env[name].split(',').map((one) => one.split(':'));

/** A client that asks nothing by itself, whose own time-out for replies is short. */
const CLIENTS = {
  ioredis: (host, port, { user, password, name }) => new Redis({
    host, port: Number(port), lazyConnect: true, commandTimeout: 400, username: user, password, connectionName: name,
  }),
  'node-redis': (host, port, { user, password, name }) => createClient({
    socket: { host, port: Number(port) }, commandOptions: { timeout: 400 }, username: user, password, name,
  }),
};
const CLUSTERS = {
  ioredis: (roots) => new Redis.Cluster(roots.map(([host, port]) => ({ host, port: Number(port) }))).on('error', () => {}),
  'node-redis': (roots) => {
    const cluster = createCluster({ rootNodes: roots.map(([host, port]) => ({ url: `redis://${host}:${port}` })) });
    cluster.on('error', () => {}).connect().catch(() => {});
    return cluster;
  },
};
export const libraries = Object.keys(CLIENTS).filter((one) => !process.env.LIBRARY || process.env.LIBRARY === one);
const clusters = {};

/** node-redis 5 finds no way out of a failover in a cluster, and cannot copy a Sentinel. */
export const isOld = (library) => library === 'node-redis' && !createSentinel({ name: 'one', sentinelRootNodes: [] }).duplicate;

/** What Locks is made of. The clients of the cluster are shared: they are only patterns. */
function clientOf(library, place) {
  if (place === 'cluster') return clusters[library] ??= CLUSTERS[library](addresses('DLOCK_CLUSTER').slice(0, 2));
  if (place === 'single') return CLIENTS[library](...addresses('DLOCK_SINGLE')[0], {});
  if (library === 'node-redis') return async () => CLIENTS[library](...await primary(), {});
  return new Redis({ sentinels: [{ host: '127.0.0.1', port: sentinelPort }], name: 'pair', lazyConnect: true });
}

/** Locks in one of the places. */
export const makeLocks = (library, place, settings) => new Locks(clientOf(library, place), { ...SETTINGS, ...settings });

/** Locks by clients that this function makes, of the server at the address that it gives. */
export const makeLocksBy = (library, where, settings) =>
  new Locks(async () => CLIENTS[library](...await where(), {}), { ...SETTINGS, ...settings });

/** Locks over the server at this address. */
export const makeLocksAt = (library, [host, port], options, settings) =>
  new Locks(CLIENTS[library](host, port, options), { ...SETTINGS, ...settings });

/** Who of the pair is the primary. */
export const primary = () => until(async () => {
  for (const address of addresses('DLOCK_PAIR')) {
    const role = await connection(address).then((node) => node.sendCommand(['ROLE'])).catch(() => []);
    if (role[0] === 'master') return address;
  }
  return null;
}, 'the pair has a primary');

/** Says who is the primary of the pair, as a Sentinel does. */
async function sentinel() {
  const bulk = (words) => `*${words.length}\r\n${words.map((word) => `$${word.length}\r\n${word}\r\n`).join('')}`;
  const answers = {
    'get-master-addr-by-name': async () => bulk(await primary()), sentinels: () => '*0\r\n',
    '+switch-master': () => '*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n',
  };
  const server = net.createServer((socket) => {
    socket.on('error', () => {}).on('data', async (bytes) => {
      for (const command of bytes.toString().split(/(?=\*\d+\r\n)/)) {
        const words = command.split('\r\n').filter((_, i) => i > 0 && i % 2 === 0);
        socket.write(await (answers[words[1]]?.() ?? '+OK\r\n'));
      }
    });
  }).listen(0, '127.0.0.1').unref();
  await once(server, 'listening');
  return server.address().port;
}
const sentinelPort = await sentinel();

/** A way to a server. While it is frozen nothing comes through, and neither side notices. `met` is called for each connection. */
export async function proxy([host, port], met = () => {}) {
  const sockets = [];
  let [frozen, pattern, hangsUp] = [false];
  const [ears, servers] = [[], []];
  const freeze = () => {
    frozen = true;
    for (const socket of sockets) socket.pause();
  };
  const listener = net.createServer((near) => {
    met();
    if (hangsUp) return near.destroy();
    const far = net.connect(Number(port), host);
    servers.push(far);
    if (frozen) for (const socket of [near, far]) socket.pause();
    for (const [from, to] of [[near, far], [far, near]]) {
      sockets.push(from.on('error', () => {}));
      from.on('end', () => to.end()).on('close', () => to.end());
      from.on('data', (bytes) => {
        if (pattern && bytes.includes(pattern)) freeze();
        if (from === near && /subscribe/i.test(bytes)) ears.push(far);
        if (frozen) from.unshift(bytes);
        else to.write(bytes);
      });
    }
  }).listen(0, '127.0.0.1');
  await once(listener, 'listening');
  return {
    address: ['127.0.0.1', listener.address().port],
    freeze,
    /** All connections end, and new ones at once. */
    hangUp() {
      hangsUp = true;
      for (const socket of sockets) socket.destroy();
    },
    /** Lets through what comes before these words, and not them. */
    freezeAt(words) { pattern = words; },
    /** Stops the messages to all subscribers. */
    deafen() { for (const ear of ears) ear.pause(); },
    /** Has a command run on each connection, as if the client had sent it. The server sends no reply. */
    inject(...words) {
      const all = [['CLIENT', 'REPLY', 'SKIP'], words];
      const bytes = all.map((one) => `*${one.length}\r\n${one.map((word) => `$${word.length}\r\n${word}\r\n`).join('')}`);
      for (const far of servers) far.write(bytes.join(''));
    },
    thaw() {
      [frozen, pattern] = [false];
      for (const socket of sockets) socket.resume();
    },
    /** All connections that there were have ended. */
    quiet: () => until(() => sockets.every((socket) => socket.destroyed), 'all connections have ended'),
    close() {
      listener.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

/** A lock over the servers at these addresses. */
export const makeQuorum = (library, all, bound) =>
  new Quorum(all.map(([host, port]) => CLIENTS[library](host, port, {})), { replyTimeout: bound });

/** The first value of the condition that is not false. */
export async function until(condition, what) {
  for (const end = performance.now() + limits.patience; ;) {
    const value = await condition();
    if (value) return value;
    assert.ok(performance.now() < end, `gave up waiting until ${what}`);
    await sleep(20);
  }
}

/** Has something done to the servers, or on the way to them. */
export async function control(line) {
  const [[host, port]] = addresses('DLOCK_CONTROL');
  const socket = net.connect(Number(port), host);
  socket.write(`${line}\n`);
  const [answer] = await once(createInterface(socket), 'line');
  socket.destroy();
  assert.match(answer, /^ok/, line);
  return answer.slice(3);
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

/** The reply of a server. */
export const ask = async (address, ...words) => (await connection(address)).sendCommand(words.map(String));

export async function closeConnections() {
  for (const node of nodes.values()) (await node).destroy();
  clusters['ioredis']?.disconnect();
  clusters['node-redis']?.destroy();
  // Whatever a test has left open would keep the process.
  setTimeout(() => {
    console.error('still open:', process.getActiveResourcesInfo());
    process.exit(1);
  }, 20_000).unref();
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
          const asked = Promise.all([node.sendCommand(['ROLE']), node.sendCommand(['EXISTS', key])]);
          const [role] = await Promise.race([asked, sleep(1_000, [[]], { ref: false })]);
          if (role[0] === 'master') return node;
        } catch { /* MOVED, or it is down; or it hangs */ }
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
    return until(async () => {
      const { queue } = await this.info(key);
      return queue.length === count && queue.every((place) => place.kind !== 'absent');
    }, `${count} are queued, and nobody is absent`);
  }

  /** It has a place, and may hear no messages. */
  awaitAbsent(key) { return until(async () => (await this.info(key)).queue.length === 1, 'one is queued'); }

  awaitGone(key = this.key) {
    return until(async () => (await this.ask('DLOCK.INFO', key)) === null, 'nobody holds it and nobody waits');
  }

  /** Takes the lock for another owner, for longer than any test lasts. */
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
    try {
      await work(async (...words) => (await Promise.all([['ASKING'], words].map((one) => target.sendCommand(one))))[1]);
    } finally {
      for (const one of [source, target]) await one.sendCommand(['CLUSTER', 'SETSLOT', slot, 'STABLE']);
    }
  }

  /** Releases the lock, and returns its next holder, read in the same step. */
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

// SPDX-License-Identifier: MIT
/*
 * Our own clients, made after the pattern of the program's: they connect once and send once. TLS, users, databases, Sentinels
 * and clusters come along, because ioredis or node-redis makes the connections.
 *
 * After a call without an answer we leave our client and make another: some libraries keep a dead connection for ever.
 */
import { at, inTime, now } from './clock.mjs';
import { Closed, Unreachable, typed } from './errors.mjs';

const noop = () => {};

const ioredis = {
  copy(client, timeout, failures) {
    const how = {
      connectTimeout: timeout, commandTimeout: undefined, socketTimeout: undefined, blockingTimeout: undefined,
      sentinelCommandTimeout: timeout / 2, // with its connect: a silent Sentinel leaves time for the next one
      lazyConnect: true, retryStrategy: null, sentinelRetryStrategy: null, reconnectOnError: null,
      failoverDetector: true, // a Sentinel's word ends the connection to a former primary, which grants for eleven seconds more
      autoResendUnfulfilledCommands: false, maxRetriesPerRequest: null, enableReadyCheck: false, enableAutoPipelining: false,
      readOnly: false, stringNumbers: false, protocol: 2, replyMapping: undefined,
    };
    const { sentinels } = client.options;
    if (sentinels) how.sentinels = sentinels.map((_, i) => sentinels[(i + failures) % sentinels.length]); // several may be silent
    if (!client.isCluster) return client.duplicate(how);
    const seeds = client.nodes().map(({ options: { host, port } }) => ({ host, port }));
    return client.duplicate(seeds, {
      lazyConnect: true, enableReadyCheck: false, clusterRetryStrategy: null, slotsRefreshTimeout: Math.min(1_000, timeout),
      scaleReads: 'master', retryDelayOnFailover: 0, retryDelayOnClusterDown: 0, enableAutoPipelining: false,
      redisOptions: { ...client.options.redisOptions, ...how },
    });
  },
  /** ioredis 5 is ready before it knows whether the password is right. */
  async connect(copy) {
    await copy.connect();
    if (!copy.isCluster) await copy.call('PING').catch(noop);
  },
  async sender(copy) {
    if (!copy.isCluster) return (key, words) => copy.callBuffer(...words);
    const { Command } = await import('ioredis');
    class Keyed extends Command { // ioredis does not know where the key is in a command of a module, and would ask any node
      constructor(key, [name, ...args]) {
        super(name, args, { replyEncoding: null });
        this.key = key;
      }

      getKeys() { return [this.key]; }
    }
    return (key, words) => copy.sendCommand(new Keyed(key, words));
  },
  /**
   * disconnect() after the end starts a timer of two seconds that keeps the process. With Sentinels it is needed: nothing else ends
   * their subscription.
   */
  close: (copy) => (copy.status !== 'end' || copy.options.sentinels) && copy.disconnect(),
};

const RESP_BULK_STRING = '$'.charCodeAt(0);
const opened = new WeakSet(); // of node-redis: they have their sockets
// Bulk strings are bytes. node-redis would make a timer for each command, which costs as much as half of a lock.
const OPTIONS = { typeMapping: { [RESP_BULK_STRING]: Buffer }, timeout: undefined };

const nodeRedis = {
  copy(client, timeout) {
    if (client.getMasterNode) return client.duplicate(); // a Sentinel's: nobody can read its options, or add to some of them
    const how = ({ socket, ...options } = {}) => ({
      ...options, url: undefined, RESP: 2, commandOptions: undefined, clientSideCache: undefined, maintNotifications: 'disabled',
      disableOfflineQueue: false, pingInterval: undefined,
      socket: { ...socket, connectTimeout: timeout, socketTimeout: undefined, reconnectStrategy: false },
    });
    if (!client.nodeClient) return client.duplicate(how(client.options));
    const nodes = client.masters.flatMap((node) => node.client?.options ?? []);
    if (!nodes.length) return client.duplicate();
    const { socket, ...defaults } = how(nodes[0]);
    // A node that hangs holds up neither the search for the slots for long, nor the others.
    const rootNodes = nodes.map(({ socket: at }) => ({ socket: { host: at.host, port: at.port, socketTimeout: Math.min(1_000, timeout) } }));
    Object.assign(defaults, { pingInterval: timeout / 3, socket: { ...socket, host: undefined, port: undefined, socketTimeout: timeout } });
    return client.duplicate({ RESP: 2, rootNodes, minimizeConnections: true, defaults });
  },
  connect: (copy) => copy.connect(),
  sender(copy) {
    const strings = (words) => words.map((word) => (typeof word === 'number' ? String(word) : word));
    if (copy.nodeClient) return (key, words) => copy.sendCommand(key, false, strings(words), OPTIONS);
    if (copy.getMasterNode) return (key, words) => copy.sendCommand(false, strings(words), OPTIONS);
    return (key, words) => copy.sendCommand(strings(words), OPTIONS);
  },
  /** node-redis keeps a socket that it gets after destroy(). A Sentinel's client, which tells of its sockets since 6.3 only, does not. */
  close(copy) {
    const destroy = async () => copy.isOpen && copy.destroy();
    const close = () => destroy().catch(noop);
    if (opened.has(copy) || copy.getMasterNode) close();
    else copy.once('connect', close);
  },
};

const libraryOf = (client) => {
  if (typeof client?.duplicate !== 'function' || typeof client.sendCommand !== 'function') return null;
  return typeof client.call === 'function' ? ioredis : nodeRedis;
};

const isReady = (client) => client.isReady ?? client.status === 'ready'; // node-redis, ioredis

/** Makes our clients. `client`: the pattern, of one of the libraries (a client, cluster or Sentinel), or a function that makes one. */
export class ClientFactory {
  #failures = 0;

  constructor(client, timeout) {
    const library = libraryOf(client);
    if (!library && typeof client !== 'function') {
      throw new TypeError('client must be of ioredis or node-redis (a client, cluster or Sentinel), or a function that makes one');
    }
    this.client = client;
    this.library = library;
    this.timeout = timeout;
    this.isCluster = Boolean(client.isCluster || client.nodeClient);
  }

  /** Returns a client that is connected, as `{ send, close, ended }`. */
  async open() {
    const made = this.library ? this.client : await inTime(this.timeout, async () => this.client(), () => new Unreachable('no client in time'));
    const library = this.library ?? libraryOf(made);
    if (!library || (made !== this.client && (made.isCluster || made.nodeClient))) {
      throw new TypeError('client must make a client of ioredis or node-redis');
    }
    const copy = library.copy(made, this.timeout, this.#failures);
    if (made !== this.client && !isReady(made)) library.close(made); // a client in use is the program's own
    let why; // the first error has the reason
    copy.on('error', (error) => { why ??= error.lastNodeError ?? error; }).once('connect', () => opened.add(copy));
    try {
      await inTime(this.timeout, () => library.connect(copy), () => new Unreachable('no connection in time'));
      if (why && !this.isCluster && !copy.getMasterNode) throw why;
      const ended = new Promise((done) => { for (const one of this.isCluster ? ['end'] : ['end', 'error']) copy.once(one, done); });
      return { send: await library.sender(copy), close: () => library.close(copy), ended };
    } catch (error) {
      this.#failures += 1;
      library.close(copy);
      throw typed(why ?? error);
    }
  }
}

/** A client of ours, and the next one after a failure. */
export class Client {
  #factory;
  #current = null; // a promise of a client
  #next = null;
  #open = new Set(); // every client that is not closed
  #closed = false;

  constructor(factory) { this.#factory = factory; }

  /** Returns the reply to a command, or throws one of our errors, within that time. */
  async call(key, words, timeout = this.#factory.timeout) {
    if (this.#closed) throw new Closed('these locks are closed');
    const current = this.#current ??= this.#connect();
    let isSent = false;
    let isLate = false; // a client that connects only then sends nothing
    const send = (client) => {
      if (isLate) return null;
      isSent = true;
      return client.send(key, words);
    };
    try {
      return await inTime(timeout, () => current.then(send), () => new Unreachable('no answer in time'));
    } catch (error) {
      isLate = true;
      if (this.#closed) throw new Closed('these locks are closed');
      const seen = typed(error);
      const isAway = seen instanceof Unreachable || (seen.code === 'READONLY' && !this.#factory.isCluster);
      if (isSent && isAway) this.#leave(current); // connecting has a bound of its own
      throw seen;
    }
  }

  close() {
    this.#closed = true;
    for (const client of this.#open) client.close();
  }

  #connect() {
    const connecting = this.#factory.open();
    const drop = () => { if (this.#current === connecting) this.#current = null; };
    connecting.then((client) => {
      this.#open.add(client);
      client.ended.then(() => {
        drop();
        this.#end(client);
      });
      if (this.#closed) client.close();
    }, drop);
    return connecting;
  }

  /** Makes another client for the calls to come. The other nodes of a cluster still answer: until it is there, it has this one. */
  #leave(old) {
    if (this.#closed || this.#current !== old || this.#next) return;
    if (!this.#factory.isCluster) {
      this.#current = null;
      this.#retire(old);
      return;
    }
    const next = this.#next = this.#connect();
    next.then(() => {
      const replaced = this.#current; // null: it has ended meanwhile
      this.#current = next;
      if (replaced) this.#retire(replaced);
    }, noop).finally(() => { this.#next = null; });
  }

  /** By then each call that is under way has its answer, or has failed. An unanswered one would keep the connection for ever. */
  #retire(old) { old.then((client) => at(now() + 2 * this.#factory.timeout, () => this.#end(client)), noop); }

  #end(client) {
    this.#open.delete(client);
    client.close();
  }
}

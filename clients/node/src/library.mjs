// SPDX-License-Identifier: MIT
// ioredis and node-redis under one hat. The program's client is a pattern: our connections are its duplicates, with its
// addresses, Sentinels, TLS, user and database, but without its ways to connect and to send again: after a loss all
// who wait have to ask anew, and what is tied to a connection has to be counted.
import { pause, now } from './clock.mjs';
import { Unreachable } from './errors.mjs';

const nothing = () => {};

/** "host:port" as options; an IPv6 address has colons of its own. */
function place(address) {
  const at = address.lastIndexOf(':');
  return { host: address.slice(0, at), port: Number(address.slice(at + 1)) };
}

const ioredis = {
  duplicate: (client, address, bound) => client.duplicate({
    connectTimeout: bound, commandTimeout: undefined, socketTimeout: undefined, blockingTimeout: undefined,
    lazyConnect: true, retryStrategy: null, sentinelRetryStrategy: null, reconnectOnError: null, failoverDetector: false,
    autoResubscribe: false, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: null, enableReadyCheck: false,
    enableAutoPipelining: false, readOnly: false, stringNumbers: false, protocol: 2, replyMapping: undefined,
    ...(address && { ...place(address), path: undefined, sentinels: null }),
  }),
  connect: (wire) => wire.connect(),
  events: ['error', 'close', 'end'],
  send: (wire, words) => wire.call(...words),
  listen(wire, channel, heard) {
    wire.on('messageBuffer', (_, message) => heard(message));
    return wire.subscribe(channel);
  },
  close: (wire) => wire.disconnect(),
  /** Returns the server's address, to tell one server from another. */
  leadsTo: ({ stream }) => `${stream?.remoteAddress} ${stream?.remotePort}`,
  /** One that made itself connects by itself. */
  discard: (client) => client.disconnect(),
  nodes: (cluster) => {
    if (cluster.status === 'wait') cluster.connect().catch(nothing);
    return cluster.nodes().map((node) => [`${node.options.host}:${node.options.port}`, node]);
  },
  map: (cluster) => cluster.options.natMap,
};

const opened = new WeakSet(); // of node-redis: they have their sockets

const nodeRedis = {
  duplicate: (client, address, bound) => client.duplicate({
    RESP: 2, commandOptions: { timeout: undefined }, pingInterval: undefined, clientSideCache: undefined, maintNotifications: 'disabled',
    disableOfflineQueue: false,
    ...(address && { url: undefined }), // it would overrule the address
    socket: { ...client.options?.socket, ...(address && { ...place(address), path: undefined }), connectTimeout: bound,
      socketTimeout: undefined, reconnectStrategy: false },
  }),
  connect(wire) {
    wire.once('connect', () => opened.add(wire));
    return wire.connect();
  },
  events: ['error', 'end'],
  send: (wire, words) => wire.sendCommand(words.map((word) => (typeof word === 'number' ? String(word) : word))),
  listen: (wire, channel, heard) => wire.subscribe(channel, heard, true),
  /** One that is closed before it has its socket would keep that. */
  close(wire) {
    const close = () => wire.isOpen && wire.destroy();
    if (opened.has(wire)) close();
    else wire.once('connect', close);
  },
  /** Returns the address that was asked for: node-redis does not show its socket. */
  leadsTo: ({ options }) => `${options?.socket?.host} ${options?.socket?.port}`,
  discard: (client) => client.isOpen && client.destroy(),
  nodes: (cluster) => cluster.masters.filter((node) => node.client).map((node) => [node.address, node.client]),
  map: (cluster) => (cluster._self ?? cluster)._options?.nodeAddressMap,
};

const libraryOf = (client) => {
  if (typeof client?.duplicate !== 'function' || typeof client.getMasterNode === 'function') return null;
  if (typeof client.call === 'function') return ioredis;
  return typeof client.sendCommand === 'function' ? nodeRedis : null;
};

/** What all connections are made like. `client`: of one of the libraries, its cluster, or a function that makes one. */
export class Source {
  #client;
  #pattern = null; // of a cluster: one of its nodes

  constructor(client, bound) {
    const library = libraryOf(client);
    if (!library && typeof client !== 'function') {
      throw new TypeError('client must be an ioredis or node-redis client or cluster, or a function that makes a client'
        + `${typeof client?.getMasterNode === 'function' ? ' (how to for a Sentinel of node-redis: see the README)' : ''}`);
    }
    Object.assign(this, { library, bound, cluster: Boolean(client.isCluster || client.nodeClient) });
    this.#client = client;
  }

  /** A connection that is yet to be opened, and its library. */
  async dial(address) {
    if (this.cluster) {
      await this.seeds();
      return [this.library.duplicate(this.#pattern, address, this.bound), this.library];
    }
    if (this.library) return [this.library.duplicate(this.#client, null, this.bound), this.library];
    const made = await this.#client();
    const library = libraryOf(made);
    if (!library || made.isCluster || made.nodeClient) throw new TypeError('client must make a client of ioredis or node-redis');
    const wire = library.duplicate(made, null, this.bound);
    library.discard(made);
    return [wire, library];
  }

  /** Addresses of some nodes of the cluster, as the library knows them. */
  async seeds() {
    for (const end = now() + this.bound; ; await pause(10)) {
      const nodes = this.library.nodes(this.#client);
      if (nodes.length) {
        this.#pattern ??= nodes[0][1];
        return nodes.map(([address]) => address);
      }
      if (this.#pattern) return [];
      if (now() >= end) throw new Unreachable('the cluster client is not connected');
    }
  }

  /** Where a node is for us that the cluster knows by this address. */
  mapped(address) {
    const map = this.library.map(this.#client);
    const to = typeof map === 'function' ? map(address) : map?.[address];
    return to ? `${to.host}:${to.port}` : address;
  }
}

let table = null;

/** The cluster's slot of a key: CRC-16 of the first non-empty `{…}` in it, or of all of it. */
export function slotOf(key) {
  table ??= Array.from({ length: 256 }, (_, byte) => {
    let crc = byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1) & 0xffff;
    return crc;
  });
  let bytes = Buffer.from(key);
  const from = bytes.indexOf('{') + 1;
  const to = bytes.indexOf('}', from);
  if (from > 0 && to > from) bytes = bytes.subarray(from, to);
  let crc = 0;
  for (const byte of bytes) crc = ((crc << 8) & 0xffff) ^ table[(crc >> 8) ^ byte];
  return crc % 16384;
}

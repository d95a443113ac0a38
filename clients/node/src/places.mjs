// SPDX-License-Identifier: MIT
// Where a key is served: nodes, their links and ears, and the cluster's map of slots.
import { randomUUID } from 'node:crypto';

import { now } from './clock.mjs';
import { Closed, Unreachable, passes } from './errors.mjs';
import { slotOf } from './library.mjs';
import { Link, Node, openEar } from './link.mjs';

const nothing = () => {};

/** Another node serves the key: its address as the cluster says it. */
export function redirection({ message }) {
  const [, code, slot, address] = /^(MOVED|ASK) (\d+) (\S+)/.exec(message) ?? [];
  return code && { asking: code === 'ASK', slot: Number(slot), address };
}

export class Places {
  closed = false;
  nodes = new Map();
  channel = `dlock:${randomUUID()}`;
  #served = []; // a cluster: who serves each slot
  #moved = new Map(); // what errors have told since
  #refreshed = -Infinity;
  #refreshing = null;

  constructor(source, settings) { Object.assign(this, { source, settings }); }

  /** Whoever counts may fail, and nothing else does. */
  tell(what, ...about) {
    try {
      this.settings.observer[what]?.(...about);
    } catch (error) {
      this.settings.logger.warn(`the observer has failed: ${error}`);
    }
  }

  /** An error if nothing may be asked any more. */
  check() { if (this.closed) throw new Closed('these locks are closed'); }

  node(name) {
    let node = this.nodes.get(name);
    if (!node) this.nodes.set(name, node = new Node(name));
    return node;
  }

  /** Who serves the key, as far as we know. */
  route(key) {
    if (!this.source.cluster) return this.node('');
    const slot = slotOf(key);
    const name = this.#moved.get(slot) ?? this.#served[slot];
    if (!name) throw new Unreachable('nobody is known to serve the slot');
    return this.node(name);
  }

  /** Before that can be known. */
  async ready() { if (this.source.cluster && !this.#served.length) await this.#refresh(); }

  /** Asks three nodes of the cluster who serves what; the first answer is taken. */
  #refresh() {
    this.#refreshing ??= this.#ask().finally(() => { this.#refreshing = null; });
    return this.#refreshing;
  }

  async #ask() {
    const names = [...new Set([...this.#served, ...await this.source.seeds()])].sort(() => Math.random() - 0.5);
    const asked = names.slice(0, 3).map(async (name) => {
      const slots = await (await this.link(this.node(name))).post(['CLUSTER', 'SLOTS']);
      return [name, slots];
    });
    const [name, slots] = await Promise.any(asked).catch(({ errors }) => {
      throw errors.find((error) => !passes(error)) ?? errors[0];
    });
    const served = [];
    for (const [from, to, [host, port]] of slots) {
      const address = this.source.mapped(`${host || name.slice(0, name.lastIndexOf(':'))}:${port}`);
      for (let slot = from; slot <= to; slot++) served[slot] = address;
    }
    this.#served = served;
    this.#moved.clear();
  }

  /** The node's link, opened if there is none. */
  async link(node) {
    if (node.link && !node.link.error) return node.link;
    return node.once('link', async () => {
      this.check();
      return this.linked(node, await this.open(node));
    });
  }

  open(node) { return Link.open(this.source, node.name, (link) => this.unlinked(node, link)); }

  linked(node, link) {
    node.link = link;
    node.ear?.die(new Unreachable('the link is new')); // where it goes the messages come from: it may be another server
    if (this.closed) link.die(new Closed('these locks are closed'));
    return link;
  }

  async listen(node) {
    if (node.ear && !node.ear.error) return;
    await node.once('ear', async () => {
      node.ear = await openEar(this.source, node, this.channel, () => node.tell('again'));
      if (this.closed) node.ear.die(new Closed('these locks are closed'));
    });
  }

  /** The reply of whoever serves the key of the request; `told(link, sent, error, reply)` is called as it is read. */
  async call(request, words, told = nothing) {
    await this.ready();
    let [node, asking] = [this.route(request.key), false];
    for (let hops = 0; ; hops++) {
      const link = node.link && !node.link.error ? node.link : await this.link(node);
      if (request.ended) throw new Closed('nobody waits for it any more');
      [request.node, request.asked] = [node, true];
      const sent = now();
      try {
        return await link.post(words, (error, reply) => told(link, sent, error, reply), asking);
      } catch (error) {
        const other = redirection(error);
        if (!other || hops === 3) throw error;
        [node, asking] = [this.follow(other, node), other.asking];
      }
    }
  }

  /** The node that this one has named. */
  follow({ asking, slot, address }, { name }) {
    const at = this.source.mapped(address.startsWith(':') ? name.replace(/:\d+$/, address) : address);
    if (!asking) this.#moved.set(slot, at);
    return this.node(at);
  }

  /** After an error that passes. */
  async lookAround(error) {
    if (error.code === 'READONLY') { // it has become a replica: who is primary now is found by connecting
      for (const node of this.nodes.values()) node.link?.die(new Unreachable('the server has become a replica', { cause: error }));
    }
    if (this.source.cluster && now() - this.#refreshed > 100) {
      this.#refreshed = now();
      await this.#refresh().catch((why) => this.settings.debug(`the cluster does not say who serves what: ${why}`));
    }
  }
}

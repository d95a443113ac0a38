// SPDX-License-Identifier: MIT
// Where a key is served: nodes, their links and ears, and the cluster's map of slots.
import { randomUUID } from 'node:crypto';

import { now } from './clock.mjs';
import { Closed, Unreachable, passes } from './errors.mjs';
import { slotOf } from './library.mjs';
import { Link } from './link.mjs';
import { Node } from './node.mjs';

const nothing = () => {};

/** Another node serves the key: its address as the cluster says it. */
export function redirection({ message }) {
  const [, code, slot, address] = /^(MOVED|ASK) (\d+) (\S+)/.exec(message) ?? [];
  return code && { asking: code === 'ASK', slot: Number(slot), address };
}

const shut = () => new Closed('these locks are closed');

export class Places {
  closed = false;
  nodes = new Map();
  channel = `dlock:${randomUUID()}`;
  #served = []; // a cluster: who serves each slot
  #moved = new Map(); // what errors have told since
  #refreshed = -Infinity;
  #refreshing = null;
  #links = new Set(); // all that are open

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
  check() { if (this.closed) throw shut(); }

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

  /** Before that can be known: what is to be awaited, if anything. */
  ready() { return this.source.cluster && !this.#served.length ? this.#refresh() : null; }

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
      throw errors.find((error) => !passes(error)) ?? errors[0] ?? new Unreachable('no node of the cluster is known');
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
      return this.linked(node, await this.openLink(node));
    });
  }

  /** Another connection of ours. Those of closed locks end at once. */
  async open(node, died, prepare) {
    const link = await Link.open(this.source, node.name, (one) => {
      this.#links.delete(one);
      died(one);
    }, prepare);
    if (!link.error) this.#links.add(link);
    if (this.closed) link.die(shut());
    return link;
  }

  openLink(node) { return this.open(node, (link) => this.unlinked(node, link)); }

  linked(node, link) {
    node.link = link;
    node.ear?.die(new Unreachable('the link is new')); // where it goes the messages come from: it may be another server
    return link;
  }

  /** Opens the ear, if there is none: the connection on which the node's messages are heard. */
  async listen(node) {
    if (node.ear && !node.ear.error) return;
    await node.once('ear', async () => {
      const { link } = node;
      const ear = await this.open(node, () => node.tell('again'), (one) => one.listen(this.channel, (message) => node.heard(message)));
      node.ear = ear;
      if (node.link !== link) ear.die(new Unreachable('the link is new'));
      const beat = setInterval(() => { // while somebody waits: does it live?
        if (ear.error) clearInterval(beat);
        else if (node.waits.size) ear.post(['PING']).catch(nothing);
      }, 1000).unref();
    });
  }

  closeLinks() { for (const link of this.#links) link.die(shut()); }

  /** The reply of whoever serves the key of the request; `told(error, reply, link, sent)` is called as it is read. */
  async call(request, words, told) {
    const unknown = this.ready();
    if (unknown) await unknown;
    let [node, asking] = [this.route(request.key), false];
    for (let hops = 0; ; hops++) {
      const link = node.link && !node.link.error ? node.link : await this.link(node);
      if (request.ended) throw new Closed('nobody waits for it any more');
      [request.node, request.asking, request.asked] = [node, asking, true];
      try {
        return await link.post(words, told, asking);
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

  /** After an error that passes: who serves what by now? */
  async lookAround() {
    if (!this.source.cluster || now() - this.#refreshed <= 100) return;
    this.#refreshed = now();
    await this.#refresh().catch((why) => this.settings.debug(`the cluster does not say who serves what: ${why}`));
  }
}

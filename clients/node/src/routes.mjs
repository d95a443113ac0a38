// SPDX-License-Identifier: MIT
// Where a key is served: nodes, their links and subscribers, and the cluster's map of slots.
import { randomUUID } from 'node:crypto';

import { after, now, pause } from './clock.mjs';
import { Closed, Unreachable, late, passes } from './errors.mjs';
import { slotOf } from './library.mjs';
import { ANOTHER, Link } from './link.mjs';
import { Node } from './node.mjs';

const LOOK = 100; // so often a request that waits for a link looks whether another node serves the key by now
const nothing = () => {};

/** Another node serves the key: its address as the cluster says it. */
export function redirection({ message }) {
  const [, code, slot, address] = /^(MOVED|ASK) (\d+) (\S+)/.exec(message) ?? [];
  return code && { asking: code === 'ASK', slot: Number(slot), address };
}

const shut = () => new Closed('these locks are closed');

/** While a connect hangs another is begun each second, and `again` is called; the first one that is there wins. */
function firstOf(open, bound, again) {
  return new Promise((resolve, reject) => {
    let [running, done, next] = [0, false, nothing];
    const stop = after(bound, () => end(() => reject(late('no connection in time'))));
    const end = (how) => {
      done = true;
      stop();
      next();
      how();
    };
    const begin = () => {
      running += 1;
      next = after(ANOTHER, () => {
        again();
        begin();
      });
      open().then((link) => {
        if (done) link.die(new Unreachable('it is not needed'));
        else end(() => resolve(link));
      }, (error) => {
        running -= 1;
        if (!done && (!running || !passes(error))) end(() => reject(error));
      });
    };
    begin();
  });
}

export class Routes {
  closed = false;
  nodes = new Map();
  channel = `dlock:${randomUUID()}`;
  #served = []; // a cluster: who serves each slot
  #moved = new Map(); // what errors have told since
  #asking = new Map(); // keys that are at their next node before their slot is
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
    const early = this.#asking.size && this.#asking.get(String(key));
    if (early) return this.node(early);
    const slot = slotOf(key);
    const name = this.#moved.get(slot) ?? this.#served[slot];
    if (!name) throw new Unreachable('nobody is known to serve the slot');
    return this.node(name);
  }

  /** True if the key is at its node before its slot is. */
  isAsking(key) { return this.#asking.size > 0 && this.#asking.has(String(key)); }

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
    this.#asking.clear();
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

  openLink(node) {
    const open = () => this.open(node, (link) => this.unlinked(node, link));
    return firstOf(open, this.settings.replyTimeout, () => this.#lookElsewhere(node));
  }

  linked(node, link) {
    link.used = true;
    link.overdue = () => this.#overdue(node, link).catch(nothing);
    node.link = link;
    node.subscriber?.die(new Unreachable('the link is new')); // where it goes the messages come from: it may be another server
    return link;
  }

  /** What this node serves may be another's by now. */
  async #lookElsewhere(node) {
    await this.refreshRoutes();
    this.reroute(node);
  }

  /** Connects beside a link whose reply is late: its server may hang, be no primary any more, or only wait for its replicas. */
  async #overdue(node, link) {
    if (this.source.cluster) {
      await this.#lookElsewhere(node);
      return;
    }
    if (node.link !== link || this.closed) return;
    await node.once('beside', async () => {
      const other = await this.openLink(node);
      const isNeeded = () => node.link === link && !link.error && !link.isBeside(other);
      if (isNeeded()) {
        await other.post(['PING']).catch((error) => { if (error instanceof Unreachable) throw error; }); // a refusal is an answer
      }
      if (!isNeeded()) {
        other.die(new Unreachable('it is not needed'));
        return;
      }
      this.linked(node, other);
      link.die(late('the server does not answer'));
    });
  }

  /** What another node serves by now is that one's to keep, and waits for it ask again. */
  reroute(node) {
    if (!this.source.cluster) return;
    const elsewhere = (key) => {
      try {
        const target = this.route(key);
        return target === node ? null : target;
      } catch {
        return null; // nobody is known to serve it yet
      }
    };
    for (const renewal of this.of(node)) {
      const target = elsewhere(renewal.request.key);
      if (target) this.move(renewal, target);
    }
    node.notifyAll('moved', (key) => elsewhere(key) !== null);
  }

  /** Another node serves it by now, and keeps it. */
  move(renewal, target) {
    if (renewal.node === target) return;
    renewal.detach();
    renewal.node = target;
    if (this.isAsking(renewal.request.key)) this.wake(target); // not at once: each of the two may name the other
    else this.rouse(target);
  }

  /** Opens the subscriber, if there is none: the connection on which the node's messages come. */
  async subscribe(node) {
    if (node.subscriber && !node.subscriber.error) return;
    await node.once('subscriber', async () => {
      const { link } = node;
      const open = () => this.open(node, (one) => { if (one.used) node.notifyAll('again'); },
        (one) => one.listen(this.channel, (message) => node.notify(message)));
      const subscriber = await firstOf(open, this.settings.replyTimeout, () => this.#lookElsewhere(node));
      subscriber.used = true;
      node.subscriber = subscriber;
      if (node.link !== link) subscriber.die(new Unreachable('the link is new'));
      const beat = setInterval(() => { // while somebody waits: does it live?
        if (subscriber.error) clearInterval(beat);
        else if (node.waits.size) subscriber.post(['PING']).catch(nothing);
      }, 1000).unref();
    });
  }

  closeLinks() { for (const link of this.#links) link.die(shut()); }

  /** The link of the node that serves the key, and that node. */
  async linkFor(key) {
    for (;;) {
      const unknown = this.ready();
      if (unknown) await unknown;
      const node = this.route(key);
      if (node.link && !node.link.error) return [node.link, node];
      const opening = this.link(node);
      if (!this.source.cluster) return [await opening, node];
      const link = await Promise.race([opening, pause(LOOK)]);
      if (link) return [link, node];
    }
  }

  /** The reply of whoever serves the key of the request; `told(error, reply, link, sent)` is called as it is read. */
  async call(request, words, told) {
    for (let hops = 0; ; hops++) {
      const [link, node] = await this.linkFor(request.key);
      if (request.ended) throw new Closed('nobody waits for it any more');
      [request.node, request.link, request.asked] = [node, link, true];
      try {
        return await link.post(words, told, this.isAsking(request.key));
      } catch (error) {
        const other = redirection(error);
        if (!other || hops === 4) throw error;
        this.follow(other, node, request.key);
      }
    }
  }

  /** The node that this one has named for the key. */
  follow({ asking, slot, address }, { name }, key) {
    const at = this.source.mapped(address.startsWith(':') ? name.replace(/:\d+$/, address) : address);
    this.#asking.delete(String(key));
    if (asking) this.#asking.set(String(key), at);
    else this.#moved.set(slot, at);
    return this.node(at);
  }

  /** After an error that passes: who serves what by now? */
  async refreshRoutes() {
    if (!this.source.cluster || now() - this.#refreshed <= 100) return;
    this.#refreshed = now();
    await this.#refresh().catch((why) => this.settings.debug(`the cluster does not say who serves what: ${why}`));
  }
}

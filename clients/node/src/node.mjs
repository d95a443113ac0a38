// SPDX-License-Identifier: MIT
// A server that we talk to: what it keeps for us, and who waits there.
import { now } from './clock.mjs';

/** A hold that the server renews for a link. */
export class Renewal {
  link = null; // null: unrenewed
  holds = []; // weak references to what the program has of it: more than one after a re-entry
  gone = ''; // why it is over
  ending = null; // resolved when the release that is under way has ended
  doubted = 0; // its end has passed while this process was stopped: so long an answer is waited for
  refusal = null; // what the last RENEW was refused with
  #until = 0;
  #serial = 0;

  constructor(request, token, node) { [this.request, this.token, this.node] = [request, token, node]; }

  /** The server has said that it renews it for this link. */
  attach(link, until) {
    this.#until = Math.max(this.end(), until);
    [this.doubted, this.refusal] = [0, null];
    if (this.link !== link) {
      this.detach();
      link.renewals++;
      this.link = link;
    }
    this.#serial = ++link.serial;
  }

  detach() {
    if (!this.link) return;
    this.#until = this.end();
    this.link.renewals--;
    this.link = null;
  }

  /** Its holds but this one. */
  forget(hold) { this.holds = this.holds.filter((one) => one.deref() !== hold); }

  /** Those of its holds that the program refers to no more; this one does not either from now on. */
  forgotten() {
    const forgotten = this.holds.filter((hold) => !hold.deref());
    if (forgotten.length) this.holds = this.holds.filter((hold) => hold.deref());
    return forgotten;
  }

  /** True if the server should have renewed it by now, and has not said so. */
  isNear() { return this.holds.length > 0 && this.end() < now() + this.request.settings.lease / 2; }

  /** Until then it is ours. A KEEP that was answered after it was attached has moved the end of all. */
  end() {
    const { link } = this;
    return link && this.#serial <= link.kept ? Math.max(this.#until, link.believed) : this.#until;
  }
}

/** What is announced of one place in a queue. */
export class Mailbox {
  #notifications = [];
  #wake = null;

  put(one) {
    this.#notifications.push(one);
    this.#wake?.();
  }

  async next() {
    while (!this.#notifications.length) await new Promise((done) => { this.#wake = done; });
    return this.#notifications.shift();
  }
}

/** A server that we talk to, and what we have there. */
export class Node {
  link = null;
  subscriber = null;
  opening = {}; // what is under way, for all who come meanwhile
  subscribeDenied = false;
  keeper = null;
  trouble = null; // what its keeper failed with last, if it did: the reason of a loss
  refused = false; // and that is final: it refuses to keep locks
  waits = new Map(); // mailboxes by key and owner
  awaited = new Map(); // how many there are by key

  constructor(name) { this.name = name; }

  /** The work, done once for all who come while it is under way. */
  once(what, work) {
    this.opening[what] ??= work().finally(() => { this.opening[what] = undefined; });
    return this.opening[what];
  }

  /** All who wait for such keys. */
  notifyAll(word, which = () => true) {
    for (const boxes of this.waits.values()) for (const box of boxes) if (which(box.key)) box.put([word, 0, 0]);
  }

  /** A message on our channel: `word token keylen:key ownerlen:owner wait-id`. What is none was published by somebody else. */
  notify(message) {
    const [, word, token, rest] = /^(\S+) (\d+) (.*)$/s.exec(message.toString('latin1')) ?? [];
    if (!word) return;
    const names = [];
    let left = rest;
    for (let i = 0; i < 2; i++) {
      const at = left.indexOf(':') + 1;
      const end = at + Number(left.slice(0, at - 1));
      names.push(left.slice(at, end));
      left = left.slice(end + 1);
    }
    for (const box of this.waits.get(names.join('\n')) ?? []) box.put([word, Number(token), Number(left)]);
  }

  /** What is announced of a place until `stop()`. */
  await({ id, key }) {
    const box = Object.assign(new Mailbox(), { key });
    if (!this.waits.has(id)) this.waits.set(id, new Set());
    const boxes = this.waits.get(id).add(box);
    this.#count(key, 1);
    box.stop = () => {
      if (!boxes.delete(box)) return;
      this.#count(key, -1);
      if (!boxes.size) this.waits.delete(id);
    };
    return box;
  }

  #count(key, more) {
    const count = (this.awaited.get(key) ?? 0) + more;
    if (count) this.awaited.set(key, count);
    else this.awaited.delete(key);
  }
}

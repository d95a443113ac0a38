// SPDX-License-Identifier: MIT
// A server that we talk to: what it keeps for us, and who waits there.
import { now } from './clock.mjs';

/** A hold that a link's server renews for us. */
export class Tie {
  link = null;
  holds = []; // what was asked for, and a weak reference to what the program has of it
  gone = ''; // why it is over
  #until = 0;
  #serial = 0;

  constructor(request, token) { [this.request, this.token] = [request, token]; }

  /** The server has said that it renews it for this link. */
  attach(link, until) {
    this.#until = Math.max(this.end(), until);
    if (this.link !== link) {
      this.detach();
      link.ties++;
      this.link = link;
    }
    this.#serial = ++link.serial;
  }

  detach() {
    if (!this.link) return;
    this.#until = this.end();
    this.link.ties--;
    this.link = null;
  }

  /** Its holds but this one. */
  forget(hold) { this.holds = this.holds.filter(([, one]) => one.deref() !== hold); }

  /** What was asked for by those whom nobody refers to any more; they are forgotten. */
  forgotten() {
    const gone = this.holds.filter(([, hold]) => !hold.deref());
    if (gone.length) this.holds = this.holds.filter((one) => !gone.includes(one));
    return gone.map(([request]) => request);
  }

  /** True if the server should have renewed it by now, and has not said so. */
  isNear() { return this.holds.length > 0 && this.end() < now() + this.request.settings.lease / 2; }

  /** Until then it is ours. A KEEP that was answered after it was tied has moved the end of all. */
  end() {
    const { link } = this;
    return link && this.#serial <= link.kept ? Math.max(this.#until, link.believed) : this.#until;
  }
}

/** What is told of one place in a queue. */
export class Mailbox {
  #news = [];
  #wake = null;

  put(one) {
    this.#news.push(one);
    this.#wake?.();
  }

  async next() {
    while (!this.#news.length) await new Promise((done) => { this.#wake = done; });
    return this.#news.shift();
  }
}

/** A server that we talk to, and what we have there. */
export class Node {
  link = null;
  ear = null;
  opening = {}; // what is under way, for all who come meanwhile
  deaf = false; // it may not subscribe
  keeper = null;
  ties = new Map(); // by token
  waits = new Map(); // mailboxes by key and owner
  awaited = new Map(); // how many there are by key
  leaving = []; // until when to try, what, and its token (or 0)

  constructor(name) { this.name = name; }

  /** The work, done once for all who come while it is under way. */
  once(what, work) {
    this.opening[what] ??= work().finally(() => { this.opening[what] = undefined; });
    return this.opening[what];
  }

  /** All who wait. */
  tell(word) { for (const boxes of this.waits.values()) for (const box of boxes) box.put([word, 0, 0]); }

  /** A message on our channel: `word token keylen:key ownerlen:owner wait-id`. What is none was published by somebody else. */
  heard(message) {
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

  /** What is heard of a place until `stop()`. */
  await({ id, key }) {
    const box = new Mailbox();
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

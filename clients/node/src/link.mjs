// SPDX-License-Identifier: MIT
// A server that we talk to: its two connections, what it keeps for us, and who waits there.
import { after, now } from './clock.mjs';
import { Unreachable, late, typed } from './errors.mjs';

const nothing = () => {};

/** One connection that all share, pipelined: replies come in the order of the commands. Its death is final. */
export class Link {
  #wire = null;
  #library;
  #bound;
  #died;
  #pending = new Set(); // in the order of the commands
  #progress = 0; // when the last reply came
  #watched = false;

  constructor(bound, died) {
    [this.#bound, this.#died] = [bound, died];
    Object.assign(this, { error: null, ties: 0, serial: 0, kept: 0, surplus: 0, believed: 0 });
  }

  /** Connects, within the bound, whatever the library has to do for it. */
  static async open(source, address, died, prepare = nothing) {
    const link = new Link(source.bound, died);
    const stop = after(source.bound, () => link.die(late('no connection in time')));
    try {
      await new Promise((done, fail) => {
        link.failed = fail; // the first error has the reason
        link.#connect(source, address, prepare).then(done, (error) => link.die(error));
      });
    } finally {
      stop();
      link.failed = nothing;
    }
    return link;
  }

  async #connect(source, address, prepare) {
    const [wire, library] = await source.dial(address);
    [this.#wire, this.#library] = [wire, library];
    for (const event of library.events) wire.on(event, (error) => this.die(error ?? new Unreachable('the connection has ended')));
    if (!this.error) await library.connect(wire);
    if (!this.error) await prepare(this);
    if (this.error) library.close(wire);
  }

  /** Sends a command. `then(error, reply)` is called as the reply is read, whether or not anybody awaits it. */
  post(words, then, asking = false) {
    if (asking && !this.error) this.#ask(() => this.#library.send(this.#wire, ['ASKING']), nothing).catch(nothing);
    return this.#ask(() => this.#library.send(this.#wire, words), then);
  }

  listen(channel, heard) { return this.#ask(() => this.#library.listen(this.#wire, channel, heard)); }

  #ask(work, then = nothing) {
    if (this.error) return Promise.reject(this.error);
    return new Promise((resolve, reject) => {
      const entry = { sent: now(), came: (error, reply) => {
        if (!this.#pending.delete(entry)) return; // the link has died before
        this.#progress = now();
        then(error, reply);
        if (error) reject(error);
        else resolve(reply);
      } };
      this.#pending.add(entry);
      work().then((reply) => entry.came(null, reply), (error) => entry.came(typed(error)));
      if (!this.#watched) this.#watch(this.#bound);
    });
  }

  /** When a reply is missing for the bound, nobody knows any more what the server has heard. */
  #watch(delay) {
    this.#watched = true;
    after(delay, () => {
      this.#watched = false;
      const [oldest] = this.#pending;
      if (!oldest) return;
      const left = Math.max(oldest.sent, this.#progress) + this.#bound - now();
      if (left > 0) this.#watch(left);
      else this.die(late('the server does not answer'));
    });
  }

  die(why) {
    if (this.error) return;
    this.error = typed(why);
    if (this.#wire) this.#library.close(this.#wire);
    this.failed?.(this.error);
    for (const entry of this.#pending) entry.came(this.error);
    this.#died(this);
  }
}

/** The connection on which a node's messages are heard. Asked once a second whether it lives, while somebody waits. */
export async function openEar(source, node, channel, died) {
  const ear = await Link.open(source, node.name, died, (link) => link.listen(channel, (message) => node.heard(message)));
  const beat = setInterval(() => {
    if (ear.error) clearInterval(beat);
    else if (node.waits.size) ear.post(['PING']).catch(nothing);
  }, 1000).unref();
  return ear;
}

/** A hold that a link's server renews for us. */
export class Tie {
  link = null;
  holds = [];
  gone = ''; // why it is over
  #until = 0;
  #serial = 0;

  constructor(request, token) { Object.assign(this, { request, token }); }

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
  keeping = false;
  kicked = false;
  kick = nothing;
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

  /** A message on our channel: `word token keylen:key ownerlen:owner wait-id`. */
  heard(message) {
    const text = message.toString('latin1');
    const [, word, token, rest] = /^(\S+) (\d+) (.*)$/s.exec(text);
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

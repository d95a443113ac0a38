// SPDX-License-Identifier: MIT
// A connection, as the clients' libraries have it.
import { after, now } from './clock.mjs';
import { Unreachable, late, typed } from './errors.mjs';

const nothing = () => {};

/** One connection that all share, pipelined: replies come in the order of the commands. Its death is final. */
export class Link {
  error = null;
  ties = 0; // that its server renews for us, in the order of replies
  serial = 0; // of the last of them
  kept = 0; // of the last before a KEEP was answered
  believed = 0; // until when that KEEP lets us believe them
  short = false; // that KEEP has said less than a server that renews them leaves any
  surplus = 0; // how many KEEPs in a row have counted more of them
  #wire = null;
  #library;
  #bound;
  #died = nothing;
  #pending = new Set(); // in the order of the commands
  #progress = 0; // when the last reply came
  #watched = false;

  constructor(bound) { this.#bound = bound; }

  /** Connects, within the bound, whatever the library has to do for it. `died` is called if it ends after that. */
  static async open(source, address, died, prepare = nothing) {
    const link = new Link(source.bound);
    const stop = after(source.bound, () => link.die(late('no connection in time')));
    try {
      await new Promise((done, fail) => {
        link.failed = fail; // the first error has the reason
        link.#connect(source, address, prepare).then(() => {
          link.#died = died;
          done();
        }, (error) => link.die(error));
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

  /** Sends a command. `told(error, reply, link, sent)` is called as the reply is read, whether or not anybody awaits it. */
  post(words, told, asking = false) {
    if (asking) this.#ask(() => this.#library.send(this.#wire, ['ASKING'])).catch(nothing);
    return this.#ask(() => this.#library.send(this.#wire, words), told);
  }

  listen(channel, heard) { return this.#ask(() => this.#library.listen(this.#wire, channel, heard)); }

  #ask(work, told = nothing) {
    if (this.error) return Promise.reject(this.error);
    return new Promise((resolve, reject) => {
      const entry = { sent: now(), told, resolve, reject };
      work().then((reply) => this.#came(entry, null, reply), (error) => this.#came(entry, typed(error)));
      this.#pending.add(entry);
      if (!this.#watched) this.#watch(this.#bound);
    });
  }

  #came(entry, error, reply) {
    if (!this.#pending.delete(entry)) return; // the link has died before
    this.#progress = now();
    entry.told(error, reply, this, entry.sent);
    if (!error) return entry.resolve(reply);
    entry.reject(error);
    // Who is primary now is found by connecting.
    if (error.code === 'READONLY') this.die(new Unreachable('the server has become a replica', { cause: error }));
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
    for (const entry of this.#pending) this.#came(entry, this.error);
    this.#died(this);
  }
}

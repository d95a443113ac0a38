// SPDX-License-Identifier: MIT
// A connection, as the clients' libraries have it.
import { after, now } from './clock.mjs';
import { Unreachable, late, typed } from './errors.mjs';

const nothing = () => {};

/** A connect or a reply that takes longer may be that of a former primary. */
export const ANOTHER = 1_000;
const LAST_WORDS = 100; // a caller that has given up leaves behind what was sent, in case the server only hangs

/** One connection that all share, pipelined: replies come in the order of the commands. Its death is final. */
export class Link {
  error = null;
  renewals = 0; // that its server renews for us, in the order of replies
  used = false; // it has been a node's link
  overdue = nothing; // called when a reply is a second late
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
  #told = 0; // when it was said last that a reply is late

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

  /**
   * When a reply is missing for so long nobody knows any more what the server has heard. One that is a second late may be
   * that of a former primary.
   */
  #watch(delay) {
    this.#watched = true;
    after(Math.min(delay, ANOTHER), () => {
      this.#watched = false;
      const [oldest] = this.#pending;
      if (!oldest || this.error) return;
      const age = now() - Math.max(oldest.sent, this.#progress);
      if (age >= this.#bound + LAST_WORDS) {
        this.die(late('the server does not answer'));
        return;
      }
      if (age >= ANOTHER - 1 && now() - this.#told >= ANOTHER / 2) {
        this.#told = now();
        this.overdue();
      }
      this.#watch(Math.min(this.#bound + LAST_WORDS - age, age < ANOTHER - 1 ? ANOTHER - age : ANOTHER));
    });
  }

  /** Returns true if both lead to the same server, as far as the library shows it. */
  isBeside(other) { return this.#library.leadsTo(this.#wire) === other.#library.leadsTo(other.#wire); }

  die(why) {
    if (this.error) return;
    this.error = typed(why);
    if (this.#wire) this.#library.close(this.#wire);
    this.failed?.(this.error);
    for (const entry of this.#pending) this.#came(entry, this.error);
    this.#died(this);
  }
}

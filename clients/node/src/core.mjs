// SPDX-License-Identifier: MIT
/*
 * What all locks do: take, wait, keep, lose, leave.
 *
 * - A *node* is a server that we talk to. Its *link* is the one connection for all commands of all locks. Replies come
 *   in the order of the commands, and what a reply changes is changed as it is read, whether or not anybody waits.
 * - A *tie* is a hold that the server renews for our link (AUTO). One KEEP a second moves the believed end of all ties
 *   of its link, tells what was lost, and counts the ties, so that none is kept that we do not know of.
 * - A *wait* is a place in a queue. Its end is told on a channel of ours, heard on a second connection, the *ear*.
 */
import { after, now, pause } from './clock.mjs';
import { Closed, LockTimeout, NoAck, NotHeld, Replaced, Unreachable, late, passes, typed } from './errors.mjs';
import { Link, Tie } from './link.mjs';
import { Places, redirection } from './places.mjs';

const GRACE = 500; // so much longer a caller whose time is up waits for a reply that is on its way
const WARN_EVERY = 10_000;
const ROUNDING = 2; // servers count whole milliseconds
const nothing = () => {};

export class Core extends Places {
  #alarm = Infinity;
  #disarm = nothing;
  // What nobody refers to can be given back by nobody.
  #forgotten = new FinalizationRegistry(({ request, tie }) => this.drop(request, tie.token));

  // ---- taking ----

  /** What `make` makes of the tie of what was granted; null if it is taken. A time-out of 0: one try. */
  take(request, timeout, make) {
    const began = now();
    const { signal } = request;
    const deadline = began + timeout;
    const end = timeout ? deadline : began + this.settings.bound;
    return new Promise((resolve, reject) => {
      const settle = (error, hold) => {
        if (request.ended) return;
        request.ended = true;
        stop();
        signal?.removeEventListener('abort', abort);
        if (request.queued) this.tell('waited', request.key);
        if (!hold) {
          request.box?.put(['over', 0, 0]);
          request.link?.die(new Closed('the wait is over'));
          this.tell('refused', request.key, now() - began, error);
        }
        if (error) reject(error);
        else resolve(hold);
      };
      const leave = (error) => {
        if (request.ended) return;
        settle(error, null);
        this.#leave(request);
      };
      const abort = () => leave(signal.reason);
      const ring = () => {
        // The last that was heard of it is that it is taken.
        if (timeout && (request.waiting || (request.queued && !request.trouble))) return leave(null);
        const cause = request.trouble ?? late('the server does not answer');
        return leave(timeout ? notInTime(request.key, timeout, cause) : cause);
      };
      let stop = nothing;
      if (signal?.aborted) return abort();
      signal?.addEventListener('abort', abort);
      if (end < now() + 2 ** 31 - 1000) stop = after(end + GRACE - now(), ring);
      return this.#take(request, timeout, deadline, end).then((tie) => {
        if (request.ended) return;
        if (!tie) return request.queued ? leave(null) : settle(null, null); // the claim keeps the place
        const hold = make(tie);
        this.tell('granted', request.key, now() - began);
        settle(null, hold);
      }, (error) => (request.asked && !(error instanceof Replaced) ? leave(error) : settle(error, null)));
    });
  }

  async #take(request, timeout, deadline, end) {
    let warned = -Infinity;
    for (;;) {
      this.check();
      try {
        return await this.#attempt(request, timeout === 0, deadline);
      } catch (error) {
        if (request.ended) return null;
        const unconfirmed = error instanceof NotHeld && !request.before; // the grant has ended before it was confirmed
        if (!unconfirmed && (!passes(error) || (timeout === 0 && (error instanceof NoAck || error.late)))) throw error;
        request.trouble = error;
        if (now() >= end) throw timeout ? notInTime(request.key, timeout, error) : error;
        if (now() >= warned + WARN_EVERY) {
          this.settings.logger.warn(`still waiting for lock '${request.key}': ${error.message}`);
          warned = now();
        }
        await this.lookAround(error);
        await pause(Math.min(end - now(), 20 + 80 * Math.random()));
      } finally {
        request.waiting = false;
      }
    }
  }

  async #attempt(request, atOnce, deadline) {
    if (!request.looked) { // an outer hold of this name is not ours to give back
      while (this.#isLeaving(request)) {
        this.check();
        if (request.ended) return null;
        await pause(10);
      }
      request.within(await this.call({ key: request.key }, request.words('HELD')));
    }
    await this.ready();
    const known = this.route(request.key);
    // Others of ours wait for it: the place is asked for at once, with its messages.
    if (!atOnce && !request.queued && known.awaited.has(request.key) && known.ear && !known.ear.error) {
      return this.#queue(request, known, deadline);
    }
    if (!request.queued) {
      const reply = await this.call(request, request.take(atOnce), (link, sent, error, granted) => {
        if (granted) this.#tie(request, link, granted[0], sent, request.settings.lease);
      });
      if (reply || atOnce) return request.tie;
      if (request.ended) return null;
      this.#queued(request);
    }
    const node = this.route(request.key);
    if (!node.deaf) {
      try {
        await this.listen(node);
      } catch (error) {
        if (passes(error)) return this.#block(request, node, deadline);
        if (error.code !== 'NOPERM') throw error;
        if (!node.deaf) this.settings.logger.warn(`waits block on connections of their own, since messages cannot be heard: ${error.message}`);
        node.deaf = true;
      }
    }
    return node.deaf ? this.#block(request, node, deadline) : this.#queue(request, node, deadline);
  }

  #queued(request) {
    if (request.queued) return;
    request.queued = true;
    this.tell('waiting', request.key);
  }

  /** Waits by NOTIFY. */
  async #queue(request, node, deadline) {
    const box = request.box = node.await(request);
    this.wake(node);
    try {
      if (!node.ear || node.ear.error) throw new Unreachable('messages are not heard'); // as we came
      const block = deadline === Infinity ? [] : ['BLOCK', Math.max(1, Math.floor(deadline - now()))];
      const reply = await this.call(request, request.wait('NOTIFY', this.channel, ...block));
      if (request.node !== node) throw typed(new Error('TRYAGAIN the slot has moved'));
      if (reply && Number(reply[0])) return await this.#confirm(request, Number(reply[0]));
      this.#queued(request);
      if (reply === null) return null;
      for (;;) {
        request.waiting = true;
        const [word, token, number] = await box.next();
        request.waiting = false;
        this.check();
        if (number !== 0 && number !== Number(reply[2])) continue; // of an earlier asking of ours
        if (word === 'granted') return await this.#confirm(request, token);
        if (word === 'timeout') return null;
        if (['deadlock', 'replaced', 'notheld', 'wrongtype', 'refused', 'noack'].includes(word)) {
          throw typed(new Error(`${word.toUpperCase()} (told by a message)`));
        }
        throw new Unreachable(`the wait has ended: ${word}`); // moved, gone, cancelled, again
      }
    } finally {
      box.stop();
    }
  }

  /** Waits by BLOCK in slices, on a connection of its own. */
  async #block(request, node, deadline) {
    request.node = node;
    const link = request.link = await Link.open(this.source, node.name, nothing);
    try {
      for (;;) {
        const slice = Math.max(1, Math.floor(Math.min(this.settings.bound / 2, deadline - now())));
        if (request.ended) return null;
        request.waiting = true;
        const reply = await link.post(request.wait('BLOCK', slice));
        request.waiting = false;
        this.check();
        if (reply) return await this.#confirm(request, Number(reply[0]));
        if (now() >= deadline) return null;
      }
    } finally {
      link.die(new Closed('the wait is over'));
    }
  }

  async #confirm(request, token) {
    await this.call(request, request.renew(token), (link, sent, error, lease) => {
      if (!error) this.#tie(request, link, token, sent, Number(lease));
    });
    return request.tie;
  }

  // ---- ties ----

  /** The link has died. Places and sessions have ended with it; all else is tied anew. */
  unlinked(node, link) {
    for (const tie of [...node.ties.values()]) {
      if (tie.link === link && tie.request.session.length) this.lose(node, tie, 'session');
    }
    node.tell('again');
    this.rouse(node);
  }

  /** The server has said that it renews this hold for this link. */
  #tie(request, link, word, sent, lease) {
    const [node, token] = [request.node, Number(word)];
    if (request.outer && request.outer !== token) { // an upgrade: the outer hold has ended with its token
      this.lose(node, node.ties.get(request.outer), 'upgraded');
      [request.outer, request.before] = [token, 0];
    }
    let tie = node.ties.get(token);
    if (!tie) node.ties.set(token, tie = new Tie(request, token));
    tie.attach(link, sent + lease - ROUNDING - this.settings.allowance);
    request.tie = tie;
    this.wake(node);
  }

  /** Somebody has it now. */
  adopt(request, tie, hold) {
    tie.holds.push(new WeakRef(hold));
    this.#forgotten.register(hold, { request, tie }, hold);
    if (tie.gone) hold.tellLost(tie.gone);
    else if (tie.end() < this.#alarm) this.#rearm(tie.end());
  }

  lose(node, tie, reason) {
    if (!tie || !node.ties.delete(tie.token)) return;
    tie.detach();
    tie.gone = reason;
    for (const one of tie.holds) one.deref()?.tellLost(reason);
  }

  /** The clock of all holds: waits for nothing, and looks at them once a lease. Timers stand still in a suspended machine. */
  #rearm(at) {
    this.#disarm();
    this.#alarm = at;
    if (at !== Infinity && !this.closed) {
      this.#disarm = after(Math.min(at - now(), 1000), () => (this.#alarm <= now() ? this.expire() : this.#rearm(at)));
    }
  }

  /** Tells what has ended by the clock. */
  expire() {
    let at = Infinity;
    for (const node of this.nodes.values()) {
      for (const tie of [...node.ties.values()]) {
        if (tie.end() > now()) {
          at = Math.min(at, tie.end());
        } else {
          this.lose(node, tie, 'nobody has confirmed it before its end');
          this.drop(tie.request, tie.token);
        }
      }
    }
    this.#rearm(at);
  }

  #nodeOf(tie) { return [...this.nodes.values()].find((node) => node.ties.get(tie.token) === tie); }

  /** Wherever it is kept. */
  loseTie(tie, reason) {
    const node = this.#nodeOf(tie);
    if (node) this.lose(node, tie, reason);
  }

  // ---- giving back ----

  /** Gives back what was granted, and nothing else. */
  async release(request, tie, hold) {
    this.check();
    this.#forgotten.unregister(hold);
    const until = now() + this.settings.bound;
    const words = request.release('TOKEN', tie.token);
    for (let heard = true; ;) {
      try {
        await this.call({ key: request.key }, words, (link, sent, error, reply) => {
          if (reply === 0 || error instanceof NotHeld) this.loseTie(tie, 'released');
        });
        return;
      } catch (error) {
        if (error instanceof NotHeld) {
          if (heard) throw error;
          return; // the first one has given it back
        }
        if (!passes(error) || now() >= until || this.closed) {
          this.drop(request, tie.token);
          throw error;
        }
        heard &&= !(error instanceof Unreachable);
        await this.lookAround(error);
        await pause(20);
      }
    }
  }

  /** Leaves for good, in the background. Without a token it is the wait that is left. */
  drop(request, token = 0) {
    if (!request.node || this.closed) return;
    const { lease, claim } = request.settings;
    request.node.leaving.push({ until: now() + Math.max(lease, claim), request, token });
    this.rouse(request.node);
  }

  /** A wait that is given up: on the link, if it lives, behind all that was asked. */
  #leave(request) {
    if (!request.asked) return;
    request.asked = false;
    const link = request.node?.link;
    if (!link || link.error || request.before) {
      this.drop(request);
      return;
    }
    link.post(request.words('CANCEL')).catch(nothing);
    link.post(request.release(), (error, reply) => {
      if (error && passes(error)) this.drop(request);
      else if (request.tie && (reply === 0 || error instanceof NotHeld)) this.lose(request.node, request.tie, 'left');
    }).catch(nothing);
  }

  #isLeaving({ id }) { return [...this.nodes.values()].some((node) => node.leaving.some(({ request }) => request.id === id)); }

  /** Gives back what is to be left, on the node's own link and in one go: others are to be kept meanwhile. */
  async #depart(node, link) {
    const done = new Set();
    const asked = [...node.leaving].map(async (one) => {
      const { until, request, token } = one;
      try {
        await this.#farewell(node, link, request, token);
      } catch (error) {
        const other = redirection(error);
        const target = other && !other.asking ? this.follow(other, node) : node;
        if (error instanceof NotHeld) this.#left(node, request, token);
        else if (target !== node) this.#hand(target, one);
        else if (passes(error) && now() < until) throw error;
      }
      done.add(one);
    });
    const failed = (await Promise.allSettled(asked)).find(({ status }) => status === 'rejected');
    node.leaving = node.leaving.filter((one) => !done.has(one));
    if (failed) throw failed.reason;
  }

  async #farewell(node, link, request, token) {
    if (!token) {
      link.post(request.words('CANCEL')).catch(nothing);
      const held = request.before ? await link.post(request.words('HELD')) : null;
      if (held && Number(held[0]) !== request.outer) { // an upgrade came first: the outer hold has ended
        link.post(request.words('RELEASE', 'TOKEN', held[0], 'HOLDS', 0)).catch(nothing);
      }
    }
    const reply = await link.post(request.release(...(token ? ['TOKEN', token] : [])));
    if (reply === 0) this.#left(node, request, token);
  }

  /** Another node serves it: that one's keeper gives it back. */
  #hand(node, one) {
    one.request.node = node;
    node.leaving.push(one);
    this.rouse(node);
  }

  #left(node, request, token) { this.lose(node, node.ties.get(token) ?? request.tie, 'released'); }

  // ---- keeping ----

  /** Something is to be kept from now on, or left. */
  wake(node) {
    if (node.keeping || this.closed) return;
    node.keeping = true;
    this.#keep(node);
  }

  /** At once. */
  rouse(node) {
    this.wake(node);
    node.kicked = true;
    node.kick();
  }

  /** The keeper of a node: does nothing but this, and waits for no other node. */
  async #keep(node) {
    do {
      if (!node.kicked) {
        await new Promise((done) => {
          node.kick = done;
          setTimeout(done, this.settings.interval).unref();
        });
      }
      node.kicked = false;
      if (this.closed) return;
      try {
        await this.round(node);
      } catch (error) {
        this.settings.debug(`node ${node.name || 'of the client'}: ${error.message}`);
        node.leaving = node.leaving.filter(({ until }) => now() < until);
        // Whoever is asked who serves what may hang.
        if (!(error instanceof NoAck)) await Promise.race([this.lookAround(error), pause(this.settings.interval / 2)]);
        this.#rehome(node);
      }
    } while (node.ties.size || node.waits.size || node.leaving.length || node.kicked);
    node.keeping = false;
  }

  async round(node) {
    if (!node.ties.size && !node.waits.size && !node.leaving.length) return;
    let link = await this.link(node);
    const loose = [...node.ties.values()].filter((tie) => tie.link !== link);
    if (loose.length) await this.retie(node, link, loose);
    if (link.surplus > 1) { // two in a row: it has ties that nobody knows of
      this.settings.logger.warn(`the connection to ${node.name || 'the server'} keeps holds that nobody has: it is replaced`);
      const old = link;
      link = this.linked(node, await this.open(node));
      await this.retie(node, link, [...node.ties.values()]);
      old.die(new Unreachable('replaced'));
    }
    if (node.ties.size || node.waits.size) {
      const sent = now();
      await link.post(['DLOCK.KEEP', this.settings.auto], (error, reply) => { if (reply) this.kept(node, link, sent, reply); }).catch((error) => {
        if (!(error instanceof NoAck)) throw error; // what is believed stays as it was; to give back needs no replica
        this.settings.debug(`node ${node.name || 'of the client'}: ${error.message}`);
      });
    }
    await this.#depart(node, link);
  }

  kept(node, link, sent, [ties, left, lost]) {
    if (left !== null) [link.believed, link.kept] = [sent + Number(left) - this.settings.allowance, link.serial];
    for (const [, token, reason] of lost ?? []) {
      const tie = node.ties.get(Number(token));
      if (tie?.link !== link) continue;
      if (['moved', 'renamed', 'taken', 'demoted'].includes(reason)) {
        tie.detach(); // RENEW tells what has become of it
        this.rouse(node);
      } else {
        this.lose(node, tie, reason);
      }
    }
    link.surplus = ties > link.ties ? link.surplus + 1 : 0;
    if (lost === null || ties < link.ties) {
      for (const tie of node.ties.values()) tie.detach();
      this.rouse(node);
    }
  }

  /** Ties our holds to this link, all in one go. */
  async retie(node, link, ties) {
    const asked = ties.map(async (tie) => {
      if (!tie.holds.some((one) => one.deref())) {
        node.ties.delete(tie.token);
        tie.detach();
        return;
      }
      const sent = now();
      try {
        await link.post(tie.request.renew(tie.token), (error, lease) => {
          if (error instanceof NotHeld) this.lose(node, tie, 'not held any more');
          else if (!error && !tie.gone) tie.attach(link, sent + Number(lease) - ROUNDING - this.settings.allowance);
        });
      } catch (error) {
        const other = redirection(error);
        if (other) this.#move(node, this.follow(other, node), tie);
        else if (error.code === 'READONLY' || error instanceof Unreachable) throw error;
        else if (!(error instanceof NotHeld || error instanceof NoAck)) this.settings.logger.warn(`lock '${tie.request.key}' cannot be renewed: ${error.message}`);
      }
    });
    const failed = (await Promise.allSettled(asked)).find(({ status }) => status === 'rejected');
    if (failed) throw failed.reason;
  }

  #move(node, target, tie) {
    if (target === node || !node.ties.delete(tie.token)) return;
    tie.detach();
    target.ties.set(tie.token, tie);
    tie.request.node = target;
    this.rouse(target);
  }

  /** What another node serves by now is that one's to keep, and to leave. */
  #rehome(node) {
    if (!this.source.cluster) return;
    try {
      for (const tie of [...node.ties.values()]) this.#move(node, this.route(tie.request.key), tie);
      const leaving = node.leaving.map((one) => [this.route(one.request.key), one]);
      node.leaving = leaving.filter(([other]) => other === node).map(([, one]) => one);
      for (const [other, one] of leaving) if (other !== node) this.#hand(other, one);
    } catch { /* nobody is known to serve it yet */ }
    node.tell('again');
  }

  /** Everything ends: what is held is told lost, and lives on until its lease. */
  end() {
    this.closed = true;
    const held = [...this.nodes.values()].reduce((sum, node) => sum + node.ties.size, 0);
    if (held) this.settings.logger.warn(`closed with ${held} locks held: they are lost`);
    for (const node of this.nodes.values()) {
      for (const tie of [...node.ties.values()]) this.lose(node, tie, 'closed');
      node.tell('closed');
      for (const link of [node.link, node.ear]) link?.die(new Closed('these locks are closed'));
      node.kick();
    }
    this.#rearm(Infinity);
  }
}

const notInTime = (key, timeout, cause) =>
  new LockTimeout(`lock '${key}' was not granted within ${timeout} ms: ${cause.message}`, { cause });

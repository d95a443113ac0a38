// SPDX-License-Identifier: MIT
// Gives back: what is released, and in the background what was given up, forgotten, or lost by the clock.
import { now, pause } from './clock.mjs';
import { NotHeld, Unreachable, passes } from './errors.mjs';
import { redirection } from './places.mjs';

const nothing = () => {};

/** Gives back what was granted, and nothing else. */
export async function release(core, request, tie) {
  const until = now() + core.settings.bound;
  const words = request.release('TOKEN', tie.token);
  for (let heard = true; ;) {
    try {
      await core.call({ key: request.key }, words, (error, reply) => {
        if (reply === 0 || error instanceof NotHeld) core.loseTie(tie, 'released');
      });
      return;
    } catch (error) {
      if (error instanceof NotHeld) {
        if (heard) throw error;
        return; // the first one has given it back
      }
      if (!passes(error) || now() >= until || core.closed) {
        core.drop(request, tie.token);
        throw error;
      }
      heard &&= !(error instanceof Unreachable);
      await core.lookAround();
      await pause(20);
    }
  }
}

/** A wait that is given up: on the link, if it lives, behind all that was asked. */
export function giveUp(core, request) {
  if (!request.asked) return;
  request.asked = false;
  const link = request.node?.link;
  if (!link || link.error || request.before) {
    core.drop(request);
    return;
  }
  link.post(request.words('CANCEL'), nothing, request.asking).catch(nothing);
  link.post(request.release(), (error, reply) => {
    if (error && passes(error)) core.drop(request);
    else if (request.tie && (reply === 0 || error instanceof NotHeld)) core.lose(request.node, request.tie, 'left');
  }, request.asking).catch(nothing);
}

/** What its owner has left there is not yet given back. */
export function isLeaving(core, { id }) {
  return [...core.nodes.values()].some((node) => node.leaving.some(({ request }) => request.id === id));
}

/** Gives back what is to be left, on the node's own link and in one go: others are to be kept meanwhile. */
export async function depart(core, node, link) {
  const done = new Set();
  const asked = [...node.leaving].map(async (one) => {
    const { until, request, token } = one;
    const left = () => core.lose(node, node.ties.get(token) ?? request.tie, 'released');
    try {
      if (await farewell(link, request, token) === 0) left();
    } catch (error) {
      const other = redirection(error);
      const target = other ? core.follow(other, node) : node;
      if (error instanceof NotHeld) left();
      else if (target !== node) hand(core, target, one, other.asking);
      else if (passes(error) && now() < until) throw error;
      else abandon(core, node, link, one);
    }
    done.add(one);
  });
  const failed = (await Promise.allSettled(asked)).find(({ status }) => status === 'rejected');
  node.leaving = node.leaving.filter((one) => !done.has(one));
  if (failed) throw failed.reason;
}

/** How many holds remain. */
async function farewell(link, request, token) {
  const say = (words) => link.post(words, nothing, request.asking);
  if (token) return say(request.release('TOKEN', token));
  say(request.words('CANCEL')).catch(nothing);
  const held = request.before ? await say(request.words('HELD')) : null;
  if (held && Number(held[0]) !== request.outer) { // an upgrade came first: the outer hold has ended
    say(request.words('RELEASE', 'TOKEN', held[0], 'HOLDS', 0)).catch(nothing);
  }
  return say(request.release());
}

/** It cannot be given back. It is renewed no longer, unless others of its owner hold it. */
function abandon(core, node, link, { request, token }) {
  const tie = node.ties.get(token) ?? request.tie;
  if (!tie || tie.holds.length) return;
  link.post(request.words('RENEW', request.settings.lease, 'TOKEN', tie.token),
    () => core.lose(node, tie, 'it cannot be given back'), request.asking).catch(nothing);
}

/** Another node serves it: that one's keeper gives it back. */
export function hand(core, node, one, asking = false) {
  [one.request.node, one.request.asking] = [node, asking];
  node.leaving.push(one);
  if (asking) core.wake(node); // not at once: each of the two may name the other
  else core.rouse(node);
}

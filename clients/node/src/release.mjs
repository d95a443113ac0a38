// SPDX-License-Identifier: MIT
// Gives back: what is released, and in the background what was abandoned, forgotten, or lost by the clock.
import { now, pause } from './clock.mjs';
import { NotHeld, Unreachable, passes } from './errors.mjs';

const nothing = () => {};

/** Gives back what was granted, and nothing else. */
export async function release(core, renewal) {
  const { request, token } = renewal;
  const until = now() + core.settings.replyTimeout;
  const words = request.release('TOKEN', token);
  const answered = core.rename(request);
  let ended;
  renewal.ending = new Promise((done) => { ended = done; });
  try {
    for (let heard = true; ;) {
      try {
        await core.call({ key: request.key }, words, (error, reply) => {
          if (reply !== 0 && !(error instanceof NotHeld)) return;
          core.lose(renewal, 'released');
          answered();
        });
        return;
      } catch (error) {
        if (error instanceof NotHeld && !heard) return; // the first one has given it back
        if (!passes(error) || now() >= until || core.closed) throw error;
        heard &&= !(error instanceof Unreachable);
        await core.refreshRoutes();
        await pause(20);
      }
    }
  } finally {
    core.lose(renewal, 'it cannot be given back'); // if the server keeps it all the same, KEEP's count tells
    ended();
  }
}

/** Gives back a hold that nobody has any more, once. If its link has ended its lease ends it. */
export function untie(core, renewal) {
  const { request, token, node: { link } } = renewal;
  const answered = core.rename(request); // without a link, too: the server may hold it for less than a lease
  core.lose(renewal, 'abandoned');
  if (!link || link.error) return;
  link.post(request.release('TOKEN', token), (error) => {
    if (!(error instanceof Unreachable)) answered();
  }, core.isAsking(request.key)).catch(nothing);
}

/** Has the server renew a hold no more, and end it by its lease. Until then a named owner has another name. */
export function leaveToLease(core, renewal) {
  const { request, token, link } = renewal;
  core.rename(request);
  core.lose(renewal, 'forgotten');
  if (link && !link.error) link.post(request.leaveToLease(token), nothing, core.isAsking(request.key)).catch(nothing);
}

/**
 * Gives back what nobody waits for any more, behind the request and on its link. Nothing is sent again: if the link ends,
 * the place and the first lease end by themselves, and KEEP's count finds a hold that nobody has.
 */
export function abandon(core, request) {
  if (!request.asked) return;
  request.asked = false;
  const { link } = request;
  if (!link || link.error) return;
  const answered = core.rename(request);
  const asking = core.isAsking(request.key);
  link.post(request.words('CANCEL'), nothing, asking).catch(nothing);
  link.post(request.release(), (error) => {
    if (!error || error instanceof NotHeld) core.lose(request.renewal, 'abandoned');
    if (!(error instanceof Unreachable)) answered();
  }, asking).catch(nothing);
}

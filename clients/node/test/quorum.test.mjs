// A lock over several masters: the tests that every language has, by the same names. See clients/DESIGN.md.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import { after, describe, it } from 'node:test';

import { Unreachable } from 'dlock-redis/quorum';
import { Master, PATIENCE, addresses, closeConnections, libraries, makeQuorum, proxy, until } from './stage.mjs';

const lease = 600_000;
const BOUND = 3_000; // a client of a master that hangs waits this long; all others wait as long as they need
const tests = [];
const test = (name, body) => tests.push([name, body]);

after(closeConnections);

/** It accepts and never answers. */
async function listener() {
  const sockets = [];
  const server = net.createServer((socket) => sockets.push(socket.on('error', () => {}))).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const close = async () => {
    server.close();
    for (const socket of sockets) socket.destroy();
    await once(server, 'close');
  };
  return [['127.0.0.1', server.address().port], close];
}

/** Where nobody listens. */
async function dead() {
  const [address, close] = await listener();
  await close();
  return address;
}

const owners = (masters) => Promise.all(masters.map((master) => master.owners()));

async function assertFree(...masters) {
  for (const master of masters) assert.equal(await master.ask('DLOCK.INFO', master.key), null);
}

async function assertTokens(hold, masters) {
  const held = await Promise.all(masters.map((master) => master && master.held(hold.owner)));
  assert.deepEqual(hold.tokens, held.map((one) => one && one[0]));
}

/** The client never believes longer than a master. */
async function assertLeft(hold, masters) {
  for (let i = 0; i < 20; i++) {
    for (const master of masters) {
      const [, , left] = await master.held(hold.owner);
      // Ours is asked last, so that no time passes in its favour.
      const believed = hold.left();
      assert.ok(believed > 0 && believed <= left, `${believed} of ${left}`);
    }
  }
}

for (const [where, order] of [['the third is dead', 'ABd'], ['the third hangs', 'ABh'], ['the first is dead', 'dAB'],
  ['the first hangs', 'hAB']]) {
  test(`quorum_a_majority_is_enough: ${where}`, async ({ a, b, make, hung }) => {
    const known = { A: a, B: b };
    const all = { A: a.address, B: b.address, d: await dead(), h: hung };
    const [client, other] = [0, 1].map(() => make([...order].map((one) => all[one]), BOUND));
    const began = performance.now();
    const hold = await client.acquire(a.key, { lease, wait: PATIENCE });
    assert.ok(performance.now() < began + PATIENCE, 'nobody has cost the whole wait');
    await assertTokens(hold, [...order].map((one) => known[one] ?? null));
    assert.deepEqual(await owners([a, b]), [[hold.owner], [hold.owner]]);
    await assertLeft(hold, [a, b]);
    assert.equal(await other.acquire(a.key, { lease }), null);
    await hold.release();
    assert.deepEqual(await Promise.all([a, b].map((one) => one.held(hold.owner))), [null, null]);
    assert.deepEqual([hold.left(), await hold.renew(lease)], [0, false]);
    const second = await other.acquire(a.key, { lease, wait: PATIENCE });
    assert.deepEqual(await owners([a, b]), [[second.owner], [second.owner]]);
    await second[Symbol.asyncDispose]();
    await assertFree(a, b);
  });
}

test('quorum_a_minority_is_not', async ({ a, b, c, make }) => {
  const [one, another] = [await dead(), await dead()];
  await assert.rejects(make([a.address, one, another]).acquire(a.key, { lease }), (error) => {
    assert.ok(error instanceof Unreachable);
    for (const [, port] of [one, another]) assert.match(error.message, new RegExp(`:${port}: .*ECONNREFUSED`));
    return true;
  });
  await assertFree(a);
  for (const master of [b, c]) await master.hold();
  assert.equal(await make().acquire(a.key, { lease, wait: 1_000 }), null);
  await assertFree(a);
  assert.deepEqual(await owners([b, c]), [['other'], ['other']]);
  // Who refuses has no vote either, and says why.
  for (const master of [b, c]) await master.ask('SET', master.key, 'no lock');
  await assert.rejects(make().acquire(a.key, { lease }), /WRONGTYPE.*WRONGTYPE/);
  await assertFree(a);
});

test('quorum_waits_in_one_queue', async ({ a, b, c, make }) => {
  let hold = await until(async () => {
    const first = await make().acquire(a.key, { lease, wait: PATIENCE });
    const ends = await Promise.all([a, b, c].map((master) => master.ask('PEXPIRETIME', master.key)));
    if (ends[0] - Math.max(ends[1], ends[2]) > 2) return first;
    await first.release(); // an answer has taken longer than the leases are apart
    return null;
  }, "the first master's lease ends last: who is next there finds the others free");
  const waits = [];
  for (const client of [make(), make(undefined, 3_500)]) {
    waits.push(client.acquire(a.key, { lease, wait: 2 * PATIENCE }));
    await a.awaitQueued(waits.length);
  }
  const line = await a.queue();
  assert.equal(new Set([hold.owner, ...line]).size, 3);
  assert.deepEqual(await Promise.all([b, c].map((master) => master.queue())), [[], []]);
  const waited = async () => (await a.info()).queue[1]['waited-ms'];
  await until(async () => (await waited()) > 4_000, 'a wait has outlasted the bound for other answers');
  assert.deepEqual(await a.queue(), line);
  await hold.release();
  hold = await waits[0];
  assert.equal(hold.owner, line[0]);
  assert.ok(hold.tokens.every(Boolean));
  await assertTokens(hold, [a, b, c]);
  await hold.release();
  hold = await waits[1];
  assert.equal(hold.owner, line[1]);
  assert.deepEqual(await a.owners(), [hold.owner]);
  assert.ok(hold.tokens.filter(Boolean).length > 1);
  await hold.release();
  await a.awaitGone();
  // The client releases the lock at the first one last: a token tells when it was granted, and all these servers have one clock.
  hold = await make().acquire(a.key, { lease, wait: PATIENCE });
  const masters = [a, b, c];
  for (const master of masters) {
    await master.ask('DLOCK.SESSION', master.key, 'nobody', 60_000);
    await master.ask('DLOCK.FAIRACQUIRE', master.key, 'next', 600_000, 'BLOCK', 0, 'IN', 'nobody');
  }
  await hold.release();
  const [first, ...others] = (await Promise.all(masters.map((master) => master.held('next')))).map(([token]) => token);
  assert.ok(first > Math.max(...others));
  for (const master of masters) await master.handOver('next');
});

test('quorum_renews_and_notices_the_loss', async ({ a, b, c, make }) => {
  const hold = await make().acquire(a.key, { lease: 10_000, wait: PATIENCE });
  const { tokens } = hold;
  for (let i = 0; i < 7; i++) {
    await until(() => hold.left() < 6_500, 'a third of the lease has passed');
    assert.equal(await hold.renew(10_000), true);
  }
  assert.ok((await a.holder())['held-ms'] > 20_000);
  assert.equal(await hold.renew(lease), true);
  assert.deepEqual(hold.tokens, tokens);
  await assertTokens(hold, [a, b, c]);
  await assertLeft(hold, [a, b, c]);
  const { deadline } = hold;
  for (const master of [b, c]) await master.ask('DLOCK.FORCERELEASE', master.key);
  assert.equal(await hold.renew(2 * lease), false);
  assert.equal(hold.deadline, deadline);
  await assert.rejects(b.ask('DLOCK.GUARD', b.key, tokens[1], 'SET', `${b.key}:x`, 1), /FENCED/);
  // A lease that was made shorter at a few is not believed to be the old one.
  assert.equal(await hold.renew(lease / 10), false);
  await assertLeft(hold, [a]);
  await hold.release();
  await assertFree(a, b, c);
});

test('quorum_is_left_when_cancelled', async ({ a, b, c, make, hung }) => {
  const reason = new Error('ENOUGH');
  const client = make();
  const first = await client.acquire(a.key, { lease, wait: PATIENCE });
  let cancel = new AbortController();
  const cancelled = client.acquire(a.key, { lease, wait: 2 * PATIENCE, signal: cancel.signal });
  await a.awaitQueued(1);
  const next = client.acquire(a.key, { lease, wait: 2 * PATIENCE });
  await a.awaitQueued(2);
  cancel.abort(reason);
  await assert.rejects(cancelled, reason);
  await a.awaitQueued(1);
  await first.release();
  const hold = await next;
  assert.deepEqual(await owners([a, b, c]), Array(3).fill([hold.owner]));
  await hold.release();
  // Some masters have granted the lock already: the client releases it there.
  cancel = new AbortController();
  const asked = make([a.address, b.address, hung]).acquire(a.key, { lease, wait: 2 * PATIENCE, signal: cancel.signal });
  await until(async () => (await b.owners()).length, 'it is held');
  cancel.abort(reason);
  await assert.rejects(asked, reason);
  await assertFree(a, b);
  await assert.rejects(client.acquire(a.key, { lease, signal: AbortSignal.abort(reason) }), reason);
  await assertFree(a, b, c);
});

test('quorum_gives_back_where_nobody_answered', async ({ a, b, c, make }) => {
  const path = await proxy(a.address);
  try {
    // The request is on its way, and arrives when no caller waits for it any longer.
    path.freezeAt('DLOCK.ACQUIRE');
    await b.hold();
    assert.equal(await make([path.address, b.address, c.address], BOUND).acquire(a.key, { lease }), null);
    await b.handOver();
    path.thaw();
    await path.quiet(); // what was on its way has come
    await a.awaitGone();
    await assertFree(a, b, c);
  } finally {
    path.close();
  }
});

test('quorum_asks_the_silent_one_last', async ({ a, b, c, make }) => {
  const seen = [];
  const path = await proxy(a.address, () => seen.push(owners([b, c])));
  try {
    path.freeze();
    const quorum = make([path.address, b.address, c.address], BOUND);
    const first = await quorum.acquire(a.key, { lease });
    assert.deepEqual([await seen[0], await owners([b, c])], [[[], []], [[first.owner], [first.owner]]]);
    await first.release();
    await until(async () => {
      const asked = seen.length;
      const hold = await quorum.acquire(a.key, { lease });
      const others = await seen[asked];
      await hold.release();
      return others.every(([owner]) => owner === hold.owner); // else more than a second has passed since it was silent
    }, 'it is asked last');
    await assertFree(b, c);
  } finally {
    path.close();
  }
});

describe('quorum', { concurrency: 8 }, () => {
  for (const [name, body] of tests) {
    for (const library of libraries) {
      it(`${name} (${library})`, { timeout: 10 * PATIENCE }, async () => {
        const key = `${randomBytes(6).toString('hex')}:quorum`;
        const all = addresses('DLOCK_MASTERS');
        const [a, b, c] = all.map((address) => new Master(address, key));
        const [hung, close] = await listener();
        const asked = [];
        const make = (some = all, bound = PATIENCE) => {
          const quorum = makeQuorum(library, some, bound);
          const acquire = (...words) => {
            const hold = quorum.acquire(...words);
            asked.push(hold);
            return hold;
          };
          return { acquire };
        };
        try {
          await body({ a, b, c, make, hung });
        } finally {
          await close();
          // What a failure has left holds its connections, and they this process.
          for (const hold of asked) hold.then((one) => one?.release()).catch(() => {});
        }
      });
    }
  }
});

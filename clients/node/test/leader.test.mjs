// Leaders that are killed, stopped and cut off: no two of them write.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { after, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

import { Fenced } from 'dlock-redis';
import { Election } from 'dlock-redis/leader';
import { PATIENCE, Server, addresses, closeConnections, libraries, makeLocks, makeLocksAt, proxy, until } from './stage.mjs';

/** A process that campaigns, and writes its term for as long as it believes that it leads. */
function candidate(library, server, name, [host, port] = addresses('DLOCK_SINGLE')[0]) {
  const program = fileURLToPath(new URL('candidate.mjs', import.meta.url));
  const child = spawn(process.execPath, [program, library, host, String(port), server.key, name], { stdio: ['ignore', 'ignore', 'inherit'] });
  return { kill: (signal) => child.kill(signal), ended: once(child, 'exit') };
}

const written = async (server) => (await server.ask('LRANGE', `${server.key}:log`, 0, -1)).map(Number);

/**
 * Waits until the next leader writes; no earlier leader writes again. `but`: the name of a former leader, which may have been
 * elected again before it stalled.
 */
async function nextLeads(server, locks, term, but) {
  const election = new Election(locks, server.key);
  const next = await until(async () => {
    const leader = await election.leader();
    return leader && leader.term > term && leader.name !== but && (await written(server)).includes(leader.term) && leader;
  }, 'another leads and writes');
  const terms = await written(server);
  assert.deepEqual(terms, [...terms].sort((one, another) => one - another));
  return next;
}

const tests = {
  async a_leader_that_is_killed({ server, locks, start }) {
    const all = { a: start('a'), b: start('b') };
    const first = await nextLeads(server, locks, 0);
    all[first.name].kill('SIGKILL');
    await nextLeads(server, locks, first.term, first.name);
  },

  async a_leader_that_is_stopped({ server, locks, start }) {
    const all = { a: start('a'), b: start('b') };
    const first = await nextLeads(server, locks, 0);
    all[first.name].kill('SIGSTOP');
    await server.ask('DLOCK.FORCERELEASE', server.key); // or AUTO would keep it for half a minute
    await nextLeads(server, locks, first.term, first.name);
    all[first.name].kill('SIGCONT');
    const { length } = await written(server);
    await until(async () => (await written(server)).length > length + 50, 'both have had time to write');
    await nextLeads(server, locks, first.term);
  },

  async a_leader_that_is_cut_off({ server, library, locks, start, open }) {
    const path = await open();
    const election = new Election(makeLocksAt(library, path.address, {}, { lease: 10_000, hangTimeout: 10_000 }), server.key, { name: 'a' });
    const term = await election.campaign();
    assert.equal(election.term, term.token);
    start('b');
    await server.awaitQueued(1);
    path.freeze();
    // It steps down before its lease ends: nobody else leads yet.
    await until(() => term.signal.aborted, 'it steps down');
    assert.equal(election.isLeader, false);
    await nextLeads(server, locks, term.token);
    path.thaw();
    await assert.rejects(term.guard('RPUSH', `${server.key}:log`, term.token), Fenced);
    await election.resign();
  },

  async an_error_of_the_work_comes_through({ server, library, open }) {
    const path = await open();
    const locks = makeLocksAt(library, path.address, {}, { lease: 60_000 });
    const work = () => {
      path.hangUp();
      throw new RangeError('of the work');
    };
    await assert.rejects(new Election(locks, server.key).lead(work), RangeError); // though the client cannot release the lock
    await locks.close();
  },

  async who_leads_is_seen({ server, locks }) {
    const election = new Election(locks, server.key, { name: 'one host' });
    const seen = [];
    const over = new AbortController();
    const observing = (async () => { // which ends with the locks, if nothing else does
      for await (const leader of election.observe({ every: 10, signal: over.signal })) seen.push(leader?.name ?? null);
    })();
    await until(() => seen.length === 1, 'nobody leads');
    assert.equal(await election.lead(async (term) => {
      await until(() => seen.length === 2, 'one leads');
      assert.deepEqual([await election.leader(), election.isLeader], [{ name: 'one host', term: term.token }, true]);
      return 'done';
    }), 'done');
    await until(() => seen.length === 3, 'nobody leads again');
    over.abort();
    await observing;
    assert.deepEqual([seen, election.isLeader, election.term], [[null, 'one host', null], false, null]);
    // Those of other languages are named alike.
    await server.hold(server.key, 'host/1/session/a#host#3e0b#5');
    assert.equal((await election.leader()).name, 'a#host');
    await server.handOver('host/1/session/a#host#3e0b#5');
    // After a loss it leads again.
    const terms = [];
    await election.lead(async (term) => {
      if (terms.push(term.token) === 1) {
        await server.ask('DLOCK.FORCERELEASE', server.key);
        await until(() => term.signal.aborted, 'it steps down');
      }
    });
    assert.ok(terms.length === 2 && terms[1] > terms[0]);
  },
};

after(closeConnections);

describe('leaders', { concurrency: 4 }, () => {
  for (const [name, body] of Object.entries(tests)) {
    for (const library of libraries) {
      it(`${name} (${library})`, { timeout: 4 * PATIENCE }, async () => {
        const server = new Server('single');
        const locks = makeLocks(library, 'single');
        const children = [];
        const paths = [];
        try {
          await body({
            server,
            library,
            locks,
            start: (one) => children[children.push(candidate(library, server, one)) - 1],
            open: async () => paths[paths.push(await proxy(addresses('DLOCK_SINGLE')[0])) - 1],
          });
        } finally {
          for (const child of children) child.kill('SIGKILL');
          for (const child of children) await child.ended;
          for (const path of paths) path.close();
          await locks.close();
        }
      });
    }
  }
});

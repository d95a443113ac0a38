// Leader election, as README.md shows it. ../test/library.test.mjs runs it.
import { Election } from 'dlock-redis/leader';

export async function lead({ locks, tick, signal }) {
  const election = new Election(locks, '{scheduler}leader', { name: 'one host' });
  await election.lead(async (term) => {
    while (!term.signal.aborted && !signal.aborted) { // aborted before the lease ends
      await term.guard('SET', '{scheduler}last', await tick(term.token)); // no leader of before can write
    }
  }, { signal });
}

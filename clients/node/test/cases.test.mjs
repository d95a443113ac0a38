// Runs the cases that all languages have (../cases).
import { readFileSync } from 'node:fs';
import { after, describe, it } from 'node:test';

import { Case, steps } from './cases.mjs';
import { closeConnections, isOf, libraries } from './stage.mjs';

const all = JSON.parse(readFileSync(process.env.DLOCK_CASES ?? new URL('../../cases/cases.json', import.meta.url), 'utf8'));
function partOf(one) {
  const does = (...names) => one.steps.some((step) => names.includes(step.do));
  if (one.at) return 'nodes';
  if (does('freeze')) return 'single';
  return does('connections', 'holds') ? 'many' : 'rest';
}
// What a hung node does to the others has nothing to do with the library.
const librariesOf = (one) => (one.at ? libraries.slice(0, 1) : libraries);

after(closeConnections);

for (const alone of [false, true]) {
  describe(alone ? 'cases alone' : 'cases', { concurrency: alone ? 1 : 6 }, () => {
    for (const one of all.filter((each) => (partOf(each) !== 'rest') === alone && isOf(partOf(each)))) {
      for (const library of librariesOf(one)) {
        it(`${one.name} (${library})`, { timeout: 180_000 }, async () => {
          const run = new Case(library, one);
          try {
            await run.run(steps(one.steps));
          } finally {
            await run.finish();
          }
        });
      }
    }
  });
}

// Runs the cases that all languages have (../cases).
import { readFileSync } from 'node:fs';
import { after, describe, it } from 'node:test';

import { DIRECTORY, GONE, Case, steps } from './cases.mjs';
import { closeConnections, isOf, isOld, libraries } from './stage.mjs';

const read = (file) => JSON.parse(readFileSync(new URL(file, DIRECTORY), 'utf8'));
const all = [...read('cases.json'), ...read('sessions.json')].filter(({ name }) => !(name in GONE));
function partOf(one) {
  const does = (...names) => one.steps.some((step) => names.includes(step.do));
  if (one.at) return 'nodes';
  if (does('freeze')) return 'single';
  return does('connections', 'holds') ? 'many' : 'rest';
}

after(closeConnections);

for (const alone of [false, true]) {
  describe(alone ? 'cases alone' : 'cases', { concurrency: alone ? 1 : 6 }, () => {
    for (const one of all.filter((each) => (partOf(each) !== 'rest') === alone && isOf(partOf(each)))) {
      for (const library of libraries.filter((each) => !(one.at === 'cluster' && isOld(each)))) {
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

// Runs the cases that all languages have (../cases).
import { readFileSync } from 'node:fs';
import { after, describe, it } from 'node:test';

import { Case, steps } from './cases.mjs';
import { closeConnections, libraries } from './stage.mjs';

const all = JSON.parse(readFileSync(process.env.DLOCK_CASES ?? new URL('../../cases/cases.json', import.meta.url), 'utf8'));
// Who freezes a server, or counts what this process has, is alone meanwhile.
const isAlone = (one) => one.steps.some((step) => ['freeze', 'connections'].includes(step.do));

after(closeConnections);

for (const alone of [false, true]) {
  describe(alone ? 'cases alone' : 'cases', { concurrency: alone ? 1 : 6 }, () => {
    for (const one of all.filter((each) => isAlone(each) === alone)) {
      for (const library of libraries) {
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

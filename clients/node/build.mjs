// `node build.mjs`: makes cjs/ of the types in src/, for programs that `require`. The code is the same for both.
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';

mkdirSync('cjs', { recursive: true });
for (const name of readdirSync('src').filter((one) => one.endsWith('.d.mts'))) {
  const text = readFileSync(`src/${name}`, 'utf8').replaceAll(/(['"]\.\/[\w.]+)\.mjs(['"])/g, '$1.cjs$2');
  writeFileSync(`cjs/${name.replace(/mts$/, 'cts')}`, text);
}

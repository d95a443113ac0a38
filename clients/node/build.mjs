// `node build.mjs`: makes cjs/ of src/, for `require`, with its types. Beside the syntax of import nothing changes.
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import ts from 'typescript';

const options = { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2022 };
mkdirSync('cjs', { recursive: true });
for (const name of readdirSync('src')) {
  const text = readFileSync(`src/${name}`, 'utf8');
  const code = name.endsWith('.d.mts') ? text : ts.transpileModule(text, { compilerOptions: options }).outputText;
  writeFileSync(`cjs/${name.replace(/mjs$/, 'cjs').replace(/mts$/, 'cts')}`, code.replaceAll(/(['"]\.\/[\w.]+)\.mjs(['"])/g, '$1.cjs$2'));
}

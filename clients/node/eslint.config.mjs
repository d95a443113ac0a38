import js from '@eslint/js';
import globals from 'globals';

export default [
  { ignores: ['cjs/'] },
  js.configs.recommended,
  { languageOptions: { globals: globals.node }, rules: { 'no-empty': ['error', { allowEmptyCatch: true }], eqeqeq: ['error', 'always', { null: 'ignore' }] } },
];

// `process.mjs LIBRARY PLACE KEY`: takes a lock and holds it until it is killed. The tests kill it.
import { makeLocks } from './stage.mjs';

const [library, place, key] = process.argv.slice(2);
globalThis.hold = await makeLocks(library, place).lock(key);

// SPDX-License-Identifier: MIT
// Many locks: those of a slot in one step, and slots in one fixed order: no server sees a circle that goes over several.
import { now } from './clock.mjs';
import { bytes } from './hold.mjs';
import { text } from './settings.mjs';

let table = null;

/** The cluster's slot of a key: CRC-16 of the first non-empty `{…}` in it, or of all of it. */
export function slotOf(key) {
  table ??= Array.from({ length: 256 }, (_, byte) => {
    let crc = byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1) & 0xffff;
    return crc;
  });
  let name = Buffer.from(key);
  const from = name.indexOf('{') + 1;
  const to = name.indexOf('}', from);
  if (from > 0 && to > from) name = name.subarray(from, to);
  let crc = 0;
  for (const byte of name) crc = ((crc << 8) & 0xffff) ^ table[(crc >> 8) ^ byte];
  return crc % 16384;
}

/** Does the work with a Map of holds, one for each key. `take` takes those of a slot; `during` gives them back. */
export async function usingAll(take, isCluster, keys, wait, work, during) {
  const named = new Map([...keys].map((key) => [bytes(text('keys', key)), key]));
  const groups = new Map();
  for (const name of [...named.keys()].sort()) {
    const slot = isCluster ? slotOf(named.get(name)) : 0;
    groups.set(slot, [...(groups.get(slot) ?? []), named.get(name)]);
  }
  const inOrder = [...groups.keys()].sort((one, another) => one - another).map((slot) => groups.get(slot));
  const end = now() + (wait ?? Infinity);
  const all = new Map();
  const next = async (i) => {
    if (i === inOrder.length) return work(all);
    return during(await take(inOrder[i], end === Infinity ? undefined : Math.max(1, end - now())), (holds) => {
      for (const [j, key] of inOrder[i].entries()) all.set(key, holds[j]);
      return next(i + 1);
    });
  };
  return next(0);
}

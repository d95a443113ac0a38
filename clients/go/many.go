// SPDX-License-Identifier: MIT

package dlock

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// WithAll works under several locks: it takes all or none of a slot in one step, and slots in one order that is the same for
// all programs, so that they never wait in a circle that no server sees. A single server is one slot. The work's context
// ends when one of the locks is lost.
func (l *Locks) WithAll(
	ctx context.Context, keys []string, work func(context.Context, map[string]*Hold) error, options ...Option,
) (err error) {
	if len(keys) == 0 {
		return badArgument("keys", "must not be empty")
	}
	outer, inner, holds := ctx, ctx, map[string]*Hold{}
	defer func() {
		failed := make(chan error, len(holds))
		for _, hold := range holds {
			go func() { failed <- hold.releaseUnlessDone(outer) }()
		}
		for range holds {
			if one := <-failed; err == nil {
				err = one
			}
		}
	}()
	for _, group := range l.bySlot(keys) {
		r, err := l.newRequest(group, options)
		if err != nil {
			return err
		}
		taken, err := l.take(inner, r, false)
		if err != nil {
			return err
		}
		for _, hold := range taken {
			var end context.CancelFunc
			holds[hold.Key] = hold
			inner, end = hold.Context(inner)
			defer end()
		}
	}
	return work(inner, holds)
}

// bySlot returns the keys in groups that one command can name.
func (l *Locks) bySlot(keys []string) (groups [][]string) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	if l.commands.cluster == nil {
		return [][]string{keys}
	}
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(slotOf(a), slotOf(b)) })
	for i, key := range keys {
		if i == 0 || slotOf(key) != slotOf(keys[i-1]) {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], key)
	}
	return groups
}

// slotOf is the CRC16 of the part of the key that a cluster hashes.
func slotOf(key string) uint16 {
	if start := strings.IndexByte(key, '{'); start >= 0 {
		if size := strings.IndexByte(key[start+1:], '}'); size > 0 {
			key = key[start+1 : start+1+size]
		}
	}
	crc := uint16(0)
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

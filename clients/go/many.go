// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
)

// WithAll works under several locks, of any slots. All take theirs in the same order (of bytes), and so never wait in a
// circle that no server sees.
func (l *Locks) WithAll(
	ctx context.Context, keys []string, work func(context.Context, map[string]*Hold) error, options ...Option,
) error {
	if len(keys) == 0 {
		return badArgument("keys", "must not be empty")
	}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	options = append([]Option{Owner(rand.Text())}, options...)
	holds := map[string]*Hold{}
	var take func(ctx context.Context, rest []string) error
	take = func(ctx context.Context, rest []string) error {
		if len(rest) == 0 {
			return work(ctx, maps.Clone(holds))
		}
		return l.With(ctx, rest[0], func(ctx context.Context, hold *Hold) error {
			holds[rest[0]] = hold
			return take(ctx, rest[1:])
		}, options...)
	}
	return take(ctx, keys)
}

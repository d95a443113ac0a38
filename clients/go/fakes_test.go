package dlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// What a program's unit tests do without a server.
func TestFakeLocks(t *testing.T) {
	t.Parallel()
	s := stage{T: t}
	fake := NewFakeLocks()
	defer fake.Close()
	locks := fake.Locks
	s.must(locks.With(ctx, "stock", func(ctx context.Context, hold *Hold) error {
		_, err := locks.TryLock(ctx, "stock", 0)
		s.isError(err, ErrTaken)
		_, err = locks.TryLock(ctx, "stock", 50*time.Millisecond)
		s.isError(err, ErrTimeout)
		_, err = hold.Guard(ctx, "SET", "left", 41)
		s.must(err)
		_, err = hold.Guard(ctx, "SET", "left", struct{}{})
		s.isError(err, ErrArgument)
		fake.ReplyWith(func(command ...any) any { return command[1] })
		left, err := hold.Guard(ctx, "GET", "left")
		s.check(left == "left", "%v", left)
		return err
	}))
	s.check(len(fake.Commands()) == 2 && slices.Equal(fake.Commands()[0], []any{"SET", "left", 41}), "%v", fake.Commands())

	var order []int
	first, err := locks.Lock(ctx, "stock")
	s.must(err)
	done := make(chan error)
	for i := range 5 {
		go func() {
			done <- locks.With(ctx, "stock", func(context.Context, *Hold) error {
				order = append(order, i) // under the lock
				return nil
			})
		}()
		s.until("it waits", func() bool {
			fake.server.mu.Lock()
			defer fake.server.mu.Unlock()
			return len(fake.server.queue) == i+1
		})
	}
	s.must(first.Release(ctx))
	s.isError(first.Release(ctx), ErrNotHeld)
	for range 5 {
		s.must(<-done)
	}
	s.check(slices.Equal(order, []int{0, 1, 2, 3, 4}), "%v", order)

	err = locks.With(ctx, "stock", func(ctx context.Context, hold *Hold) error {
		fake.Lose("stock")
		<-ctx.Done()
		s.isError(context.Cause(ctx), ErrNotHeld)
		_, err := hold.Guard(context.WithoutCancel(ctx), "SET", "left", 40)
		s.isError(err, ErrFenced)
		return errors.New("of the work")
	})
	s.check(err != nil && err.Error() == "of the work", "%v", err)

	one, err := locks.Lock(ctx, "shop", Limit(3), Permits(2))
	s.must(err)
	_, err = locks.TryLock(ctx, "shop", 0, Limit(3), Permits(2))
	s.isError(err, ErrTaken)
	s.must(one.ReleaseAfter(ctx, 300*time.Millisecond))
	s.must(locks.WithAll(ctx, []string{"shop", "stock"}, func(_ context.Context, holds map[string]*Hold) error {
		s.check(len(holds) == 2, "%v", holds)
		return nil
	}))
	held, err := locks.IsHeld(ctx, "shop")
	s.check(!held && err == nil, "%v", err)
	election, err := locks.Election("leader", "me")
	s.must(err)
	s.must(election.Lead(ctx, func(ctx context.Context, hold *Hold) error {
		leader, err := election.Leader(ctx)
		s.check(leader == Leader{"me", hold.Token}, "%v", leader)
		return err
	}))
}

// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"fmt"
	"sync"
)

// Locker is a lock for what wants a sync.Locker. That can say nothing of errors, so Lock panics where the server refuses
// or these Locks are closed, and waits as long as nobody answers; Unlock panics if it is not locked. A loss is told by
// OnLost only. Each Locker is one lock, for any number of goroutines.
func (l *Locks) Locker(key string, options ...Option) (sync.Locker, error) {
	if _, err := newRequest(l.sessions, []string{key}, options); err != nil {
		return nil, err
	}
	return &locker{locks: l, key: key, options: options, holds: make(chan *Hold, 1)}, nil
}

type locker struct {
	locks   *Locks
	key     string
	options []Option
	mine    sync.Mutex // whoever waits here asks the server for nothing
	holds   chan *Hold
}

func (l *locker) Lock() {
	l.mine.Lock()
	hold, err := l.locks.Lock(context.Background(), l.key, l.options...)
	if err != nil {
		l.mine.Unlock()
		panic(fmt.Errorf("lock %q: %w", l.key, err))
	}
	l.holds <- hold
}

func (l *locker) Unlock() {
	select {
	case hold := <-l.holds:
		defer l.mine.Unlock()
		_ = hold.Release(context.Background()) // what was lost was told by OnLost; else it goes on in the background
	default:
		panic(fmt.Errorf("lock %q is not locked", l.key))
	}
}

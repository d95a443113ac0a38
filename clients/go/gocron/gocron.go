// SPDX-License-Identifier: MIT

// Package gocron has the Locker and the Elector of gocron's scheduler, by locks of dlock.
package gocron

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"dlock"
	"github.com/go-co-op/gocron/v2"
)

// NewLocker lets one process run each tick of a job. The jobs need the same name everywhere (gocron.WithName), and ticks at
// the same time everywhere (CronJob, DailyJob and the like), every so often at least. The lock is of one tick, and is kept
// until the next one: a process that is late finds that it was run. Clocks may differ by a quarter of every. A tick whose
// process dies in the middle is not begun again; the next one is somebody else's.
//
// With every 0 the lock is the job's and held while it runs, and no longer: then a job does not overlap itself, but a
// process that is late runs a tick again.
func NewLocker(locks *dlock.Locks, every time.Duration) (gocron.Locker, error) {
	if locks == nil {
		return nil, fmt.Errorf("%w: locks must not be nil", dlock.ErrArgument)
	}
	if every < 0 {
		return nil, fmt.Errorf("%w: every must not be negative", dlock.ErrArgument)
	}
	return &locker{locks, every}, nil
}

type locker struct {
	locks *dlock.Locks
	every time.Duration
}

// Lock is asked at each tick. An error: this process does not run it.
func (l *locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	key, end := "gocron:{"+job+"}", time.Time{}
	if l.every > 0 {
		tick := time.Now().Add(l.every / 4).Truncate(l.every)
		key, end = key+":"+strconv.FormatInt(tick.UnixMilli(), 10), tick.Add(l.every)
	}
	hold, err := l.locks.TryLock(ctx, key, 0)
	if err != nil {
		return nil, err
	}
	return &lock{hold, end}, nil
}

type lock struct {
	hold *dlock.Hold
	end  time.Time
}

func (l *lock) Unlock(ctx context.Context) error {
	if left := time.Until(l.end); left > 0 {
		time.AfterFunc(left, func() { _ = l.hold.Release(context.Background()) })
		return nil
	}
	return l.hold.Release(context.WithoutCancel(ctx))
}

// An Elector runs the jobs in the process that leads, and campaigns in the background until it is closed.
type Elector struct {
	election *dlock.Election
	stop     context.CancelFunc
	stopped  chan struct{}
}

var errNotLeader = errors.New("dlock: this process does not lead")

// NewElector is a candidate in the election of this key. With dlock.Session() the next one leads as soon as the leader's
// process has ended, and not only after its lease.
func NewElector(locks *dlock.Locks, key, name string, options ...dlock.Option) (*Elector, error) {
	if locks == nil {
		return nil, fmt.Errorf("%w: locks must not be nil", dlock.ErrArgument)
	}
	election, err := locks.Election(key, name, options...)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Elector{election, stop, make(chan struct{})}
	go e.campaign(ctx)
	return e, nil
}

func (e *Elector) campaign(ctx context.Context) {
	defer close(e.stopped)
	for ctx.Err() == nil {
		hold, err := e.election.Campaign(ctx)
		if err == nil {
			select {
			case <-hold.Done():
			case <-ctx.Done():
			}
			continue
		}
		if errors.Is(err, dlock.ErrClosed) {
			return
		}
		select { // refused: it may be permitted later
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// IsLeader is asked at each tick. An error: this process does not run it.
func (e *Elector) IsLeader(context.Context) error {
	if e.election.IsLeader() {
		return nil
	}
	return errNotLeader
}

// Close resigns, and campaigns no more.
func (e *Elector) Close(ctx context.Context) error {
	e.stop()
	<-e.stopped
	return e.election.Resign(ctx)
}

// SPDX-License-Identifier: MIT

// Package gocron implements the Locker and the Elector of gocron's scheduler by locks of dlock.
package gocron

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"dlock.example/dlock"
	"github.com/go-co-op/gocron/v2"
)

// NewLocker returns a locker by which one process runs each tick of a job. The jobs need the same name everywhere
// (gocron.WithName), and ticks at the same time everywhere (CronJob, DailyJob and similar), no closer together than every.
// The lock lasts for three quarters of every from the tick's start, by the server's clock and whether or not its process lives:
// a process that is late by less finds that the tick was run. Clocks may differ by the last quarter. A tick whose process dies
// in the middle is not begun again.
//
// With every 0 the lock is the job's, and is held while the job runs: then a job does not overlap itself, but a process that
// is late runs a tick again.
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

// Lock is called at each tick. After an error this process does not run it.
func (l *locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	hold, err := l.locks.TryLock(ctx, "gocron:{"+job+"}", 0)
	if err != nil {
		return nil, err
	}
	if l.every == 0 {
		return &lock{hold}, nil
	}
	if err := hold.ReleaseAfter(ctx, l.every-l.every/4); err != nil {
		return nil, err
	}
	return &lock{}, nil
}

// lock has no hold if the lock is left to its time: that ends by itself.
type lock struct{ hold *dlock.Hold }

func (l *lock) Unlock(ctx context.Context) error {
	if l.hold == nil {
		return nil
	}
	return l.hold.Release(ctx)
}

// An Elector lets the jobs run in the process that leads. It campaigns in the background until it is closed.
type Elector struct {
	election *dlock.Election
	stop     context.CancelFunc
	stopped  chan struct{}
	refused  atomic.Value // the text of the last refusal, or empty
}

var errNotLeader = errors.New("dlock: this process does not lead")

// NewElector returns a candidate in the election of this key. With a short dlock.Lease the next one leads soon after the
// leader's process has died.
func NewElector(locks *dlock.Locks, key, name string, options ...dlock.Option) (*Elector, error) {
	if locks == nil {
		return nil, fmt.Errorf("%w: locks must not be nil", dlock.ErrArgument)
	}
	election, err := locks.Election(key, name, options...)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Elector{election: election, stop: stop, stopped: make(chan struct{})}
	e.refused.Store("")
	go e.campaign(ctx)
	return e, nil
}

func (e *Elector) campaign(ctx context.Context) {
	defer close(e.stopped)
	for ctx.Err() == nil {
		hold, err := e.election.Campaign(ctx)
		if err == nil {
			e.refused.Store("")
			select {
			case <-hold.Done():
			case <-ctx.Done():
			}
			continue
		}
		if errors.Is(err, dlock.ErrClosed) {
			return
		}
		if ctx.Err() == nil && e.refused.Swap(err.Error()) != err.Error() {
			slog.Warn("this process cannot lead", "error", err)
		}
		select { // refused: it may be permitted later
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// IsLeader returns an error if this process does not lead: then it does not run the tick. If the server refuses its campaign,
// the error says why.
func (e *Elector) IsLeader(context.Context) error {
	if e.election.IsLeader() {
		return nil
	}
	if why := e.refused.Load(); why != "" {
		return fmt.Errorf("%w: %s", errNotLeader, why)
	}
	return errNotLeader
}

// Close resigns and ends the campaign.
func (e *Elector) Close(ctx context.Context) error {
	e.stop()
	<-e.stopped
	return e.election.Resign(ctx)
}

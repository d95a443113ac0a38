// SPDX-License-Identifier: MIT

// Package dlock takes distributed locks of the dlock module for Redis and Valkey, by go-redis.
//
//	locks, err := dlock.New(client, dlock.Settings{})
//	…
//	err = locks.With(ctx, "stock", func(ctx context.Context, hold *dlock.Hold) error {
//		_, err := hold.Guard(ctx, "SET", "stock:left", 41) // runs only while the lock is held: else ErrFenced
//		return err                                        // ctx ends when the lock is lost: its cause is ErrNotHeld
//	})
//
// The go-redis client is a template: [Locks] makes another one of that kind, with bounds of its own and without retries.
package dlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Settings configures [Locks]. A field that is zero has its default.
type Settings struct {
	// Lease is how long a lock lasts after this program dies or loses the server (10 s).
	Lease time.Duration
	// HangTimeout is how long a program that hangs keeps its locks (30 s).
	HangTimeout time.Duration
	// ReplyTimeout is how long a connect or a reply may take (3 s).
	ReplyTimeout time.Duration
	// ClockMargin is how long before its end a lease is believed to have ended (100 ms).
	ClockMargin time.Duration
	// Logger receives the warnings (slog.Default).
	Logger *slog.Logger
	// Observer is called for each event, for metrics.
	Observer Observer

	// QueueGrace has no effect.
	//
	// Deprecated: set the server's dlock.claim-window-ms.
	QueueGrace time.Duration
}

// setDefaults replaces what is zero.
func (s *Settings) setDefaults() error {
	s.Lease = cmp.Or(s.Lease, 10*time.Second)
	s.HangTimeout = max(cmp.Or(s.HangTimeout, 30*time.Second), s.Lease)
	s.ReplyTimeout = cmp.Or(s.ReplyTimeout, 3*time.Second)
	s.ClockMargin = cmp.Or(s.ClockMargin, 100*time.Millisecond)
	s.Logger = cmp.Or(s.Logger, slog.Default())
	if min(s.Lease, s.HangTimeout, s.ReplyTimeout, s.ClockMargin) < time.Millisecond {
		return badArgument("settings", "must have times of at least a millisecond")
	}
	if s.ClockMargin >= s.Lease {
		return badArgument("settings", "must have a ClockMargin that is shorter than the Lease")
	}
	return nil
}

// An Observer has functions that the client calls for each event. They must not block; Lost is called in a goroutine of its
// own. A nil function is not called.
type Observer struct {
	Waiting  func(key string)                                 // the lock is taken, and a wait for it begins
	Waited   func(key string)                                 // a wait has ended, with the lock or without
	Granted  func(key string, after time.Duration)            // the lock was granted this long after it was asked for
	Refused  func(key string, after time.Duration, why error) // it was not granted: it is taken (nil), or for this reason
	Released func(key string, after time.Duration)            // it was released after it had been held this long
	Lost     func(key string, reason string)                  // it was held, and is no more
}

// Locks takes locks. Make one for the whole program, and close it; any number of goroutines may use it.
type Locks struct {
	settings         Settings
	log              *slog.Logger
	commands, keeper *pool  // the keeper's SESSIONs wait for no connection that a thousand takes wait for
	name             string // of this client, at the servers
	ctx              context.Context
	stop             context.CancelFunc

	mu       sync.Mutex
	numbers  int64 // of owners
	sessions map[int64]*session
	takes    map[string]*take // by owner
	held     map[holdID]*held
	queues   map[int64][]*delivery // by session
	grace    time.Duration         // until then no hold is reported lost
	closed   bool
}

// New returns Locks that connect as the client does, by clients of their own: a *redis.Client or a *redis.ClusterClient.
// For Sentinels see [NewFailover].
func New(client redis.UniversalClient, settings Settings) (*Locks, error) {
	if err := settings.setDefaults(); err != nil {
		return nil, err
	}
	connect, err := copies(client, settings.ReplyTimeout)
	if err != nil {
		return nil, err
	}
	return newLocks(connect, settings), nil
}

// NewFailover returns Locks that find the primary by Sentinels, and that move to a new primary as soon as a Sentinel announces
// it. Locks of [New], with the client of redis.NewFailoverClient, leave a former one when it has become a replica: up to eleven
// seconds after a planned failover, in which it grants locks.
func NewFailover(options *redis.FailoverOptions, settings Settings) (*Locks, error) {
	if options == nil {
		return nil, badArgument("options", "must not be nil")
	}
	if err := settings.setDefaults(); err != nil {
		return nil, err
	}
	return newLocks(func() redis.UniversalClient {
		return redis.NewFailoverClient(boundedFailover(options, settings.ReplyTimeout))
	}, settings), nil
}

func newLocks(connect func() redis.UniversalClient, settings Settings) *Locks {
	host, _ := os.Hostname()
	host = strings.ReplaceAll(host, "/", "-")
	l := &Locks{
		settings: settings, log: settings.Logger,
		commands: newPool(connect, settings.ReplyTimeout), keeper: newPool(connect, settings.ReplyTimeout),
		name:     fmt.Sprintf("%s/%d/%s", host[:min(len(host), 64)], os.Getpid(), rand.Text()),
		sessions: map[int64]*session{}, takes: map[string]*take{}, held: map[holdID]*held{}, queues: map[int64][]*delivery{},
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// usable returns an error if the Locks are closed or the context has ended.
func (l *Locks) usable(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	return errorOf(ctx)
}

// Lock waits until it has the lock or the context ends.
func (l *Locks) Lock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return l.lock(ctx, key, false, options)
}

// LockContext waits as Lock does, and returns a context that ends when the lock is lost or released, as [Hold.Context] does.
//
//	ctx, hold, err := locks.LockContext(ctx, "stock")
//	if err != nil {
//		return err
//	}
//	defer hold.Release(ctx)
func (l *Locks) LockContext(ctx context.Context, key string, options ...Option) (context.Context, *Hold, error) {
	hold, err := l.Lock(ctx, key, options...)
	if err != nil {
		return nil, nil, err
	}
	inner, _ := hold.Context(ctx)
	return inner, hold, nil
}

// TryLock waits at most for the timeout and no longer than the context; with a timeout of 0 it makes one attempt. The
// error is ErrTaken if others hold the lock.
func (l *Locks) TryLock(ctx context.Context, key string, timeout time.Duration, options ...Option) (*Hold, error) {
	if timeout < 0 {
		return nil, badArgument("timeout", "must not be negative")
	}
	if timeout > 0 {
		soon, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = soon
	}
	return l.lock(ctx, key, timeout == 0, options)
}

func (l *Locks) lock(ctx context.Context, key string, try bool, options []Option) (*Hold, error) {
	r, err := l.newRequest([]string{key}, options)
	if err != nil {
		return nil, err
	}
	holds, err := l.take(ctx, r, try)
	if err != nil {
		return nil, err
	}
	return holds[0], nil
}

// take returns a hold for each key.
func (l *Locks) take(ctx context.Context, r *request, try bool) (holds []*Hold, err error) {
	began, observer := now(), &l.settings.Observer
	err = l.usable(ctx)
	if err == nil {
		var found []*held
		found, err = l.acquire(ctx, r, try)
		for _, h := range found {
			holds = append(holds, newHold(l, h))
		}
	}
	switch {
	case err != nil && observer.Refused != nil:
		observer.Refused(r.keys[0], now()-began, err)
	case err == nil && observer.Granted != nil:
		observer.Granted(r.keys[0], now()-began)
	}
	return holds, err
}

// With calls work under the lock. The work's context ends when the lock is lost. An error of the release never
// hides one of the work.
func (l *Locks) With(
	ctx context.Context, key string, work func(context.Context, *Hold) error, options ...Option,
) (err error) {
	inner, hold, err := l.LockContext(ctx, key, options...)
	if err != nil {
		return err
	}
	defer func() {
		if failed := hold.releaseUnlessDone(ctx); err == nil {
			err = failed
		}
	}()
	return work(inner, hold)
}

// IsHeld reports whether anybody holds the lock.
func (l *Locks) IsHeld(ctx context.Context, key string) (bool, error) {
	if key == "" {
		return false, badArgument("key", "must not be empty")
	}
	held, err := l.heldBy(ctx, key)
	return held != nil, err
}

// heldBy returns the reply to HELD.
func (l *Locks) heldBy(ctx context.Context, key string) (any, error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	return l.commands.call(ctx, l.settings.ReplyTimeout, "DLOCK.HELD", key)
}

// Close closes the connections: every later call fails with ErrClosed. Each hold is reported lost at once, and the server
// keeps it until its lease ends. It takes up to a second, until all waits have left their queues.
func (l *Locks) Close() {
	l.mu.Lock()
	count, before := 0, l.closed
	l.closed = true
	held := maps.Clone(l.held)
	for _, h := range held {
		if !h.over {
			count++
		}
		l.lose(h, "closed")
	}
	l.held = held // until the end a row may tell of their grants, and what is of nobody is released
	for _, t := range l.takes {
		l.end(t, ErrClosed)
	}
	l.mu.Unlock()
	if before {
		return
	}
	if count > 0 {
		l.log.Warn("closed with locks held: they are lost", "count", count)
	}
	for end := now() + closing; l.isLeaving() && now() < end; {
		sleep(l.ctx, 5*time.Millisecond)
	}
	l.stop()
	l.commands.close()
	l.keeper.close()
}

// isLeaving says whether a take has yet to end, or a server has yet to answer what ends it.
func (l *Locks) isLeaving() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.takes)+len(l.queues) > 0
}

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
	"log/slog"
	"runtime"
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

	// QueueGrace was how long a place in a queue is kept while the connection is away.
	//
	// Deprecated: set the server's dlock.claim-window-ms.
	QueueGrace time.Duration
}

// complete fills in the defaults.
func (s *Settings) complete() error {
	if s.Logger == nil {
		s.Logger = slog.Default()
	}
	if s.QueueGrace != 0 {
		s.Logger.Warn("QueueGrace is the server's dlock.claim-window-ms now")
	}
	for _, one := range []struct {
		name  string
		value *time.Duration
		usual time.Duration
	}{
		{"Lease", &s.Lease, 10 * time.Second},
		{"HangTimeout", &s.HangTimeout, 30 * time.Second},
		{"ReplyTimeout", &s.ReplyTimeout, 3 * time.Second},
		{"ClockMargin", &s.ClockMargin, 100 * time.Millisecond},
	} {
		if *one.value == 0 {
			*one.value = one.usual
		}
		if *one.value < time.Millisecond {
			return badArgument(one.name, "must be at least a millisecond")
		}
	}
	s.HangTimeout = max(s.HangTimeout, s.Lease)
	return nil
}

// An Observer has functions that are called at the event itself, so they must not block. A nil function is not called.
type Observer struct {
	Waiting  func(key string)                                 // the lock is taken, and a wait for it begins
	Waited   func(key string)                                 // a wait has ended, with the lock or without
	Granted  func(key string, after time.Duration)            // the lock was granted this long after it was asked for
	Refused  func(key string, after time.Duration, why error) // it was not granted: it is taken (nil), or for this reason
	Released func(key string, after time.Duration)            // it was given back after it had been held this long
	Lost     func(key string, reason string)                  // it was held, and is no more
}

// Locks takes locks. Make one for the whole program; any number of goroutines may use it.
type Locks struct{ sessions *sessions }

// New returns Locks that connect as the client does, by a client of their own: a *redis.Client or a *redis.ClusterClient.
// For Sentinels see [NewFailover].
func New(client redis.UniversalClient, settings Settings) (*Locks, error) {
	if err := settings.complete(); err != nil {
		return nil, err
	}
	library, err := libraryOf(client, settings.ReplyTimeout)
	if err != nil {
		return nil, err
	}
	return newLocks(library, settings), nil
}

// NewFailover returns Locks that find the primary by Sentinels, and leave a former one as soon as a Sentinel tells of the
// next. Locks of [New], with the client of redis.NewFailoverClient, leave it when it has become a replica: up to eleven
// seconds after a planned failover, in which it grants locks.
func NewFailover(options *redis.FailoverOptions, settings Settings) (*Locks, error) {
	if options == nil {
		return nil, badArgument("options", "must not be nil")
	}
	if err := settings.complete(); err != nil {
		return nil, err
	}
	return newLocks(newLibrary(settings.ReplyTimeout, func() redis.UniversalClient {
		return redis.NewFailoverClient(boundedFailover(options, settings.ReplyTimeout))
	}), settings), nil
}

func newLocks(l *library, settings Settings) *Locks {
	locks := &Locks{newSessions(l, settings)}
	runtime.AddCleanup(locks, (*sessions).close, locks.sessions)
	return locks
}

// Lock waits until it has the lock or the context ends.
func (l *Locks) Lock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return l.acquire(ctx, key, forever, options)
}

// LockContext waits as Lock does, and returns a context that ends when the lock is lost, as [Hold.Context] does.
// Release ends it.
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
	inner, end := hold.Context(ctx)
	hold.end = end
	return inner, hold, nil
}

// TryLock waits at most for the timeout and no longer than the context; with a timeout of 0 it makes one attempt. The
// error is ErrTaken if others hold the lock.
func (l *Locks) TryLock(ctx context.Context, key string, timeout time.Duration, options ...Option) (*Hold, error) {
	if timeout < 0 {
		return nil, badArgument("timeout", "must not be negative")
	}
	return l.acquire(ctx, key, timeout, options)
}

func (l *Locks) acquire(ctx context.Context, key string, wait time.Duration, options []Option) (*Hold, error) {
	r, err := newRequest(l.sessions, []string{key}, options)
	if err != nil {
		return nil, err
	}
	holds, err := l.take(ctx, r, wait)
	if err != nil {
		return nil, err
	}
	return holds[0], nil
}

// take returns a hold for each key.
func (l *Locks) take(ctx context.Context, r *request, wait time.Duration) (holds []*Hold, err error) {
	s, began, observer := l.sessions, now(), &l.sessions.settings.Observer
	if err = s.check(); err == nil {
		err = errorOf(ctx)
	}
	if err == nil {
		t := newTake(ctx, s, r, wait)
		if ended := s.run(ctx, s.library.client, t); ended != nil {
			t.leave()
		}
		err = t.result(ctx)
		for _, h := range t.holds {
			holds = append(holds, newHold(l, h))
		}
		if t.told && observer.Waited != nil {
			observer.Waited(r.keys[0])
		}
	}
	switch {
	case err != nil:
		if observer.Refused != nil {
			observer.Refused(r.keys[0], now()-began, err)
		}
	case observer.Granted != nil:
		observer.Granted(r.keys[0], now()-began)
	}
	runtime.KeepAlive(l)
	return holds, err
}

// With calls work under the lock. The work's context ends when the lock is lost. An error of giving the lock back never
// hides one of the work.
func (l *Locks) With(
	ctx context.Context, key string, work func(context.Context, *Hold) error, options ...Option,
) (err error) {
	inner, hold, err := l.LockContext(ctx, key, options...)
	if err != nil {
		return err
	}
	defer func() {
		if failed := hold.releaseIfHeld(ctx); err == nil {
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
	s := l.sessions
	if err := cmp.Or(s.check(), ctx.Err()); err != nil {
		return nil, err
	}
	held, err := s.library.client.call(ctx, s.settings.ReplyTimeout, "DLOCK.HELD", key)
	runtime.KeepAlive(l)
	return held, err
}

// Close closes the connections: every later call fails with ErrClosed. Each hold is reported lost at once, and the server
// keeps it until its lease ends.
func (l *Locks) Close() { l.sessions.close() }

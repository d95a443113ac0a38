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
// The go-redis client is a pattern: [Locks] opens one connection of that kind to each node for all goroutines, and a
// second one to a node where a goroutine waits.
package dlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Settings configures [Locks]. A field that is zero has its default.
type Settings struct {
	// Lease is how long a lock lasts after this program dies or loses the server (10 s).
	Lease time.Duration
	// HangTimeout is how long a program that hangs, its connection open, keeps its locks (60 s).
	HangTimeout time.Duration
	// QueueGrace is how long a place in a queue is kept while the connection is away (5 s).
	QueueGrace time.Duration
	// ReplyTimeout is how long a connect or a reply may take (3 s).
	ReplyTimeout time.Duration
	// ClockMargin is how long before its end a lease is believed to have ended (100 ms).
	ClockMargin time.Duration
	// Logger receives the warnings (slog.Default).
	Logger *slog.Logger
	// Observer is called for each event, for metrics.
	Observer Observer

	// Auto is the former name of HangTimeout.
	//
	// Deprecated: set HangTimeout.
	Auto time.Duration
	// Claim is the former name of QueueGrace.
	//
	// Deprecated: set QueueGrace.
	Claim time.Duration
	// Bound is the former name of ReplyTimeout.
	//
	// Deprecated: set ReplyTimeout.
	Bound time.Duration
	// Allowance is the former name of ClockMargin.
	//
	// Deprecated: set ClockMargin.
	Allowance time.Duration
}

// complete fills in the defaults.
func (s *Settings) complete() error {
	if s.Logger == nil {
		s.Logger = slog.Default()
	}
	for _, one := range []struct {
		name, former string
		value, old   *time.Duration
		usual        time.Duration
	}{
		{"Lease", "", &s.Lease, nil, 10 * time.Second},
		{"HangTimeout", "Auto", &s.HangTimeout, &s.Auto, 60 * time.Second},
		{"QueueGrace", "Claim", &s.QueueGrace, &s.Claim, 5 * time.Second},
		{"ReplyTimeout", "Bound", &s.ReplyTimeout, &s.Bound, 3 * time.Second},
		{"ClockMargin", "Allowance", &s.ClockMargin, &s.Allowance, 100 * time.Millisecond},
	} {
		if one.old != nil && *one.old != 0 {
			s.Logger.Warn("a setting of dlock has a new name", "old", one.former, "new", one.name)
			if *one.value == 0 {
				*one.value = *one.old
			}
		}
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

func (s *Settings) interval() time.Duration { return min(time.Second, s.Lease/3) }

// An Observer has functions that are called at the event itself, so they must not block. A nil function is not called.
type Observer struct {
	Waiting  func(key string)                                 // the lock is taken, and a wait for it begins
	Waited   func(key string)                                 // a wait has ended, with the lock or without
	Granted  func(key string, after time.Duration)            // the lock was granted this long after it was asked for
	Refused  func(key string, after time.Duration, why error) // it was not granted: it is taken (nil), or for this reason
	Released func(key string, after time.Duration)            // it was given back after it had been held this long
	Lost     func(key string, reason string)                  // it was held, and is no more
}

func (o *Observer) waiting(key string) {
	if o.Waiting != nil {
		o.Waiting(key)
	}
}

func (o *Observer) waited(key string) {
	if o.Waited != nil {
		o.Waited(key)
	}
}

func (o *Observer) granted(key string, since time.Duration) {
	if o.Granted != nil {
		o.Granted(key, now()-since)
	}
}

func (o *Observer) refused(key string, since time.Duration, why error) {
	if o.Refused != nil {
		o.Refused(key, now()-since, why)
	}
}

func (o *Observer) released(key string, since time.Duration) {
	if o.Released != nil {
		o.Released(key, now()-since)
	}
}

// Locks takes locks. Make one for the whole program; any number of goroutines may use it.
type Locks struct{ core *core }

// New returns Locks that connect as the client does: a *redis.Client (also one of NewFailoverClient) or a
// *redis.ClusterClient.
func New(client redis.UniversalClient, settings Settings) (*Locks, error) {
	host, _ := os.Hostname()
	c := &core{
		channel: "dlock:" + rand.Text(), done: make(chan struct{}), nodes: map[string]*node{},
		moved: map[uint16]string{}, asking: map[string]string{}, renewals: map[id]*renewal{}, named: map[place]*reentry{},
		process: fmt.Sprintf("%s/%d/", strings.ReplaceAll(host, "/", "-"), os.Getpid()), suffix: "#" + rand.Text(), alarm: never,
	}
	switch client := client.(type) {
	case *redis.Client:
		c.single = client
	case *redis.ClusterClient:
		c.cluster = client
	}
	if c.single == nil && c.cluster == nil {
		return nil, badArgument("client", fmt.Sprintf("must be a *redis.Client or a *redis.ClusterClient, not %T", client))
	}
	if err := settings.complete(); err != nil {
		return nil, err
	}
	c.settings, c.log = settings, settings.Logger
	c.clock = time.AfterFunc(never, c.ring)
	locks := &Locks{c}
	runtime.AddCleanup(locks, (*core).close, c)
	return locks, nil
}

// Lock waits until it has the lock or the context ends.
func (l *Locks) Lock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return l.acquire(ctx, key, forever, options)
}

// LockContext waits as Lock does, and returns a context that ends when the lock is lost, as [Hold.Context] does.
// Release ends it, too.
//
//	ctx, hold, err := locks.LockContext(ctx, "stock")
//	if err != nil {
//		return err
//	}
//	defer hold.Release(context.WithoutCancel(ctx))
func (l *Locks) LockContext(ctx context.Context, key string, options ...Option) (context.Context, *Hold, error) {
	hold, err := l.Lock(ctx, key, options...)
	if err != nil {
		return nil, nil, err
	}
	inner, end := hold.Context(ctx)
	hold.state.onRelease(end)
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

func (l *Locks) acquire(ctx context.Context, key string, timeout time.Duration, options []Option) (*Hold, error) {
	r, err := newAcquireRequest(l.core, key, options)
	if err != nil {
		return nil, err
	}
	r.state = &state{core: l.core, request: r, since: now()}
	r.state.ended, r.state.end = context.WithCancelCause(context.Background())
	t, err := l.core.take(ctx, r, timeout)
	runtime.KeepAlive(l)
	switch {
	case err != nil:
		return nil, err
	case t != nil:
		return newHold(l, r.state, t), nil
	case timeout == 0:
		return nil, fmt.Errorf("%w: %q", ErrTaken, key)
	}
	return nil, fmt.Errorf("%w: %q within %v: %w", ErrTimeout, key, timeout, ErrTaken)
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
		if failed := hold.Release(context.WithoutCancel(ctx)); err == nil {
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
	held, err := l.core.held(ctx, key)
	runtime.KeepAlive(l)
	return held != nil, err
}

// Close closes the connections: every later call fails with ErrClosed. Each hold is reported lost at once, and the server
// keeps it until its lease ends.
func (l *Locks) Close() { l.core.close() }

// state is the part of a Hold that the core refers to. It does not refer to the Hold, so that the collector can find a
// Hold that the program has forgotten.
type state struct {
	core     *core
	request  *acquireRequest
	renewal  *renewal // under the core's mutex
	since    time.Duration
	ended    context.Context
	end      context.CancelCauseFunc
	mu       sync.Mutex
	over     bool // lost, given back or abandoned
	released func()
}

// lose reports the loss. It is called under the core's mutex.
func (s *state) lose(reason string) {
	if !s.leave() {
		return
	}
	why := fmt.Errorf("%w: %s", ErrNotHeld, reason)
	level := slog.LevelWarn
	if s.core.closed {
		level = slog.LevelDebug
	}
	s.end(why)
	go func() { // the program's own functions, and a logger, may block
		s.core.log.Log(context.Background(), level, "a lock is lost", "key", s.request.key, "reason", reason)
		if lost := s.core.settings.Observer.Lost; lost != nil {
			lost(s.request.key, reason)
		}
		if s.request.lost != nil {
			s.request.lost(why)
		}
	}()
}

// leave marks the hold as over. It returns false if it was over before.
func (s *state) leave() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := !s.over
	s.over = true
	return left
}

func (s *state) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *state) onRelease(end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = end
}

func (s *state) reason() error {
	if why := context.Cause(s.ended); why != nil {
		return why
	}
	return errors.New("it was given back before")
}

// forget reports the loss of a hold that the collector has found. The server keeps the lock until its lease ends: the work
// may be running, and needs that time to stop. Until then a named owner has another name: it would be let in beside that work.
func (s *state) forget() {
	s.core.mu.Lock()
	over := s.isOver()
	s.lose("forgotten: the program no longer refers to its Hold, and has not released it")
	last := s.core.depart(s)
	if !over && last {
		s.core.rename(s.request)
	}
	s.core.mu.Unlock()
	if !over && last {
		s.core.untie(s.renewal)
	}
}

// A Hold is a lock that is held. Its Token is greater than that of every earlier hold of the lock: a resource may refuse
// smaller ones. Keep the Hold, or a context of it, while the work runs: a Hold that the collector finds is lost.
type Hold struct {
	Key, Owner string
	Token      int64
	state      *state
	locks      *Locks
}

func newHold(l *Locks, s *state, t *renewal) *Hold {
	hold := &Hold{Key: s.request.key, Owner: t.request.owner, Token: t.token, state: s, locks: l}
	runtime.AddCleanup(hold, (*state).forget, s)
	return hold
}

// Done returns a channel that is closed when the lock is lost. Giving it back is no loss.
func (h *Hold) Done() <-chan struct{} { return h.state.ended.Done() }

// Lost returns nil until the lock is lost, and then an ErrNotHeld with the reason.
func (h *Hold) Lost() error { return context.Cause(h.state.ended) }

// Left returns how long the lock is certainly held if the server is silent from now on.
func (h *Hold) Left() time.Duration {
	if h.state.isOver() {
		return 0
	}
	h.state.core.mu.Lock()
	defer h.state.core.mu.Unlock()
	return max(0, h.state.renewal.end()-now())
}

type holdKey struct{}

// Context returns a context that ends with the parent and when the lock is lost; then its cause is ErrNotHeld. The context
// refers to the Hold: while it, or a context made of it, is in use the Hold is not forgotten.
func (h *Hold) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	ended := h.state.ended
	stop := context.AfterFunc(ended, func() { cancel(context.Cause(ended)) }) // it refers to no Hold
	return context.WithValue(ctx, holdKey{}, h), func() {
		stop()
		cancel(context.Canceled)
	}
}

// HoldOf returns the Hold that the context was made by, or nil.
func HoldOf(ctx context.Context) *Hold {
	hold, _ := ctx.Value(holdKey{}).(*Hold)
	return hold
}

// Guard runs a command if the lock is still held under this token, in one step of the server, and else fails with
// ErrFenced; then the hold is lost. The command's keys must be in the lock's slot. The command is sent once, and the reply
// may take ReplyTimeout at most: after an ErrUnreachable it may have run. A null reply is nil, and replies are those of
// RESP2: a map is a slice of names and values.
func (h *Hold) Guard(ctx context.Context, command ...any) (any, error) {
	words, err := guardWords(h.Key, h.Token, command)
	if err != nil {
		return nil, err
	}
	c := h.state.core
	if err := c.check(); err != nil {
		return nil, err
	}
	r := *h.state.request // other goroutines may call Guard, too
	reply, err := c.call(ctx, &r, words, now()+c.settings.ReplyTimeout, nil)
	if errors.Is(err, ErrFenced) {
		c.mu.Lock()
		c.lose(h.state.renewal, "fenced")
		c.mu.Unlock()
	}
	runtime.KeepAlive(h)
	return reply, err
}

// Release gives back what was granted here, and nothing else; ErrNotHeld if it was lost. If the context ends before the
// server has answered, the release goes on in the background.
func (h *Hold) Release(ctx context.Context) error {
	err := h.state.core.release(ctx, h.state, 0)
	runtime.KeepAlive(h)
	return err
}

// ReleaseAfter gives the lock back at that time from now, by the server's clock: it stays taken until then, whether or not
// this program lives, and nobody renews it. ErrNotHeld if it was lost.
func (h *Hold) ReleaseAfter(ctx context.Context, d time.Duration) error {
	if d < time.Millisecond {
		return badArgument("d", "must be at least a millisecond")
	}
	err := h.state.core.release(ctx, h.state, d)
	runtime.KeepAlive(h)
	return err
}

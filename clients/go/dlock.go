// SPDX-License-Identifier: MIT

// Package dlock has locks of the dlock module, by go-redis.
//
//	locks, err := dlock.New(client, dlock.Settings{})
//	…
//	err = locks.With(ctx, "stock", func(ctx context.Context, hold *dlock.Hold) error {
//		_, err := hold.Guard(ctx, "SET", "stock:left", 41) // runs only while the lock is held: else ErrFenced
//		return err                                        // ctx ends when the lock is lost: its cause is ErrNotHeld
//	})
//
// The client is a pattern: one connection of that kind is opened to each node, for all goroutines together, and a second
// one where somebody waits.
package dlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Settings of Locks. What is 0 has its default.
type Settings struct {
	// Lease: how long a lock lasts when this program dies or loses the server (10 s).
	Lease time.Duration
	// Auto: how long a program that hangs keeps its locks (60 s).
	Auto time.Duration
	// Claim: how long a place in a queue is kept while the connection is away (5 s).
	Claim time.Duration
	// Bound: how long a connect or a reply may take (3 s).
	Bound time.Duration
	// Allowance: so much before its end a hold is believed to have ended (100 ms).
	Allowance time.Duration
	// Logger: where warnings go (slog.Default).
	Logger *slog.Logger
	// Observer is told what happens, for metrics.
	Observer Observer
}

func (s Settings) interval() time.Duration { return min(time.Second, s.Lease/3) }

// An Observer is told what happens, at once: so it must not block. What is nil is not told.
type Observer struct {
	Waiting  func(key string)                                 // the lock is taken, and a wait for it begins
	Waited   func(key string)                                 // a wait that has begun has ended, with the lock or without
	Granted  func(key string, after time.Duration)            // so long after it was asked for
	Refused  func(key string, after time.Duration, why error) // it was not: it is taken (nil), or for this reason
	Released func(key string, after time.Duration)            // it was given back, having been held so long
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

// Locks are for any number of goroutines.
type Locks struct {
	core   *core
	client redis.UniversalClient
}

// New takes a *redis.Client (also one of NewFailoverClient) or a *redis.ClusterClient.
func New(client redis.UniversalClient, settings Settings) (*Locks, error) {
	c := &core{
		channel: "dlock:" + rand.Text(), done: make(chan struct{}), nodes: map[string]*node{},
		moved: map[uint16]string{}, parting: map[place]int{}, alarm: never,
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
	for _, one := range []struct {
		name  string
		value *time.Duration
		usual time.Duration
	}{
		{"Lease", &settings.Lease, 10 * time.Second}, {"Auto", &settings.Auto, 60 * time.Second},
		{"Claim", &settings.Claim, 5 * time.Second}, {"Bound", &settings.Bound, 3 * time.Second},
		{"Allowance", &settings.Allowance, 100 * time.Millisecond},
	} {
		if *one.value == 0 {
			*one.value = one.usual
		}
		if *one.value < time.Millisecond {
			return nil, badArgument(one.name, "must be at least a millisecond")
		}
	}
	settings.Auto = max(settings.Auto, settings.Lease)
	if settings.Logger == nil {
		settings.Logger = slog.Default()
	}
	c.settings, c.log = settings, settings.Logger
	c.clock = time.AfterFunc(never, c.ring)
	locks := &Locks{core: c, client: client}
	runtime.AddCleanup(locks, (*core).close, c)
	return locks, nil
}

// Lock waits until it has the lock or the context ends.
func (l *Locks) Lock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return l.acquire(ctx, key, forever, options)
}

// TryLock waits so long at most (0: not at all) and no longer than the context. ErrTaken: others have it.
func (l *Locks) TryLock(ctx context.Context, key string, timeout time.Duration, options ...Option) (*Hold, error) {
	if timeout < 0 {
		return nil, badArgument("timeout", "must not be negative")
	}
	return l.acquire(ctx, key, timeout, options)
}

func (l *Locks) acquire(ctx context.Context, key string, timeout time.Duration, options []Option) (*Hold, error) {
	r, err := newRequest(&l.core.settings, key, options)
	if err != nil {
		return nil, err
	}
	t, err := l.core.take(ctx, r, timeout)
	runtime.KeepAlive(l)
	switch {
	case err != nil:
		return nil, err
	case t != nil:
		return newHold(l, r, t), nil
	case timeout == 0:
		return nil, fmt.Errorf("%w: %q", ErrTaken, key)
	}
	return nil, fmt.Errorf("%w: %q within %v: %w", ErrTimeout, key, timeout, ErrTaken)
}

// With works under the lock. The work's context ends when the lock is lost. An error of the work is never hidden by one of
// giving back.
func (l *Locks) With(
	ctx context.Context, key string, work func(context.Context, *Hold) error, options ...Option,
) (err error) {
	hold, err := l.Lock(ctx, key, options...)
	if err != nil {
		return err
	}
	inner, end := hold.Context(ctx)
	defer func() {
		end()
		if failed := hold.Release(context.WithoutCancel(ctx)); err == nil {
			err = failed
		}
	}()
	return work(inner, hold)
}

// IsHeld says whether anybody holds it.
func (l *Locks) IsHeld(ctx context.Context, key string) (bool, error) {
	if key == "" {
		return false, badArgument("key", "must not be empty")
	}
	held, err := l.core.held(ctx, key)
	runtime.KeepAlive(l)
	return held != nil, err
}

// Close ends it: every call from now on is an error. What is still held is told lost, and lives on until its lease.
func (l *Locks) Close() { l.core.close() }

// state is what a Hold has; who keeps it does not keep the Hold.
type state struct {
	core    *core
	request *request
	tie     *tie
	since   time.Duration
	ended   context.Context
	end     context.CancelCauseFunc
	mu      sync.Mutex
	over    bool // lost, given back or forgotten
}

// lose is called under the core's mutex.
func (s *state) lose(reason string) {
	s.mu.Lock()
	over := s.over
	s.over = true
	s.mu.Unlock()
	if over {
		return
	}
	why := fmt.Errorf("%w: %s", ErrNotHeld, reason)
	level := slog.LevelWarn
	if s.core.closed {
		level = slog.LevelDebug
	}
	s.end(why)
	go func() { // the program's own: it holds up nothing of ours
		s.core.log.Log(context.Background(), level, "a lock is lost", "key", s.request.key, "reason", reason)
		if told := s.core.settings.Observer.Lost; told != nil {
			told(s.request.key, reason)
		}
		if s.request.lost != nil {
			s.request.lost(why)
		}
	}()
}

// leave: it is given back now. False if there is nothing to give back.
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

func (s *state) reason() error {
	if why := context.Cause(s.ended); why != nil {
		return why
	}
	return errors.New("it was given back before")
}

// forsake: the collector has found it, and nobody can give it back any more.
func (s *state) forsake() {
	if s.leave() {
		s.core.drop(s.request, s.tie.token)
	}
}

// A Hold is a lock that is held. Its Token counts up with every grant of the lock: the resource may refuse older ones.
type Hold struct {
	Key, Owner string
	Token      int64
	state      *state
	locks      *Locks
}

func newHold(l *Locks, r *request, t *tie) *Hold {
	s := &state{core: l.core, request: r, since: now()}
	s.ended, s.end = context.WithCancelCause(context.Background())
	hold := &Hold{Key: r.key, Owner: r.owner, Token: t.token, state: s, locks: l}
	runtime.AddCleanup(hold, (*state).forsake, s)
	l.core.adopt(t, s)
	return hold
}

// Done is closed when the lock is lost. Giving it back is no loss.
func (h *Hold) Done() <-chan struct{} { return h.state.ended.Done() }

// Lost is nil until the lock is lost, and then an ErrNotHeld with the reason.
func (h *Hold) Lost() error { return context.Cause(h.state.ended) }

// Left is for how long it is ours for sure, if nothing is heard of the server any more.
func (h *Hold) Left() time.Duration {
	if h.state.isOver() {
		return 0
	}
	h.state.core.mu.Lock()
	defer h.state.core.mu.Unlock()
	return max(0, h.state.tie.end()-now())
}

// Context ends with the parent and when the lock is lost. Then its cause is ErrNotHeld.
func (h *Hold) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	ended := h.state.ended
	stop := context.AfterFunc(ended, func() { cancel(context.Cause(ended)) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

// Guard runs a command in one step with the look whether the lock is still held under this token, else ErrFenced. The
// command's keys must be of the lock's slot.
func (h *Hold) Guard(ctx context.Context, command ...any) (any, error) {
	reply, err := h.locks.client.Do(ctx, append([]any{"DLOCK.GUARD", h.Key, h.Token}, command...)...).Result()
	return reply, typed(err)
}

// Release gives back what was granted here, and nothing else; ErrNotHeld if it was lost. When the context ends before
// the server has answered, or nobody answers, it is given back in the background.
func (h *Hold) Release(ctx context.Context) error {
	err := h.state.core.release(ctx, h.state)
	runtime.KeepAlive(h)
	return err
}

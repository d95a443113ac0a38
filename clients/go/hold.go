// SPDX-License-Identifier: MIT

package dlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// held is what the client knows of one hold. The program's Hold refers to it, and not the other way, so that the collector
// finds a Hold that the program has forgotten. All but what never changes is under the sessions' mutex.
type held struct {
	key, owner string
	token      int64
	lease, end time.Duration
	since      time.Duration
	told       time.Duration // when an answer told that it is in its session
	bound      time.Duration // by MaxHold
	session    *session
	over       bool // lost, or given back
	isRenewed  bool // a RENEW is under way
	isTaken    bool // another one renews it
	reason     string
	why        error // what the last RENEW has come to
	ended      context.Context
	lost       context.CancelCauseFunc
	onLost     func(error)
}

func (h *held) place() place { return place{h.key, h.token} }

// until is the end that is believed. A SESSION's least lease counts if it was sent after the answer that told of this hold.
func (h *held) until() time.Duration {
	end := h.end
	if h.session != nil && h.session.sent >= h.told {
		end = max(end, h.session.until)
	}
	return min(end, h.bound)
}

// isOld reports whether it is to be kept: a third of its lease has passed.
func (h *held) isOld() bool { return now() >= h.since+h.lease/3 }

// words are a command that names the hold by its token.
func (h *held) words(name string, more ...any) []any {
	words := append(make([]any, 0, 8), "DLOCK."+name, h.key, h.owner)
	return append(append(words, more...), "TOKEN", h.token)
}

// finish ends the hold at the program's wish.
func (s *sessions) finish(h *held, reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case h.over:
		return fmt.Errorf("%w: %s", ErrNotHeld, h.reason)
	}
	h.over, h.reason = true, reason
	s.leave(h, never)
	return nil
}

// released is the errand that gives the hold back.
func (s *sessions) released(h *held) (*errand, error) {
	if err := s.finish(h, "it was given back before"); err != nil {
		return nil, err
	}
	e := &errand{key: h.key, words: h.words("RELEASE"), until: s.patience(h.lease)}
	e.then = func(_ time.Duration, _ any, err error) {
		s.missed(h, e)
		if err != nil && !errors.Is(err, ErrNotHeld) { // it may not be given back
			s.send(s.left(h, h.lease))
		}
	}
	return e, nil
}

// releasedAfter is the errand that leaves the lock taken for so long.
func (s *sessions) releasedAfter(h *held, d time.Duration) (*errand, error) {
	if err := s.finish(h, "it was left to its lease"); err != nil {
		return nil, err
	}
	e := s.left(h, d)
	e.then = func(_ time.Duration, _ any, err error) {
		s.missed(h, e)
		if err != nil && !errors.Is(err, ErrNotHeld) { // not for so long: nobody has it any more
			s.giveBack(h)
		}
	}
	return e, nil
}

// missed notes the answer to the end of a hold. If the server had ended it before, that was a loss.
func (s *sessions) missed(h *held, e *errand) {
	delete(s.held, h.place())
	if e.tries == 1 && errors.Is(e.err, ErrNotHeld) {
		h.over = false
		s.lose(h, e.err.Error())
	}
}

// carry says an errand until it is answered, and after the time for a reply, or the context's, in the background. What has
// ended already is no reason to keep the lock.
func (s *sessions) carry(ctx context.Context, e *errand) error {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	for until := now() + s.settings.ReplyTimeout; ; {
		sent := now()
		reply, err := s.library.client.call(ctx, s.settings.ReplyTimeout, e.words...)
		s.answered(e, sent, reply, err)
		switch {
		case errors.Is(e.err, ErrNotHeld) && e.tries > 1 && e.words[0] == "DLOCK.RELEASE": // an earlier one has given it back
			return nil
		case e.done:
			return e.err
		case ctx.Err() != nil || now() >= until || !passes(err) || s.check() != nil:
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.send(e); ctx.Err() != nil {
				return fmt.Errorf("%w: %w", ctx.Err(), e.err)
			}
			return e.err
		}
		select {
		case <-time.After(pause / 5):
		case <-ctx.Done():
		}
	}
}

// forget reports the loss of a hold that the collector has found. The server keeps the lock until its lease ends: the work
// may be running, and needs that time to stop.
func (s *sessions) forget(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !h.over {
		s.lose(h, "it was forgotten: the program no longer refers to its Hold, and has not released it")
		s.send(s.left(h, h.lease))
	}
}

// A Hold is a lock that is held. Its Token is greater than that of every earlier hold of the lock: a resource may refuse
// smaller ones. Keep the Hold, or a context of it, while the work runs: a Hold that the collector finds is lost.
type Hold struct {
	Key, Owner string
	Token      int64
	held       *held
	locks      *Locks
	found      runtime.Cleanup
	end        context.CancelFunc // of LockContext
}

func newHold(l *Locks, h *held) *Hold {
	hold := &Hold{Key: h.key, Owner: h.owner, Token: h.token, held: h, locks: l}
	hold.found = runtime.AddCleanup(hold, l.sessions.forget, h)
	return hold
}

// Done returns a channel that is closed when the lock is lost. Giving it back is no loss.
func (h *Hold) Done() <-chan struct{} { return h.held.ended.Done() }

// Lost returns nil until the lock is lost, and then an ErrNotHeld with the reason.
func (h *Hold) Lost() error { return context.Cause(h.held.ended) }

// Left returns how long the lock is certainly held if the server is silent from now on.
func (h *Hold) Left() time.Duration {
	s := h.locks.sessions
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.held.over {
		return 0
	}
	return max(0, h.held.until()-now())
}

type holdKey struct{}

// Context returns a context that ends with the parent and when the lock is lost; then its cause is ErrNotHeld. The context
// refers to the Hold: while it, or a context made of it, is in use the Hold is not forgotten.
func (h *Hold) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	ended := h.held.ended
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
	s := h.locks.sessions
	if len(command) == 0 {
		return nil, badArgument("command", "must not be empty")
	}
	if err := cmp.Or(s.check(), ctx.Err()); err != nil {
		return nil, err
	}
	reply, err := s.library.client.once(ctx, h.Key, append([]any{"DLOCK.GUARD", h.Key, h.Token}, command...)...)
	if errors.Is(err, ErrFenced) {
		s.mu.Lock()
		s.lose(h.held, "fenced")
		s.mu.Unlock()
	}
	runtime.KeepAlive(h)
	return reply, err
}

// Release gives back what was granted here, and nothing else; ErrNotHeld if it was lost. It takes ReplyTimeout at most, also
// under a context that has ended. What no server has answered by then goes on in the background.
func (h *Hold) Release(ctx context.Context) error {
	e, err := h.locks.sessions.released(h.held)
	return h.carry(ctx, e, err)
}

// ReleaseAfter gives the lock back at that time from now, by the server's clock: it stays taken until then, whether or not
// this program lives, and nobody renews it. ErrNotHeld if it was lost. If the server refuses the time, the lock is released, and
// the error says why.
func (h *Hold) ReleaseAfter(ctx context.Context, d time.Duration) error {
	if d < time.Millisecond {
		return badArgument("d", "must be at least a millisecond")
	}
	e, err := h.locks.sessions.releasedAfter(h.held, d)
	return h.carry(ctx, e, err)
}

// releaseIfHeld is Release for work that may have released the lock itself. A loss is still an error.
func (h *Hold) releaseIfHeld(ctx context.Context) error {
	err := h.Release(ctx)
	if errors.Is(err, ErrNotHeld) && h.Lost() == nil {
		return nil
	}
	return err
}

func (h *Hold) carry(ctx context.Context, e *errand, err error) error {
	if err != nil {
		return err
	}
	s := h.locks.sessions
	if err = s.carry(ctx, e); err == nil {
		h.found.Stop()
	}
	if h.end != nil {
		h.end()
	}
	if released := s.settings.Observer.Released; released != nil && !errors.Is(err, ErrNotHeld) {
		released(h.Key, now()-h.held.since)
	}
	runtime.KeepAlive(h)
	return err
}

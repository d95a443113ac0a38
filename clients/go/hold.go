// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"net"
	"reflect"
	"runtime"
	"time"
)

// A holdID names a hold.
type holdID struct {
	key   string
	token int64
}

// held is what the client knows of one hold. A Hold points to it, never the reverse, so that the garbage collector can find
// a Hold that the program dropped. What changes is under the mutex of the Locks.
type held struct {
	holdID
	owner      string
	lease, end time.Duration
	since      time.Duration
	told       time.Duration // when an answer told that it is in its session
	maxHoldEnd time.Duration
	session    *session
	timer      *time.Timer
	alarm      time.Duration // when the timer fires
	over       bool          // lost or released
	renewing   bool          // a RENEW is under way
	renewed    time.Duration // when the last RENEW was asked for
	staysUntil time.Duration // the end of a lock that was left to its lease, or 0
	taken      bool          // another client renews it
	err        error         // of the last RENEW
	ended      context.Context
	lost       context.CancelCauseFunc
	onLost     func(error)
}

// until returns the end that is believed. A SESSION's shortest lease counts if it was sent after the answer that told of
// this hold.
func (h *held) until() time.Duration {
	end := h.end
	if h.session != nil && h.session.sent >= h.told {
		end = max(end, h.session.until)
	}
	return min(end, h.maxHoldEnd)
}

// needsKeepAlive reports whether a third of its lease has passed.
func (h *held) needsKeepAlive() bool { return now() >= h.since+h.lease/3 }

// words returns a command that names the hold by its token.
func (h *held) words(name string, more ...any) []any {
	words := append(make([]any, 0, 8), "DLOCK."+name, h.key, h.owner)
	return append(append(words, more...), "TOKEN", h.token)
}

// A Hold is a lock that is held. Its Token is greater than that of every earlier hold of the lock: a resource may refuse
// smaller ones. Keep the Hold, or a context of it, while the work runs: a Hold that the garbage collector finds is lost.
type Hold struct {
	Key, Owner string
	Token      int64
	held       *held
	locks      *Locks
	work       context.Context // ends when the lock is lost or released
	end        context.CancelFunc
}

func newHold(l *Locks, h *held) *Hold {
	hold := &Hold{Key: h.key, Owner: h.owner, Token: h.token, held: h, locks: l}
	hold.work, hold.end = context.WithCancel(h.ended)
	runtime.AddCleanup(hold, l.forget, h)
	return hold
}

// forget reports the loss of a hold that the program has dropped. The server keeps the lock until its lease ends: the work may
// be running, and needs that time to stop.
func (l *Locks) forget(h *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !h.over {
		id := h.session.number()
		l.lose(h, "it was forgotten: the program no longer refers to its Hold, and has not released it")
		h.staysUntil = now() + h.lease
		l.held[h.holdID] = h // until its RENEW is answered: a row of its grant is not one of nobody
		l.enqueue(id, l.delivery(h, h.words("RENEW", millis(h.lease)), nil))
	}
}

// Done returns a channel that is closed when the lock is lost. A release is no loss.
func (h *Hold) Done() <-chan struct{} { return h.held.ended.Done() }

// Lost returns nil until the lock is lost, and then an ErrNotHeld with the reason.
func (h *Hold) Lost() error { return context.Cause(h.held.ended) }

// Left returns how long the lock is certainly held if the server is silent from now on.
func (h *Hold) Left() time.Duration {
	h.locks.mu.Lock()
	defer h.locks.mu.Unlock()
	if h.held.over {
		return 0
	}
	return max(0, h.held.until()-now())
}

type holdKey struct{}

// Context returns a context that ends with the parent, with a release, and when the lock is lost; then its cause is
// ErrNotHeld. The context refers to the Hold: while it, or a context made of it, is in use the Hold is not forgotten.
func (h *Hold) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	work := h.work
	stop := context.AfterFunc(work, func() { cancel(context.Cause(work)) }) // it refers to no Hold
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
	l := h.locks
	if len(command) == 0 {
		return nil, badArgument("command", "must not be empty")
	}
	for _, word := range command {
		if !isWord(reflect.ValueOf(word)) {
			return nil, badArgument("command", fmt.Sprintf("must not have a %T, which go-redis cannot send", word))
		}
	}
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	reply, err := l.commands.once(ctx, h.held.key, append([]any{"DLOCK.GUARD", h.held.key, h.held.token}, command...)...)
	if errors.Is(err, ErrFenced) {
		l.mu.Lock()
		l.lose(h.held, "fenced")
		l.mu.Unlock()
	}
	runtime.KeepAlive(h)
	return reply, err
}

// isWord reports whether go-redis can send this as a word of a command.
func isWord(word reflect.Value) bool {
	if !word.IsValid() || word.Kind() == reflect.Pointer && word.IsNil() {
		return true // an empty word
	}
	switch word.Interface().(type) {
	case string, []byte, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64, bool,
		time.Duration, net.IP, encoding.BinaryMarshaler:
		return true
	}
	return word.Kind() == reflect.Pointer && isWord(word.Elem())
}

// Release releases what was granted here, and nothing else; ErrNotHeld if it was lost. It ends the contexts of the Hold. It
// takes ReplyTimeout at most, and ignores the end of the context. What no server has answered by then continues in the
// background.
func (h *Hold) Release(ctx context.Context) error {
	return h.finish(ctx, h.held.words("RELEASE"), h.held.words("RENEW", millis(h.held.lease)), 0)
}

// ReleaseAfter releases the lock at that time from now, by the server's clock: it stays taken until then, whether or not
// this program lives, and nobody renews it. ErrNotHeld if it was lost. If the server refuses the time, the lock is released, and
// the error says why.
func (h *Hold) ReleaseAfter(ctx context.Context, d time.Duration) error {
	if d < time.Millisecond {
		return badArgument("d", "must be at least a millisecond")
	}
	return h.finish(ctx, h.held.words("RENEW", millis(d)), h.held.words("RELEASE"), after(now(), d))
}

// finish ends the hold by a command. If the server refuses that, the other one follows in the background.
func (h *Hold) finish(ctx context.Context, words, instead []any, staysUntil time.Duration) error {
	id, err := h.stop(staysUntil)
	if err != nil {
		return err
	}
	l := h.locks
	err, first := l.deliver(ctx, id, l.delivery(h.held, words, instead))
	if errors.Is(err, ErrNotHeld) {
		if !first && now() >= staysUntil { // an earlier one, whose answer was lost, has ended it
			err = nil
		} else {
			l.mu.Lock()
			h.held.over = false
			l.lose(h.held, err.Error())
			l.mu.Unlock()
			return err
		}
	}
	h.end()
	if released := l.settings.Observer.Released; released != nil {
		released(h.Key, now()-h.held.since)
	}
	runtime.KeepAlive(h)
	return err
}

// stop ends the belief in the hold. It returns the id of its session.
func (h *Hold) stop(staysUntil time.Duration) (id int64, err error) {
	l, s := h.locks, h.held
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return 0, ErrClosed
	case h.Lost() != nil:
		return 0, h.Lost()
	case s.over:
		return 0, fmt.Errorf("%w: it was released before", ErrNotHeld)
	}
	id = s.session.number()
	s.over, s.staysUntil = true, staysUntil
	s.timer.Stop()
	l.leave(s, never)
	return id, nil
}

// releaseUnlessDone is Release for work that may have released the lock itself. A loss is still an error.
func (h *Hold) releaseUnlessDone(ctx context.Context) error {
	err := h.Release(ctx)
	if errors.Is(err, ErrNotHeld) && h.Lost() == nil {
		return nil
	}
	return err
}

// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"slices"
	"time"
)

const batch = 100 // commands in one pipeline

var closing = time.Second // how long Close waits for what is yet to be delivered; only tests change it

// A delivery is a command that is repeated until a server has answered it, or until it no longer matters.
type delivery struct {
	key      string
	words    []any
	then     func(sent time.Duration, reply any, err error) // under the mutex
	patience time.Duration                                  // how long after a heartbeat of its session
	since    time.Duration
	needed   func() bool // or nil
}

// patience is how long a server has something of a client that it does not hear of.
func (l *Locks) patience(lease time.Duration) time.Duration {
	return l.settings.HangTimeout + 2*max(lease, l.settings.Lease)
}

// enqueue has a command delivered in the background. Each session has its own queue, so a server that hangs does not delay
// the others.
func (l *Locks) enqueue(id int64, d *delivery) {
	d.since = now()
	queue, flushed := l.queues[id]
	l.queues[id] = append(queue, d)
	if !flushed && l.ctx.Err() == nil {
		go l.flush(id)
	}
}

// flush delivers the commands of a queue until each is answered or given up.
func (l *Locks) flush(id int64) {
	for {
		l.mu.Lock()
		l.giveUp(id)
		deliveries := slices.Clone(l.queues[id][:min(len(l.queues[id]), batch)])
		if len(deliveries) == 0 || l.ctx.Err() != nil {
			delete(l.queues, id)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()

		sent := now()
		answers := l.keeper.pipeline(l.ctx, deliveries)

		l.mu.Lock()
		l.queues[id] = l.queues[id][len(deliveries):]
		answered := true
		for i, d := range deliveries {
			if isAnswer(answers[i].err) {
				d.then(sent, answers[i].reply, answers[i].err)
			} else { // at the end it does not delay the others
				l.queues[id] = append(l.queues[id], d)
				answered = false
			}
		}
		l.mu.Unlock()
		if !answered {
			sleep(l.ctx, pause)
		}
	}
}

// giveUp drops the commands of a queue that are of no use: the server has nothing left of what they are about.
func (l *Locks) giveUp(id int64) {
	heard := -never
	if s := l.sessions[id]; s != nil { // while the session is kept the server renews what is in it
		heard = s.heard
	}
	var over []*delivery
	l.queues[id] = slices.DeleteFunc(l.queues[id], func(d *delivery) bool {
		if d.needed != nil && !d.needed() {
			return true
		}
		if after(max(d.since, heard), d.patience) > now() {
			return false
		}
		over = append(over, d)
		return true
	})
	for _, d := range over {
		d.then(0, nil, ErrNotHeld)
	}
}

// deliver sends a command until it is answered. After ReplyTimeout, and after an error that is not transient, it continues in
// the background. It ignores the end of the context.
func (l *Locks) deliver(ctx context.Context, id int64, d *delivery) (err error, first bool) {
	ctx = context.WithoutCancel(ctx)
	end := now() + l.settings.ReplyTimeout
	for first = true; ; first = false {
		sent := now()
		var reply any
		if first { // a cluster's client would send it again after a lost answer: the second one would tell of a loss
			reply, err = l.commands.once(ctx, d.key, d.words...)
		} else {
			reply, err = l.commands.call(ctx, max(end-sent, time.Millisecond), d.words...)
		}
		l.mu.Lock()
		switch {
		case isAnswer(err):
			d.then(sent, reply, err)
		case now() >= end-pause/5 || !isTransient(err) || l.closed:
			l.enqueue(id, d)
		default:
			l.mu.Unlock()
			sleep(ctx, pause/5)
			continue
		}
		l.mu.Unlock()
		return err, first
	}
}

// giveBack releases a hold that the program does not have.
func (l *Locks) giveBack(h *held, s *session) {
	l.enqueue(s.number(), l.delivery(h, h.words("RELEASE"), nil))
}

// leaveAgain leaves a lock to its lease again: a late command may have brought the hold back into a session. If no time
// remains, it sends the shortest lease. Otherwise the server would renew the hold for as long as the session lives.
func (l *Locks) leaveAgain(h *held, id int64) {
	if h.staysUntil != 0 {
		l.enqueue(id, l.delivery(h, h.words("RENEW", millis(h.staysUntil-now())), nil))
	}
}

// delivery returns a command that ends a hold. If the server refuses it, the other one follows.
func (l *Locks) delivery(h *held, words, instead []any) *delivery {
	return &delivery{
		key: h.key, words: words, patience: l.patience(h.lease),
		then: func(_ time.Duration, _ any, err error) {
			if err == nil && words[0] == "DLOCK.RENEW" { // it stays taken, and a SESSION answered before may tell of its grant
				time.AfterFunc(3*l.settings.ReplyTimeout, func() {
					l.mu.Lock()
					defer l.mu.Unlock()
					delete(l.held, h.holdID)
				})
				return
			}
			if err != nil && !errors.Is(err, ErrNotHeld) && instead != nil {
				h.staysUntil = now() + h.lease // if the other one is RENEW
				l.enqueue(0, l.delivery(h, instead, nil))
				return
			}
			delete(l.held, h.holdID)
		},
	}
}

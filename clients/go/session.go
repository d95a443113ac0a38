// SPDX-License-Identifier: MIT

package dlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"
)

const (
	linger = time.Second            // an idle session is kept for so long: the next turn begins without a new goroutine
	quiet  = 100 * time.Millisecond // after an early answer without rows
	pause  = 100 * time.Millisecond // after a failure
)

// A session holds what one server keeps for this client. The server chooses the id.
type session struct {
	id          int64
	key         string // one that the server serves
	seen        int64  // the last row
	holds       map[holdID]*held
	waits       map[*take]bool
	sent, until time.Duration // of the last SESSION: when it was sent, and the end of the shortest lease that it told
	heard       time.Duration // when the last SESSION was sent that was answered, with holds or without
	begun, due  time.Duration // of the SESSION under way: when it was sent, and when its BLOCK ends
	back        time.Duration // when the SESSION that is under way ends at the latest
	kept        bool          // by a goroutine
	err         error         // of the last SESSION
}

// number returns the id of the session, or 0 for none.
func (s *session) number() int64 {
	if s == nil {
		return 0
	}
	return s.id
}

func (s *session) anyKey() string {
	for t := range s.waits {
		s.key = t.request.keys[0]
		return s.key
	}
	for id := range s.holds {
		s.key = id.key
		break
	}
	return s.key
}

func (s *session) needsKeepAlive() bool {
	for _, h := range s.holds {
		if h.needsKeepAlive() {
			return true
		}
	}
	return len(s.waits) > 0
}

// isLateFor reports whether the SESSION under way was sent before the hold was known, and may be answered too late for it.
func (s *session) isLateFor(h *held) bool {
	return !h.renewing && s.begun < h.told && s.due > h.until()-h.lease/6
}

// owner returns a name that was never used. The part before # is the actor, for the search for deadlocks.
func (l *Locks) owner(actor string) string {
	l.numbers++
	number := strconv.FormatInt(l.numbers, 10)
	if actor == "" {
		return l.name + "/" + number
	}
	return l.name + "/" + actor + "#" + number
}

func (l *Locks) session(id int64, key string) *session {
	s := l.sessions[id]
	if s == nil {
		s = &session{id: id, key: key, holds: map[holdID]*held{}, waits: map[*take]bool{}, sent: -never, until: -never}
		l.sessions[id] = s
	}
	return s
}

// tidy forgets an empty session. The server does so as well, and draws another id for the next one.
func (l *Locks) tidy(s *session) {
	if !s.kept && len(s.holds) == 0 && len(s.waits) == 0 {
		delete(l.sessions, s.id)
	}
}

// believed returns the end of a lease of which the server has told the milliseconds left.
func (l *Locks) believed(sent, left time.Duration) time.Duration {
	return after(sent, left) - 2*time.Millisecond - l.settings.ClockMargin
}

// join moves the hold to a session.
func (l *Locks) join(h *held, s *session) {
	if h.session != s {
		l.leave(h, never)
		h.told, h.session = now(), s
		s.holds[h.holdID] = h
	}
	if h.needsKeepAlive() {
		l.keepAlive(s)
	}
	l.watch(h)
}

// leave removes the hold from its session. Its validity then ends at the earlier of what was believed and cut.
func (l *Locks) leave(h *held, cut time.Duration) {
	if s := h.session; s != nil {
		h.end = min(h.until(), cut)
		delete(s.holds, h.holdID)
		h.session = nil
		l.tidy(s)
	}
}

// keepAlive sends SESSION, as long as the session has waits, or holds that are older than a third of their leases.
func (l *Locks) keepAlive(s *session) {
	if !s.kept && !l.closed {
		s.kept, s.back = true, never
		l.sessions[s.id] = s
		go l.keep(s)
	}
}

func (l *Locks) keep(s *session) {
	blocks, warned := false, false // it does not block at first: an answer at once tells whether the session is kept
	for needed := now(); ; {
		l.mu.Lock()
		if s.needsKeepAlive() {
			needed = now()
		}
		last := now()-needed > linger
		words, block, slack := l.sessionWords(s, blocks && !last, last)
		within := min(max(3*slack, 500*time.Millisecond), l.settings.ReplyTimeout) // one lost answer costs no hold
		sent := now()
		s.begun, s.due, s.back = sent, sent+block, sent+within
		l.mu.Unlock()

		reply, err := l.keeper.call(l.ctx, within, words...)

		l.mu.Lock()
		answer, rows := l.read(sent, reply, s.key)
		if err == nil && answer == nil {
			err = fmt.Errorf("no answer to DLOCK.SESSION: %v", reply)
		}
		s.err, s.due, s.back = err, 0, never
		switch {
		case err != nil:
			l.sessionFailed(s, err)
		case answer != s:
			l.gone(s)
			l.tidy(answer)
		}
		warns := err != nil && !warned && !l.closed
		if l.closed || (last || err == nil && answer != s) && !s.needsKeepAlive() {
			s.kept = false
			l.tidy(s)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()

		took := now() - sent
		blocks, warned = err == nil && answer == s && !last && took <= block+slack, err != nil
		switch {
		case warns:
			l.log.Warn("what is held and waited for is not kept", "error", err)
			sleep(l.ctx, pause)
		case err != nil:
			sleep(l.ctx, pause)
		case rows == 0 && took < block-10*time.Millisecond:
			sleep(l.ctx, quiet-took)
		}
	}
}

// sessionWords returns a SESSION, its BLOCK, and a sixth of the shortest lease. The last SESSION sets ms to 1, so that the
// server does not renew a hold whose grant was lost on the way.
func (l *Locks) sessionWords(s *session, blocks, last bool) (words []any, block, slack time.Duration) {
	lease := l.settings.Lease
	for _, h := range s.holds {
		lease = min(lease, h.lease)
	}
	slack = lease / 6
	ms := millis(l.settings.HangTimeout)
	if last {
		ms = "1"
	}
	words = append(make([]any, 0, 9), "DLOCK.SESSION", s.anyKey(), l.name, ms, "SEEN", s.id, s.seen)
	if blocks {
		block = min(time.Second, slack, l.settings.ReplyTimeout/2)
		words = append(words, "BLOCK", millis(block))
	}
	return words, block, slack
}

// sessionFailed ends what ends without an answer. A refusal for good ends the waits.
func (l *Locks) sessionFailed(s *session, err error) {
	for t := range s.waits {
		if !isTransient(err) {
			l.end(t, err)
		}
	}
	for _, h := range s.holds { // the timers do not run while the machine is suspended
		if h.until() <= now() {
			l.check(h)
		}
	}
}

// read reads an answer to SESSION. It returns the session that it is of, or nil.
func (l *Locks) read(sent time.Duration, reply any, key string) (s *session, rows int) {
	answer, _ := reply.([]any)
	if len(answer) != 4 {
		return nil, 0
	}
	s = l.session(number(answer[0]), key)
	s.heard = max(s.heard, sent)
	news, _ := answer[3].([]any)
	for _, each := range news {
		if row, _ := each.([]any); len(row) == 6 && number(row[0]) > s.seen {
			s.seen = number(row[0])
			event, _ := row[1].(string)
			key, _ := row[2].(string)
			owner, _ := row[3].(string)
			l.row(s, event, holdID{key, number(row[4])}, owner, l.believed(sent, milliseconds(row[5])))
		}
	}
	if answer[2] != nil && sent > s.sent {
		l.confirm(s, sent, l.believed(sent, milliseconds(answer[2])))
	}
	return s, len(news)
}

// confirm notes that all holds of the session last until then at least.
func (l *Locks) confirm(s *session, sent, until time.Duration) {
	if until < s.until { // what was believed of those that were known before stays true
		for _, h := range s.holds {
			h.end = max(h.end, h.until())
		}
	}
	s.sent, s.until = sent, until
	for _, h := range s.holds { // the shortest lease says little of the others
		if until-now() < h.lease/2 && h.until()-now() < h.lease/2 {
			l.renew(h, s.id)
		}
	}
}

func (l *Locks) row(s *session, event string, id holdID, owner string, end time.Duration) {
	h, t := l.held[id], l.takes[owner]
	switch event {
	case "granted":
		switch {
		case h != nil && !h.over:
			h.end = max(h.end, end)
			l.join(h, s)
		case h != nil:
			l.leaveAgain(h, s.id)
		case t != nil && !l.closed && slices.Contains(t.request.keys, id.key):
			l.granted(t, id.key, id.token, s, end)
		default: // of a take that was given up, or of a request that came late
			l.giveBack(&held{holdID: id, owner: owner}, s)
		}
		return
	case "timeout", "cancelled", "replaced", "wrongtype", "again":
		if t != nil {
			l.rejected(t, event)
		}
		return
	}
	if h == nil || h.over {
		return
	}
	switch event {
	case "taken":
		h.taken, h.err = true, errors.New("it was taken out of the session")
		l.leave(h, end)
		h.end = min(h.end, end)
		l.watch(h)
	case "moved":
		l.leave(h, never)
		l.renew(h, s.id)
	default:
		l.lose(h, event)
	}
}

// gone handles the loss of a session: it renews each hold into, and repeats each request in, the server's new session.
func (l *Locks) gone(s *session) {
	for _, h := range s.holds {
		l.leave(h, never)
		l.renew(h, s.id)
	}
	for t := range s.waits {
		l.rejected(t, "gone")
	}
}

// renew moves the hold into the session of the server that has its key now, and learns how long it lasts.
func (l *Locks) renew(h *held, id int64) {
	if h.renewing || h.over {
		return
	}
	h.renewing, h.renewed = true, now()
	l.enqueue(id, &delivery{
		key: h.key, words: append(h.words("RENEW", millis(h.lease)), "IN", l.name), patience: never,
		needed: func() bool { return !h.over },
		then: func(sent time.Duration, reply any, err error) {
			h.renewing = false
			answer, _ := reply.([]any)
			switch {
			case errors.Is(err, ErrNotHeld):
				l.lose(h, err.Error())
			case err != nil:
				h.err = err
			case len(answer) != 2:
			case h.over:
				l.leaveAgain(h, number(answer[1]))
			default:
				h.end, h.err = max(h.end, l.believed(sent, milliseconds(answer[0]))), nil
				l.join(h, l.session(number(answer[1]), h.key))
			}
		},
	})
}

// watch sets the timer of a hold: for when it needs to be kept, or renewed by itself, and for the end of its validity.
func (l *Locks) watch(h *held) {
	h.alarm = l.endOf(h)
	if s := h.session; s != nil && (!h.needsKeepAlive() || s.isLateFor(h)) {
		h.alarm = min(h.alarm, max(h.since+h.lease/3, h.renewed+h.lease/3, now()))
	}
	h.timer.Reset(max(h.alarm-now(), time.Millisecond))
}

// endOf returns when a hold is to be reported lost. MaxHold ends by the program's own clock: no server needs to be asked.
func (l *Locks) endOf(h *held) time.Duration { return min(max(h.until(), l.grace), h.maxHoldEnd) }

// due is called by the timer of a hold.
func (l *Locks) due(h *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.check(h)
}

// check reports a hold lost if its validity has ended. After the process was stopped it asks the server before that.
func (l *Locks) check(h *held) {
	if h.over || l.closed {
		return
	}
	s := h.session
	late := s != nil && s.kept && now()-s.back > stall
	if late {
		s.back = never // it delays the report once
	}
	if late || now()-h.alarm > stall {
		l.grace = now() + l.settings.ReplyTimeout
	}
	if l.endOf(h) <= now() {
		l.expire(h)
		return
	}
	if s != nil && h.needsKeepAlive() {
		l.keepAlive(s)
		if s.isLateFor(h) {
			l.renew(h, s.id)
		}
	}
	l.watch(h)
}

// expire reports a hold lost when its validity ends. The server may still count it as held, so expire also releases it.
func (l *Locks) expire(h *held) {
	last, err, s := h.since, h.err, h.session
	if s != nil {
		last, err = max(last, s.heard), cmp.Or(err, s.err)
	}
	reason := "max_hold is over"
	if h.maxHoldEnd > now() {
		reason = fmt.Sprintf("nobody has confirmed it before its end: the last answer was sent %.1f s ago", (now() - last).Seconds())
		if err != nil {
			reason += ": " + err.Error()
		}
	}
	l.lose(h, reason)
	if !h.taken { // else another client renews it
		l.giveBack(h, s)
	}
}

// lose ends a hold, and reports it.
func (l *Locks) lose(h *held, reason string) {
	delete(l.held, h.holdID)
	l.leave(h, never)
	if h.over {
		return
	}
	h.over = true
	h.timer.Stop()
	why := fmt.Errorf("%w: %s", ErrNotHeld, reason)
	h.lost(why)
	level := slog.LevelWarn
	if l.closed {
		level = slog.LevelDebug
	}
	go func() { // the program's own functions, and a logger, may block
		l.log.Log(context.Background(), level, "a lock is lost",
			"key", h.key, "owner", h.owner, "token", h.token, "reason", reason)
		if lost := l.settings.Observer.Lost; lost != nil {
			lost(h.key, reason)
		}
		if h.onLost != nil {
			h.onLost(why)
		}
	}()
}

func number(reply any) int64 {
	n, _ := reply.(int64)
	return n
}

func milliseconds(reply any) time.Duration { return time.Duration(number(reply)) * time.Millisecond }

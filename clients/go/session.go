// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	linger = time.Second            // a loop without work stays for so long: the next turn begins without a new one
	quiet  = 100 * time.Millisecond // after an answer without rows that came early
	pause  = 100 * time.Millisecond // after a failure
	batch  = 100                    // errands at once
)

// A session is what one server keeps for this client, by the id that it drew.
type session struct {
	id          int64
	key         string // one that the server serves
	seen        int64  // the last row
	holds       map[place]*held
	waits       map[*take]bool
	sent, until time.Duration // of the last SESSION: when it was sent, and the end of the least lease that it told
	heard       time.Duration // when the last SESSION was sent that was answered, with holds or without
	longest     time.Duration // of the leases in it
	loop        *loop
	err         error // of the last SESSION
}

// A place names a hold.
type place struct {
	key   string
	token int64
}

func (s *session) anyKey() string {
	for t := range s.waits {
		s.key = t.request.keys[0]
		return s.key
	}
	for at := range s.holds {
		s.key = at.key
		break
	}
	return s.key
}

func (s *session) isNeeded() bool {
	for _, h := range s.holds {
		if h.isOld() {
			return true
		}
	}
	return len(s.waits) > 0
}

// sessions are all that this client holds and waits for, and all that follows from the rows of the servers.
type sessions struct {
	settings Settings
	log      *slog.Logger
	library  *library
	name     string
	ctx      context.Context // ends at the close
	end      context.CancelFunc

	mu      sync.Mutex
	numbers int64
	byID    map[int64]*session
	asked   map[string]*take // by owner
	held    map[place]*held
	errands map[string][]*errand // by server
	clock   clock
	closed  bool
}

func newSessions(l *library, settings Settings) *sessions {
	host, _ := os.Hostname()
	host = strings.ReplaceAll(host, "/", "-")
	s := &sessions{
		settings: settings, log: settings.Logger, library: l,
		name: fmt.Sprintf("%s/%d/%s", host[:min(len(host), 64)], os.Getpid(), rand.Text()),
		byID: map[int64]*session{}, asked: map[string]*take{}, held: map[place]*held{}, errands: map[string][]*errand{},
		clock: clock{alarm: never},
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.clock.timer = time.AfterFunc(never, s.ring)
	return s
}

func (s *sessions) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	return nil
}

// close ends everything: what is held is reported lost, and lives on until its lease.
func (s *sessions) close() {
	s.mu.Lock()
	count, before := len(s.held), s.closed
	s.closed = true
	s.clock.timer.Stop()
	for _, h := range s.held {
		s.lose(h, "closed")
	}
	for _, t := range s.asked {
		t.fail(ErrClosed)
	}
	s.mu.Unlock()
	if before {
		return
	}
	if count > 0 {
		s.log.Warn("closed with locks held: they are lost", "count", count)
	}
	s.end()
	s.library.close()
}

// owner returns one that was never used. What stands before # is the actor, for the search for deadlocks.
func (s *sessions) owner(actor string) string {
	s.numbers++
	number := strconv.FormatInt(s.numbers, 10)
	if actor == "" {
		return s.name + "/" + number
	}
	return s.name + "/" + actor + "#" + number
}

func (s *sessions) session(id int64, key string) *session {
	one := s.byID[id]
	if one == nil {
		one = &session{id: id, key: key, holds: map[place]*held{}, waits: map[*take]bool{}, sent: -never, until: -never}
		s.byID[id] = one
	}
	return one
}

// tidy forgets a session with nothing in it: the server does so as well, and draws another id for the next one.
func (s *sessions) tidy(one *session) {
	if one.loop == nil && len(one.holds) == 0 && len(one.waits) == 0 {
		delete(s.byID, one.id)
	}
}

// believed returns the end of a lease that the server counts from the arrival of a command, in milliseconds.
func (s *sessions) believed(sent, left time.Duration) time.Duration {
	return after(sent, left) - 2*time.Millisecond - s.settings.ClockMargin
}

// join notes that the hold is in that session now.
func (s *sessions) join(h *held, to *session) {
	if h.session != to {
		s.leave(h, never)
		h.told, h.session = now(), to
		to.holds[h.place()] = h
		to.longest = max(to.longest, h.lease)
	}
	if h.isOld() {
		s.keep(to)
	}
	due := h.until()
	if to.loop == nil {
		due = min(due, h.since+h.lease/3)
	}
	s.clock.set(due)
}

// leave takes the hold out of its session: from now on only its own end counts, and no longer than the cut.
func (s *sessions) leave(h *held, cut time.Duration) {
	if from := h.session; from != nil {
		h.end = min(h.until(), cut)
		delete(from.holds, h.place())
		h.session = nil
		s.tidy(from)
	}
}

// keep has a loop keep the session from now on.
func (s *sessions) keep(one *session) {
	if one.loop == nil && !s.closed {
		s.byID[one.id] = one
		one.loop = &loop{s: s, session: one, isFirst: true, needed: now()}
		go func() { _ = s.run(s.ctx, s.library.keeper, one.loop) }()
	}
}

// lose ends a hold, and reports it.
func (s *sessions) lose(h *held, reason string) {
	delete(s.held, h.place())
	s.leave(h, never)
	if h.over {
		return
	}
	h.over, h.reason = true, reason
	why := fmt.Errorf("%w: %s", ErrNotHeld, reason)
	level := slog.LevelWarn
	if s.closed {
		level = slog.LevelDebug
	}
	h.lost(why)
	go func() { // the program's own functions, and a logger, may block
		s.log.Log(context.Background(), level, "a lock is lost",
			"key", h.key, "owner", h.owner, "token", h.token, "reason", reason)
		if told := s.settings.Observer.Lost; told != nil {
			told(h.key, reason)
		}
		if h.onLost != nil {
			h.onLost(why)
		}
	}()
}

func (s *sessions) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.clock.rung(s.settings.ReplyTimeout) {
		return
	}
	alarm := never
	for _, h := range s.held {
		end := h.until()
		switch {
		case h.over:
			continue
		case s.clock.isOver(end):
			s.expire(h)
			continue
		}
		alarm = min(alarm, max(end, now()+pause/2))
		if h.session != nil && h.session.loop == nil {
			if h.isOld() {
				s.keep(h.session)
			} else {
				alarm = min(alarm, h.since+h.lease/3)
			}
		}
	}
	s.clock.set(alarm)
}

// expire reports a hold whose believed end has passed. The server may have it still, so it is given back.
func (s *sessions) expire(h *held) {
	last := h.since
	if h.session != nil {
		last = max(last, h.session.heard)
	}
	reason := fmt.Sprintf("nobody has confirmed it before its end: the last answer was sent %.1f s ago", (now() - last).Seconds())
	why := h.why
	if why == nil && h.session != nil {
		why = h.session.err
	}
	switch {
	case h.bound <= now():
		reason = "max_hold is over"
	case why != nil:
		reason += ": " + why.Error()
	}
	s.lose(h, reason)
	if !h.isTaken { // else it is somebody else's now
		s.giveBack(h)
	}
}

// An errand is a command that is repeated until the server has answered it, or until it means nothing any longer.
type errand struct {
	key    string
	words  []any
	then   func(sent time.Duration, reply any, err error) // under the mutex
	until  time.Duration
	needed func() bool // or nil
	tries  int
	done   bool
	err    error
}

func (s *sessions) answered(e *errand, sent time.Duration, reply any, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.tries++
	e.err = err
	if e.done = isAnswer(err); e.done && e.then != nil {
		e.then(sent, reply, err)
	}
}

// send has an errand said in the background. One server that hangs holds up no errand to another.
func (s *sessions) send(e *errand) {
	switch {
	case s.closed:
	case !s.library.isCluster():
		s.queue("", e)
	default:
		go func() {
			place := s.library.keeper.place(s.ctx, e.key)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.queue(place, e)
		}()
	}
}

func (s *sessions) queue(place string, e *errand) {
	waiting, is := s.errands[place]
	s.errands[place] = append(waiting, e)
	if !is {
		go s.say(place)
	}
}

// say says errands until all are answered.
func (s *sessions) say(place string) {
	for {
		errands := s.batch(place)
		if len(errands) == 0 {
			return
		}
		var commands [][]any
		for _, e := range errands {
			commands = append(commands, e.words)
		}
		sent, again := now(), false
		for i, said := range s.library.keeper.pipeline(s.ctx, commands) {
			s.answered(errands[i], sent, said.reply, said.err)
			again = again || !errands[i].done
		}
		if again {
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
			}
		}
	}
}

func (s *sessions) batch(place string) []*errand {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []*errand
	for _, e := range s.errands[place] {
		switch {
		case e.done || e.needed != nil && !e.needed():
		case e.until > now():
			left = append(left, e)
		case e.then != nil: // nothing of it can be left there
			e.then(0, nil, ErrNotHeld)
		}
	}
	if len(left) == 0 || s.closed {
		delete(s.errands, place)
		return nil
	}
	n := min(len(left), batch)
	s.errands[place] = slices.Concat(left[n:], left[:n]) // what fails goes to the end, and delays nothing
	return left[:n]
}

// patience is when nothing of a client can be left at a server that does not hear of it.
func (s *sessions) patience(lease time.Duration) time.Duration {
	return now() + s.settings.HangTimeout + 2*max(lease, s.settings.Lease)
}

// giveBack releases what nobody has.
func (s *sessions) giveBack(h *held) {
	s.send(&errand{key: h.key, words: h.words("RELEASE"), until: s.patience(h.lease)})
}

// left is the errand that has the server renew a hold no more: it ends by its lease.
func (s *sessions) left(h *held, lease time.Duration) *errand {
	return &errand{
		key: h.key, words: h.words("RENEW", millis(lease)), until: s.patience(h.lease),
		then: func(time.Duration, any, error) { delete(s.held, h.place()) },
	}
}

// renew brings the hold into the session of whoever serves it now, and learns how long it lasts.
func (s *sessions) renew(h *held) {
	if h.isRenewed || h.over {
		return
	}
	h.isRenewed = true
	words := append(h.words("RENEW", millis(h.lease)), "IN", s.name)
	s.send(&errand{
		key: h.key, words: words, until: never, needed: func() bool { return !h.over },
		then: func(sent time.Duration, reply any, err error) {
			h.isRenewed = false
			answer, ok := reply.([]any)
			switch {
			case errors.Is(err, ErrNotHeld):
				s.lose(h, err.Error())
			case err != nil:
				h.why = err
			case ok && len(answer) == 2 && !h.over:
				h.end = max(h.end, s.believed(sent, milliseconds(answer[0])))
				h.why = nil
				s.join(h, s.session(number(answer[1]), h.key))
			}
		},
	})
}

// told reads an answer to SESSION, and returns the session that it is of.
func (s *sessions) told(sent time.Duration, reply any, key string) (one *session, rows int) {
	answer, _ := reply.([]any)
	if len(answer) != 4 {
		return nil, 0
	}
	one = s.session(number(answer[0]), key)
	one.heard = max(one.heard, sent)
	news, _ := answer[3].([]any)
	for _, each := range news {
		if row, _ := each.([]any); len(row) == 6 && number(row[0]) > one.seen {
			one.seen = number(row[0])
			word, _ := row[1].(string)
			key, _ := row[2].(string)
			owner, _ := row[3].(string)
			s.row(one, word, key, owner, number(row[4]), s.believed(sent, milliseconds(row[5])))
		}
	}
	if answer[2] != nil && sent > one.sent {
		until := s.believed(sent, milliseconds(answer[2]))
		if until < one.until { // what was believed of those that were known before stays true
			for _, h := range one.holds {
				h.end = max(h.end, h.until())
			}
		}
		one.sent, one.until = sent, until
		if until-now() < one.longest/2 { // the least lease says little of the others
			for _, h := range one.holds {
				if h.until()-now() < h.lease/2 {
					s.renew(h)
				}
			}
		}
	}
	return one, len(news)
}

func (s *sessions) row(one *session, word, key, owner string, token int64, end time.Duration) {
	h, t := s.held[place{key, token}], s.asked[owner]
	switch word {
	case "granted":
		switch {
		case h != nil && h.over:
		case h != nil:
			h.end = max(h.end, end)
			s.join(h, one)
		case t != nil && slices.Contains(t.request.keys, key):
			t.granted(key, token, one, end)
		default: // a place that was left, or a command that came late
			s.giveBack(&held{key: key, owner: owner, token: token})
		}
	case "timeout", "cancelled", "replaced", "wrongtype", "again":
		if t != nil {
			t.ended(word)
		}
	default:
		if h == nil || h.over {
			return
		}
		switch word {
		case "taken":
			h.isTaken, h.why = true, errors.New("it was taken out of the session")
			s.leave(h, end)
			h.end = min(h.end, end)
			s.clock.set(h.end)
		case "moved":
			s.leave(h, never)
			s.renew(h)
		default:
			s.lose(h, word)
		}
	}
}

// gone brings all that was in this session to where the servers say: a key's server has another one.
func (s *sessions) gone(one *session) {
	for _, h := range one.holds {
		s.leave(h, never)
		s.renew(h)
	}
	for t := range one.waits {
		t.ended("gone")
	}
}

// A job is a take or a loop. Its next step is a command, a time to wait unless it is woken before, or neither: the end.
type job interface {
	next() (words []any, wait time.Duration)
	answered(sent time.Duration, reply any, err error)
	woken() <-chan struct{}
	over() bool
}

// run takes the steps of a job, until its end or that of the context.
func (s *sessions) run(ctx context.Context, by *pool, j job) error {
	for {
		words, wait := j.next()
		switch {
		case words != nil:
			sent := now()
			reply, err := by.call(ctx, wait, words...)
			j.answered(sent, reply, err)
		case wait <= 0:
			return nil
		case ctx.Err() == nil:
			timer := time.NewTimer(wait)
			select {
			case <-j.woken():
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
		}
		if err := ctx.Err(); err != nil && !j.over() {
			return err
		}
	}
}

// A loop keeps a session: SESSION again and again, as long as there are waits or holds that have grown old.
type loop struct {
	s                       *sessions
	session                 *session
	isFirst, isLast, isOver bool
	needed, notBefore       time.Duration
	block, slack            time.Duration // of the call: its BLOCK, and a sixth of the shortest lease
	warned                  bool
}

func (l *loop) woken() <-chan struct{} { return nil }
func (l *loop) over() bool             { return false }

func (l *loop) next() ([]any, time.Duration) {
	s, one := l.s, l.session
	s.mu.Lock()
	defer s.mu.Unlock()
	isNeeded := one.isNeeded()
	switch {
	case s.closed, l.isOver && !isNeeded:
		one.loop = nil
		for _, h := range one.holds {
			s.clock.set(h.since + h.lease/3)
		}
		s.tidy(one)
		return nil, 0
	case l.isOver: // something has come in the last moment
		l.isOver, l.isFirst = false, true
	}
	if wait := l.notBefore - now(); wait > 0 {
		return nil, wait
	}
	if isNeeded {
		l.needed = now()
	}
	lease := s.settings.Lease
	for _, h := range one.holds {
		lease = min(lease, h.lease)
	}
	l.block, l.slack = 0, lease/6
	within := min(max(lease/2, 500*time.Millisecond), s.settings.ReplyTimeout) // one lost answer costs no hold
	words := make([]any, 0, 9)
	words = append(words, "DLOCK.SESSION", one.anyKey(), s.name)
	if l.needed+linger < now() { // what an answer that was lost has granted is renewed for nobody
		l.isLast = true
		return append(words, 1, "SEEN", one.id, one.seen), within
	}
	words = append(words, millis(s.settings.HangTimeout), "SEEN", one.id, one.seen)
	if !l.isFirst {
		l.block = min(time.Second, l.slack, s.settings.ReplyTimeout/2)
		words = append(words, "BLOCK", millis(l.block))
	}
	return words, within
}

func (l *loop) answered(sent time.Duration, reply any, err error) {
	s, one := l.s, l.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		l.failed(err)
		return
	}
	one.err, l.warned = nil, false
	answer, rows := s.told(sent, reply, one.key)
	switch {
	case answer == nil:
		l.failed(fmt.Errorf("no answer to DLOCK.SESSION: %v", reply))
		return
	case answer != one:
		s.gone(one)
		s.tidy(answer)
		l.isOver = true
	case l.isLast:
		l.isOver = true
	case rows == 0 && !l.isFirst && now()-sent < l.block-10*time.Millisecond:
		l.notBefore = sent + quiet
	}
	l.isFirst, l.isLast = now()-sent > l.block+l.slack, false // a late answer: the next one is not to wait
}

func (l *loop) failed(err error) {
	s, one := l.s, l.session
	l.isOver, l.isFirst, l.isLast = l.isLast, true, false
	one.err, l.notBefore = err, now()+pause
	if !l.warned && !s.closed {
		go s.log.Warn("what is held and waited for is not kept", "error", err)
		l.warned = true
	}
	if !passes(err) {
		for t := range one.waits {
			t.fail(err)
		}
	}
}

func number(reply any) int64 {
	n, _ := reply.(int64)
	return n
}

func milliseconds(reply any) time.Duration { return time.Duration(number(reply)) * time.Millisecond }

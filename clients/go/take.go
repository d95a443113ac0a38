// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"time"
)

const (
	forever   = time.Duration(-1)      // no time-out
	grace     = 500 * time.Millisecond // so much longer whoever is out of time waits for the word about it
	warnEvery = 10 * time.Second
)

// A request is a lock, or several of one slot, as the program asks for it.
type request struct {
	keys     []string
	lease    time.Duration
	maxHold  time.Duration
	actor    string
	limit    int // how many permits may be held together; shared is unlimited, 0 one
	permits  int // how many of them its hold takes; 0 one
	onLost   func(error)
	err      error
	warnings []string
}

const shared = math.MaxInt

// An Option says how a lock is to be held.
type Option func(*request)

// Shared shares the lock with all others who ask for it shared.
func Shared() Option {
	return func(r *request) { r.restrict("shared", shared) }
}

// Limit lets up to n hold the lock at once: a semaphore.
func Limit(n int) Option {
	return func(r *request) { r.restrict("limit", n) }
}

// Permits takes n of the limit, all at once, and gives them back together. It goes with Limit. Without it a hold takes one.
func Permits(n int) Option {
	return func(r *request) {
		r.permits = n
		if n < 1 {
			r.err = badArgument("permits", fmt.Sprintf("must be at least 1, not %d", n))
		}
	}
}

// Lease is how long this lock lasts after the program dies or loses the server, instead of that of the [Settings].
func Lease(d time.Duration) Option {
	return func(r *request) { r.set("lease", &r.lease, d) }
}

// MaxHold is how long the lock may be held: then it is reported lost, and given back.
func MaxHold(d time.Duration) Option {
	return func(r *request) { r.set("max_hold", &r.maxHold, d) }
}

// Actor names who takes several locks, as a goroutine with nested locks does. The server sees that two actors wait for each
// other, and that one waits for what it holds itself (ErrDeadlock). The name is this Locks' own.
func Actor(name string) Option {
	return func(r *request) {
		r.actor = name
		if name == "" {
			r.err = badArgument("actor", "must not be empty")
		}
	}
}

// Owner is the former name of Actor. Locks are not re-entered.
//
// Deprecated: call Actor.
func Owner(name string) Option {
	return func(r *request) {
		Actor(name)(r)
		r.warnings = append(r.warnings, "Owner is called Actor now, and locks are not re-entered")
	}
}

// OnLost calls work in a goroutine of its own when the lock is lost.
func OnLost(work func(why error)) Option { return func(r *request) { r.onLost = work } }

func (r *request) restrict(name string, limit int) {
	switch {
	case limit < 1:
		r.err = badArgument(name, "must be at least 1")
	case r.limit != 0:
		r.err = badArgument(name, "is not for a lock that is shared or counted already")
	default:
		r.limit = limit
	}
}

func (r *request) set(name string, to *time.Duration, d time.Duration) {
	*to = d
	if d < time.Millisecond {
		r.err = badArgument(name, "must be at least a millisecond")
	}
}

func newRequest(s *sessions, keys []string, options []Option) (*request, error) {
	r := &request{keys: keys, lease: s.settings.Lease, maxHold: never}
	if slices.Contains(keys, "") {
		return nil, badArgument("key", "must not be empty")
	}
	for _, option := range options {
		option(r)
	}
	switch limited := r.limit != 0 && r.limit != shared; {
	case r.err != nil || r.permits == 0:
	case !limited:
		r.err = badArgument("permits", "must be given with limit")
	case r.permits > r.limit:
		r.err = badArgument("permits", fmt.Sprintf("must be at most limit, which is %d, not %d", r.limit, r.permits))
	}
	for _, warning := range r.warnings {
		s.log.Warn(warning)
	}
	return r, r.err
}

// words are the command: a try, or a request that waits for so long.
func (r *request) words(session, owner string, try bool, left time.Duration) []any {
	words := make([]any, 0, 13+len(r.keys))
	switch {
	case len(r.keys) > 1:
		words = append(words, "DLOCK.MACQUIRE", len(r.keys))
	case try:
		words = append(words, "DLOCK.ACQUIRE")
	default:
		words = append(words, "DLOCK.FAIRACQUIRE")
	}
	for _, key := range r.keys {
		words = append(words, key)
	}
	words = append(words, owner, millis(r.lease), "IN", session)
	switch {
	case try:
	case left > longest:
		words = append(words, "BLOCK", "0")
	default:
		words = append(words, "BLOCK", millis(left))
	}
	switch {
	case r.limit == shared:
		words = append(words, "SHARED")
	case r.limit > 0:
		words = append(words, "LIMIT", strconv.Itoa(r.limit))
		if r.permits > 1 { // older servers do not know the word
			words = append(words, "PERMITS", strconv.Itoa(r.permits))
		}
	}
	return words
}

// A take is one request, from its beginning to its end. Its owner is its own.
type take struct {
	s                *sessions
	request          *request
	wait             time.Duration // 0: a try
	owner            string
	began, deadline  time.Duration
	wake             chan struct{}
	found            []*held // what was granted, by key
	holds            []*held // the same, once it is all of them
	err              error   // why not, or what went wrong last
	done             bool
	taken            bool // others have it
	isLate, isLeft   bool // its time is up; the program has left it
	byContext        bool // its time is that of the context
	waiting          bool // the outcome is a row
	waited, told     bool // it has waited; the observer knows
	asked            int
	notBefore, warns time.Duration
	word             string // of a row that came before the answer
	session          *session
	waitsSince       time.Duration
}

func newTake(ctx context.Context, s *sessions, r *request, wait time.Duration) *take {
	t := &take{s: s, request: r, wait: wait, began: now(), deadline: never, warns: -never, wake: make(chan struct{}, 1)}
	t.found = make([]*held, len(r.keys))
	switch {
	case wait == 0:
		t.deadline = t.began + s.settings.ReplyTimeout
	case wait > 0:
		t.deadline = after(t.began, wait)
	}
	if at, ok := ctx.Deadline(); ok && after(t.began, time.Until(at)) < t.deadline {
		t.deadline, t.byContext = after(t.began, time.Until(at)), true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.owner = s.owner(r.actor)
	return t
}

func (t *take) woken() <-chan struct{} { return t.wake }

func (t *take) over() bool {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.done
}

func (t *take) rouse() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *take) next() ([]any, time.Duration) {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	left, late := t.deadline-now(), time.Duration(0)
	if t.waiting {
		late = grace
	}
	switch {
	case t.done:
		return nil, 0
	case s.closed:
		t.fail(ErrClosed)
		return nil, 0
	case t.asked > 0 && left+late <= 0:
		t.outOfTime()
		return nil, 0
	case t.waiting:
		return nil, min(left+late, slice)
	case t.notBefore > now():
		return nil, min(t.notBefore-now(), left)
	}
	t.asked++
	t.word = ""
	s.asked[t.owner] = t // a row may be read before the answer
	return t.request.words(s.name, t.owner, t.wait == 0, left), left + grace
}

// answered reads [token, id], [[token, …], id], [0, place, id], null or an error.
func (t *take) answered(sent time.Duration, reply any, err error) {
	s := t.s
	s.mu.Lock()
	if !t.done { // else its rows were faster
		t.answer(sent, reply, err)
	}
	begins := t.waited && !t.told
	s.mu.Unlock()
	if waiting := s.settings.Observer.Waiting; begins {
		t.told = true
		if waiting != nil {
			waiting(t.request.keys[0])
		}
	}
}

func (t *take) answer(sent time.Duration, reply any, err error) {
	s, r := t.s, t.request
	grant, _ := reply.([]any)
	switch {
	case err != nil:
		t.failed(err)
		return
	case len(grant) < 2:
		t.taken = true
		t.finish()
		return
	}
	one, end := s.session(number(grant[len(grant)-1]), r.keys[0]), s.believed(sent, r.lease)
	tokens, several := grant[0].([]any)
	if !several {
		tokens = grant[:1]
	}
	if number(tokens[0]) == 0 || t.asked > 1 { // asked again, only the row says how long it lasts
		t.waitIn(one)
		return
	}
	for i, token := range tokens {
		t.granted(r.keys[i], number(token), one, end)
	}
}

// granted notes that one of its locks was granted. With the last one it holds them all.
func (t *take) granted(key string, token int64, one *session, end time.Duration) {
	s, r := t.s, t.request
	h := &held{key: key, owner: t.owner, token: token, lease: r.lease, end: end, since: now(), onLost: r.onLost}
	h.bound = after(h.since, r.maxHold)
	h.ended, h.lost = context.WithCancelCause(context.Background())
	t.found[slices.Index(r.keys, key)] = h
	if slices.Contains(t.found, nil) {
		return
	}
	t.holds = t.found
	for _, h := range t.holds {
		s.held[h.place()] = h
		s.join(h, one)
	}
	t.finish() // it may forget a session with nothing in it
}

// ended: a row tells of an outcome that is no grant, or the session is gone. While there is time it asks again.
func (t *take) ended(word string) {
	t.word = word
	if !t.waiting { // its answer is yet to come
		return
	}
	t.stopWaiting()
	t.giveBackFound()
	switch {
	case word == "replaced":
		t.fail(ServerError("REPLACED a newer request of the same owner has taken the place"))
		return
	case word == "wrongtype":
		t.fail(ServerError("WRONGTYPE the key holds something that is not a lock"))
		return
	case word == "timeout" && t.deadline-now() < 20*time.Millisecond:
		t.taken = true
		t.finish()
		return
	case word == "again":
		t.err = ServerError("NOACK the server did not confirm the grant, or serves the lock no more")
	}
	if t.wait == 0 {
		if t.err == nil {
			t.err = unreachable(fmt.Errorf("the request has ended: %s", word))
		}
		t.fail(t.err)
		return
	}
	if t.notBefore = now(); t.asked > 1 {
		t.notBefore += mathrand.N(50 * time.Millisecond)
	}
	t.rouse()
}

// fail ends it with this error. What may be left of it is taken back.
func (t *take) fail(err error) {
	queued := t.asked > 1 || t.session != nil || mayHaveRun(err)
	t.err, t.taken = err, false
	t.finish()
	if queued && !errors.Is(err, ErrReplaced) {
		t.cancel()
	}
	t.giveBackFound()
}

// leave ends it wherever it stands: the program does not want it any longer.
func (t *take) leave() {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	isTaken := t.isQueued()
	t.finish()
	if t.holds == nil {
		if t.asked > 0 && !t.taken {
			t.cancel()
		}
		t.giveBackFound()
		t.isLeft, t.taken = true, t.taken || isTaken
	}
}

// result returns why there is no hold, or nil.
func (t *take) result(ctx context.Context) error {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	key, why, ended := t.request.keys[0], t.err, errorOf(ctx)
	switch {
	case t.taken:
		why = ErrTaken
	case why == nil:
		why = unreachable(errNoAnswer)
	}
	if ended == nil && t.byContext && t.wait != 0 {
		ended = context.DeadlineExceeded
	}
	switch isOver := t.isLeft || t.isLate || t.taken; {
	case t.holds != nil:
		return nil
	case t.isLeft && errors.Is(ended, context.Canceled):
		return fmt.Errorf("dlock: waiting for %q: %w", key, ended)
	case isOver && ended != nil:
		return fmt.Errorf("%w: %q: %w: %w", ErrTimeout, key, ended, why)
	case t.taken && t.wait == 0:
		return fmt.Errorf("%w: %q", ErrTaken, key)
	case isOver && t.wait != 0:
		return fmt.Errorf("%w: %q within %v: %w", ErrTimeout, key, t.wait, why)
	}
	return why
}

func (t *take) waitIn(one *session) {
	t.session, t.waiting, t.waitsSince, t.err = one, true, now(), nil
	one.waits[t] = true
	if t.word != "" { // the outcome came first
		t.ended(t.word)
		return
	}
	t.waited = true
	t.s.keep(one)
}

func (t *take) stopWaiting() {
	t.waiting = false
	if t.session != nil {
		delete(t.session.waits, t)
		t.s.tidy(t.session)
	}
}

func (t *take) finish() {
	if t.done {
		return
	}
	t.done = true
	t.stopWaiting()
	delete(t.s.asked, t.owner)
	t.rouse()
}

func (t *take) failed(err error) {
	if t.wait == 0 || !passes(err) {
		t.fail(err)
		return
	}
	if now()-t.warns >= warnEvery {
		t.warns = now()
		go t.s.log.Warn("still waiting for lock", "key", t.request.keys[0], "error", err)
	}
	t.err, t.notBefore = err, now()+20*time.Millisecond+mathrand.N(80*time.Millisecond)
}

func (t *take) outOfTime() {
	t.isLate = true
	if t.err == nil && t.session != nil {
		t.err = t.session.err
	}
	// The server has kept the place meanwhile: others have the lock, though the word about the end is late.
	t.taken = t.wait != 0 && t.isQueued()
	t.finish()
	t.cancel()
	t.giveBackFound()
}

// isQueued reports whether the server has kept the place: it has answered a SESSION that was sent since, and none has failed.
func (t *take) isQueued() bool {
	return t.waiting && t.session.err == nil && t.session.heard > t.waitsSince
}

// giveBackFound gives back half of several locks, which is none. The next request has another owner.
func (t *take) giveBackFound() {
	if t.holds != nil {
		return
	}
	before := t.owner
	for i, h := range t.found {
		if h != nil {
			t.s.giveBack(h)
			t.found[i], t.owner = nil, ""
		}
	}
	if t.owner == "" {
		delete(t.s.asked, before)
		t.owner = t.s.owner(t.request.actor)
	}
}

// cancel leaves the queue. If the grant came first, its row belongs to no take any longer, and the client releases it by its token.
func (t *take) cancel() {
	s, key, one := t.s, t.request.keys[0], t.session
	s.send(&errand{
		key: key, words: []any{"DLOCK.CANCEL", key, t.owner}, until: s.patience(t.request.lease),
		then: func(_ time.Duration, reply any, err error) {
			if err != nil || number(reply) != 0 || one != nil && one.loop != nil {
				return
			}
			s.send(&errand{ // it may be held, and nobody hears of it
				key: key, words: []any{"DLOCK.SESSION", key, s.name, 1}, until: s.patience(t.request.lease),
				then: func(sent time.Duration, reply any, err error) {
					if told, _ := s.told(sent, reply, key); told != nil {
						s.tidy(told)
					}
				},
			})
		},
	})
}

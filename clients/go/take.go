// SPDX-License-Identifier: MIT

package dlock

import (
	"cmp"
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
	grace     = 500 * time.Millisecond // how long a request waits after its deadline for the server's answer
	warnEvery = 10 * time.Second
)

// A request is a lock, or several of one slot, as the program asks for it.
type request struct {
	keys    []string
	lease   time.Duration
	maxHold time.Duration
	actor   string
	limit   int // how many permits may be held together; shared is unlimited, 0 one
	permits int // how many of them its hold takes; 0 one
	onLost  func(error)
	err     error
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

// Permits takes n of the limit, all at once, and releases them together. It goes with Limit. Without it a hold takes one.
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

// MaxHold is how long the lock may be held: then it is reported lost, and released.
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
	return Actor(name)
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

func (l *Locks) newRequest(keys []string, options []Option) (*request, error) {
	r := &request{keys: keys, lease: l.settings.Lease, maxHold: never}
	if slices.Contains(keys, "") {
		return nil, badArgument("key", "must not be empty")
	}
	for _, option := range options {
		option(r)
	}
	if r.err == nil && r.lease <= l.settings.ClockMargin {
		r.err = badArgument("lease", "must be longer than Settings.ClockMargin")
	}
	if r.err != nil || r.permits == 0 {
		return r, r.err
	}
	if r.limit == 0 || r.limit == shared {
		return nil, badArgument("permits", "must be given with limit")
	}
	if r.permits > r.limit {
		return nil, badArgument("permits", fmt.Sprintf("must be at most limit, which is %d, not %d", r.limit, r.permits))
	}
	return r, nil
}

// words returns the command: a try, or a request that waits for so long.
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

// A take is one request of the program, until it is granted or given up.
type take struct {
	request *request
	owner   string        // of this take only. A take that has returned half of several locks draws another one
	asked   int           // how often
	session *session      // where it waits
	since   time.Duration // when its place was confirmed
	found   []*held       // what was granted, by key
	outcome chan error    // of the latest request: nil is the grant
	before  error         // of the request before that, unless it was queued
	waited  bool
}

var (
	errTimeUp = unreachable(errors.New("the server has ended the wait"))
	errLeft   = errors.New("the client has ended the wait")
)

func (t *take) isGranted() bool { return len(t.found) > 0 && !slices.Contains(t.found, nil) }

func (t *take) waits() bool { return t.session != nil && t.session.waits[t] }

// acquire asks until the locks are granted, the context ends, or an error comes that is not transient. A try asks once.
func (l *Locks) acquire(ctx context.Context, r *request, try bool) ([]*held, error) {
	t, warned := &take{request: r}, -never
	for {
		err := l.ask(ctx, t, try)
		if errors.Is(err, errTimeUp) && timeLeft(ctx) < 20*time.Millisecond { // the server's clock is a little ahead
			<-ctx.Done()
		}
		if err == nil || try || ctx.Err() != nil || !isTransient(err) {
			if waited := l.settings.Observer.Waited; waited != nil && t.waited {
				waited(r.keys[0])
			}
			return l.finish(ctx, t, try, err)
		}
		if now()-warned >= warnEvery && !errors.Is(err, errTimeUp) {
			warned = now()
			l.log.Warn("still waiting for lock", "key", r.keys[0], "error", err)
		}
		t.before = err
		sleep(ctx, 20*time.Millisecond+mathrand.N(80*time.Millisecond))
	}
}

// ask sends the request, and waits for its outcome.
func (l *Locks) ask(ctx context.Context, t *take, try bool) error {
	l.mu.Lock()
	if t.isGranted() { // by a row that came after an error
		l.mu.Unlock()
		return nil
	}
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	if t.owner == "" {
		t.owner, t.found = l.owner(t.request.actor), make([]*held, len(t.request.keys))
	}
	t.asked++
	t.outcome = make(chan error, 1) // a row about an earlier request says nothing about this one
	l.takes[t.owner] = t            // before the request is sent: a row may arrive before the reply
	words := t.request.words(l.name, t.owner, try, timeLeft(ctx))
	l.mu.Unlock()

	sent := now()
	reply, err := l.commands.call(ctx, l.settings.ReplyTimeout, words...)
	begins := !t.waited
	err = l.answered(t, sent, reply, err)
	if waiting := l.settings.Observer.Waiting; waiting != nil && begins && t.waited {
		waiting(t.request.keys[0])
	}
	if err != nil {
		return err
	}
	var patience <-chan time.Time
	if try { // with dlock.replicas it waits as well
		patience = time.After(sent + l.settings.ReplyTimeout - now())
	}
	select {
	case err = <-t.outcome:
		return err
	case <-patience:
		return errLeft
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) { // the server says whether others have the lock
		select {
		case err = <-t.outcome:
			return err
		case <-time.After(grace):
		}
	}
	return errLeft
}

// answered reads [token, id], [[token, …], id], [0, place, id] or null. It returns an error if there is nothing to wait for.
func (l *Locks) answered(t *take, sent time.Duration, reply any, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	answer, _ := reply.([]any)
	switch {
	case len(t.outcome) > 0: // a row was faster
		return nil
	case err != nil:
		return err
	case len(answer) < 2:
		return ErrTaken
	}
	s := l.session(number(answer[len(answer)-1]), t.request.keys[0])
	tokens, several := answer[0].([]any)
	if !several {
		tokens = answer[:1]
	}
	if number(tokens[0]) != 0 && t.asked == 1 {
		for i, token := range tokens {
			l.granted(t, t.request.keys[i], number(token), s, l.believed(sent, t.request.lease))
		}
		return nil
	}
	t.session, t.since = s, now() // a repeated request also waits: only the row says how long the hold lasts
	s.waits[t] = true
	t.waited = true
	t.before = nil
	l.keepAlive(s)
	return nil
}

// granted notes that one of the locks was granted. With the last one the take holds them all.
func (l *Locks) granted(t *take, key string, token int64, s *session, end time.Duration) {
	r := t.request
	h := &held{holdID: holdID{key, token}, owner: t.owner, lease: r.lease, end: end, since: now(), onLost: r.onLost}
	h.maxHoldEnd = after(h.since, r.maxHold)
	h.ended, h.lost = context.WithCancelCause(context.Background())
	t.found[slices.Index(r.keys, key)] = h
	if !t.isGranted() {
		return
	}
	for _, h := range t.found {
		h.timer = time.AfterFunc(never, func() { l.due(h) })
		l.held[h.holdID] = h
		l.join(h, s)
	}
	l.end(t, nil)
}

// end delivers the outcome of the latest request. Only the first one counts. What was granted of several locks is returned.
func (l *Locks) end(t *take, err error) {
	if t.waits() {
		delete(t.session.waits, t)
		l.tidy(t.session)
	}
	if err != nil && slices.ContainsFunc(t.found, func(h *held) bool { return h != nil }) {
		delete(l.takes, t.owner)
		for _, h := range t.found {
			if h != nil {
				l.giveBack(h, t.session)
			}
		}
		t.owner, t.found = "", nil
	}
	select {
	case t.outcome <- err:
	default:
	}
}

// rejected handles a row other than a grant, or the loss of the session.
func (l *Locks) rejected(t *take, event string) {
	switch event {
	case "replaced":
		l.end(t, ServerError("REPLACED a newer request of the same owner has taken the place"))
	case "wrongtype":
		l.end(t, ServerError("WRONGTYPE the key holds something that is not a lock"))
	case "again":
		l.end(t, ServerError("NOACK the server did not confirm the grant, or serves the lock no more"))
	case "timeout":
		l.end(t, errTimeUp)
	default:
		l.end(t, unreachable(fmt.Errorf("the request has ended: %s", event)))
	}
}

// finish forgets the take, cancels what the server may still have of it, and returns the error for the program.
func (l *Locks) finish(ctx context.Context, t *take, try bool, err error) ([]*held, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.takes, t.owner)
	if t.isGranted() { // perhaps at the last moment
		return t.found, nil
	}
	if err == errLeft && len(t.outcome) > 0 { // a row has ended the wait at the same time
		err = <-t.outcome
	}
	switch {
	case ctx.Err() == nil:
	case errors.Is(err, errTimeUp):
		err = ErrTaken
	case errors.Is(err, ErrUnreachable): // the end of the context has cut the call short
		err = cmp.Or(t.before, err)
	}
	switch {
	case t.waits():
		err = l.whyWaiting(t, try)
		l.cancel(t)
	case errors.Is(err, ErrTaken), errors.Is(err, ErrReplaced): // nothing of it is there
	case t.asked > 1 || t.session != nil || mayHaveRun(err) || t.asked > 0 && errors.Is(err, ErrClosed):
		l.cancel(t)
	}
	l.end(t, err)
	key, ended := t.request.keys[0], errorOf(ctx)
	switch {
	case errors.Is(ended, context.Canceled):
		return nil, fmt.Errorf("dlock: waiting for %q: %w", key, ended)
	case ended != nil && (isTransient(err) || errors.Is(err, ErrTaken)):
		return nil, fmt.Errorf("%w: %q: %w: %w", ErrTimeout, key, ended, err)
	case errors.Is(err, ErrTaken):
		return nil, fmt.Errorf("%w: %q", err, key)
	}
	return nil, err
}

// whyWaiting returns why a take still waits. If the server has kept its place, others have the lock.
func (l *Locks) whyWaiting(t *take, try bool) error {
	s := t.session
	if s.err != nil {
		return s.err
	}
	if !try && s.heard > t.since {
		return ErrTaken
	}
	return unreachable(errNoAnswer)
}

// cancel leaves the queue. If the grant came first, its row no longer belongs to a take, and the client releases the hold.
func (l *Locks) cancel(t *take) {
	key, s := t.request.keys[0], t.session
	l.enqueue(s.number(), &delivery{
		key: key, words: []any{"DLOCK.CANCEL", key, t.owner}, patience: l.patience(t.request.lease),
		then: func(_ time.Duration, reply any, err error) {
			if err != nil || number(reply) != 0 || s != nil && s.kept {
				return
			}
			l.enqueue(s.number(), &delivery{ // it may be held, and no SESSION reads its row
				key: key, words: []any{"DLOCK.SESSION", key, l.name, 1}, patience: l.patience(t.request.lease),
				then: func(sent time.Duration, reply any, _ error) {
					if read, _ := l.read(sent, reply, key); read != nil {
						l.tidy(read)
					}
				},
			})
		},
	})
}

// SPDX-License-Identifier: MIT

package dlock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The core of all locks: acquire and wait (acquire.go), keep (keep.go), release and abandon (release.go), and here what
// these share.
//
//   - A node is a server. Its link is the one connection for all commands of all locks.
//   - A renewal is a hold that the server renews for a link (AUTO). One KEEP a second moves the believed end of all renewals
//     of the link, reports what was lost, and counts them, so that the server keeps none that this client does not know of.
//   - A waiter has a place in a queue. The end of the wait is a message on a channel of this client, which the node's
//     subscriber reads, a second connection.

const (
	never = time.Duration(math.MaxInt64)
	slice = time.Second // timers sleep no longer: the machine may have been suspended
	// The clock is later than this if the process was stopped, or the machine.
	hung = 250 * time.Millisecond
)

type core struct {
	settings Settings
	log      *slog.Logger
	single   *redis.Client
	cluster  *redis.ClusterClient
	channel  string
	process  string // what the names of owners begin with
	suffix   string // and what those of named owners end with
	done     chan struct{}

	mu       sync.Mutex
	nodes    map[string]*node
	renewals map[id]*renewal
	named    map[place]*reentry // by key and name, as the program has it
	aliases  int
	closed   bool
	clock    *time.Timer
	alarm    time.Duration // the earliest end of all renewals

	// Routes, beside those of the library.
	moved     map[uint16]string
	asking    map[string]string // keys that are at their next node before their slot is
	template  *redis.Options
	refreshed time.Duration
}

type (
	id struct {
		key   string
		token int64
	}
	place struct{ key, owner string }
)

// A renewal is a hold that the server renews for a link. All under the core's mutex.
type renewal struct {
	request *acquireRequest
	token   int64
	node    *node // whose keeper renews it
	link    *link // nil: unrenewed
	serial  int
	until   time.Duration
	asked   time.Duration // after a pause of this process: so long an answer is waited for
	refusal error         // what the last RENEW has come to
	states  []*state      // more than one after a re-entry
	ending  chan struct{} // closed when the release has ended; nil before it begins

	answered func() // notes that the release is answered
}

func (t *renewal) id() id { return id{t.request.key, t.token} }

// live reports whether the program holds it.
func (t *renewal) live() bool {
	return slices.ContainsFunc(t.states, func(s *state) bool { return !s.isOver() })
}

func (t *renewal) attach(l *link, until time.Duration) {
	t.until = max(t.end(), until)
	t.asked, t.refusal = 0, nil
	t.node = l.node
	if t.link != l {
		t.detach()
		l.renewals++
		t.link = l
	}
	l.serial++
	t.serial = l.serial
}

func (t *renewal) detach() {
	if t.link != nil {
		t.until = t.end()
		t.link.renewals--
		t.link = nil
	}
}

// end is the believed end.
func (t *renewal) end() time.Duration {
	if t.link != nil && t.serial <= t.link.kept {
		return max(t.until, t.link.believed)
	}
	return t.until
}

func (c *core) check() error {
	select {
	case <-c.done:
		return ErrClosed
	default:
		return nil
	}
}

// held asks who holds the lock.
func (c *core) held(ctx context.Context, key string) (any, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	r := &acquireRequest{key: key}
	return c.call(ctx, r, []string{"DLOCK.HELD", key}, now()+c.settings.ReplyTimeout, nil)
}

// after adds a time-out, which may be as long as the program likes.
func after(at, d time.Duration) time.Duration {
	if d > never/2 {
		return never
	}
	return at + d
}

func (c *core) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.done:
	}
}

// believed returns the end of a lease that the server has begun after it was asked for.
func (c *core) believed(sent, lease time.Duration) time.Duration {
	return sent + lease - 2*time.Millisecond - c.settings.ClockMargin
}

// granted adds the renewal of a hold that the server renews for this link from now on.
func (c *core) granted(r *acquireRequest, l *link, token int64, end time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &renewal{request: r, token: token, states: []*state{r.state}}
	if known := c.renewals[t.id()]; known != nil { // lost here, and not there: the same owner has it again
		c.lose(known, "taken over")
	}
	c.renewals[t.id()] = t
	r.state.renewal = t
	t.attach(l, end)
	c.arm(end)
	l.node.wake()
	if c.closed {
		c.lose(t, "closed")
	}
}

// lose ends a renewal, and reports the loss to whoever holds it. Under the mutex.
func (c *core) lose(t *renewal, reason string) {
	if t == nil || c.renewals[t.id()] != t {
		return
	}
	delete(c.renewals, t.id())
	t.detach()
	for _, s := range t.states {
		s.lose(reason)
	}
	at := place{t.request.key, t.request.name}
	if named := c.named[at]; named != nil && named.renewal == t {
		named.renewal = nil
		c.tidy(at)
	}
}

// arm sets the clock to the earliest end. Under the mutex.
func (c *core) arm(at time.Duration) {
	if at < c.alarm && !c.closed {
		c.alarm = at
		c.clock.Reset(max(0, min(at-now(), slice)))
	}
}

// ring is called by the clock. It reports what has ended, and sets the clock anew. It waits for nothing.
func (c *core) ring() {
	c.mu.Lock()
	at := c.alarm
	c.alarm = never
	var ended map[*renewal]func()
	if at <= now() {
		at, ended = c.expire()
	}
	c.arm(at)
	c.mu.Unlock()
	for t, answered := range ended {
		c.abandon(t.request, t.token, answered)
	}
}

// expire looks at all ends. After a pause of this process nobody could have been told in time, so the server is asked
// first: what it still holds under its token is not lost. With each renewal that has ended it returns what notes that its
// RELEASE is answered. Under the mutex.
func (c *core) expire() (next time.Duration, ended map[*renewal]func()) {
	next, ended = never, map[*renewal]func(){}
	at := now()
	for _, t := range c.renewals {
		end := t.end()
		switch {
		case end > at:
			next = min(next, end)
		case t.asked == 0 && at-end > max(hung, c.settings.ClockMargin) && t.live():
			t.asked = at + min(time.Second, c.settings.ReplyTimeout)
			t.detach()
			t.node.rouse()
			next = min(next, t.asked)
		case t.asked > at:
			next = min(next, t.asked)
		default:
			reason := "nobody has confirmed it before its end"
			if why := cmp.Or(t.refusal, t.node.trouble); why != nil {
				reason += ": " + why.Error()
			}
			c.lose(t, reason)
			ended[t] = c.rename(t.request)
		}
	}
	return next, ended
}

func (c *core) close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	close(c.done)
	c.clock.Stop()
	held := len(c.renewals)
	for _, t := range c.renewals {
		c.lose(t, "closed")
	}
	var links []*link
	for _, n := range c.nodes {
		links = append(links, n.link, n.subscriber)
	}
	c.mu.Unlock()
	if held > 0 {
		c.log.Warn("closed with locks held: they are lost", "locks", held)
	}
	for _, l := range links {
		if l != nil {
			l.die(ErrClosed)
		}
	}
}

// A reentry is one named owner's share of one lock: it is counted here, and costs no command.
type reentry struct {
	turn       chan struct{} // one request at a time
	users      int
	renewal    *renewal
	unanswered int    // how many times a RELEASE was sent and none was answered
	alias      string // what its name ends with at the server
}

// owner returns the share of the owner that the program has named. Under the mutex.
func (c *core) owner(at place) *reentry {
	one := c.named[at]
	if one == nil {
		one = &reentry{turn: make(chan struct{}, 1)}
		one.turn <- struct{}{}
		c.named[at] = one
	}
	return one
}

// rename gives a named owner another name, before a RELEASE is sent for the one it has: until that is answered, which the
// function that is returned notes, it may be read late, and must end nothing that the owner is granted later. Under the mutex,
// and so is that function.
func (c *core) rename(r *acquireRequest) (answered func()) {
	if !r.named {
		return func() {}
	}
	at := place{r.key, r.name}
	one := c.owner(at)
	c.aliases++
	one.alias = "." + strconv.Itoa(c.aliases)
	one.unanswered++
	return sync.OnceFunc(func() {
		one.unanswered--
		c.tidy(at)
	})
}

// turn waits for this owner's turn to ask for the lock.
func (c *core) turn(ctx context.Context, r *acquireRequest) error {
	at := place{r.key, r.name}
	c.mu.Lock()
	one := c.owner(at)
	one.users++
	c.mu.Unlock()
	err := c.await(ctx, r, one.turn)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		one.users--
		c.tidy(at)
	}
	return err
}

// address gives the request of a named owner the name that no RELEASE is on its way for. Its turn has come.
func (c *core) address(r *acquireRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.owner = r.name + c.owner(place{r.key, r.name}).alias
}

// exit ends the owner's turn.
func (c *core) exit(r *acquireRequest) {
	at := place{r.key, r.name}
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.named[at]
	if t := r.state.renewal; t != nil && c.renewals[t.id()] == t {
		one.renewal = t
	}
	one.users--
	one.turn <- struct{}{}
	c.tidy(at)
}

// reenter counts one more hold of what this owner has here. It returns nil if the owner has nothing.
func (c *core) reenter(ctx context.Context, r *acquireRequest) (*renewal, error) {
	c.mu.Lock()
	t := c.named[place{r.key, r.name}].renewal
	if t == nil || t.ending != nil {
		c.mu.Unlock()
		if t == nil {
			return nil, nil
		}
		return nil, c.await(ctx, r, t.ending) // a release that comes later would end the next hold
	}
	defer c.mu.Unlock()
	if r.limit < t.request.limit {
		return nil, fmt.Errorf("%w: %s holds lock %q together with others: release that hold first", ErrDeadlock, r.owner, r.key)
	}
	if r.permits > t.request.permits {
		return nil, badArgument("permits", fmt.Sprintf(
			"must be at most %d, which the owner's hold has, not %d: release it, and ask again", t.request.permits, r.permits))
	}
	t.states = append(t.states, r.state)
	r.state.renewal = t
	return t, nil
}

// await waits for another request of this process, no longer than this one does.
func (c *core) await(ctx context.Context, r *acquireRequest, ready <-chan struct{}) error {
	timer := time.NewTimer(min(r.until, r.deadline) - now())
	defer timer.Stop()
	select {
	case <-ready:
		return nil
	default:
	}
	if !r.once {
		select {
		case <-ready:
			return nil
		case <-timer.C:
		case <-ctx.Done():
			return over(r, ctx.Err(), nil)
		case <-c.done:
			return ErrClosed
		}
	}
	return fmt.Errorf("%w: %q: another request of this owner is under way", ErrTaken, r.key)
}

// tidy is called under the mutex.
func (c *core) tidy(at place) {
	if one := c.named[at]; one != nil && one.users == 0 && one.renewal == nil && one.unanswered == 0 {
		delete(c.named, at)
	}
}

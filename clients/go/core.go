// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// What all locks do: take, wait, keep, lose, leave.
//
//   - A node is a server that we talk to. Its link is the one connection for all commands of all locks.
//   - A tie is a hold that the server renews for our link (AUTO). One KEEP a second moves the believed end of all ties of
//     the link, tells what was lost, and counts the ties, so that none is kept that we do not know of.
//   - A waiter has a place in a queue. Its end is told on a channel of ours, heard on a second connection, the ear.

const (
	never     = time.Duration(math.MaxInt64)
	forever   = time.Duration(-1)      // a time-out: none
	grace     = 500 * time.Millisecond // so much longer a caller whose time is up waits for a reply on its way
	warnEvery = 10 * time.Second
	batch     = 100         // so many are left in one go
	slice     = time.Second // timers sleep no longer: the machine may have been suspended
)

var errNewLink = errors.New("the link is new")

type (
	id struct {
		key   string
		token int64
	}
	place struct{ key, owner string }
	// told is called with a reply as it is read.
	told func(n *node, l *link, sent time.Duration, reply any, err error)
)

// A tie is a hold that a link's server renews for us. Under the core's mutex.
type tie struct {
	request *request
	token   int64
	serial  int
	until   time.Duration
	link    *link
	session bool // its link, when it dies, takes it along
	states  []*state
}

func (t *tie) attach(l *link, until time.Duration) {
	t.until = max(t.end(), until)
	if t.link != l {
		t.detach()
		l.ties++
		t.link = l
	}
	l.serial++
	t.serial = l.serial
}

func (t *tie) detach() {
	if t.link != nil {
		t.until = t.end()
		t.link.ties--
		t.link = nil
	}
}

// end: until then it is ours.
func (t *tie) end() time.Duration {
	if t.link != nil && t.serial <= t.link.kept {
		return max(t.until, t.link.believed)
	}
	return t.until
}

type farewell struct {
	until   time.Duration
	request *request
	token   int64 // 0: it is the wait that is left
}

type message struct {
	word          string
	token, number int64
}

type waiter struct{ messages chan message }

func (w *waiter) tell(one message) {
	select {
	case w.messages <- one:
	default: // so many, and nobody has read them: the first is enough to ask again
	}
}

// A node is a server that we talk to, and what we have there.
type node struct {
	core    *core
	name    string
	opening chan struct{}
	kick    chan struct{}

	// Under the core's mutex.
	link, ear            *link
	keeping, deaf, awake bool
	ties                 map[id]*tie
	waits                map[place][]*waiter
	leaving              []farewell
}

func (n *node) currentLink() *link {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.link
}

func (n *node) currentEar() *link {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.ear
}

// tell tells all who wait.
func (n *node) tell(one message) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	for _, waits := range n.waits {
		for _, w := range waits {
			w.tell(one)
		}
	}
}

// heard: WORD TOKEN SIZE:KEY SIZE:OWNER NUMBER.
func (n *node) heard(text string) {
	word, text, _ := strings.Cut(text, " ")
	token, text, _ := strings.Cut(text, " ")
	var names [2]string
	for i := range names {
		size, rest, _ := strings.Cut(text, ":")
		count, err := strconv.Atoi(size)
		if err != nil || count < 0 || count >= len(rest) {
			return
		}
		names[i], text = rest[:count], rest[count+1:]
	}
	one := message{word: word}
	one.token, _ = strconv.ParseInt(token, 10, 64)
	one.number, _ = strconv.ParseInt(text, 10, 64)
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	for _, w := range n.waits[place{names[0], names[1]}] {
		w.tell(one)
	}
}

func (n *node) tiesNow() []*tie {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	all := make([]*tie, 0, len(n.ties))
	for _, t := range n.ties {
		all = append(all, t)
	}
	return all
}

// core is all that Locks has: nodes, and what is done with them.
type core struct {
	settings Settings
	log      *slog.Logger
	single   *redis.Client
	cluster  *redis.ClusterClient
	channel  string
	done     chan struct{}
	tick     chan struct{}

	mu        sync.Mutex
	nodes     map[string]*node
	moved     map[uint16]string
	template  *redis.Options
	closed    bool
	ticking   bool
	alarm     time.Duration
	refreshed time.Duration
}

func (c *core) check() error {
	select {
	case <-c.done:
		return ErrClosed
	default:
		return nil
	}
}

func (c *core) allNodes() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*node, 0, len(c.nodes))
	for _, n := range c.nodes {
		all = append(all, n)
	}
	return all
}

// call gives the reply of whoever serves the key, and who that is.
func (c *core) call(ctx context.Context, key string, words []string, until time.Duration, then told) (any, *node, error) {
	n, err := c.route(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	asking := false
	for range 4 {
		var l *link
		if l, err = c.link(ctx, n, until); err != nil {
			return nil, n, err
		}
		var one *entry
		if one, err = l.post(words, bind(then, n, l), asking); err != nil {
			return nil, n, err
		}
		var reply any
		if reply, err = l.result(ctx, one, until); err == nil {
			return reply, n, nil
		}
		if n = c.redirected(err, &asking); n == nil {
			return nil, n, err
		}
	}
	return nil, nil, err
}

func bind(then told, n *node, l *link) func(any, error) {
	if then == nil {
		return nil
	}
	sent := now()
	return func(reply any, err error) { then(n, l, sent, reply, err) }
}

// redirected gives the node that serves the key instead, or nil.
func (c *core) redirected(err error, asking *bool) *node {
	var said ServerError
	if !errors.As(err, &said) {
		return nil
	}
	slot, address, ask, ok := said.redirected()
	if !ok {
		return nil
	}
	if !ask {
		c.mu.Lock()
		c.moved[slot] = address
		c.mu.Unlock()
	}
	*asking = ask
	return c.node(address)
}

// lookAround: after an error that passes.
func (c *core) lookAround(why error) {
	var said ServerError
	if errors.As(why, &said) && said.code() == "READONLY" {
		for _, n := range c.allNodes() {
			if l := n.currentLink(); l != nil { // it has become a replica: who is primary is found by connecting
				l.die(unreachable(said))
			}
		}
	}
	c.mu.Lock()
	anew := c.cluster != nil && now()-c.refreshed > 100*time.Millisecond && !errors.Is(why, ErrNoAck)
	if anew {
		c.refreshed = now()
		clear(c.moved)
	}
	c.mu.Unlock()
	if anew {
		c.cluster.ReloadState(context.Background())
	}
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

// Taking.

// take gives the tie of what was granted; nil if it is taken. A time-out of 0: one try.
func (c *core) take(ctx context.Context, r *request, timeout time.Duration) (*tie, error) {
	asked := now()
	t, err := c.asking(ctx, r, timeout, asked)
	if r.asked && t == nil && !errors.Is(err, ErrReplaced) && (err != nil || r.queued) { // its claim would keep the place
		c.leave(r)
	}
	if r.queued {
		c.settings.Observer.waited(r.key)
	}
	if t == nil {
		c.settings.Observer.refused(r.key, now()-asked, err)
	} else {
		c.settings.Observer.granted(r.key, now()-asked)
	}
	return t, err
}

func (c *core) asking(ctx context.Context, r *request, timeout, asked time.Duration) (*tie, error) {
	deadline, end := never, never
	if timeout > 0 {
		deadline, end = asked+timeout, asked+timeout
	} else if timeout == 0 {
		end = asked + c.settings.Bound
	}
	if at, ok := ctx.Deadline(); ok {
		deadline = min(deadline, now()+time.Until(at))
	}
	warned := -warnEvery
	var trouble error
	for {
		if err := c.check(); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, over(r, err, trouble)
		}
		t, err := c.attempt(ctx, r, timeout == 0, deadline, end)
		switch {
		case err == nil && t == nil && (timeout < 0 || timeout > 0 && ctx.Err() != nil): // the context's time is up
			return nil, over(r, context.DeadlineExceeded, trouble)
		case err == nil:
			return t, nil
		case c.check() != nil:
			return nil, ErrClosed
		case ctx.Err() != nil:
			return nil, over(r, ctx.Err(), trouble)
		case errors.Is(err, ErrNotHeld) && r.before == 0: // the grant has ended before it was confirmed
		case !passes(err), timeout == 0 && (errors.Is(err, ErrNoAck) || errors.Is(err, errNoAnswer)):
			return nil, err
		}
		trouble = err
		left := end - now()
		if left <= 0 {
			if timeout == 0 {
				return nil, err
			}
			return nil, fmt.Errorf("%w: %q within %v: %w", ErrTimeout, r.key, timeout, err)
		}
		if now()-warned >= warnEvery {
			c.log.Warn("still waiting for lock", "key", r.key, "error", err)
			warned = now()
		}
		c.lookAround(err)
		c.sleep(ctx, min(left, 20*time.Millisecond+mathrand.N(80*time.Millisecond)))
	}
}

// over: the context has ended.
func over(r *request, why, trouble error) error {
	if trouble != nil && errors.Is(why, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %q: %w: %w", ErrTimeout, r.key, why, trouble)
	}
	if errors.Is(why, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %q: %w", ErrTimeout, r.key, why)
	}
	return fmt.Errorf("dlock: waiting for %q: %w", r.key, why)
}

func (c *core) until(end time.Duration) time.Duration {
	bound := now() + c.settings.Bound
	if end == never {
		return bound
	}
	return min(bound, end+grace)
}

func (c *core) attempt(ctx context.Context, r *request, atOnce bool, deadline, end time.Duration) (*tie, error) {
	if !r.looked { // an outer hold of this name is not ours to give back
		for c.departs(r) {
			if end != never && now() >= end {
				return nil, fmt.Errorf("%w: this owner's last wait is still to be left", ErrUnreachable)
			}
			c.sleep(ctx, 10*time.Millisecond)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		held, _, err := c.call(ctx, r.key, r.words("HELD"), c.until(end), nil)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		r.within(held)
		c.mu.Unlock()
	}
	r.asked = true
	if !r.queued {
		granted := func(n *node, l *link, sent time.Duration, reply any, err error) {
			if grant, ok := reply.([]any); ok && err == nil {
				c.tie(r, n, l, number(grant[0]), sent, c.settings.Lease)
			}
		}
		reply, n, err := c.call(ctx, r.key, r.take(atOnce), c.until(end), granted)
		c.at(r, n)
		if err != nil {
			return nil, err
		}
		if reply != nil {
			return c.tieOf(r), nil
		}
		if atOnce {
			return nil, nil
		}
		r.queued = true
		c.settings.Observer.waiting(r.key)
	}
	n, err := c.route(ctx, r.key)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	deaf := n.deaf
	c.mu.Unlock()
	if deaf {
		return c.block(ctx, r, deadline, end)
	}
	if err := c.listen(ctx, n, c.until(end)); err != nil {
		var said ServerError
		switch {
		case errors.As(err, &said) && !passes(err):
			c.mu.Lock()
			n.deaf = true
			c.mu.Unlock()
			c.log.Warn("waits block on connections of their own, since messages cannot be heard", "error", err)
		case !passes(err):
			return nil, err
		case deadline != never && now() >= deadline:
			return nil, nil
		}
		return c.block(ctx, r, deadline, end)
	}
	return c.queue(ctx, n, r, deadline, end)
}

// queue waits by NOTIFY.
func (c *core) queue(ctx context.Context, heard *node, r *request, deadline, end time.Duration) (*tie, error) {
	names, w := place{r.key, r.owner}, &waiter{make(chan message, 16)}
	c.mu.Lock()
	heard.waits[names] = append(heard.waits[names], w)
	ear := heard.ear
	c.mu.Unlock()
	c.wake(heard)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		heard.waits[names] = slices.DeleteFunc(heard.waits[names], func(one *waiter) bool { return one == w })
		if len(heard.waits[names]) == 0 {
			delete(heard.waits, names)
		}
	}()
	if !ear.alive() { // as we came
		return nil, fmt.Errorf("%w: messages are not heard", ErrUnreachable)
	}
	how := []string{"NOTIFY", c.channel}
	last := never
	if deadline != never {
		how = append(how, "BLOCK", millis(deadline-now()))
		last = deadline + grace
	}
	reply, n, err := c.call(ctx, r.key, r.wait(how...), c.until(end), nil)
	c.at(r, n)
	if err != nil {
		return nil, err
	}
	if n != heard {
		return nil, ServerError("TRYAGAIN the slot has moved")
	}
	if reply == nil {
		return nil, nil
	}
	ticket := reply.([]any)
	if token := number(ticket[0]); token != 0 {
		return c.confirm(ctx, r, token, end)
	}
	for {
		var one message
		timer := time.NewTimer(min(last-now(), slice))
		select {
		case one = <-w.messages:
		case <-c.done:
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		if err := errors.Join(c.check(), ctx.Err()); err != nil {
			return nil, err
		}
		switch {
		case one.word == "" && now() >= last:
			return nil, nil
		case one.word == "", one.number != 0 && one.number != number(ticket[2]): // of an earlier asking of ours
			continue
		}
		switch one.word {
		case "granted":
			return c.confirm(ctx, r, one.token, end)
		case "timeout":
			return nil, nil
		case "noack":
			return nil, ServerError("NOACK too few replicas have confirmed the grant")
		case "deadlock", "replaced", "notheld", "wrongtype", "refused":
			return nil, ServerError(strings.ToUpper(one.word) + " (told by a message)")
		}
		return nil, fmt.Errorf("%w: the wait has ended: %s", ErrUnreachable, one.word) // moved, gone, cancelled, again
	}
}

// block waits by BLOCK in slices, on a connection of its own.
func (c *core) block(ctx context.Context, r *request, deadline, end time.Duration) (*tie, error) {
	n, err := c.route(ctx, r.key)
	if err != nil {
		return nil, err
	}
	c.at(r, n)
	l, err := c.open(ctx, n, c.until(end))
	if err != nil {
		return nil, err
	}
	l.start()
	defer l.die(fmt.Errorf("%w: the wait is over", ErrUnreachable))
	defer context.AfterFunc(ctx, func() { l.die(ctx.Err()) })()
	for {
		part := c.settings.Bound / 2
		if deadline != never {
			part = min(part, deadline-now())
		}
		// The bound counts from when the slice is over.
		l.bound = part + c.settings.Bound
		reply, err := l.call(ctx, r.wait("BLOCK", millis(part)), now()+l.bound)
		if err := errors.Join(c.check(), err); err != nil {
			return nil, err
		}
		if grant, ok := reply.([]any); ok {
			return c.confirm(ctx, r, number(grant[0]), end)
		}
		if deadline != never && now() >= deadline {
			return nil, nil
		}
	}
}

func (c *core) confirm(ctx context.Context, r *request, token int64, end time.Duration) (*tie, error) {
	renewed := func(n *node, l *link, sent time.Duration, reply any, err error) {
		if left, ok := reply.(int64); ok && err == nil {
			c.tie(r, n, l, token, sent, time.Duration(left)*time.Millisecond)
		}
	}
	_, n, err := c.call(ctx, r.key, r.renew(token), c.until(end), renewed)
	c.at(r, n)
	if err != nil {
		return nil, err
	}
	return c.tieOf(r), nil
}

// Ties.

func (c *core) at(r *request, n *node) {
	if n != nil {
		c.mu.Lock()
		r.node = n
		c.mu.Unlock()
	}
}

func (c *core) tieOf(r *request) *tie {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.tie
}

// tie: the server has said that it renews this hold for this link.
func (c *core) tie(r *request, n *node, l *link, token int64, sent, lease time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.outer != 0 && r.outer != token { // an upgrade: the outer hold has ended with its token
		c.lose(n, n.ties[id{r.key, r.outer}], "upgraded")
		r.outer, r.before = token, 0
	}
	t := n.ties[id{r.key, token}]
	if t == nil {
		t = &tie{request: r, token: token}
		n.ties[id{r.key, token}] = t
	}
	t.session = t.session || r.session
	t.attach(l, sent+lease-2*time.Millisecond-c.settings.Allowance)
	r.tie = t
}

// adopt: somebody has it now.
func (c *core) adopt(r *request, t *tie, s *state) {
	c.mu.Lock()
	t.states = append(t.states, s)
	n := r.node
	if _, there := n.ties[id{r.key, t.token}]; !there {
		n.ties[id{r.key, t.token}] = t
	}
	if c.closed {
		c.lose(n, t, "closed")
	}
	if end := t.end(); end < c.alarm {
		c.alarm = end
		c.rearm()
	}
	c.mu.Unlock()
	c.wake(n)
}

func (c *core) wake(n *node) {
	c.mu.Lock()
	awake := n.awake
	n.awake = true
	c.mu.Unlock()
	if !awake {
		c.rouse(n)
	}
}

// rouse wakes the node's keeper at once.
func (c *core) rouse(n *node) {
	c.mu.Lock()
	start := !n.keeping && !c.closed
	n.keeping = n.keeping || start
	c.mu.Unlock()
	if start {
		go c.keep(n)
	}
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// lose is called under the mutex.
func (c *core) lose(n *node, t *tie, reason string) {
	if t == nil || n.ties[id{t.request.key, t.token}] != t {
		return
	}
	delete(n.ties, id{t.request.key, t.token})
	t.detach()
	for _, s := range t.states {
		s.lose(reason)
	}
}

func (c *core) loseNow(n *node, t *tie, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose(n, t, reason)
}

// rearm is called under the mutex: the alarm has been set to another time.
func (c *core) rearm() {
	if !c.ticking && !c.closed {
		c.ticking = true
		go c.clock()
	}
	select {
	case c.tick <- struct{}{}:
	default:
	}
}

func (c *core) clock() {
	for {
		c.mu.Lock()
		alarm := c.alarm
		c.mu.Unlock()
		var rings <-chan time.Time
		if alarm != never {
			rings = time.After(max(0, min(alarm-now(), slice)))
		}
		select {
		case <-c.done:
			return
		case <-c.tick:
		case <-rings:
		}
		if alarm <= now() {
			c.expire()
		}
	}
}

// expire tells what has ended by the clock, and sets the alarm anew. Waits for nothing.
func (c *core) expire() {
	at := never
	var ended []*tie
	c.mu.Lock()
	for _, n := range c.nodes {
		for _, t := range n.ties {
			if end := t.end(); end > now() {
				at = min(at, end)
			} else {
				c.lose(n, t, "nobody has confirmed it before its end")
				ended = append(ended, t)
			}
		}
	}
	c.alarm = at
	c.mu.Unlock()
	for _, t := range ended {
		c.drop(t.request, t.token)
	}
}

// Giving back.

// release gives back what was granted, and nothing else.
func (c *core) release(ctx context.Context, s *state) error {
	if err := c.check(); err != nil {
		return err
	}
	if !s.leave() {
		return fmt.Errorf("%w: lock %q: %w", ErrNotHeld, s.request.key, s.reason())
	}
	r, t := s.request, s.tie
	heard, until := true, now()+c.settings.Bound
	words := r.release("TOKEN", strconv.FormatInt(t.token, 10))
	released := func(n *node, _ *link, _ time.Duration, reply any, err error) {
		if c.gone(reply, err) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, other := range c.nodes {
				c.lose(other, t, "released")
			}
		}
	}
	for {
		_, _, err := c.call(ctx, r.key, words, until, released)
		switch {
		case err == nil:
		case errors.Is(err, ErrNotHeld) && heard:
			return err
		case errors.Is(err, ErrNotHeld): // the first one has given it back
		case !passes(err) || now() >= until || c.check() != nil:
			c.drop(r, t.token)
			return err
		default:
			var said ServerError
			heard = heard && errors.As(err, &said)
			c.lookAround(err)
			c.sleep(ctx, 20*time.Millisecond)
			continue
		}
		c.settings.Observer.released(r.key, now()-s.since)
		return nil
	}
}

// gone: nothing of it is left.
func (c *core) gone(reply any, err error) bool {
	return err == nil && reply == int64(0) || errors.Is(err, ErrNotHeld)
}

// drop leaves for good, in the background. Without a token it is the wait that is left.
func (c *core) drop(r *request, token int64) {
	c.mu.Lock()
	n := r.node
	if n == nil || c.closed {
		c.mu.Unlock()
		return
	}
	n.leaving = append(n.leaving, farewell{now() + max(c.settings.Lease, c.settings.Claim), r, token})
	n.awake = true
	c.mu.Unlock()
	c.rouse(n)
}

// leave: on the link, if it lives, behind all that was asked.
func (c *core) leave(r *request) {
	r.asked = false
	c.mu.Lock()
	n, before := r.node, r.before
	c.mu.Unlock()
	if n == nil {
		var err error
		if n, err = c.route(context.Background(), r.key); err != nil {
			return
		}
		c.at(r, n)
	}
	if l := n.currentLink(); l.alive() && before == 0 {
		if _, err := l.post(r.words("CANCEL"), nil, false); err == nil {
			left := func(reply any, err error) {
				if t := c.tieOf(r); t != nil && c.gone(reply, err) {
					c.loseNow(n, t, "left")
				} else if err != nil && passes(err) {
					c.drop(r, 0)
				}
			}
			if _, err := l.post(r.release(), left, false); err == nil {
				return
			}
		}
	}
	c.drop(r, 0)
}

// departs: a wait of this owner's is still to be left.
func (c *core) departs(r *request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		for _, one := range n.leaving {
			if one.request.owner == r.owner && one.request.key == r.key {
				return true
			}
		}
	}
	return false
}

// depart gives back what is to be left at this node, on its own link and in one go: others are to be kept meanwhile.
func (c *core) depart(ctx context.Context, n *node, l *link) error {
	c.mu.Lock()
	leaving := slices.Clone(n.leaving[:min(batch, len(n.leaving))])
	c.mu.Unlock()
	asked := make([]*entry, len(leaving))
	for i, one := range leaving {
		r := one.request
		if target, err := c.route(ctx, r.key); err != nil || target != n {
			if err != nil {
				return err
			}
			continue
		}
		words := r.release("TOKEN", strconv.FormatInt(one.token, 10))
		if one.token == 0 {
			words = r.release()
			if err := c.cancel(ctx, l, r); err != nil {
				return err
			}
		}
		var err error
		if asked[i], err = l.post(words, nil, false); err != nil {
			return err
		}
	}
	var failed error
	for i, one := range leaving {
		var target *node
		again := false
		if asked[i] == nil {
			target, failed = c.route(ctx, one.request.key)
		} else {
			reply, err := l.result(ctx, asked[i], asked[i].sent+c.settings.Bound)
			asking := false
			target = c.redirected(err, &asking)
			var said ServerError
			switch {
			case c.gone(reply, err):
				c.mu.Lock()
				t := n.ties[id{one.request.key, one.token}]
				if t == nil {
					t = one.request.tie
				}
				c.lose(n, t, "released")
				c.mu.Unlock()
			case asking: // its slot is on the way
				target, again = n, true
			case err != nil && target == nil && now() < one.until && (passes(err) || !errors.As(err, &said)):
				failed = err
			}
		}
		if failed != nil {
			return failed
		}
		c.mu.Lock()
		n.leaving = n.leaving[1:]
		if target == n && again {
			n.leaving = append(n.leaving, one)
		} else if target != nil && target != n { // that one's keeper does it
			one.request.node = target
			target.leaving, target.awake = append(target.leaving, one), true
		}
		c.mu.Unlock()
		if target != nil && target != n {
			c.rouse(target)
		}
	}
	if len(leaving) == batch {
		c.rouse(n)
	}
	return nil
}

// cancel leaves a place. If an upgrade was granted before, the outer hold has ended: nothing of it is left over.
func (c *core) cancel(ctx context.Context, l *link, r *request) error {
	if _, err := l.post(r.words("CANCEL"), nil, false); err != nil {
		return err
	}
	c.mu.Lock()
	outer, inner := r.outer, r.before > 0
	c.mu.Unlock()
	if !inner {
		return nil
	}
	reply, err := l.call(ctx, r.words("HELD"), now()+c.settings.Bound)
	if held, ok := reply.([]any); err == nil && ok && number(held[0]) != outer {
		_, err = l.post(r.words("RELEASE", "TOKEN", strconv.FormatInt(number(held[0]), 10), "HOLDS", "0"), nil, false)
	}
	return err
}

// Keeping.

// keep is the keeper of a node: does nothing but this, and waits for no other node.
func (c *core) keep(n *node) {
	ctx := context.Background()
	for {
		c.mu.Lock()
		idle := len(n.ties)+len(n.waits)+len(n.leaving) == 0
		n.awake = !idle
		c.mu.Unlock()
		var rings <-chan time.Time
		if !idle {
			rings = time.After(c.settings.interval())
		}
		select {
		case <-c.done:
			return
		case <-n.kick:
		case <-rings:
		}
		if err := c.round(ctx, n); err != nil && c.check() == nil {
			c.log.Info("keeping", "node", n.name, "error", err)
			c.lookAround(err)
			c.rehome(ctx, n)
			c.sleep(ctx, 20*time.Millisecond)
		}
	}
}

func (c *core) round(ctx context.Context, n *node) error {
	c.mu.Lock()
	idle := len(n.ties)+len(n.waits)+len(n.leaving) == 0
	c.mu.Unlock()
	if idle {
		return nil
	}
	l, err := c.link(ctx, n, now()+c.settings.Bound)
	if err != nil {
		return err
	}
	var loose []*tie
	c.mu.Lock()
	for _, t := range n.ties {
		if t.link != l {
			loose = append(loose, t)
		}
	}
	surplus := l.surplus
	c.mu.Unlock()
	if len(loose) > 0 {
		if err := c.retie(ctx, n, l, loose); err != nil {
			return err
		}
	}
	if surplus > 1 { // two in a row: it has ties that nobody knows of
		c.log.Warn("the connection keeps holds that nobody has: it is replaced", "node", n.name)
		fresh, err := c.open(ctx, n, now()+c.settings.Bound)
		if err != nil {
			return err
		}
		old := l
		l = c.linked(n, fresh.start())
		err = c.retie(ctx, n, l, n.tiesNow())
		old.die(fmt.Errorf("%w: replaced", ErrUnreachable))
		if err != nil {
			return err
		}
	}
	c.mu.Lock()
	keeps := len(n.ties)+len(n.waits) > 0
	c.mu.Unlock()
	if keeps {
		kept := bind(c.kept, n, l)
		one, err := l.post([]string{"DLOCK.KEEP", millis(c.settings.Auto)}, kept, false)
		if err == nil {
			_, err = l.result(ctx, one, now()+c.settings.Bound)
		}
		if errors.Is(err, ErrNoAck) { // what is believed stays as it was; to give back needs no replica
			c.log.Info("keeping", "node", n.name, "error", err)
		} else if err != nil {
			return err
		}
	}
	return c.depart(ctx, n, l)
}

func (c *core) kept(n *node, l *link, sent time.Duration, reply any, err error) {
	parts, ok := reply.([]any)
	if !ok || err != nil {
		return
	}
	c.mu.Lock()
	again := false
	ties := int(number(parts[0]))
	if left, ok := parts[1].(int64); ok {
		l.believed = sent + time.Duration(left)*time.Millisecond - c.settings.Allowance
		l.kept = l.serial
	}
	lost, known := parts[2].([]any)
	for _, one := range lost {
		words := one.([]any)
		key, _ := words[0].(string)
		reason, _ := words[2].(string)
		t := n.ties[id{key, number(words[1])}]
		if t == nil || t.link != l {
			continue
		}
		switch reason {
		case "moved", "renamed", "taken", "demoted":
			t.detach() // RENEW tells what has become of it
			again = true
		default:
			c.lose(n, t, reason)
		}
	}
	if ties > l.ties {
		l.surplus++
	} else {
		l.surplus = 0
	}
	if !known || ties < l.ties {
		for _, t := range n.ties {
			t.detach()
		}
		again = true
	}
	c.mu.Unlock()
	if again {
		c.rouse(n)
	}
}

// retie ties our holds to this link, all in one go.
func (c *core) retie(ctx context.Context, n *node, l *link, ties []*tie) error {
	type asked struct {
		tie   *tie
		entry *entry
	}
	var all []asked
	for _, t := range ties {
		c.mu.Lock()
		live := slices.ContainsFunc(t.states, func(s *state) bool { return !s.isOver() })
		switch {
		case !live: // if it has just been granted, adopt puts it back
			delete(n.ties, id{t.request.key, t.token})
			t.detach()
			c.mu.Unlock()
			continue
		case t.session && t.link != nil && !t.link.alive():
			c.lose(n, t, "session") // it has ended with its connection
			c.mu.Unlock()
			continue
		}
		c.mu.Unlock()
		sent := now()
		one, err := l.post(t.request.renew(t.token), func(reply any, err error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			left, ok := reply.(int64)
			switch {
			case n.ties[id{t.request.key, t.token}] != t:
			case ok && err == nil:
				t.attach(l, sent+time.Duration(left)*time.Millisecond-2*time.Millisecond-c.settings.Allowance)
				if t.end() < c.alarm {
					c.alarm = t.end()
					c.rearm()
				}
			case errors.Is(err, ErrNotHeld):
				c.lose(n, t, "not held any more")
			}
		}, false)
		if err != nil {
			return err
		}
		all = append(all, asked{t, one})
	}
	for _, one := range all {
		_, err := l.result(ctx, one.entry, one.entry.sent+c.settings.Bound)
		if err == nil || errors.Is(err, ErrNotHeld) || errors.Is(err, ErrNoAck) {
			continue
		}
		var said ServerError
		if !errors.As(err, &said) || said.code() == "READONLY" {
			return err
		}
		asking := false
		if target := c.redirected(err, &asking); target != nil {
			c.move(n, target, one.tie)
		} else {
			c.log.Warn("a lock cannot be renewed", "key", one.tie.request.key, "error", err)
		}
	}
	return nil
}

func (c *core) move(n, target *node, t *tie) {
	if target == n {
		return
	}
	c.mu.Lock()
	name := id{t.request.key, t.token}
	if n.ties[name] == t {
		delete(n.ties, name)
		t.detach()
		target.ties[name] = t
		t.request.node = target
	}
	target.awake = true
	c.mu.Unlock()
	c.rouse(target)
}

// rehome: what another node serves by now is that one's to keep.
func (c *core) rehome(ctx context.Context, n *node) {
	if c.cluster == nil {
		return
	}
	for _, t := range n.tiesNow() {
		target, err := c.route(ctx, t.request.key)
		if err != nil {
			return
		}
		c.move(n, target, t)
	}
	n.tell(message{word: "again"})
}

// close: everything ends. What is held is told lost, and lives on until its lease.
func (c *core) close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	close(c.done)
	held := 0
	var links []*link
	for _, n := range c.nodes {
		held += len(n.ties)
		for _, t := range n.ties {
			c.lose(n, t, "closed")
		}
		links = append(links, n.link, n.ear)
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

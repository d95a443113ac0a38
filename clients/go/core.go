// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// What all locks do: take and wait (take.go), keep (keep.go), give back and leave (leave.go), and here what these need.
//
//   - A node is a server that we talk to. Its link is the one connection for all commands of all locks.
//   - A tie is a hold that the server renews for our link (AUTO). One KEEP a second moves the believed end of all ties of
//     the link, tells what was lost, and counts the ties, so that none is kept that we do not know of.
//   - A waiter has a place in a queue. Its end is told on a channel of ours, heard on a second connection, the ear.

const (
	never = time.Duration(math.MaxInt64)
	slice = time.Second // timers sleep no longer: the machine may have been suspended
)

// core is all that Locks has: nodes, and what is done with them.
type core struct {
	settings Settings
	log      *slog.Logger
	single   *redis.Client
	cluster  *redis.ClusterClient
	channel  string
	done     chan struct{}

	mu        sync.Mutex
	nodes     map[string]*node
	moved     map[uint16]string
	template  *redis.Options
	closed    bool
	parting   map[place]int // so much of an owner's is still to be left
	clock     *time.Timer
	alarm     time.Duration // what rings it: the earliest end of all ties
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

// call gives the reply of whoever serves the request's key, and notes who that is.
func (c *core) call(ctx context.Context, r *request, words []string, until time.Duration, then told) (any, error) {
	n, err := c.route(ctx, r.key)
	if err != nil {
		return nil, err
	}
	asking := false
	for range 4 {
		var l *link
		if l, err = c.link(ctx, n, until); err != nil {
			return nil, err
		}
		c.mu.Lock()
		r.node, r.asking = n, asking
		c.mu.Unlock()
		var one *entry
		if one, err = l.post(words, then, asking); err != nil {
			return nil, err
		}
		var reply any
		if reply, err = one.result(ctx, until); err == nil {
			return reply, nil
		}
		if n, asking = c.redirected(n, err); n == nil {
			return nil, err
		}
	}
	return nil, err
}

// held says who holds the lock.
func (c *core) held(ctx context.Context, key string) (any, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return c.call(ctx, &request{key: key}, []string{"DLOCK.HELD", key}, now()+c.settings.Bound, nil)
}

// redirected gives the node that serves the key instead, or nil. An address without a host means that of the node that was
// asked: it does not know its own name.
func (c *core) redirected(asked *node, err error) (n *node, asking bool) {
	var said ServerError
	if !errors.As(err, &said) {
		return nil, false
	}
	slot, address, asking, ok := said.redirected()
	if !ok {
		return nil, false
	}
	if strings.LastIndexByte(address, ':') == 0 {
		host, _, _ := net.SplitHostPort(asked.name)
		address = net.JoinHostPort(host, address[1:])
	}
	if !asking {
		c.mu.Lock()
		c.moved[slot] = address
		c.mu.Unlock()
	}
	return c.node(address), asking
}

// lookAround: after an error that passes, of this node if any was asked.
func (c *core) lookAround(n *node, why error) {
	var stale *link
	c.mu.Lock()
	if n != nil && readonly(why) { // it has become a replica: who is primary is found by connecting
		stale = n.link
	}
	anew := c.cluster != nil && now()-c.refreshed > 100*time.Millisecond && !errors.Is(why, ErrNoAck)
	if anew {
		c.refreshed = now()
		clear(c.moved)
	}
	c.mu.Unlock()
	if stale != nil {
		stale.die(unreachable(why))
	}
	if anew {
		c.cluster.ReloadState(context.Background()) // behind our back: whoever is asked may hang
	}
}

// after: a time-out may be as long as the program likes.
func after(at, d time.Duration) time.Duration {
	if d > never/2 {
		return never
	}
	return at + d
}

func readonly(err error) bool {
	var said ServerError
	return errors.As(err, &said) && said.code() == "READONLY"
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

// Ties.

func (c *core) tieOf(r *request) *tie {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.tie
}

func (c *core) nodeOf(r *request) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.node
}

// tied: a hold has one tie, whichever node serves it. Under the mutex.
func (c *core) tied(name id) *tie {
	for _, n := range c.nodes {
		if t := n.ties[name]; t != nil {
			return t
		}
	}
	return nil
}

// believed is the end of a lease that the server has begun after it was asked for.
func (c *core) believed(sent, lease time.Duration) time.Duration {
	return sent + lease - 2*time.Millisecond - c.settings.Allowance
}

// tie: the server has said that it renews this hold for this link.
func (c *core) tie(r *request, l *link, token int64, end time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := l.node
	if r.outer != 0 && r.outer != token { // an upgrade: the outer hold has ended with its token
		c.lose(c.tied(id{r.key, r.outer}), "upgraded")
		r.outer, r.before = token, 0
	}
	t := c.tied(id{r.key, token})
	if t == nil {
		t = &tie{request: r, token: token, node: n}
		n.ties[t.name()] = t
	}
	c.move(n, t, r.asking) // if its owner has asked where it is now before the keeper knew
	t.asking, t.session = r.asking, t.session || r.session
	t.attach(l, end)
	r.tie = t
}

// adopt: somebody has it now.
func (c *core) adopt(t *tie, s *state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.tied(t.name()); known != nil {
		t = known
	} else {
		t.node.ties[t.name()] = t
	}
	s.tie = t
	t.states = append(slices.DeleteFunc(t.states, (*state).isOver), s) // an outer hold may outlive any number of inner ones
	if c.closed {
		c.lose(t, "closed")
	}
	c.arm(t.end())
	t.node.wake()
}

// lose is called under the mutex.
func (c *core) lose(t *tie, reason string) {
	if t == nil || t.node.ties[t.name()] != t {
		return
	}
	delete(t.node.ties, t.name())
	t.detach()
	for _, s := range t.states {
		s.lose(reason)
	}
}

// arm: something ends then. Under the mutex.
func (c *core) arm(at time.Duration) {
	if at < c.alarm && !c.closed {
		c.alarm = at
		c.clock.Reset(max(0, min(at-now(), slice)))
	}
}

// ring is the clock's: it tells what has ended, and is set anew. Waits for nothing.
func (c *core) ring() {
	c.mu.Lock()
	at := c.alarm
	c.alarm = never
	var ended []*tie
	if at <= now() {
		at, ended = c.expire()
	}
	c.arm(at)
	c.mu.Unlock()
	for _, t := range ended {
		c.drop(t.request, t.token)
	}
}

func (c *core) expire() (next time.Duration, ended []*tie) {
	next, at := never, now()
	for _, n := range c.nodes {
		for _, t := range n.ties {
			if end := t.end(); end > at {
				next = min(next, end)
			} else {
				c.lose(t, "nobody has confirmed it before its end")
				ended = append(ended, t)
			}
		}
	}
	return next, ended
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
	c.clock.Stop()
	held := 0
	var links []*link
	for _, n := range c.nodes {
		held += len(n.ties)
		for _, t := range n.ties {
			c.lose(t, "closed")
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

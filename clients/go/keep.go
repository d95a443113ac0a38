// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Keep and leave.

// keep is the keeper of a node: does nothing but this, and waits for nothing but its own link, and for nothing one by one.
func (c *core) keep(n *node) {
	ctx := context.Background()
	for {
		c.mu.Lock()
		if n.awake = !n.idle(); n.awake {
			n.rings.Reset(c.settings.interval())
		}
		c.mu.Unlock()
		select {
		case <-c.done:
			return
		case <-n.kick:
		case <-n.rings.C:
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
	idle := n.idle()
	c.mu.Unlock()
	if idle {
		return nil
	}
	l, err := c.link(ctx, n, now()+c.settings.Bound)
	if err != nil {
		return err
	}
	c.mu.Lock()
	surplus := l.surplus
	c.mu.Unlock()
	if surplus > 1 { // two in a row: it has ties that nobody knows of
		c.log.Warn("the connection keeps holds that nobody has: it is replaced", "node", n.name)
		stale := l
		if l, err = c.relink(ctx, n, stale, now()+c.settings.Bound); err != nil {
			return err
		}
		defer stale.die(unreachable(errors.New("replaced"))) // when those with SESSION are tied to the other
	}
	var loose []*tie
	c.mu.Lock()
	for _, t := range n.ties {
		if t.link != l {
			loose = append(loose, t)
		}
	}
	keeps := len(n.ties)+len(n.waits) > 0
	leaving := n.leaving
	n.leaving = nil
	c.mu.Unlock()
	// All in one go. What the replies change is changed as they come.
	for _, t := range loose {
		c.retie(n, l, t)
	}
	var kept *entry
	if keeps {
		kept, err = l.post([]string{"DLOCK.KEEP", millis(c.settings.Auto)}, c.kept, false)
	}
	for _, one := range leaving {
		c.farewell(n, l, one)
	}
	if kept != nil {
		_, err = kept.result(ctx, never)
	}
	c.mu.Lock()
	trouble := n.trouble
	n.trouble = nil
	c.mu.Unlock()
	if errors.Is(err, ErrNoAck) { // what is believed stays as it was
		c.log.Info("keeping", "node", n.name, "error", err)
	} else if err != nil {
		return err
	}
	return trouble
}

func (c *core) kept(l *link, sent time.Duration, reply any, err error) {
	parts, ok := reply.([]any)
	if !ok || err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := l.node
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
			n.rouse()
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
		n.rouse()
	}
}

// retie ties a hold to this link.
func (c *core) retie(n *node, l *link, t *tie) {
	c.mu.Lock()
	live := slices.ContainsFunc(t.states, func(s *state) bool { return !s.isOver() })
	switch {
	case n.ties[id{t.request.key, t.token}] != t:
		live = false
	case !live: // if it has just been granted, adopt puts it back
		delete(n.ties, id{t.request.key, t.token})
		t.detach()
	}
	c.mu.Unlock()
	if !live {
		return
	}
	_, _ = l.post(t.request.renew(t.token), func(l *link, sent time.Duration, reply any, err error) {
		target, _ := c.redirected(err)
		c.mu.Lock()
		defer c.mu.Unlock()
		left, ok := reply.(int64)
		var said ServerError
		switch {
		case n.ties[id{t.request.key, t.token}] != t, errors.Is(err, ErrNoAck):
		case ok && err == nil:
			t.attach(l, c.believed(sent, time.Duration(left)*time.Millisecond))
			c.arm(t.end())
		case errors.Is(err, ErrNotHeld):
			c.lose(n, t, "not held any more")
		case target != nil:
			c.move(n, target, t)
		case readonly(err):
			n.trouble = err
		case errors.As(err, &said):
			go c.log.Warn("a lock cannot be renewed", "key", t.request.key, "error", err)
		}
	}, false)
}

// move: another node serves it. Under the mutex.
func (c *core) move(n, target *node, t *tie) {
	if name := (id{t.request.key, t.token}); target != n && n.ties[name] == t {
		delete(n.ties, name)
		t.detach()
		target.ties[name] = t
		t.request.node = target
		target.rouse()
	}
}

// rehome: what another node serves by now is that one's to keep, and to leave.
func (c *core) rehome(ctx context.Context, n *node) {
	if c.cluster == nil {
		return
	}
	c.mu.Lock()
	leaving := n.leaving
	n.leaving = nil
	var ties []*tie
	for _, t := range n.ties {
		ties = append(ties, t)
	}
	c.mu.Unlock()
	served := func(key string) *node {
		target, err := c.route(ctx, key)
		if err != nil { // nobody is known to serve it yet
			return n
		}
		return target
	}
	for _, t := range ties {
		target := served(t.request.key)
		c.mu.Lock()
		c.move(n, target, t)
		c.mu.Unlock()
	}
	for _, one := range leaving {
		target := served(one.request.key)
		c.mu.Lock()
		if target == n {
			n.leaving = append(n.leaving, one)
		} else {
			c.hand(target, one)
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.tell(message{word: "again"})
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
	released := func(_ *link, _ time.Duration, reply any, err error) {
		if gone(reply, err) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, n := range c.nodes {
				c.lose(n, t, "released")
			}
		}
	}
	for {
		_, err := c.call(ctx, r, r.release(t.token), until, released)
		switch {
		case err == nil, errors.Is(err, ErrNotHeld) && !heard: // the first one has given it back
			c.settings.Observer.released(r.key, s.since)
			return nil
		case errors.Is(err, ErrNotHeld):
			return err
		case !passes(err) || now() >= until || c.check() != nil:
			c.drop(r, t.token)
			return err
		}
		var said ServerError
		heard = heard && errors.As(err, &said)
		c.lookAround(err)
		c.sleep(ctx, 20*time.Millisecond)
	}
}

// gone: nothing of it is left.
func gone(reply any, err error) bool {
	return err == nil && reply == int64(0) || errors.Is(err, ErrNotHeld)
}

// drop leaves for good: on the link, if it lives, behind all that was asked, and else in the background. Nothing is waited
// for. Without a token it is the wait that is left.
func (c *core) drop(r *request, token int64) {
	c.mu.Lock()
	n, one := r.node, farewell{r, token, now() + max(c.settings.Lease, c.settings.Claim)}
	if n == nil || c.closed { // nobody was asked
		c.mu.Unlock()
		return
	}
	c.parting[place{r.key, r.owner}]++
	l := n.link
	alive := l.alive()
	if !alive {
		n.leaving = append(n.leaving, one)
		n.rouse()
	}
	c.mu.Unlock()
	if alive {
		c.farewell(n, l, one)
	}
}

// hand: another node serves it, and that one's keeper gives it back. Under the mutex.
func (c *core) hand(target *node, one farewell) {
	one.request.node = target
	target.leaving = append(target.leaving, one)
	target.rouse()
}

func (c *core) farewell(n *node, l *link, one farewell) {
	r := one.request
	c.mu.Lock()
	words, inner, outer := r.release(one.token), r.before > 0, r.outer
	c.mu.Unlock()
	undone := func(err error) { c.farewelled(n, one, nil, err) }
	last := func() {
		told := func(_ *link, _ time.Duration, reply any, err error) { c.farewelled(n, one, reply, err) }
		if _, err := l.post(words, told, false); err != nil {
			undone(err)
		}
	}
	switch {
	case one.token != 0:
		last()
	case !inner:
		_, _ = l.post(r.words("CANCEL"), nil, false)
		last()
	default: // if an upgrade was granted before, the outer hold has ended: nothing of it is left over
		_, _ = l.post(r.words("CANCEL"), nil, false)
		_, err := l.post(r.words("HELD"), func(_ *link, _ time.Duration, reply any, _ error) {
			if held, ok := reply.([]any); ok && number(held[0]) != outer {
				token := strconv.FormatInt(number(held[0]), 10)
				_, _ = l.post(r.words("RELEASE", "TOKEN", token, "HOLDS", "0"), nil, false)
			}
			last()
		}, false)
		if err != nil {
			undone(err)
		}
	}
}

// farewelled: this has come of it. What failed is done again, as long as something of it may be left.
func (c *core) farewelled(n *node, one farewell, reply any, err error) {
	target, asking := c.redirected(err)
	r := one.request
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case gone(reply, err):
		t := n.ties[id{r.key, one.token}]
		if t == nil {
			t = r.tie
		}
		c.lose(n, t, "released")
	case c.closed:
	case target != nil && !asking && target != n && now() < one.until:
		c.hand(target, one)
		return
	case err != nil && passes(err) && now() < one.until:
		if !errors.Is(err, ErrUnreachable) { // that the keeper finds out
			n.trouble = err
		}
		n.leaving = append(n.leaving, one)
		n.wake()
		return
	}
	if at := (place{r.key, r.owner}); c.parting[at] > 1 {
		c.parting[at]--
	} else {
		delete(c.parting, at)
	}
}

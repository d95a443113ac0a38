// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Keep and tie anew.

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
			c.lookAround(n, err)
			c.rehome(ctx, n)
			c.sleep(ctx, 20*time.Millisecond)
		}
	}
}

func (c *core) round(ctx context.Context, n *node) error {
	c.mu.Lock()
	n.leaving = slices.DeleteFunc(n.leaving, func(one farewell) bool { // it has ended while nobody could be asked
		if one.until > now() {
			return false
		}
		c.giveUp(one)
		return true
	})
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
	for _, t := range c.near(n, l) {
		c.retie(n, l, t)
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

// near: the server renews at two thirds of a lease. Where one hold may not last (dlock.max-hold-ms) KEEP says the least of
// all, and each whose end comes near is asked for its own.
func (c *core) near(n *node, l *link) (near []*tie) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.short {
		for _, t := range n.ties {
			if t.link == l && t.end() < now()+c.settings.Lease/2 {
				near = append(near, t)
			}
		}
	}
	return near
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
		least := time.Duration(left) * time.Millisecond
		l.believed, l.kept = sent+least-c.settings.Allowance, l.serial
		l.short = least < c.settings.Lease/2
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
			c.lose(t, reason)
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
	live, asking := t.live(), t.asking
	switch {
	case n.ties[t.name()] != t:
		live = false
	case !live: // if it has just been granted, adopt puts it back
		delete(n.ties, t.name())
		t.detach()
	}
	c.mu.Unlock()
	if !live {
		return
	}
	_, _ = l.post(t.request.renew(t.token), func(l *link, sent time.Duration, reply any, err error) {
		target, asking := c.redirected(n, err)
		c.mu.Lock()
		defer c.mu.Unlock()
		left, ok := reply.(int64)
		var said ServerError
		switch {
		case n.ties[t.name()] != t, errors.Is(err, ErrNoAck):
		case ok && err == nil:
			t.attach(l, c.believed(sent, time.Duration(left)*time.Millisecond))
			c.arm(t.end())
		case errors.Is(err, ErrNotHeld):
			c.lose(t, "not held any more")
		case target != nil:
			c.move(target, t, asking)
		case readonly(err):
			n.trouble = err
		case errors.As(err, &said):
			go c.log.Warn("a lock cannot be renewed", "key", t.request.key, "error", err)
		}
	}, asking)
}

// move: another node serves it. Under the mutex.
func (c *core) move(target *node, t *tie, asking bool) {
	if n, name := t.node, t.name(); target != n && n.ties[name] == t {
		delete(n.ties, name)
		t.detach()
		target.ties[name] = t
		t.node, t.asking = target, asking
		t.request.node, t.request.asking = target, asking
		target.receive(&t.handed)
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
		if t.node == n {
			c.move(target, t, false)
		}
		c.mu.Unlock()
	}
	for _, one := range leaving {
		target := served(one.request.key)
		c.mu.Lock()
		if target == n {
			n.leaving = append(n.leaving, one)
		} else {
			c.hand(target, one, false)
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.tell(message{word: "again"})
}

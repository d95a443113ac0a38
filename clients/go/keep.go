// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"time"
)

// keep is the keeper of a node. It waits for nothing but its own link, and for nothing one by one.
func (c *core) keep(n *node) {
	for {
		c.mu.Lock()
		if n.running = len(n.waits) > 0 || len(c.of(n)) > 0; n.running {
			n.rings.Reset(c.settings.interval())
		}
		c.mu.Unlock()
		select {
		case <-c.done:
			return
		case <-n.kick:
		case <-n.rings.C:
		}
		l, err := c.round(n)
		if c.check() != nil {
			return
		}
		if l == nil && err == nil { // there was nothing to keep
			continue
		}
		c.note(n, err)
		if err != nil {
			c.trouble(l, err)
			c.reroute(n)
			c.sleep(context.Background(), 20*time.Millisecond)
		}
	}
}

// note remembers why holds are not kept: it is the reason of a loss.
func (c *core) note(n *node, err error) {
	c.mu.Lock()
	n.trouble, n.refused = err, err != nil && !passes(err)
	report := n.refused && !n.reported
	n.reported = n.refused
	c.mu.Unlock()
	switch {
	case report:
		c.log.Warn("the server refuses to keep locks", "node", n.name, "error", err)
	case err != nil && !n.refused:
		c.log.Info("keeping locks", "node", n.name, "error", err)
	}
}

func (c *core) keepWords() []string { return []string{"DLOCK.KEEP", millis(c.settings.HangTimeout)} }

func (c *core) round(n *node) (*link, error) {
	c.mu.Lock()
	renewals, waits := c.of(n), len(n.waits)
	l, one := n.link, (*opening)(nil)
	if len(renewals)+waits > 0 && !l.alive() {
		one = c.open(n)
	}
	surplus := l != nil && l.surplus > 1
	c.mu.Unlock()
	switch {
	case len(renewals)+waits == 0:
		return nil, nil
	case one != nil:
		if <-one.done; one.err != nil {
			return nil, one.err
		}
		l = one.link
	case surplus: // two in a row: it keeps holds that nobody has
		c.log.Warn("the connection keeps holds that nobody has: it is replaced", "node", n.name)
		c.mu.Lock()
		one = c.open(n)
		c.mu.Unlock()
		stale := l
		if <-one.done; one.err != nil {
			return nil, one.err
		}
		if l = one.link; l != stale {
			defer stale.die(unreachable(errors.New("replaced"))) // when those with EPHEMERAL are renewed for the other
		}
	}
	// All in one go. What the replies change is changed as they come.
	c.mu.Lock()
	renewals = c.of(n)
	var unrenewed []*renewal
	for _, t := range renewals {
		if t.link != l {
			unrenewed = append(unrenewed, t)
		}
	}
	c.mu.Unlock()
	for _, t := range unrenewed {
		c.renew(l, t)
	}
	kept, err := l.post(c.keepWords(), c.kept, false)
	if err == nil {
		_, err = kept.result(context.Background(), never)
	}
	for _, t := range c.near(l) {
		c.renew(l, t)
	}
	if errors.Is(err, ErrNoAck) { // what is believed stays as it was
		c.log.Info("keeping locks", "node", n.name, "error", err)
		return l, nil
	}
	return l, err
}

// near returns the renewals whose end comes near where one hold may not last (dlock.max-hold-ms): KEEP's answer is the
// least of all, so each is asked for its own.
func (c *core) near(l *link) (near []*renewal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.short {
		for _, t := range c.renewals {
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
	n.trouble, n.refused, n.reported = nil, false, false
	count := int(number(parts[0]))
	if left, ok := parts[1].(int64); ok {
		least := time.Duration(left) * time.Millisecond
		l.believed, l.kept = sent+least-c.settings.ClockMargin, l.serial
		l.short = least < c.settings.Lease/2
	}
	lost, known := parts[2].([]any)
	for _, one := range lost {
		words := one.([]any)
		key, _ := words[0].(string)
		reason, _ := words[2].(string)
		t := c.renewals[id{key, number(words[1])}]
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
	if count > l.renewals {
		l.surplus++
	} else {
		l.surplus = 0
	}
	if !known || count < l.renewals {
		for _, t := range c.of(n) {
			t.detach()
		}
		n.rouse()
	}
}

// renew has the server renew a hold for this link.
func (c *core) renew(l *link, t *renewal) {
	c.mu.Lock()
	known, live := c.renewals[t.id()] == t, t.live()
	if known && !live {
		c.lose(t, "abandoned") // nobody is told: nobody has it
	}
	_, asking := c.asking[t.request.key]
	c.mu.Unlock()
	if !known || !live {
		return
	}
	_, _ = l.post(t.request.renew(t.token), func(l *link, sent time.Duration, reply any, err error) {
		target := c.redirected(l.node, t.request.key, err)
		c.mu.Lock()
		defer c.mu.Unlock()
		left, ok := reply.(int64)
		var said ServerError
		switch {
		case c.renewals[t.id()] != t, errors.Is(err, ErrNoAck):
		case ok && err == nil:
			t.attach(l, c.believed(sent, time.Duration(left)*time.Millisecond))
			c.arm(t.end())
		case errors.Is(err, ErrNotHeld):
			c.lose(t, "not held any more")
		case target != nil:
			c.move(t, target)
		case readonly(err):
			go c.trouble(l, err)
		case errors.As(err, &said):
			t.refusal = err
			go c.log.Warn("a lock cannot be renewed", "key", t.request.key, "error", err)
		}
	}, asking)
}

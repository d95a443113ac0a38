// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Give back, and leave for good what nobody gives back.

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
			c.lose(t, "released")
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
		c.lookAround(c.nodeOf(r), err)
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
	n := r.node
	one := farewell{request: r, token: token, until: now() + max(c.settings.Lease, c.settings.Claim), asking: r.asking}
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
func (c *core) hand(target *node, one farewell, asking bool) {
	one.request.node, one.request.asking, one.asking = target, asking, asking
	target.receive(&one.handed)
	target.leaving = append(target.leaving, one)
}

func (c *core) farewell(n *node, l *link, one farewell) {
	r := one.request
	c.mu.Lock()
	words, inner, outer := r.release(one.token), r.before > 0, r.outer
	c.mu.Unlock()
	undone := func(err error) { c.farewelled(n, one, nil, err) }
	last := func() {
		told := func(_ *link, _ time.Duration, reply any, err error) { c.farewelled(n, one, reply, err) }
		if _, err := l.post(words, told, one.asking); err != nil {
			undone(err)
		}
	}
	switch {
	case one.token != 0:
		last()
	case !inner:
		_, _ = l.post(r.words("CANCEL"), nil, one.asking)
		last()
	default: // if an upgrade was granted before, the outer hold has ended: nothing of it is left over
		_, _ = l.post(r.words("CANCEL"), nil, one.asking)
		_, err := l.post(r.words("HELD"), func(_ *link, _ time.Duration, reply any, _ error) {
			if held, ok := reply.([]any); ok && number(held[0]) != outer {
				token := strconv.FormatInt(number(held[0]), 10)
				_, _ = l.post(r.words("RELEASE", "TOKEN", token, "HOLDS", "0"), nil, one.asking)
			}
			last()
		}, one.asking)
		if err != nil {
			undone(err)
		}
	}
}

// farewelled: this has come of it. What failed is done again, as long as something of it may be left.
func (c *core) farewelled(n *node, one farewell, reply any, err error) {
	target, asking := c.redirected(n, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case gone(reply, err):
		c.lose(c.left(one), "released")
	case c.closed, err == nil:
	case target != nil && target != n && now() < one.until:
		c.hand(target, one, asking)
		return
	case passes(err) && now() < one.until:
		if !errors.Is(err, ErrUnreachable) { // that the keeper finds out
			n.trouble = err
		}
		n.leaving = append(n.leaving, one)
		n.wake()
		return
	default:
		c.giveUp(one)
		return
	}
	c.departed(one)
}

// left is the tie of what was given back.
func (c *core) left(one farewell) *tie {
	if one.token == 0 {
		return one.request.tie
	}
	return c.tied(id{one.request.key, one.token})
}

// giveUp: nothing more is said of it. If nobody has it, it is kept no longer: when the server does so all the same, KEEP's
// count tells. Under the mutex.
func (c *core) giveUp(one farewell) {
	if t := c.left(one); t != nil && !t.live() {
		c.lose(t, "it cannot be given back")
	}
	c.departed(one)
}

func (c *core) departed(one farewell) {
	if at := (place{one.request.key, one.request.owner}); c.parting[at] > 1 {
		c.parting[at]--
	} else {
		delete(c.parting, at)
	}
}

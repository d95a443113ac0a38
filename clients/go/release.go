// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Release and abandon.

// release gives back what was granted, and nothing else; or later, if that is more than 0. The last hold of an owner says so
// to the server.
func (c *core) release(ctx context.Context, s *state, later time.Duration) error {
	if err := c.check(); err != nil {
		return err
	}
	c.mu.Lock()
	left := s.leave()
	last := c.depart(s)
	if left && last {
		s.renewal.ending = make(chan struct{})
		if later == 0 {
			s.renewal.answered = c.rename(s.request)
		}
	}
	c.mu.Unlock()
	if s.released != nil {
		s.released()
	}
	switch {
	case !left:
		return fmt.Errorf("%w: lock %q: %w", ErrNotHeld, s.request.key, s.reason())
	case !last:
		return nil
	}
	done := make(chan error, 1)
	first, err := c.releasing(s, later)
	if err == nil {
		select {
		case <-first.done:
			if first.err == nil {
				c.ended(s, nil)
				return nil
			}
		case <-ctx.Done():
		}
	}
	go func() {
		err := c.releaseUntil(s, later, first, err)
		c.ended(s, err)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ended ends a release: who asks again under this owner's name may do so now.
func (c *core) ended(s *state, err error) {
	c.mu.Lock()
	close(s.renewal.ending)
	if err != nil { // nothing more is said of it. If the server keeps it all the same, KEEP's count tells
		c.lose(s.renewal, "it cannot be given back")
	}
	c.mu.Unlock()
	if err == nil {
		c.settings.Observer.released(s.request.key, s.since)
	}
}

// depart removes a hold from its renewal. It returns true if it was the last. Under the mutex.
func (c *core) depart(s *state) (last bool) {
	t := s.renewal
	if t == nil || c.renewals[t.id()] != t {
		return false
	}
	for i, one := range t.states {
		if one == s && len(t.states) > 1 {
			t.states = append(t.states[:i:i], t.states[i+1:]...)
			return !t.live()
		}
	}
	return true
}

// releasing sends the release on the link of the renewal, if that is alive.
func (c *core) releasing(s *state, later time.Duration) (*entry, error) {
	r, t := s.request, s.renewal
	c.mu.Lock()
	l := t.link
	_, asking := c.asking[r.key]
	c.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("%w: there is no link", ErrUnreachable)
	}
	return l.post(releaseWords(t, later), c.gone(t), asking)
}

func releaseWords(t *renewal, later time.Duration) []string {
	if later > 0 {
		return t.request.untie(t.token, later)
	}
	return t.request.release(t.token)
}

// gone returns the handler of what ends a hold.
func (c *core) gone(t *renewal) handler {
	return func(_ *link, _ time.Duration, _ any, err error) {
		if err == nil || errors.Is(err, ErrNotHeld) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lose(t, "released")
			if t.answered != nil {
				t.answered()
			}
		}
	}
}

// releaseUntil asks again until there is an answer, or the time is up.
func (c *core) releaseUntil(s *state, later time.Duration, first *entry, err error) error {
	ctx, r, t := context.Background(), *s.request, s.renewal
	heard, until := true, now()+c.settings.ReplyTimeout
	if err == nil {
		_, err = first.result(ctx, never)
	}
	for {
		var said ServerError
		switch {
		case err == nil, errors.Is(err, ErrNotHeld) && !heard && later == 0: // the first one has given it back
			return nil
		case errors.Is(err, ErrNotHeld):
			return err
		case c.check() != nil:
			return ErrClosed
		case c.redirected(t.node, r.key, err) != nil && now() < until:
		case !passes(err) || now() >= until:
			return err
		default:
			heard = heard && errors.As(err, &said)
			c.trouble(r.link, err)
			c.sleep(ctx, 20*time.Millisecond)
		}
		_, err = c.call(ctx, &r, releaseWords(t, later), until, c.gone(t))
	}
}

// abandon gives back what nobody waits for any more, on the link where it was asked for, behind the request. Nothing is
// waited for and nothing is said again: if the link ends, the place and the first lease end by themselves, and KEEP's count
// finds a hold that nobody has. A token of 0 means the wait, and what it was granted. The owner has been renamed, before its
// next request may be sent by another link.
func (c *core) abandon(r *acquireRequest, token int64, answered func()) {
	c.mu.Lock()
	l := r.link
	if t := r.state.renewal; t != nil {
		l = t.node.link
	}
	_, asking := c.asking[r.key]
	if !l.alive() { // nothing is said: the server may keep a hold, for less than a lease, which the name would enter again
		if token == 0 {
			answered()
		}
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	if token == 0 {
		_, _ = l.post(r.words("CANCEL"), nil, asking)
	}
	_, _ = l.post(r.release(token), func(_ *link, _ time.Duration, _ any, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !errors.Is(err, ErrUnreachable) {
			answered()
		}
		if err != nil && !errors.Is(err, ErrNotHeld) {
			return
		}
		if t := r.state.renewal; t != nil {
			c.lose(t, "abandoned")
		}
	}, asking)
}

// untie leaves a hold to its lease.
func (c *core) untie(t *renewal) {
	c.mu.Lock()
	l := t.link
	_, asking := c.asking[t.request.key]
	c.mu.Unlock()
	if l.alive() {
		_, _ = l.post(t.request.untie(t.token, c.settings.Lease), c.gone(t), asking)
	}
}

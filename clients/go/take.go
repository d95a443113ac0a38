// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Take and wait.

const (
	forever   = time.Duration(-1)      // a time-out: none
	grace     = 500 * time.Millisecond // so much longer a caller whose time is up waits for a reply on its way
	warnEvery = 10 * time.Second
)

// take gives the tie of what was granted; nil if it is taken. A time-out of 0: one try.
func (c *core) take(ctx context.Context, r *request, timeout time.Duration) (*tie, error) {
	asked := now()
	r.atOnce, r.deadline, r.end = timeout == 0, never, never
	if timeout > 0 {
		r.deadline, r.end = after(asked, timeout), after(asked, timeout)
	} else if r.atOnce {
		r.end = asked + c.settings.Bound
	}
	if at, ok := ctx.Deadline(); ok {
		r.deadline = min(r.deadline, after(asked, time.Until(at)))
	}
	t, err := c.asking(ctx, r, timeout)
	if r.asked && t == nil && !errors.Is(err, ErrReplaced) && (err != nil || r.queued) { // its claim would keep the place
		c.drop(r, 0)
	}
	if r.queued {
		c.settings.Observer.waited(r.key)
	}
	if t == nil {
		c.settings.Observer.refused(r.key, asked, err)
	} else {
		c.settings.Observer.granted(r.key, asked)
	}
	return t, err
}

// asking asks again after what passes, until the time is up.
func (c *core) asking(ctx context.Context, r *request, timeout time.Duration) (*tie, error) {
	warned := -warnEvery
	var trouble error
	for {
		if err := c.check(); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, over(r, ctx.Err(), trouble)
		}
		t, err := c.attempt(ctx, r)
		switch {
		case err == nil && t == nil && !r.atOnce && (timeout < 0 || ctx.Err() != nil): // the context's time is up
			return nil, over(r, context.DeadlineExceeded, trouble)
		case err == nil:
			return t, nil
		case c.check() != nil:
			return nil, ErrClosed
		case ctx.Err() != nil:
			return nil, over(r, ctx.Err(), trouble)
		case errors.Is(err, ErrNotHeld) && r.before == 0: // the grant has ended before it was confirmed
		case !passes(err), r.atOnce && (errors.Is(err, ErrNoAck) || errors.Is(err, errNoAnswer)):
			return nil, err
		}
		if trouble == nil || !errors.Is(err, errNoAnswer) || now() < r.end { // the end cuts the last try short
			trouble = err
		}
		left := r.end - now()
		if left <= 0 && r.atOnce {
			return nil, err
		}
		if left <= 0 {
			return nil, fmt.Errorf("%w: %q within %v: %w", ErrTimeout, r.key, timeout, trouble)
		}
		if now()-warned >= warnEvery {
			c.log.Warn("still waiting for lock", "key", r.key, "error", err)
			warned = now()
		}
		c.lookAround(c.nodeOf(r), err)
		c.sleep(ctx, min(left, 20*time.Millisecond+mathrand.N(80*time.Millisecond)))
	}
}

// over: the context has ended.
func over(r *request, why, trouble error) error {
	switch {
	case !errors.Is(why, context.DeadlineExceeded):
		return fmt.Errorf("dlock: waiting for %q: %w", r.key, why)
	case trouble != nil:
		return fmt.Errorf("%w: %q: %w: %w", ErrTimeout, r.key, why, trouble)
	}
	return fmt.Errorf("%w: %q: %w", ErrTimeout, r.key, why)
}

// until: so long a reply to the request is waited for.
func (c *core) until(r *request) time.Duration {
	bound := now() + c.settings.Bound
	if r.end == never {
		return bound
	}
	return min(bound, r.end+grace)
}

func (c *core) attempt(ctx context.Context, r *request) (*tie, error) {
	if !r.looked {
		if err := c.look(ctx, r); err != nil {
			return nil, err
		}
	}
	r.asked = true
	if !r.queued {
		granted := func(l *link, sent time.Duration, reply any, err error) {
			if grant, ok := reply.([]any); ok && err == nil {
				c.tie(r, l, number(grant[0]), c.believed(sent, c.settings.Lease))
			}
		}
		reply, err := c.call(ctx, r, r.take(), c.until(r), granted)
		if err != nil {
			return nil, err
		}
		if reply != nil || r.atOnce {
			return c.tieOf(r), nil
		}
		r.queued = true
		c.settings.Observer.waiting(r.key)
	}
	n, err := c.route(ctx, r.key)
	if err != nil {
		return nil, err
	}
	heard, err := c.listen(ctx, n, c.until(r))
	switch {
	case heard:
		return c.queue(ctx, n, r)
	case err != nil && !passes(err):
		return nil, err
	case now() >= r.deadline:
		return nil, nil
	}
	return c.block(ctx, n, r)
}

// look: an outer hold of this name is not ours to give back.
func (c *core) look(ctx context.Context, r *request) error {
	departs := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.parting[place{r.key, r.owner}] > 0
	}
	for departs() {
		if now() >= r.end {
			return fmt.Errorf("%w: this owner's last wait is still to be left", ErrUnreachable)
		}
		c.sleep(ctx, 10*time.Millisecond)
		if err := errors.Join(c.check(), ctx.Err()); err != nil {
			return err
		}
	}
	held, err := c.call(ctx, r, r.words("HELD"), c.until(r), nil)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.within(held)
	return nil
}

// queue waits by NOTIFY.
func (c *core) queue(ctx context.Context, n *node, r *request) (*tie, error) {
	names, w := place{r.key, r.owner}, &waiter{make(chan message, 16)}
	c.mu.Lock()
	n.waits[names] = append(n.waits[names], w)
	n.wake()
	ear := n.ear
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		n.waits[names] = slices.DeleteFunc(n.waits[names], func(one *waiter) bool { return one == w })
		if len(n.waits[names]) == 0 {
			delete(n.waits, names)
		}
	}()
	if !ear.alive() { // as we came
		return nil, fmt.Errorf("%w: messages are not heard", ErrUnreachable)
	}
	how := []string{"NOTIFY", c.channel}
	last := never
	if r.deadline != never {
		how = append(how, "BLOCK", millis(r.deadline-now()))
		last = r.deadline + grace
	}
	reply, err := c.call(ctx, r, r.wait(how...), c.until(r), nil)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	moved := r.node != n
	c.mu.Unlock()
	if moved {
		return nil, ServerError("TRYAGAIN the slot has moved")
	}
	if reply == nil {
		return nil, nil
	}
	ticket := reply.([]any)
	if token := number(ticket[0]); token != 0 {
		return c.confirm(ctx, r, token)
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
			return c.confirm(ctx, r, one.token)
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
func (c *core) block(ctx context.Context, n *node, r *request) (*tie, error) {
	l, err := c.open(ctx, n, c.until(r))
	if err != nil {
		return nil, err
	}
	l.start()
	defer l.die(unreachable(errors.New("the wait is over")))
	go func() {
		select {
		case <-ctx.Done():
			l.die(ctx.Err())
		case <-c.done:
			l.die(ErrClosed)
		case <-l.over:
		}
	}()
	for now() < r.deadline {
		part := min(c.settings.Bound/2, r.deadline-now())
		l.bound = part + c.settings.Bound // it counts from when the slice is over
		reply, err := l.call(ctx, r.wait("BLOCK", millis(part)))
		if err := errors.Join(c.check(), err); err != nil {
			return nil, err
		}
		if grant, ok := reply.([]any); ok {
			return c.confirm(ctx, r, number(grant[0]))
		}
	}
	return nil, nil
}

func (c *core) confirm(ctx context.Context, r *request, token int64) (*tie, error) {
	renewed := func(l *link, sent time.Duration, reply any, err error) {
		if left, ok := reply.(int64); ok && err == nil {
			c.tie(r, l, token, c.believed(sent, time.Duration(left)*time.Millisecond))
		}
	}
	if _, err := c.call(ctx, r, r.renew(token), c.until(r), renewed); err != nil {
		return nil, err
	}
	return c.tieOf(r), nil
}

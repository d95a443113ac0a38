// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"
)

// Acquire and wait.

const (
	forever   = time.Duration(-1)      // no time-out
	grace     = 500 * time.Millisecond // after its time a caller waits this much longer for a reply on its way
	poll      = 250 * time.Millisecond // between two requests of a waiter who gets no messages
	warnEvery = 10 * time.Second
)

// take returns the renewal of the hold; nil if the lock is taken.
func (c *core) take(ctx context.Context, r *acquireRequest, timeout time.Duration) (t *renewal, err error) {
	asked := now()
	r.once, r.deadline, r.until = timeout == 0, never, never
	if timeout > 0 {
		r.deadline, r.until = after(asked, timeout), after(asked, timeout)
	} else if r.once {
		r.until = asked + c.settings.ReplyTimeout
	}
	if at, ok := ctx.Deadline(); ok {
		r.deadline = min(r.deadline, after(asked, time.Until(at)))
	}
	if t, err = c.takeInTurn(ctx, r, timeout); t == nil {
		c.settings.Observer.refused(r.key, asked, err)
	} else {
		c.settings.Observer.granted(r.key, asked)
	}
	return t, err
}

func (c *core) takeInTurn(ctx context.Context, r *acquireRequest, timeout time.Duration) (*renewal, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if !r.named {
		return c.acquire(ctx, r, timeout)
	}
	if err := c.turn(ctx, r); err != nil {
		return nil, err
	}
	defer c.exit(r)
	if t, err := c.reenter(ctx, r); t != nil || err != nil {
		return t, err
	}
	c.address(r)
	return c.acquire(ctx, r, timeout)
}

func (c *core) acquire(ctx context.Context, r *acquireRequest, timeout time.Duration) (*renewal, error) {
	t, err := c.retrying(ctx, r, timeout)
	if t == nil {
		r.state.leave()
		if r.sent && !errors.Is(err, ErrReplaced) && (err != nil || r.queued) { // QueueGrace would keep the place
			c.mu.Lock()
			answered := c.rename(r)
			c.mu.Unlock()
			c.abandon(r, 0, answered)
		}
	}
	if r.queued {
		c.settings.Observer.waited(r.key)
	}
	return t, err
}

// retrying asks again after what passes, until the time is up. A try asks once.
func (c *core) retrying(ctx context.Context, r *acquireRequest, timeout time.Duration) (*renewal, error) {
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
		case err == nil && t == nil && !r.once && (timeout < 0 || ctx.Err() != nil): // the context's time is up
			return nil, over(r, context.DeadlineExceeded, trouble)
		case err == nil:
			return t, nil
		case c.check() != nil:
			return nil, ErrClosed
		case ctx.Err() != nil:
			return nil, over(r, ctx.Err(), trouble)
		case errors.Is(err, ErrNotHeld): // the grant has ended before it was confirmed
		case !passes(err):
			return nil, err
		}
		c.trouble(r.link, err)
		if r.once {
			return nil, err
		}
		if trouble == nil || !errors.Is(err, errNoAnswer) || now() < r.until { // the end cuts the last attempt short
			trouble = err
		}
		left := r.until - now()
		if left <= 0 {
			return nil, fmt.Errorf("%w: %q within %v: %w", ErrTimeout, r.key, timeout, trouble)
		}
		if now()-warned >= warnEvery {
			c.log.Warn("still waiting for lock", "key", r.key, "error", err)
			warned = now()
		}
		c.sleep(ctx, min(left, 20*time.Millisecond+mathrand.N(80*time.Millisecond)))
	}
}

// over returns the error of a context that has ended.
func over(r *acquireRequest, why, trouble error) error {
	switch {
	case !errors.Is(why, context.DeadlineExceeded):
		return fmt.Errorf("dlock: waiting for %q: %w", r.key, why)
	case trouble == nil && r.queued:
		trouble = ErrTaken
	case trouble == nil:
		trouble = errNoAnswer
	}
	return fmt.Errorf("%w: %q: %w: %w", ErrTimeout, r.key, why, trouble)
}

// replyBy returns how long a reply to the request is waited for.
func (c *core) replyBy(r *acquireRequest) time.Duration {
	bound := now() + c.settings.ReplyTimeout
	if r.until == never {
		return bound
	}
	return min(bound, r.until+grace)
}

func (c *core) attempt(ctx context.Context, r *acquireRequest) (*renewal, error) {
	n, _, err := c.route(ctx, r.key)
	if err == nil {
		err = c.refusal(ctx, n, r)
	}
	if err != nil {
		return nil, err
	}
	r.again, r.sent = r.sent, true
	if !r.queued && !r.once && n.crowded(r.key) {
		c.queued(r) // to be told that it is taken would be a command for nothing
	}
	if !r.queued {
		if t, err := c.ask(ctx, r); t != nil || err != nil || r.once {
			return t, err
		}
		c.queued(r)
		if n, _, err = c.route(ctx, r.key); err != nil {
			return nil, err
		}
	}
	heard, err := c.subscribe(ctx, n, c.replyBy(r))
	switch {
	case heard:
		return c.wait(ctx, n, r)
	case err != nil:
		return nil, err
	}
	return c.poll(ctx, r)
}

func (c *core) queued(r *acquireRequest) {
	r.queued = true
	c.settings.Observer.waiting(r.key)
}

// refusal returns why the server refuses to keep holds, if it does: a new one could not be kept either.
func (c *core) refusal(ctx context.Context, n *node, r *acquireRequest) error {
	c.mu.Lock()
	refused := n.refused
	c.mu.Unlock()
	if !refused {
		return nil
	}
	_, err := c.call(ctx, r, c.keepWords(), c.replyBy(r), c.kept)
	return err
}

// ask returns the renewal, or nil: then the lock is taken, and unless it is a try a ticket keeps the place. If an earlier
// answer was lost the server may have granted the lock then, and dlock.max-hold-ms may have left less than a lease of it: RENEW
// tells.
func (c *core) ask(ctx context.Context, r *acquireRequest) (*renewal, error) {
	granted := func(l *link, sent time.Duration, reply any, err error) {
		if grant, ok := reply.([]any); ok && err == nil {
			c.granted(r, l, number(grant[0]), c.believed(sent, c.settings.Lease))
		}
	}
	if r.again {
		granted = nil
	}
	reply, err := c.call(ctx, r, r.acquire(), c.replyBy(r), granted)
	if reply == nil || err != nil {
		return nil, err
	}
	if grant, ok := reply.([]any); ok && r.again {
		return c.confirm(ctx, r, number(grant[0]))
	}
	return r.renewal(), nil
}

func (r *acquireRequest) renewal() *renewal {
	r.state.core.mu.Lock()
	defer r.state.core.mu.Unlock()
	return r.state.renewal
}

// wait waits by NOTIFY.
func (c *core) wait(ctx context.Context, n *node, r *acquireRequest) (*renewal, error) {
	at, w := place{r.key, r.owner}, &waiter{make(chan notification, 16)}
	c.mu.Lock()
	n.waits[at] = w
	n.crowd[r.key]++
	n.wake()
	subscriber := n.subscriber
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(n.waits, at)
		if n.crowd[r.key]--; n.crowd[r.key] == 0 {
			delete(n.crowd, r.key)
		}
	}()
	if !subscriber.alive() { // it has ended meanwhile
		return nil, fmt.Errorf("%w: messages are not heard", ErrUnreachable)
	}
	how := []string{"NOTIFY", c.channel}
	last := never
	if r.deadline != never {
		how = append(how, "BLOCK", millis(r.deadline-now()))
		last = r.deadline + grace
	}
	reply, err := c.call(ctx, r, r.wait(how...), c.replyBy(r), nil)
	if err != nil {
		return nil, err
	}
	if r.link.node != n {
		return nil, ServerError("TRYAGAIN the slot has moved")
	}
	ticket, ok := reply.([]any)
	if !ok || len(ticket) < 3 {
		if ok && number(ticket[0]) != 0 {
			return c.confirm(ctx, r, number(ticket[0]))
		}
		return nil, nil
	}
	if token := number(ticket[0]); token != 0 {
		return c.confirm(ctx, r, token)
	}
	for {
		var one notification
		timer := time.NewTimer(min(last-now(), slice))
		select {
		case one = <-w.notifications:
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
		case one.word == "", one.number != 0 && one.number != number(ticket[2]): // of an earlier request of this owner
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
		return nil, fmt.Errorf("%w: the place in the queue was lost: %s", ErrUnreachable, one.word) // moved, gone, cancelled, again
	}
}

// poll waits without messages: it asks by the ticket.
func (c *core) poll(ctx context.Context, r *acquireRequest) (*renewal, error) {
	for now() < r.deadline {
		if t, err := c.ask(ctx, r); t != nil || err != nil {
			return t, err
		}
		c.sleep(ctx, min(poll, r.deadline-now()))
		if err := errors.Join(c.check(), ctx.Err()); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (c *core) confirm(ctx context.Context, r *acquireRequest, token int64) (*renewal, error) {
	renewed := func(l *link, sent time.Duration, reply any, err error) {
		if left, ok := reply.(int64); ok && err == nil {
			c.granted(r, l, token, c.believed(sent, time.Duration(left)*time.Millisecond))
		}
	}
	if _, err := c.call(ctx, r, r.renew(token), c.replyBy(r), renewed); err != nil {
		return nil, err
	}
	return r.renewal(), nil
}

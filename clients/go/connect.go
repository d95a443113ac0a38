// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Connections are made by go-redis, so that addresses, TLS, sentinels, users and databases are its business. It dials and
// says hello; then the connection is ours alone, and its client is there only to be closed.

const (
	another = time.Second            // a connect or a reply that takes longer may be that of a former primary
	look    = 100 * time.Millisecond // so often a request that waits for a link looks at the routes
)

// An opening is a connection that is being opened, for all who want it.
type opening struct {
	done chan struct{}
	link *link
	err  error
}

// pattern returns how go-redis connects to the node.
func (c *core) pattern(ctx context.Context, n *node) (redis.Options, error) {
	if c.cluster == nil {
		return *c.single.Options(), nil
	}
	c.mu.Lock()
	known := c.template
	c.mu.Unlock()
	if known == nil {
		if _, _, err := c.route(ctx, ""); err != nil {
			return redis.Options{}, err
		}
		c.mu.Lock()
		known = c.template
		c.mu.Unlock()
	}
	options := *known
	options.Addr = n.name
	return options, nil
}

// own makes it a pattern of a client of ours: bounded, and tried once.
func own(options *redis.Options, bound time.Duration) {
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = bound, bound, bound, bound
	options.MaxRetries, options.ContextTimeoutEnabled, options.Limiter = -1, true, nil
	fields := reflect.ValueOf(options).Elem() // not every version of the library has these
	if field := fields.FieldByName("DialerRetries"); field.IsValid() {
		field.SetInt(1)
	}
	for _, name := range []string{
		"PushNotificationProcessor", "MaintNotificationsConfig", "ClientSideCacheConfig", "ClientSideCache",
	} {
		if field := fields.FieldByName(name); field.IsValid() {
			field.SetZero() // what the program's client has is its own
		}
	}
}

func (c *core) dial(ctx context.Context, n *node) (*link, error) {
	options, err := c.pattern(ctx, n)
	if err != nil {
		return nil, err
	}
	own(&options, c.settings.ReplyTimeout)
	options.Protocol, options.PoolSize, options.MinIdleConns = 2, 1, 0
	// Dialled here: the library logs each failure, and may try again.
	conn, err := options.Dialer(ctx, options.Network, options.Addr)
	if err != nil {
		return nil, failed(err)
	}
	var given, ready atomic.Bool
	options.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if given.Swap(true) {
			return nil, unreachable(errors.New("the connection has ended"))
		}
		return conn, nil
	}
	hook := options.OnConnect
	options.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
		if hook != nil {
			if err := hook(ctx, conn); err != nil {
				return err
			}
		}
		ready.Store(true)
		return nil
	}
	client := redis.NewClient(&options)
	// A user without the right to PING is connected all the same.
	err = client.Conn().Ping(ctx).Err()
	if err != nil && (!ready.Load() || !strings.HasPrefix(err.Error(), "NOPERM")) {
		_ = client.Close()
		_ = conn.Close()
		return nil, failed(err)
	}
	_ = conn.SetDeadline(time.Time{})
	return newLink(n, conn, func() { _ = client.Close() }), nil
}

// failed returns the server's own words, or that it cannot be reached.
func failed(err error) error {
	var reply redis.Error
	if errors.As(err, &reply) {
		return ServerError(reply.Error())
	}
	return unreachable(err)
}

// within gives up on work of the library that may have no bound of its own, or another one.
func within[T any](ctx context.Context, limit time.Duration, work func(context.Context) (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoAnswer)
	defer cancel()
	outcomes := make(chan outcome, 1)
	go func() {
		value, err := work(ctx)
		outcomes <- outcome{value, err}
	}()
	select {
	case one := <-outcomes:
		if one.err != nil && ctx.Err() != nil {
			return one.value, fmt.Errorf("%w: %w", context.Cause(ctx), one.err)
		}
		return one.value, one.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// connect opens a connection to the node. While it hangs another is begun each second, which asks the Sentinels or the map
// of slots anew; the first one that is there wins.
func (c *core) connect(n *node) (*link, error) {
	type dialled struct {
		link *link
		err  error
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), c.settings.ReplyTimeout, errNoAnswer)
	defer cancel()
	outcomes, running := make(chan dialled), 0
	dial := func() {
		running++
		go func() {
			l, err := c.dial(ctx, n)
			select {
			case outcomes <- dialled{l, err}:
			case <-ctx.Done():
				if l != nil {
					l.die(errNoAnswer)
				}
			}
		}()
	}
	dial()
	again := time.NewTicker(another)
	defer again.Stop()
	for {
		select {
		case one := <-outcomes:
			if running--; one.err == nil || running == 0 || !passes(one.err) {
				return one.link, one.err
			}
		case <-again.C:
			c.refreshRoutes()
			dial()
			go c.reroute(n)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-c.done:
			return nil, ErrClosed
		}
	}
}

// link returns the link of the node that serves the key, and whether the key is there before its slot. It opens a link if
// there is none.
func (c *core) link(ctx context.Context, key string, until time.Duration) (l *link, asking bool, err error) {
	timer := time.NewTimer(until - now())
	defer timer.Stop()
	for {
		n, asking, err := c.route(ctx, key)
		if err != nil {
			return nil, false, err
		}
		l, one := c.current(n)
		if l != nil {
			return l, asking, nil
		}
		var anew <-chan time.Time
		if c.cluster != nil {
			anew = time.After(look) // it may be another node's by now
		}
		select {
		case <-one.done:
			if one.err != nil {
				return nil, false, one.err
			}
		case <-anew:
		case <-timer.C:
			return nil, false, errNoAnswer
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// current returns the node's link, or the one that is being opened.
func (c *core) current(n *node) (*link, *opening) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.link.alive() {
		return n.link, nil
	}
	return nil, c.open(n)
}

// open opens a link to the node. While the node has one, the other replaces it only if it leads to another server. Under
// the mutex.
func (c *core) open(n *node) *opening {
	if n.opening == nil {
		n.opening = &opening{done: make(chan struct{})}
		go c.opened(n, n.opening)
	}
	return n.opening
}

// opened ends an opening. Messages come from where the link goes, so it ends the subscriber.
func (c *core) opened(n *node, one *opening) {
	l, err := c.connect(n)
	if err == nil {
		l.start()
	}
	c.mu.Lock()
	before, subscriber, closed := n.link, n.subscriber, c.closed
	n.opening = nil
	one.link, one.err = l, err
	replaces := err == nil && (!before.alive() || before.address() != l.address() || before.surplus > 1)
	if replaces {
		n.link = l
	} else if err == nil {
		one.link = before
	}
	c.mu.Unlock()
	switch {
	case replaces && closed:
		l.die(ErrClosed)
	case replaces && subscriber != nil:
		subscriber.die(unreachable(errors.New("the link is new")))
	case !replaces && err == nil:
		l.die(unreachable(errors.New("it is not needed")))
	}
	close(one.done)
}

// overdue is called when a reply of the link takes long. Its server may be no primary any more, and hang: so Sentinel, or the
// map of slots, is asked anew.
func (c *core) overdue(l *link) {
	n := l.node
	c.refreshRoutes()
	if c.cluster == nil {
		c.mu.Lock()
		if n.link != l || c.closed {
			c.mu.Unlock()
			return
		}
		one := c.open(n)
		c.mu.Unlock()
		<-one.done
		if one.err == nil && one.link != l {
			l.die(errNoAnswer)
		}
		return
	}
	c.sleep(context.Background(), look) // the map is asked for in the background
	c.reroute(n)
}

// subscribe returns when messages come from the node, or never will.
func (c *core) subscribe(ctx context.Context, n *node, until time.Duration) (heard bool, err error) {
	c.mu.Lock()
	if n.subscribeDenied || n.subscriber.alive() {
		defer c.mu.Unlock()
		return !n.subscribeDenied, nil
	}
	one := n.subscribing
	if one == nil {
		one = &opening{done: make(chan struct{})}
		n.subscribing = one
		go func() {
			one.err = c.subscriber(n)
			c.mu.Lock()
			n.subscribing = nil
			c.mu.Unlock()
			close(one.done)
		}()
	}
	c.mu.Unlock()
	timer := time.NewTimer(until - now())
	defer timer.Stop()
	select {
	case <-one.done:
	case <-timer.C:
		return false, fmt.Errorf("%w: no messages come", ErrUnreachable)
	case <-ctx.Done():
		return false, ctx.Err()
	case <-c.done:
		return false, ErrClosed
	}
	_, denied := n.subscribed()
	return one.err == nil && !denied, one.err
}

// subscriber opens the node's second connection.
func (c *core) subscriber(n *node) error {
	c.mu.Lock()
	before := n.link
	c.mu.Unlock()
	l, err := c.connect(n)
	if err != nil {
		return err
	}
	subscribed := make(chan error, 1)
	var last atomic.Int64 // when anything has come
	last.Store(int64(now()))
	l.onReply = func(reply any, err error) {
		last.Store(int64(now()))
		parts, _ := reply.([]any)
		switch {
		case err != nil: // a refused PING comes later, and is an answer all the same
			select {
			case subscribed <- err:
			default:
			}
		case len(parts) == 3 && parts[0] == "subscribe":
			select {
			case subscribed <- nil:
			default:
			}
		case len(parts) == 3 && parts[0] == "message":
			text, _ := parts[2].(string)
			n.message(text)
		}
	}
	l.start()
	if _, err := l.post([]string{"SUBSCRIBE", c.channel}, nil, false); err != nil {
		return err
	}
	timer := time.NewTimer(c.settings.ReplyTimeout)
	defer timer.Stop()
	select {
	case err = <-subscribed:
	case <-l.over:
		err = l.err
	case <-timer.C:
		err = fmt.Errorf("%w: no messages come", ErrUnreachable)
	case <-c.done:
		err = ErrClosed
	}
	c.mu.Lock()
	switch {
	case err == nil && n.link != before:
		err = unreachable(errors.New("the link is new"))
	case err == nil:
		n.subscriber = l
	case !passes(err) && !errors.Is(err, ErrClosed):
		n.subscribeDenied = true
		c.mu.Unlock()
		c.log.Warn("messages cannot be heard: each wait asks four times a second", "error", err)
		l.die(err)
		return nil
	}
	if err == nil && c.closed {
		err = ErrClosed
	}
	c.mu.Unlock()
	if err != nil {
		l.die(err)
		return err
	}
	go c.watch(n, l, &last)
	return nil
}

// watch asks the subscriber's connection once a second while somebody waits: a path that falls silent loses messages.
func (c *core) watch(n *node, l *link, last *atomic.Int64) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	asked := time.Duration(-1)
	for {
		select {
		case <-l.over:
			return
		case <-tick.C:
		}
		c.mu.Lock()
		waiting := len(n.waits) > 0
		c.mu.Unlock()
		switch {
		case asked >= 0 && time.Duration(last.Load()) < asked:
			if now()-asked > c.settings.ReplyTimeout {
				l.die(fmt.Errorf("%w: no messages come any more", ErrUnreachable))
			}
		case waiting:
			asked = now()
			_, _ = l.post([]string{"PING"}, nil, false)
		default:
			asked = -1
		}
	}
}

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

// How connections are made: by go-redis, so that addresses, TLS, sentinels, users and databases are its business. It
// dials and says hello; then the connection is ours alone, and its client is there only to be closed.

// pattern is how go-redis connects to the node.
func (c *core) pattern(ctx context.Context, n *node) (redis.Options, error) {
	if c.cluster == nil {
		return *c.single.Options(), nil
	}
	c.mu.Lock()
	known := c.template
	c.mu.Unlock()
	if known == nil {
		if _, err := c.route(ctx, ""); err != nil {
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
	own(&options, c.settings.Bound)
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

// failed is what connecting has come to: the server's own words, or none.
func failed(err error) error {
	var said redis.Error
	if errors.As(err, &said) {
		return ServerError(said.Error())
	}
	return unreachable(err)
}

// within: what the library does may have no bound of its own, or another one.
func within[T any](
	ctx context.Context, limit time.Duration, work func(context.Context) (T, error), undo func(T),
) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoAnswer)
	defer cancel()
	outcomes := make(chan outcome)
	go func() {
		value, err := work(ctx)
		select {
		case outcomes <- outcome{value, err}:
		case <-ctx.Done():
			if err == nil {
				undo(value)
			}
		}
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

// route says who serves the key, as far as we know.
func (c *core) route(ctx context.Context, key string) (*node, error) {
	if c.cluster == nil {
		return c.node(""), nil
	}
	c.mu.Lock()
	address, moved := c.moved[slotOf(key)]
	ready := c.template != nil
	c.mu.Unlock()
	if moved {
		return c.node(address), nil
	}
	master := func(ctx context.Context) (*redis.Client, error) { return c.cluster.MasterForKey(ctx, key) }
	var client *redis.Client
	var err error
	if ready {
		client, err = master(ctx) // the library has a map, and asks anew behind our back
	} else {
		client, err = within(ctx, c.settings.Bound, master, func(*redis.Client) {})
	}
	if err != nil {
		return nil, failed(err)
	}
	if !ready {
		c.mu.Lock()
		c.template = client.Options()
		c.mu.Unlock()
	}
	return c.node(client.Options().Addr), nil
}

func (c *core) node(name string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil {
		n = &node{
			core: c, name: name, opening: make(chan struct{}, 1), kick: make(chan struct{}, 1),
			rings: time.NewTimer(never), ties: map[id]*tie{}, waits: map[place][]*waiter{},
		}
		c.nodes[name] = n
		go c.keep(n)
	}
	return n
}

// lock gives the right to open a connection to the node: one for link and ear, since a new link ends the ear before it.
func (n *node) lock(ctx context.Context, until time.Duration) error {
	timer := time.NewTimer(until - now())
	defer timer.Stop()
	select {
	case n.opening <- struct{}{}:
		return nil
	case <-timer.C:
		return errNoAnswer
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *node) unlock() { <-n.opening }

func (c *core) open(ctx context.Context, n *node, until time.Duration) (*link, error) {
	return within(ctx, until-now(), func(ctx context.Context) (*link, error) { return c.dial(ctx, n) },
		func(late *link) { late.die(errNoAnswer) })
}

// link is the node's, opened if there is none.
func (c *core) link(ctx context.Context, n *node, until time.Duration) (*link, error) {
	if l := n.currentLink(); l.alive() {
		return l, nil
	}
	return c.relink(ctx, n, nil, until)
}

// relink opens the node's link, if that is dead or this one. Whoever comes meanwhile waits for the same one. Where it goes
// the messages come from: it may be another server now.
func (c *core) relink(ctx context.Context, n *node, stale *link, until time.Duration) (*link, error) {
	if err := n.lock(ctx, until); err != nil {
		return nil, err
	}
	defer n.unlock()
	if l := n.currentLink(); l != stale && l.alive() {
		return l, nil
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	l, err := c.open(ctx, n, until)
	if err != nil {
		return nil, err
	}
	l.start()
	c.mu.Lock()
	n.link = l
	ear := n.ear
	closed := c.closed
	c.mu.Unlock()
	if ear != nil {
		ear.die(unreachable(errors.New("the link is new")))
	}
	if closed {
		l.die(ErrClosed)
	}
	return l, nil
}

// listen returns when messages come from the node, or cannot be heard.
func (c *core) listen(ctx context.Context, n *node, until time.Duration) (heard bool, err error) {
	if heard, deaf := n.hears(); heard || deaf {
		return heard, nil
	}
	if err := n.lock(ctx, until); err != nil {
		return false, err
	}
	defer n.unlock()
	if heard, deaf := n.hears(); heard || deaf {
		return heard, nil
	}
	ear, err := c.open(ctx, n, until)
	if err != nil {
		return false, err
	}
	subscribed := make(chan error, 1)
	var last atomic.Int64 // when anything has come
	last.Store(int64(now()))
	ear.hear = func(reply any, err error) {
		last.Store(int64(now()))
		parts, _ := reply.([]any)
		switch {
		case err != nil: // what the server refuses later, as a PING, was heard all the same
			select {
			case subscribed <- err:
			default:
			}
		case len(parts) == 3 && parts[0] == "subscribe":
			subscribed <- nil
		case len(parts) == 3 && parts[0] == "message":
			n.heard(parts[2].(string))
		}
	}
	ear.start()
	if _, err := ear.post([]string{"SUBSCRIBE", c.channel}, nil, false); err != nil {
		return false, err
	}
	timer := time.NewTimer(until - now())
	defer timer.Stop()
	select {
	case err = <-subscribed:
		if err != nil && !passes(err) {
			c.mu.Lock()
			n.deaf = true
			c.mu.Unlock()
			c.log.Warn("waits block on connections of their own, since messages cannot be heard", "error", err)
			ear.die(err)
			return false, nil
		}
	case <-ear.over:
		err = ear.err
	case <-timer.C:
		err = fmt.Errorf("%w: no messages come", ErrUnreachable)
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.done:
		err = ErrClosed
	}
	if err != nil {
		ear.die(err)
		return false, err
	}
	go c.mind(n, ear, &last)
	c.mu.Lock()
	n.ear = ear
	closed := c.closed
	c.mu.Unlock()
	if closed {
		ear.die(ErrClosed)
	}
	return true, nil
}

// mind: a path that has fallen silent loses messages without a word. So while somebody waits it is asked once a second.
func (c *core) mind(n *node, ear *link, last *atomic.Int64) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	asked := time.Duration(-1)
	for {
		select {
		case <-ear.over:
			return
		case <-tick.C:
		}
		c.mu.Lock()
		waiting := len(n.waits) > 0
		c.mu.Unlock()
		switch {
		case asked >= 0 && time.Duration(last.Load()) < asked:
			if now()-asked > c.settings.Bound {
				ear.die(fmt.Errorf("%w: no messages come any more", ErrUnreachable))
			}
		case waiting:
			asked = now()
			_, _ = ear.post([]string{"PING"}, nil, false)
		default:
			asked = -1
		}
	}
}

// slotOf is a key's slot in a cluster: CRC16, of what is in braces.
func slotOf(key string) uint16 {
	if start := strings.IndexByte(key, '{'); start >= 0 {
		if size := strings.IndexByte(key[start+1:], '}'); size > 0 {
			key = key[start+1 : start+1+size]
		}
	}
	crc := uint16(0)
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

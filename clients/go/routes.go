// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"errors"
	"maps"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Which node serves a key: the library's map of slots, and the redirections since.

// call returns the reply of the node that serves the request's key.
func (c *core) call(ctx context.Context, r *acquireRequest, words []string, until time.Duration, then handler) (any, error) {
	var err error
	for range 5 {
		var l *link
		var asking bool
		if l, asking, err = c.link(ctx, r.key, until); err != nil {
			return nil, err
		}
		r.link = l
		var one *entry
		if one, err = l.post(words, then, asking); err != nil {
			return nil, err
		}
		var reply any
		if reply, err = one.result(ctx, until); err == nil {
			return reply, nil
		}
		if c.redirected(l.node, r.key, err) == nil {
			return nil, err
		}
	}
	return nil, err
}

// route returns the node that serves the key, as far as is known, and whether the key is there before its slot.
func (c *core) route(ctx context.Context, key string) (n *node, asking bool, err error) {
	if c.cluster == nil {
		return c.node(""), false, nil
	}
	c.mu.Lock()
	address, moved := c.asking[key]
	asking = moved
	if !moved {
		address, moved = c.moved[slotOf(key)]
	}
	ready := c.template != nil
	c.mu.Unlock()
	if moved {
		return c.node(address), asking, nil
	}
	master := func(ctx context.Context) (*redis.Client, error) { return c.cluster.MasterForKey(ctx, key) }
	var client *redis.Client
	if ready {
		client, err = master(ctx) // the library has a map, and refreshes it in the background
	} else {
		client, err = within(ctx, c.settings.ReplyTimeout, master)
	}
	if err != nil {
		return nil, false, failed(err)
	}
	if !ready {
		c.mu.Lock()
		c.template = client.Options()
		c.mu.Unlock()
	}
	return c.node(client.Options().Addr), false, nil
}

func (c *core) node(name string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil {
		n = &node{
			core: c, name: name, kick: make(chan struct{}, 1), rings: time.NewTimer(never),
			waits: map[place]*waiter{}, crowd: map[string]int{},
		}
		c.nodes[name] = n
		go c.keep(n)
	}
	return n
}

// redirected notes the node that serves the key instead, and returns it, or nil. An address without a host means the host
// of the node that was asked: it does not know its own name.
func (c *core) redirected(asked *node, key string, err error) *node {
	var reply ServerError
	if !errors.As(err, &reply) {
		return nil
	}
	slot, address, ask, ok := reply.redirected()
	if !ok {
		return nil
	}
	if strings.LastIndexByte(address, ':') == 0 {
		host, _, _ := net.SplitHostPort(asked.name)
		address = net.JoinHostPort(host, address[1:])
	}
	c.mu.Lock()
	if delete(c.asking, key); ask {
		c.asking[key] = address
	} else {
		c.moved[slot] = address
	}
	c.mu.Unlock()
	return c.node(address)
}

// refreshRoutes is called after an error that passes.
func (c *core) refreshRoutes() {
	c.mu.Lock()
	anew := c.cluster != nil && now()-c.refreshed > 100*time.Millisecond
	if anew {
		c.refreshed = now()
		clear(c.moved)
		clear(c.asking)
	}
	c.mu.Unlock()
	if anew {
		c.cluster.ReloadState(context.Background()) // in the background: a node that is asked may hang
	}
}

// trouble is called after an error of this link.
func (c *core) trouble(l *link, err error) {
	if l != nil && readonly(err) { // a replica by now: connecting finds the primary
		l.die(unreachable(err))
	}
	if !errors.Is(err, ErrNoAck) {
		c.refreshRoutes()
	}
}

func readonly(err error) bool {
	var reply ServerError
	return errors.As(err, &reply) && reply.code() == "READONLY"
}

// reroute hands the renewals of a node over to the nodes that serve them now.
func (c *core) reroute(n *node) {
	if c.cluster == nil {
		return
	}
	c.mu.Lock()
	renewals, waits := c.of(n), maps.Clone(n.waits)
	c.mu.Unlock()
	elsewhere := func(key string) *node {
		if target, _, err := c.route(context.Background(), key); err == nil && target != n {
			return target
		}
		return nil
	}
	for _, t := range renewals {
		if target := elsewhere(t.request.key); target != nil {
			c.mu.Lock()
			c.move(t, target)
			c.mu.Unlock()
		}
	}
	for at, w := range waits {
		if elsewhere(at.key) != nil {
			w.notify(notification{word: "moved"})
		}
	}
}

// move is called under the mutex.
func (c *core) move(t *renewal, target *node) {
	if t.node != target && c.renewals[t.id()] == t {
		t.detach()
		t.node = target
		target.receive()
	}
}

// of returns the renewals of a node. Under the mutex.
func (c *core) of(n *node) (renewals []*renewal) {
	for _, t := range c.renewals {
		if t.node == n {
			renewals = append(renewals, t)
		}
	}
	return renewals
}

// slotOf returns a key's slot in a cluster: CRC16 of what is in braces.
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

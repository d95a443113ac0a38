// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// copies returns a function that makes clients like the program's, with our bounds and without retries: go-redis makes the
// connections, so TLS, users, Unix sockets, Sentinels and clusters are its business.
func copies(client redis.UniversalClient, within time.Duration) (func() redis.UniversalClient, error) {
	switch client := client.(type) {
	case *redis.Client:
		if client != nil {
			return func() redis.UniversalClient { return redis.NewClient(bounded(client.Options(), within)) }, nil
		}
	case *redis.ClusterClient:
		if client != nil {
			return func() redis.UniversalClient { return redis.NewClusterClient(boundedCluster(client.Options(), within)) }, nil
		}
	}
	return nil, badArgument("client", fmt.Sprintf("must be a *redis.Client or a *redis.ClusterClient, not %T", client))
}

// A pool is a client of go-redis. After a time-out all idle connections may lead to a former primary, but go-redis closes only
// one: so the pool replaces its client. A cluster's client has a pool for each node, and reads where the slots are.
type pool struct {
	connect func() redis.UniversalClient
	within  time.Duration
	cluster *redis.ClusterClient // the current client, or nil
	mu      sync.Mutex
	current redis.UniversalClient
	made    time.Duration // when it replaced another one
	closed  bool
}

func newPool(connect func() redis.UniversalClient, within time.Duration) *pool {
	p := &pool{connect: func() redis.UniversalClient { return punctual(connect(), within) }, within: within, made: -never}
	p.current = p.connect()
	p.cluster, _ = p.current.(*redis.ClusterClient)
	return p
}

func (p *pool) get() redis.UniversalClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// failed replaces the client that gave no answer, or has a cluster's client read the slots again.
func (p *pool) failed(client redis.UniversalClient) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.current != client || now()-p.made < pause {
		return
	}
	p.made = now()
	if p.cluster != nil {
		p.cluster.ReloadState(context.Background())
		return
	}
	p.current = p.connect()
	time.AfterFunc(p.within, func() { _ = client.Close() }) // then no call is under way
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	_ = p.current.Close()
}

// overrides sets fields that an older go-redis does not have: encoding/json ignores those. So a program keeps its own version.
// A dial is one attempt, no node is asked for COMMAND before the first call (one that hangs would delay that by five seconds),
// and what the program's client was given for itself (push messages, a cache) is not shared.
const overrides = `{"DialerRetries": 1, "DisableRoutingPolicies": true, "MaintNotificationsConfig": null, "PushNotificationProcessor": null,
	"ClientSideCache": null, "ClientSideCacheConfig": null}`

func bounded(of *redis.Options, within time.Duration) *redis.Options {
	o := *of
	_ = json.Unmarshal([]byte(overrides), &o)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = within, within, within
	o.PoolTimeout = within * 2 / 3 // a full pool is no silent server
	o.MaxRetries, o.ContextTimeoutEnabled, o.Protocol, o.Limiter = -1, true, 2, nil
	o.MinIdleConns = 0
	return &o
}

func boundedCluster(of *redis.ClusterOptions, within time.Duration) *redis.ClusterOptions {
	o := *of
	_ = json.Unmarshal([]byte(overrides), &o)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = within, within, within
	o.PoolTimeout = within * 2 / 3 // a full pool is no silent server
	o.MaxRetries, o.ContextTimeoutEnabled, o.Protocol = -1, true, 2
	o.MinIdleConns, o.ReadOnly, o.RouteByLatency, o.RouteRandomly = 0, false, false, false // replicas know no session
	return &o
}

func boundedFailover(of *redis.FailoverOptions, within time.Duration) *redis.FailoverOptions {
	o := *of
	_ = json.Unmarshal([]byte(overrides), &o)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = within, within, within
	o.PoolTimeout = within * 2 / 3 // a full pool is no silent server
	o.MaxRetries, o.ContextTimeoutEnabled, o.Protocol = -1, true, 2
	o.MinIdleConns, o.ReplicaOnly = 0, false
	return &o
}

// punctual has the client give up a dial at the end of its context: that of go-redis for TLS knows none, and takes the DialTimeout
// of the program's client.
func punctual(client redis.UniversalClient, within time.Duration) redis.UniversalClient {
	switch client := client.(type) {
	case *redis.ClusterClient:
		client.OnNewNode(func(node *redis.Client) { node.AddHook(dialBound(within)) })
	case *redis.Client:
		client.AddHook(dialBound(within))
	}
	return client
}

type dialBound time.Duration

func (within dialBound) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(within))
		defer cancel()
		var conn net.Conn
		var err error
		dialled := make(chan struct{})
		go func() {
			conn, err = next(ctx, network, address)
			close(dialled)
		}()
		select {
		case <-dialled:
			return conn, err
		case <-ctx.Done():
		}
		go func() {
			if <-dialled; err == nil {
				_ = conn.Close()
			}
		}()
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
}

func (dialBound) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (dialBound) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// command returns a command whose key go-redis finds in a cluster.
func command(ctx context.Context, words []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, words...)
	if words[0] == "DLOCK.MACQUIRE" {
		cmd.SetFirstKeyPos(2)
	}
	return cmd
}

// call sends a command, and returns the reply within that time. At the deadline a cluster's client stops sending it again, and
// go-redis closes the connection.
func (p *pool) call(ctx context.Context, within time.Duration, words ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, min(within, p.within))
	defer cancel()
	cmd, by, sent := command(ctx, words), p.get(), now()
	_ = by.Process(ctx, cmd)
	return p.result(by, sent, cmd)
}

func (p *pool) result(by redis.UniversalClient, sent time.Duration, cmd *redis.Cmd) (any, error) {
	reply, err := cmd.Result()
	var said redis.Error
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return reply, nil
	case errors.As(err, &said): // after a READONLY go-redis closes the connection
		return nil, ServerError(said.Error())
	case p.cluster != nil || now()-sent > p.within-pause: // a caller's own deadline says nothing of the server
		p.failed(by)
	}
	return nil, unreachable(err)
}

// An answer is that to one of several commands.
type answer struct {
	reply any
	err   error
}

// pipeline sends commands in one go.
func (p *pool) pipeline(ctx context.Context, deliveries []*delivery) (answers []answer) {
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	by, sent := p.get(), now()
	pipe := by.Pipeline()
	var cmds []*redis.Cmd
	for _, d := range deliveries {
		cmd := command(ctx, d.words)
		_ = pipe.Process(ctx, cmd)
		cmds = append(cmds, cmd)
	}
	_, failed := pipe.Exec(ctx)
	for _, cmd := range cmds {
		if cmd.Err() == nil && cmd.Val() == nil && failed != nil { // without a connection go-redis leaves it as it was made
			cmd.SetErr(failed)
		}
		reply, err := p.result(by, sent, cmd)
		answers = append(answers, answer{reply, err})
	}
	return answers
}

// once sends a command to the server of the key, and does not repeat it after a failure, as a cluster's client would. A command
// that a replica or another node has refused was not run.
func (p *pool) once(ctx context.Context, key string, words ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	for {
		reply, err := p.attempt(ctx, key, words)
		code, address := redirection(err)
		switch {
		case code == "ASK" && p.cluster != nil:
			return p.asking(ctx, address, words, err)
		case code == "READONLY", code == "MOVED" && p.cluster != nil:
			p.failed(p.get())
		default:
			return reply, err
		}
		sleep(ctx, pause/5)
		if ctx.Err() != nil {
			return nil, err
		}
	}
}

func (p *pool) attempt(ctx context.Context, key string, words []any) (any, error) {
	if p.cluster == nil {
		return p.call(ctx, p.within, words...)
	}
	node, err := p.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, unreachable(err)
	}
	cmd, sent := command(ctx, words), now()
	_ = node.Process(ctx, cmd)
	return p.result(p.cluster, sent, cmd)
}

// asking sends a command to the node that has the key before its slot.
func (p *pool) asking(ctx context.Context, address string, words []any, why error) (any, error) {
	cmd := command(ctx, words)
	cmd.SetErr(why)
	_ = p.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		if node.Options().Addr != address {
			return nil
		}
		pipe := node.Pipeline()
		pipe.Do(ctx, "ASKING")
		_ = pipe.Process(ctx, cmd)
		_, err := pipe.Exec(ctx)
		return err
	})
	return p.result(p.cluster, now(), cmd)
}

// redirection returns the first word of what a server has said, and its last, which may be an address.
func redirection(err error) (code, address string) {
	var said ServerError
	errors.As(err, &said)
	return said.code(), string(said[strings.LastIndexByte(string(said), ' ')+1:])
}

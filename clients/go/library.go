// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A library is two go-redis clients like the program's, with our bounds and without retries: go-redis makes the connections,
// so TLS, users, Unix sockets, Sentinels and clusters are its business. The keeper is for loops and errands: they wait for
// no connection of a pool that a thousand takes wait for.
type library struct {
	client, keeper *pool
	within         time.Duration
}

func libraryOf(client redis.UniversalClient, within time.Duration) (*library, error) {
	switch client := client.(type) {
	case *redis.Client:
		if client != nil {
			return newLibrary(within, func() redis.UniversalClient {
				return redis.NewClient(bounded(client.Options(), within))
			}), nil
		}
	case *redis.ClusterClient:
		if client != nil {
			return newLibrary(within, func() redis.UniversalClient {
				return redis.NewClusterClient(boundedCluster(client.Options(), within))
			}), nil
		}
	}
	return nil, badArgument("client", fmt.Sprintf("must be a *redis.Client or a *redis.ClusterClient, not %T", client))
}

func newLibrary(within time.Duration, connect func() redis.UniversalClient) *library {
	l := &library{newPool(connect, within), newPool(connect, within), within}
	l.client.twin, l.keeper.twin = l.keeper, l.client
	return l
}

func (l *library) isCluster() bool { return l.keeper.cluster != nil }

func (l *library) close() {
	l.client.close()
	l.keeper.close()
}

// A pool is a client of go-redis. After a time-out or a READONLY its connections may all lead to a former primary, and
// go-redis drops only the one: so another client takes its place. A cluster's client has a pool for each node, and reads
// where the slots are.
type pool struct {
	connect func() redis.UniversalClient
	within  time.Duration
	cluster *redis.ClusterClient // the same one, or nil
	twin    *pool                // leads to the same servers
	mu      sync.Mutex
	current redis.UniversalClient
	made    time.Duration // when the current one took another one's place
	closed  bool
}

func newPool(connect func() redis.UniversalClient, within time.Duration) *pool {
	p := &pool{connect: connect, within: within, current: connect(), made: -never}
	p.cluster, _ = p.current.(*redis.ClusterClient)
	return p
}

func (p *pool) get() redis.UniversalClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// failed is called when there was no answer, or one of a replica.
func (p *pool) failed(one redis.UniversalClient) {
	if p.replace(one) {
		p.twin.replace(p.twin.get())
	}
}

func (p *pool) replace(one redis.UniversalClient) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.current != one || now()-p.made < pause {
		return false
	}
	p.made = now()
	if p.cluster != nil {
		p.cluster.ReloadState(context.Background())
	} else {
		p.current = p.connect()
		time.AfterFunc(p.within, func() { _ = one.Close() }) // then no call is under way
	}
	return true
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	_ = p.current.Close()
}

// ours is what an older go-redis has no field for: encoding/json leaves out what is not there. A dial is one attempt, and
// what the program's client has been given for itself (push messages, a cache) is not shared.
const ours = `{"DialerRetries": 1, "MaintNotificationsConfig": null, "PushNotificationProcessor": null,
	"ClientSideCache": null, "ClientSideCacheConfig": null}`

func bounded(of *redis.Options, within time.Duration) *redis.Options {
	o := *of
	_ = json.Unmarshal([]byte(ours), &o)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = within, within, within
	o.PoolTimeout = within * 2 / 3 // a full pool is no silent server
	o.MaxRetries, o.ContextTimeoutEnabled, o.Protocol, o.Limiter = -1, true, 2, nil
	o.MinIdleConns = 0
	return &o
}

func boundedCluster(of *redis.ClusterOptions, within time.Duration) *redis.ClusterOptions {
	o := *of
	_ = json.Unmarshal([]byte(ours), &o)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = within, within, within
	o.PoolTimeout = within * 2 / 3 // a full pool is no silent server
	o.MaxRetries, o.ContextTimeoutEnabled, o.Protocol = -1, true, 2
	o.MinIdleConns, o.ReadOnly, o.RouteByLatency, o.RouteRandomly = 0, false, false, false // replicas know no session
	return &o
}

func boundedFailover(of *redis.FailoverOptions, within time.Duration) *redis.FailoverOptions {
	o := *of
	_ = json.Unmarshal([]byte(ours), &o)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = within, within, within
	o.PoolTimeout = within * 2 / 3 // a full pool is no silent server
	o.MaxRetries, o.ContextTimeoutEnabled, o.Protocol = -1, true, 2
	o.MinIdleConns, o.ReplicaOnly = 0, false
	return &o
}

// command returns a command whose key go-redis finds in a cluster.
func command(ctx context.Context, words []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, words...)
	if words[0] == "DLOCK.MACQUIRE" {
		cmd.SetFirstKeyPos(2)
	}
	return cmd
}

// call sends a command, and returns the reply within that time. A deadline ends what a cluster's client sends again, and
// has go-redis drop the connection.
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
	case errors.As(err, &said):
		told := ServerError(said.Error())
		if told.code() == "READONLY" {
			p.failed(by)
		}
		return nil, told
	case p.cluster != nil || now()-sent > p.within-pause: // a caller's own deadline says nothing of the server
		p.failed(by)
	}
	return nil, unreachable(err)
}

// answer is that to one of several commands.
type answer struct {
	reply any
	err   error
}

// pipeline sends commands in one go.
func (p *pool) pipeline(ctx context.Context, commands [][]any) (answers []answer) {
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	by, sent := p.get(), now()
	pipe := by.Pipeline()
	var cmds []*redis.Cmd
	for _, words := range commands {
		cmd := command(ctx, words)
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

// once sends a command to the server of the key, and never again after a failure, as a cluster's client does. What a replica
// or another node has refused was not run.
func (p *pool) once(ctx context.Context, key string, words ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	for isFirst := true; ; isFirst = false {
		reply, err := p.attempt(ctx, key, words)
		address, isAsk := redirected(err, "ASK")
		_, isMoved := redirected(err, "MOVED")
		_, isReplica := redirected(err, "READONLY")
		switch {
		case isAsk && p.cluster != nil:
			return p.asking(ctx, address, words, err)
		case p.cluster != nil && (isMoved || isReplica):
			p.failed(p.cluster)
		case isReplica && isFirst: // its pool was replaced
		default:
			return reply, err
		}
		select {
		case <-time.After(pause / 5):
		case <-ctx.Done():
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

func redirected(err error, word string) (address string, ok bool) {
	var said ServerError
	if !errors.As(err, &said) || said.code() != word {
		return "", false
	}
	return string(said[strings.LastIndexByte(string(said), ' ')+1:]), true
}

// place names the server of a key. It may ask for the map of slots.
func (p *pool) place(ctx context.Context, key string) string {
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	if node, err := p.cluster.MasterForKey(ctx, key); err == nil {
		return node.Options().Addr
	}
	return ""
}

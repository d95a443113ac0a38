package dlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A keeper waits for nothing but its own link, and for nothing one by one.

// mapped is a client of the cluster that goes to the key's node by a path. From the second time on the map of slots is not
// told before the test has ended; `asked` says how often it was asked for.
func (s stage) mapped(key, path string, asked *atomic.Int64) redis.UniversalClient {
	//lint:ignore SA1019 it is what the option below wants
	slots, err := s.node(key).ClusterSlots(ctx).Result()
	s.must(err)
	address := s.node(key).Options().Addr
	for _, one := range slots {
		for i := range one.Nodes {
			if one.Nodes[i].Addr == address {
				one.Nodes[i].Addr = path
			}
		}
	}
	return redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		if asked.Add(1) > 1 {
			<-s.Context().Done()
		}
		return slots, nil
	}})
}

func (s stage) path(to string) string {
	path := s.control("path " + to)
	s.Cleanup(func() { s.control("close " + path) })
	return path
}

func (s stage) with(client redis.UniversalClient, settings Settings) *Locks {
	locks, err := New(client, settings)
	s.must(err)
	s.Cleanup(locks.Close)
	return locks
}

// awaitOutlasts: the server says that it is held for so long, and the client has not heard of a loss.
func (s stage) awaitOutlasts(hold *Hold, d time.Duration) {
	s.Helper()
	s.until("it is held for so long", func() bool {
		holders, _ := s.infoAt(hold.Key)
		s.check(len(holders) == 1 && holders[0].int("token") == hold.Token && hold.Lost() == nil, "%v %v", holders, hold.Lost())
		return holders[0].int("held-ms") > d.Milliseconds()
	})
}

// leaveAt: the one is given up where the other is held, while that has no link.
func (s stage) leaveAt(hold, left *Hold) {
	c, r := left.state.core, left.state.request
	s.check(left.state.leave(), "it is lost")
	c.mu.Lock()
	defer c.mu.Unlock()
	n := hold.state.request.node
	c.parting[place{r.key, r.owner}]++
	n.leaving = append(n.leaving, farewell{request: r, token: left.Token, until: now() + patience})
	n.rouse()
}

func TestAMapThatNobodyTellsStopsNoKeeper(t *testing.T) {
	in(t, func(s stage) {
		path, asked := s.path(s.node(s.key).Options().Addr), &atomic.Int64{}
		locks := s.with(s.mapped(s.key, path, asked), Settings{Lease: 2 * lease, Auto: 4 * lease, Bound: time.Second})
		hold := s.lock(locks)
		s.control("silence " + path)
		s.until("a round has failed", func() bool { return asked.Load() > 1 })
		s.control("sound " + path)
		s.awaitOutlasts(hold, 5*lease)
		s.must(hold.Release(ctx))
		s.awaitGone()
	}, "cluster")
}

// What a keeper is to give back another node serves by now, and that one hangs.
func TestWhatIsLeftElsewhereStopsNoKeeper(t *testing.T) {
	in(t, func(s stage) {
		there := s.key
		for s.node(there) == s.node(s.key) {
			there = "{" + randomKey() + "}lock"
		}
		path := s.path(s.node(there).Options().Addr)
		locks := s.with(s.mapped(there, path, &atomic.Int64{}), Settings{Lease: lease, Auto: 3 * lease})
		hold, left := s.lock(locks), s.had(s.startAt(ctx, locks, there))
		s.control("silence " + path)
		s.leaveAt(hold, left)
		s.awaitOutlasts(hold, 4*lease)
		s.control("sound " + path)
		s.until("it is given back", func() bool { return s.askAt(there, "DLOCK.INFO", there) == nil })
		s.must(hold.Release(ctx))
	}, "cluster")
}

func TestManyThatAreLeftStopNoKeeper(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		s.control("delay " + path + " 200")
		locks := s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{Lease: lease, Auto: 3 * lease})
		hold := s.lock(locks)
		var all sync.WaitGroup
		failed := make(chan error, 40)
		var keys []string
		for i := range 40 {
			key, owner := fmt.Sprint(s.key, i), fmt.Sprint("owner", i)
			keys = append(keys, key)
			s.check(s.askAt(key, "DLOCK.ACQUIRE", key, "other", 600_000, "SHARED") != nil, "it is taken")
			all.Go(func() {
				// An upgrade that is given up, and the reader that it would have ended: both are left.
				reader, err := locks.Lock(ctx, key, Owner(owner), Shared())
				if err == nil {
					soon, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					if _, err = locks.Lock(soon, key, Owner(owner)); errors.Is(err, context.DeadlineExceeded) {
						s.leaveAt(hold, reader)
						return
					}
				}
				failed <- fmt.Errorf("%s: %w", key, err)
			})
		}
		all.Wait()
		close(failed)
		s.must(<-failed)
		s.awaitOutlasts(hold, time.Duration(s.holder().int("held-ms"))*time.Millisecond+3*lease)
		for _, key := range keys {
			s.until(key+" is given back", func() bool {
				holders, queue := s.infoAt(key)
				return len(holders) == 1 && len(queue) == 0
			})
		}
		s.must(hold.Release(ctx))
	}, "single")
}

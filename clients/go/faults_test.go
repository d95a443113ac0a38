package dlock

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What keeps the holds waits for nothing but its own server.

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
		if asked.Add(1) > 2 {
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

// awaitOutlasts waits until the server says that the lock has been held for that long. The client must not report a loss.
func (s stage) awaitOutlasts(hold *Hold, d time.Duration) {
	s.Helper()
	s.until("it is held for so long", func() bool {
		holders, _ := s.infoAt(hold.Key)
		s.check(len(holders) == 1 && holders[0].int("token") == hold.Token && hold.Lost() == nil, "%v %v", holders, hold.Lost())
		return holders[0].int("held-ms") > d.Milliseconds()
	})
}

func TestAMapThatNobodyTellsStopsNoKeeper(t *testing.T) {
	in(t, func(s stage) {
		path, asked := s.path(s.node(s.key).Options().Addr), &atomic.Int64{}
		locks := s.with(s.mapped(s.key, path, asked), Settings{Lease: 2 * lease, HangTimeout: 4 * lease, ReplyTimeout: time.Second})
		hold := s.lock(locks)
		s.control("silence " + path)
		s.until("a round has failed", func() bool { return asked.Load() > 2 })
		s.control("sound " + path)
		s.awaitOutlasts(hold, 5*lease)
		s.must(hold.Release(ctx))
		s.awaitGone()
	}, "cluster")
}

package dlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What docs/clients.md says of go-redis.

func tryPlainly(ctx context.Context, client redis.UniversalClient, key, owner string, work func(token int64)) (bool, error) {
	granted, err := client.Do(ctx, "DLOCK.ACQUIRE", key, owner, 10_000, "HOLDS", 1).Int64Slice()
	if errors.Is(err, redis.Nil) {
		return false, nil // another owner holds it
	}
	if err != nil {
		return false, err
	}
	work(granted[0])
	return true, client.Do(ctx, "DLOCK.RELEASE", key, owner, "TOKEN", granted[0]).Err()
}

func TestTryPlainly(t *testing.T) {
	in(t, func(s stage) {
		client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addresses(s.place)})
		defer client.Close()
		var held []string
		had, err := tryPlainly(ctx, client, s.key, "me", func(int64) {
			holders, _ := s.info()
			held = owners(holders)
		})
		s.check(had && err == nil && slices.Equal(held, []string{"me"}), "%v %v %v", had, err, held)
		s.hold()
		had, err = tryPlainly(ctx, client, s.key, "me", func(int64) { s.Error("another has it") })
		s.check(!had && err == nil, "%v %v", had, err)
	}, "single", "cluster")
}

func TestABlockLongerThanTheReadTimeoutLosesItsPlace(t *testing.T) {
	in(t, func(s stage) {
		s.hold()
		client := redis.NewClient(&redis.Options{Addr: addresses("single")[0], ReadTimeout: 2 * time.Second})
		defer client.Close()
		answered := make(chan error, 1)
		go func() {
			answered <- client.Do(ctx, "DLOCK.ACQUIRE", s.key, "me", 60_000, "BLOCK", 60_000).Err()
		}()
		var before []row
		s.until("it waits", func() bool { // between two tries it does not
			_, before = s.info()
			return len(before) == 1 && before[0].int("client") != 0
		})
		s.until("it waits by another connection", func() bool {
			_, queue := s.info()
			return len(queue) == 1 && queue[0].int("client") != before[0].int("client")
		})
		err := <-answered
		s.check(err != nil && strings.Contains(err.Error(), "timeout"), "%v", err)
		s.awaitQueued(0)
	}, "single")
}

func TestAContextDoesNotEndABlockByItself(t *testing.T) {
	in(t, func(s stage) {
		s.hold()
		for _, enabled := range []bool{false, true} {
			client := redis.NewClient(&redis.Options{
				Addr: addresses("single")[0], ReadTimeout: patience, ContextTimeoutEnabled: enabled,
			})
			defer client.Close()
			s.must(client.Ping(ctx).Err())
			soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			err := client.Do(soon, "DLOCK.ACQUIRE", s.key, "me", 60_000, "BLOCK", 1500).Err()
			if enabled {
				s.check(err != nil && !errors.Is(err, redis.Nil), "%v", err)
			} else {
				s.isError(err, redis.Nil) // the whole time has passed
			}
		}
	}, "single")
}

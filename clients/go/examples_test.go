package dlock

import (
	"context"
	"errors"
	"expvar"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The code of README.md, and what that says of go-redis.

func sell(ctx context.Context, client redis.UniversalClient, notify func(ctx context.Context, left int) error) error {
	locks, err := New(client, Settings{Lease: 10 * time.Second, Auto: time.Minute})
	if err != nil {
		return err
	}
	defer locks.Close()

	return locks.With(ctx, "{stock}lock", func(ctx context.Context, hold *Hold) error {
		left, err := client.Get(ctx, "{stock}left").Int()
		if err != nil {
			return err
		}
		if err := notify(ctx, left); err != nil { // ctx ends when the lock is lost
			return err
		}
		_, err = hold.Guard(ctx, "SET", "{stock}left", left-1) // else ErrFenced: nothing is written
		return err
	})
}

func lead(ctx context.Context, locks *Locks, name string, work func(context.Context, *Hold) error) error {
	election, err := locks.Election("{reports}leader", name)
	if err != nil {
		return err
	}
	hold, err := election.Campaign(ctx) // waits until this one leads
	if err != nil {
		return err
	}
	defer election.Resign(context.WithoutCancel(ctx))
	term, end := hold.Context(ctx) // ends with the term
	defer end()
	return work(term, hold)
}

func transfer(ctx context.Context, locks *Locks, from, to string, move func(one, another int64) error) error {
	return locks.WithAll(ctx, []string{from, to}, func(ctx context.Context, holds map[string]*Hold) error {
		return move(holds[from].Token, holds[to].Token)
	})
}

func counting(counts *expvar.Map) Observer {
	return Observer{
		Waiting: func(string) { counts.Add("waiting", 1) }, // a gauge
		Waited:  func(string) { counts.Add("waiting", -1) },
		Granted: func(_ string, after time.Duration) {
			counts.Add("granted", 1)
			counts.AddFloat("granted_after_seconds", after.Seconds())
		},
		Refused:  func(string, time.Duration, error) { counts.Add("refused", 1) },
		Released: func(_ string, after time.Duration) { counts.AddFloat("held_seconds", after.Seconds()) },
		Lost:     func(string, string) { counts.Add("lost", 1) },
	}
}

func tryPlainly(ctx context.Context, client redis.UniversalClient, key, owner string, work func(token int64)) (bool, error) {
	granted, err := client.Do(ctx, "DLOCK.ACQUIRE", key, owner, 10_000, "HOLDS", 1).Int64Slice()
	if errors.Is(err, redis.Nil) {
		return false, nil // somebody else has it
	}
	if err != nil {
		return false, err
	}
	work(granted[0])
	return true, client.Do(ctx, "DLOCK.RELEASE", key, owner, "TOKEN", granted[0]).Err()
}

func TestTheCodeOfTheReadmeIsTheTestedCode(t *testing.T) {
	plain := func(text string) string {
		var lines []string
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "\n")
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("examples_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(readme), "```go\n")[1:]
	if len(blocks) != 6 {
		t.Errorf("%d pieces of code", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(plain(string(examples)), plain(block)) {
			t.Errorf("nobody tests this:\n%s", block)
		}
	}
}

func TestSell(t *testing.T) {
	alone(t, func(s stage) {
		client := s.node(s.key)
		s.must(client.Set(ctx, "{stock}left", 3, 0).Err())
		s.must(sell(ctx, client, func(context.Context, int) error { return nil }))
		s.check(s.ask("GET", "{stock}left") == "2", "%v", s.ask("GET", "{stock}left"))
		err := sell(ctx, client, func(ctx context.Context, _ int) error {
			s.ask("DLOCK.FORCERELEASE", "{stock}lock")
			return nil
		})
		s.isError(err, ErrFenced)
		err = sell(ctx, client, func(ctx context.Context, _ int) error {
			s.ask("DLOCK.FORCERELEASE", "{stock}lock")
			<-ctx.Done()
			return context.Cause(ctx)
		})
		s.isError(err, ErrNotHeld)
		s.check(s.ask("GET", "{stock}left") == "2", "%v", s.ask("GET", "{stock}left"))
	}, "single")
}

func TestLead(t *testing.T) {
	alone(t, func(s stage) {
		s.must(lead(ctx, s.locks, "me", func(term context.Context, hold *Hold) error {
			_, err := hold.Guard(term, "SET", "{reports}last", hold.Token)
			return err
		}))
	}, "single")
}

func TestTransfer(t *testing.T) {
	in(t, func(s stage) {
		s.must(transfer(ctx, s.locks, "one", "another", func(one, another int64) error {
			s.check(another < one, "another comes before one")
			return nil
		}))
	}, "single", "cluster")
}

func TestCounting(t *testing.T) {
	in(t, func(s stage) {
		counts := new(expvar.Map)
		locks := s.with(client(s.place, "", "", ""), Settings{Lease: lease, Observer: counting(counts)})
		count := func(name string) string { return counts.Get(name).String() }
		first := s.lock(locks)
		_, err := locks.TryLock(ctx, s.key, 0)
		s.isError(err, ErrTaken)
		wait := s.start(ctx, locks)
		s.awaitQueued(1)
		s.check(count("waiting") == "1" && count("granted") == "1" && count("refused") == "1", "%v", counts)
		s.must(first.Release(ctx))
		second := s.had(wait)
		s.check(count("waiting") == "0" && count("granted") == "2" && counts.Get("held_seconds") != nil, "%v", counts)
		s.ask("DLOCK.FORCERELEASE", s.key)
		s.isLost(second)
		s.until("the loss is counted", func() bool { return counts.Get("lost") != nil })
		s.check(count("lost") == "1" && counts.Get("granted_after_seconds").(*expvar.Float).Value() > 0, "%v", counts)
	}, "single")
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

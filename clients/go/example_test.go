package dlock_test

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"os"
	"time"

	"dlock.example/dlock"
	"github.com/redis/go-redis/v9"
)

func connect() *dlock.Locks {
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("DLOCK_SINGLE")})
	locks, err := dlock.New(client, dlock.Settings{})
	if err != nil {
		panic(err)
	}
	return locks
}

func ExampleLocks_With() {
	locks := connect()
	defer locks.Close()
	err := locks.With(context.Background(), "{example}with", func(ctx context.Context, hold *dlock.Hold) error {
		_, err := hold.Guard(ctx, "SET", "{example}left", 41) // else ErrFenced: nothing is written
		return err
	})
	fmt.Println(err)
	// Output: <nil>
}

func ExampleLocks_TryLock() {
	locks := connect()
	defer locks.Close()
	ctx := context.Background()
	hold, err := locks.TryLock(ctx, "{example}try", 2*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hold.Release(ctx)
	_, err = locks.TryLock(ctx, "{example}try", 0)
	fmt.Println(errors.Is(err, dlock.ErrTaken))
	// Output: true
}

func ExampleLocks_LockContext() {
	locks := connect()
	defer locks.Close()
	ctx, hold, err := locks.LockContext(context.Background(), "{example}context")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hold.Release(context.WithoutCancel(ctx))
	fmt.Println(ctx.Err()) // context.Cause(ctx) is ErrNotHeld when the lock is lost
	// Output: <nil>
}

func ExampleLimit() {
	locks := connect()
	defer locks.Close()
	ctx := context.Background()
	for range 2 {
		hold, err := locks.TryLock(ctx, "{example}limit", 0, dlock.Limit(2))
		if err != nil {
			fmt.Println(err)
			return
		}
		defer hold.Release(ctx)
	}
	_, err := locks.TryLock(ctx, "{example}limit", 0, dlock.Limit(2))
	fmt.Println(errors.Is(err, dlock.ErrTaken))
	// Output: true
}

func ExampleLocks_WithAll() {
	locks := connect()
	defer locks.Close()
	err := locks.WithAll(context.Background(), []string{"example:b", "example:a"},
		func(_ context.Context, holds map[string]*dlock.Hold) error {
			fmt.Println(holds["example:a"].Token < holds["example:b"].Token)
			return nil
		})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

func ExampleLocks_Election() {
	locks := connect()
	defer locks.Close()
	ctx := context.Background()
	election, err := locks.Election("{example}leader", "worker-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	hold, err := election.Campaign(ctx) // waits until this one leads
	if err != nil {
		fmt.Println(err)
		return
	}
	defer election.Resign(ctx)
	leader, err := election.Leader(ctx)
	fmt.Println(leader.Name, leader.Term == hold.Token, err)
	// Output: worker-1 true <nil>
}

func ExampleObserver() {
	counts := new(expvar.Map)
	observer := dlock.Observer{
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
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("DLOCK_SINGLE")})
	locks, err := dlock.New(client, dlock.Settings{Observer: observer})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	err = locks.With(context.Background(), "{example}counted", func(context.Context, *dlock.Hold) error { return nil })
	fmt.Println(counts.Get("granted"), err)
	// Output: 1 <nil>
}

// SPDX-License-Identifier: MIT

// Command failover is one client in a run of failovers. It keeps ten locks and takes turns on others while primaries come and go.
// It prints when it has each lock, frees it and loses it, by the machine's monotonic clock. It ends with its input.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"dlock.example/dlock"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

const bound = time.Second // how long the end may wait for one thing

var speaking sync.Mutex

// say writes the line at once.
func say(words ...any) {
	speaking.Lock()
	defer speaking.Unlock()
	fmt.Println(words...)
}

// tell says what has happened to a hold, and when.
func tell(what string, hold *dlock.Hold) {
	var t unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &t))
	say(what, hold.Key, hold.Token, t.Nano()/1000)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// complain prints the error in one line.
func complain(key string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %s\n", key, strings.ReplaceAll(err.Error(), "\n", "; "))
	time.Sleep(100 * time.Millisecond)
}

func connect() (*dlock.Locks, error) {
	lease, err := strconv.Atoi(os.Getenv("DLOCK_LEASE_MS"))
	must(err)
	settings := dlock.Settings{Lease: time.Duration(lease) * time.Millisecond, HangTimeout: 20 * time.Second}
	if sentinels := os.Getenv("DLOCK_SENTINELS"); sentinels != "" {
		return dlock.NewFailover(&redis.FailoverOptions{MasterName: "locks", SentinelAddrs: strings.Split(sentinels, ",")}, settings)
	}
	return dlock.New(redis.NewClusterClient(&redis.ClusterOptions{Addrs: strings.Split(os.Getenv("DLOCK_CLUSTER"), ",")}), settings)
}

// take returns nil when the context has ended.
func take(ctx context.Context, locks *dlock.Locks, key string) *dlock.Hold {
	for {
		hold, err := locks.Lock(ctx, key)
		if err == nil || ctx.Err() != nil {
			return hold
		}
		complain(key, err)
	}
}

// turns takes one lock after the other, works under it, and releases it, until the context ends.
func turns(ctx context.Context, locks *dlock.Locks, next func() (key string, work, pause time.Duration)) {
	for {
		key, work, pause := next()
		hold := take(ctx, locks, key)
		if hold == nil {
			return
		}
		tell("have", hold)
		select {
		case <-time.After(work):
		case <-hold.Done():
			tell("lost", hold)
		}
		tell("free", hold)
		if err := hold.Release(ctx); err != nil {
			complain(key, err)
		}
		time.Sleep(pause)
	}
}

// within waits for all at most for the bound.
func within(all *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(bound):
	}
}

func main() {
	locks, err := connect()
	must(err)
	tag := "{" + os.Getenv("DLOCK_TAG") + "}"
	ctx, end := context.WithCancel(context.Background())
	var kept []*dlock.Hold
	for i := range 10 {
		hold := take(ctx, locks, fmt.Sprintf("%skept:go:%d", tag, i))
		kept = append(kept, hold)
		go func() { <-hold.Done(); tell("lost", hold) }()
	}
	say("ready")
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			turns(ctx, locks, func() (string, time.Duration, time.Duration) {
				return fmt.Sprintf("%sturn:%d", tag, rand.IntN(3)), 5*time.Millisecond + rand.N(10*time.Millisecond), 0
			})
		})
	}
	workers.Go(func() {
		turns(ctx, locks, func() (string, time.Duration, time.Duration) {
			return tag + "own:go", 5 * time.Millisecond, 20 * time.Millisecond
		})
	})

	_, _ = io.Copy(io.Discard, os.Stdin) // nothing is read
	for _, hold := range kept {
		if hold.Lost() == nil {
			say("kept", hold.Key, hold.Token)
		}
	}
	end()
	within(&workers)
	say("end")
	speaking.Lock() // for good: that was the last line
	var releases sync.WaitGroup
	for _, hold := range kept {
		releases.Go(func() { _ = hold.Release(context.Background()) })
	}
	within(&releases)
}

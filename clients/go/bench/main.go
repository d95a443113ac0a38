// SPDX-License-Identifier: MIT

// Measures dlock, redsync and bsm/redislock on one server in one run. Prints Markdown.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"dlock.example/dlock"
	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const (
	pairs     = 2000
	rounds    = 5
	contended = 6 * time.Second
)

var ctx = context.Background()

func client(address string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, PoolSize: 128})
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// pair takes the lock, works and gives it back.
type pair func(key string, work func())

type kind struct {
	title string
	make  func() (pair, func())
}

var kinds = []kind{
	{"dlock", func() (pair, func()) {
		server := client(os.Getenv("DLOCK_SINGLE"))
		locks, err := dlock.New(server, dlock.Settings{})
		must(err)
		return func(key string, work func()) {
			hold, err := locks.Lock(ctx, key)
			must(err)
			work()
			must(hold.Release(ctx))
		}, func() { locks.Close(); _ = server.Close() }
	}},
	{"redsync", func() (pair, func()) {
		server := client(os.Getenv("DLOCK_SINGLE"))
		sync := redsync.New(goredis.NewPool(server))
		return func(key string, work func()) {
			mutex := sync.NewMutex(key, redsync.WithExpiry(10*time.Second), redsync.WithTries(1_000_000))
			must(mutex.Lock())
			work()
			_, err := mutex.Unlock()
			must(err)
		}, func() { _ = server.Close() }
	}},
	{"redislock", func() (pair, func()) {
		server := client(os.Getenv("DLOCK_SINGLE"))
		locker := redislock.New(server)
		return func(key string, work func()) {
			lock, err := locker.Obtain(ctx, key, 10*time.Second, &redislock.Options{
				RetryStrategy: redislock.LinearBackoff(20 * time.Millisecond),
			})
			for err == redislock.ErrNotObtained { // it gives up when the lease's time is up
				lock, err = locker.Obtain(ctx, key, 10*time.Second, &redislock.Options{
					RetryStrategy: redislock.LinearBackoff(20 * time.Millisecond),
				})
			}
			must(err)
			work()
			must(lock.Release(ctx))
		}, func() { _ = server.Close() }
	}},
}

func uncontended(k kind) float64 {
	once, end := k.make()
	defer end()
	key := "bench:" + rand.Text()
	once(key, func() {})
	began := time.Now()
	for range pairs {
		once(key, func() {})
	}
	return pairs / time.Since(began).Seconds()
}

func contend(k kind, workers int) (waits []time.Duration, turns []int) {
	once, end := k.make()
	defer end()
	key, until := "bench:"+rand.Text(), time.Now().Add(contended)
	turns = make([]int, workers)
	var mu sync.Mutex
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for time.Now().Before(until) {
				asked := time.Now()
				once(key, func() {
					waited := time.Since(asked)
					mu.Lock()
					defer mu.Unlock()
					if time.Now().Before(until) {
						waits = append(waits, waited)
						turns[worker]++
					}
				})
			}
		})
	}
	all.Wait()
	slices.Sort(waits)
	return waits, turns
}

func command(line string) string {
	conn, err := net.Dial("tcp", os.Getenv("DLOCK_CONTROL"))
	must(err)
	defer conn.Close()
	fmt.Fprintln(conn, line)
	answer := make([]byte, 200)
	n, err := conn.Read(answer)
	must(err)
	return strings.TrimSpace(strings.TrimPrefix(string(answer[:n]), "ok "))
}

// held returns the commands a second on the wire while count locks are held, the connections, and how many locks were lost.
func held(count int) (rate float64, connections, lost int) {
	path, watch := command("path "+os.Getenv("DLOCK_SINGLE")), client(os.Getenv("DLOCK_SINGLE"))
	server := redis.NewClient(&redis.Options{Addr: path, ClientName: "held-" + rand.Text()})
	locks, err := dlock.New(server, dlock.Settings{})
	must(err)
	defer locks.Close()
	var holds []*dlock.Hold
	for i := range count {
		hold, err := locks.Lock(ctx, "bench:"+rand.Text()+strconv.Itoa(i))
		must(err)
		holds = append(holds, hold)
	}
	connections = strings.Count(watch.ClientList(ctx).Val(), server.Options().ClientName)
	first, err := strconv.Atoi(command("commands " + path))
	must(err)
	time.Sleep(10 * time.Second)
	last, err := strconv.Atoi(command("commands " + path))
	must(err)
	for _, hold := range holds {
		if hold.Lost() != nil {
			lost++
		}
	}
	return float64(last-first) / 10, connections, lost
}

func median(values []float64) (middle, least, most float64) {
	slices.Sort(values)
	return values[len(values)/2], values[0], values[len(values)-1]
}

func main() {
	fmt.Printf("\n%s; medians of %d interleaved rounds, and the least and the most\n\n", os.Getenv("DLOCK_SERVER"), rounds)
	rates := map[string][]float64{}
	for range rounds {
		for _, k := range kinds {
			rates[k.title] = append(rates[k.title], uncontended(k))
		}
	}
	fmt.Println("| uncontended, one goroutine | pairs a second | least, most |\n|---|---|---|")
	for _, k := range kinds {
		middle, least, most := median(rates[k.title])
		fmt.Printf("| %s | %.0f | %.0f, %.0f |\n", k.title, middle, least, most)
	}
	fmt.Println("\n| goroutines on one lock | | turns a second | wait p50 ms | p99 ms | longest ms | fewest and most turns |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, workers := range []int{16, 100} {
		for _, k := range kinds {
			waits, turns := contend(k, workers)
			at := func(part float64) float64 {
				return waits[min(len(waits)-1, int(float64(len(waits))*part))].Seconds() * 1000
			}
			fmt.Printf("| %d | %s | %.0f | %.1f | %.1f | %.1f | %d, %d |\n", workers, k.title,
				float64(len(waits))/contended.Seconds(), at(0.5), at(0.99), at(1), slices.Min(turns), slices.Max(turns))
		}
	}
	fmt.Println("\n| locks held in one process | commands a second | connections | lost |\n|---|---|---|---|")
	for _, count := range []int{10, 1_000, 10_000} {
		rate, connections, lost := held(count)
		fmt.Printf("| %d | %.1f | %d | %d |\n", count, rate, connections, lost)
	}
}

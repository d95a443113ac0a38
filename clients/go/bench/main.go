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
	"syscall"
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

var watch = client(os.Getenv("DLOCK_SINGLE"))

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

// told returns a field of the server's INFO.
func told(field string) float64 {
	_, rest, found := strings.Cut(watch.Info(ctx, "everything").Val(), "\n"+field+":")
	if !found {
		panic("the server does not tell " + field)
	}
	value, _, _ := strings.Cut(rest, "\r")
	number, err := strconv.ParseFloat(value, 64)
	must(err)
	return number
}

// serverUsed returns the seconds of the processor that the server has used.
func serverUsed() float64 { return told("used_cpu_user") + told("used_cpu_sys") }

// used returns those of this process.
func used() float64 {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

// ids returns those of all connections, the oldest first. Those of the last measurement may still be ending.
func ids() (all []int) {
	for line := range strings.Lines(watch.ClientList(ctx).Val()) {
		word, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
		id, err := strconv.Atoi(word)
		must(err)
		all = append(all, id)
	}
	slices.Sort(all)
	return all
}

// round is what a round of uncontended pairs has shown: pairs a second, and for each the microseconds of the processor.
type round struct{ rate, client, server float64 }

func uncontended(k kind) round {
	once, end := k.make()
	defer end()
	key := "bench:" + rand.Text()
	once(key, func() {})
	server, client, began := serverUsed(), used(), time.Now()
	for range pairs {
		once(key, func() {})
	}
	took := time.Since(began).Seconds()
	return round{pairs / took, 1e6 * (used() - client) / pairs, 1e6 * (serverUsed() - server) / pairs}
}

// contend returns the waits, the shortest first, and each worker's turns within the time. Waits that outlast it also count.
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
					waits = append(waits, waited)
					if time.Now().Before(until) {
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

// waiting returns the connections while count goroutines wait for one held lock. They take it in turn in the end.
func waiting(count int) int {
	before, key := slices.Max(ids()), "bench:"+rand.Text()
	server := redis.NewClient(&redis.Options{Addr: os.Getenv("DLOCK_SINGLE")}) // with the pool that it has by itself
	defer server.Close()
	locks, err := dlock.New(server, dlock.Settings{})
	must(err)
	defer locks.Close()
	hold, err := locks.Lock(ctx, key)
	must(err)
	var all sync.WaitGroup
	for range count {
		all.Go(func() {
			hold, err := locks.Lock(ctx, key)
			must(err)
			must(hold.Release(ctx))
		})
	}
	for told("dlock_places_queued") < float64(count) {
		time.Sleep(10 * time.Millisecond)
	}
	after := ids()
	newer, _ := slices.BinarySearch(after, before+1)
	seen := len(after) - newer
	must(hold.Release(ctx))
	all.Wait()
	return seen
}

// held returns the commands a second on the wire while count locks are held, the connections, and how many locks were lost.
func held(count int) (rate float64, connections, lost int) {
	path := command("path " + os.Getenv("DLOCK_SINGLE"))
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

// of returns one figure of all rounds, the smallest first.
func of(seen []round, figure func(round) float64) []float64 {
	var figures []float64
	for _, one := range seen {
		figures = append(figures, figure(one))
	}
	slices.Sort(figures)
	return figures
}

func main() {
	fmt.Printf("\n%s; medians of %d interleaved rounds, and the least and the most\n\n", os.Getenv("DLOCK_SERVER"), rounds)
	seen := map[string][]round{}
	for range rounds {
		for _, k := range kinds {
			seen[k.title] = append(seen[k.title], uncontended(k))
		}
	}
	rates := func(title string) []float64 { return of(seen[title], func(r round) float64 { return r.rate }) }
	const middle = rounds / 2
	theirs := rates("redsync")[middle]
	fmt.Println("| uncontended | pairs a second | least, most | of redsync | client µs a pair | server µs a pair |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, k := range kinds {
		rates := rates(k.title)
		client := of(seen[k.title], func(r round) float64 { return r.client })
		server := of(seen[k.title], func(r round) float64 { return r.server })
		fmt.Printf("| %s | %.0f | %.0f, %.0f | %.2f | %.0f | %.1f |\n", k.title,
			rates[middle], rates[0], rates[rounds-1], rates[middle]/theirs, client[middle], server[middle])
	}
	fmt.Print("\n| workers on one lock | | turns a second | wait p50 ms | p99 ms | p99.9 ms | longest ms | fewest and most turns |\n")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, workers := range []int{16, 100} {
		for _, k := range kinds {
			waits, turns := contend(k, workers)
			total := 0
			for _, had := range turns {
				total += had
			}
			at := func(part float64) float64 {
				return waits[min(len(waits)-1, int(float64(len(waits))*part))].Seconds() * 1000
			}
			fmt.Printf("| %d | %s | %.0f | %.1f | %.1f | %.1f | %.1f | %d, %d |\n", workers, k.title,
				float64(total)/contended.Seconds(), at(0.5), at(0.99), at(0.999), at(1), slices.Min(turns), slices.Max(turns))
		}
	}
	fmt.Println("\n| tasks that wait for one held lock | | connections |\n|---|---|---|")
	for _, count := range []int{1, 100, 1_000} {
		fmt.Printf("| %d | dlock | %d |\n", count, waiting(count))
	}
	fmt.Println("\n| locks held in one process | | commands a second | connections | lost |\n|---|---|---|---|---|")
	for _, count := range []int{10, 1_000, 10_000} {
		rate, connections, lost := held(count)
		fmt.Printf("| %d | dlock | %.1f | %d | %d |\n", count, rate, connections, lost)
	}
}

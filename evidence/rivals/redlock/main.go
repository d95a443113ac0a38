// Command redlock plays clients of redlock over independent masters, by redsync. It writes a line when a client has a lock and
// one when the client begins to release it, and ends with its input.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

// unlocking is how long a release may take. By default redsync waits for every master, however long.
const unlocking = time.Second

type load struct {
	nothing                      bool
	locks, clients               int
	wait, lease, shortMs, longMs int
}

var (
	over  atomic.Bool
	lines = make(chan string, 1024)
)

// main takes KIND LOCKS CLIENTS WAIT-MS LEASE-MS SHORT-MS LONG-MS GROUP..., where a group is MASTER,...
func main() {
	words := os.Args[1:]
	number := func(at int) int {
		value, err := strconv.Atoi(words[at])
		if err != nil {
			panic(err)
		}
		return value
	}
	load := load{words[0] == "nothing", number(1), number(2), number(3), number(4), number(5), number(6)}
	written := make(chan struct{})
	go write(written)
	var clients sync.WaitGroup
	for group, ports := range words[7:] {
		locks := masters(ports)
		for client := range load.clients {
			clients.Add(1)
			go func() {
				defer clients.Done()
				for !over.Load() {
					turn(fmt.Sprintf("%d-%d", group, client), locks, load)
					time.Sleep(time.Duration(1+rand.Intn(load.shortMs)) * time.Millisecond)
				}
			}()
		}
	}
	// It ends with its input; nothing is read.
	_, _ = io.Copy(io.Discard, os.Stdin)
	over.Store(true)
	ended := make(chan struct{})
	go func() {
		clients.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		close(lines)
		<-written
	case <-time.After(10 * time.Second):
	}
}

func masters(ports string) *redsync.Redsync {
	var pools []redsyncredis.Pool
	for _, port := range strings.Split(ports, ",") {
		// Without the first setting the client's deadlines have no effect, and a stopped master stops every client.
		pools = append(pools, goredis.NewPool(redis.NewClient(&redis.Options{
			Addr:                  "127.0.0.1:" + port,
			ContextTimeoutEnabled: true,
			MaxRetries:            -1,
		})))
	}
	return redsync.New(pools...)
}

func turn(name string, locks *redsync.Redsync, load load) {
	number := rand.Intn(load.locks)
	hold := time.Duration(1+rand.Intn(load.shortMs)) * time.Millisecond
	if rand.Intn(10) == 0 {
		hold = time.Duration(1_000+rand.Intn(load.longMs-1_000)) * time.Millisecond
	}
	lease := time.Duration(load.lease) * time.Millisecond
	var mutex *redsync.Mutex
	until := time.Now().Add(lease)
	if !load.nothing {
		mutex = locks.NewMutex(fmt.Sprintf("lock:%d", number), redsync.WithExpiry(lease))
		waiting, cancel := context.WithTimeout(context.Background(), time.Duration(load.wait)*time.Millisecond)
		err := mutex.LockContext(waiting)
		cancel()
		if err != nil {
			return
		}
		until = mutex.Until()
	}
	from := now()
	lines <- fmt.Sprintf("grant %s %d %d %d", name, number, from, from+time.Until(until).Nanoseconds())
	time.Sleep(hold)
	at, how := now(), "released"
	if mutex != nil {
		bounded, cancel := context.WithTimeout(context.Background(), unlocking)
		done, err := mutex.UnlockContext(bounded)
		cancel()
		if !done {
			how = "unknown"
			if errors.Is(err, redsync.ErrLockAlreadyExpired) || taken(err) {
				how = "lost"
			}
		}
	}
	lines <- fmt.Sprintf("over %s %d %s", name, at, how)
}

func taken(err error) bool {
	var by *redsync.ErrTaken
	return errors.As(err, &by)
}

// now is the monotonic clock of the machine, which the runner also reads.
func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}

func write(written chan<- struct{}) {
	out := bufio.NewWriter(os.Stdout)
	for line := range lines {
		fmt.Fprintln(out, line)
		if len(lines) == 0 {
			out.Flush()
		}
	}
	out.Flush()
	close(written)
}

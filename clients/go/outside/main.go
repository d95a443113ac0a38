// SPDX-License-Identifier: MIT

// What a program of the package sees, in a project that has nothing but what the page names: a context keeps its lock, and
// guard runs once and within its time.
package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"dlock.example/dlock"
	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(ok bool, format string, values ...any) {
	if !ok {
		fmt.Printf("FAIL: "+format+"\n", values...)
		os.Exit(1)
	}
}

//go:noinline
func contextOf(locks *dlock.Locks, key string) context.Context {
	hold, err := locks.Lock(ctx, key)
	must(err)
	inner, _ := hold.Context(ctx)
	return inner
}

func main() {
	server := redis.NewClient(&redis.Options{Addr: os.Getenv("DLOCK_SINGLE")})
	for _, key := range []string{"go:outside:context", "go:outside:guard", "go:outside:hung", "go:outside:count"} {
		server.Del(ctx, key)
	}
	locks, err := dlock.New(server, dlock.Settings{Lease: 3 * time.Second})
	must(err)

	inner := contextOf(locks, "go:outside:context")
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		runtime.GC()
		held, err := locks.IsHeld(ctx, "go:outside:context")
		check(err == nil && held && inner.Err() == nil, "the lock was given back under the work: %v, %v", held, inner.Err())
	}
	runtime.KeepAlive(inner)

	var eats, silent atomic.Bool
	path := proxy(&eats, &silent)
	lossy, err := dlock.New(redis.NewClient(&redis.Options{Addr: path}), dlock.Settings{Lease: time.Minute})
	must(err)
	hold, err := lossy.Lock(ctx, "go:outside:guard")
	must(err)
	eats.Store(true)
	_, err = hold.Guard(ctx, "INCR", "go:outside:count")
	check(err != nil, "the reply was lost")
	check(server.Get(ctx, "go:outside:count").Val() == "1", "it ran %s times", server.Get(ctx, "go:outside:count").Val())

	eats.Store(false)
	hung, err := lossy.Lock(ctx, "go:outside:hung")
	must(err)
	silent.Store(true)
	began := time.Now()
	_, err = hung.Guard(ctx, "INCR", "go:outside:count")
	check(err != nil && time.Since(began) < 10*time.Second, "guard took %v at a hung server: %v", time.Since(began), err)
	fmt.Println("as the page says")
}

// proxy leads to the server. It loses the replies to INCR, or falls silent.
func proxy(eats, silent *atomic.Bool) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() {
		for {
			near, err := listener.Accept()
			must(err)
			far, err := net.Dial("tcp", os.Getenv("DLOCK_SINGLE"))
			must(err)
			var over atomic.Bool
			pump := func(from, to net.Conn, asks bool) {
				defer from.Close()
				defer to.Close()
				buffer := make([]byte, 1<<16)
				for {
					n, err := from.Read(buffer)
					if asks && eats.Load() && bytes.Contains(buffer[:n], []byte("INCR")) {
						over.Store(true)
					}
					if err != nil || !asks && over.Load() {
						return
					}
					if silent.Load() {
						continue
					}
					if _, err := to.Write(buffer[:n]); err != nil {
						return
					}
				}
			}
			go pump(near, far, true)
			go pump(far, near, false)
		}
	}()
	return listener.Addr().String()
}

package dlock

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"expvar"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What a program relies on: a lock is never lost without a word, and no call outlasts its bound.

// collect runs until the condition holds, and gives the collector every chance.
func (s stage) collect(what string, condition func() bool) {
	s.Helper()
	s.until(what, func() bool {
		runtime.GC()
		return condition()
	})
}

//go:noinline
func (s stage) contextOf(locks *Locks) context.Context {
	inner, _ := s.lock(locks).Context(ctx)
	return inner
}

// Work that has only the context keeps the lock.
func TestAContextCarriesItsHold(t *testing.T) {
	in(t, func(s stage) {
		inner := s.contextOf(s.locks)
		child, cancel := context.WithTimeout(inner, patience)
		defer cancel()
		s.collect("two leases have passed", func() bool {
			holder := s.holder()
			s.check(holder != nil && child.Err() == nil, "it is given back under the work: %v", context.Cause(child))
			return holder.int("held-ms") > 2*lease.Milliseconds()
		})
		s.must(HoldOf(child).Release(ctx))
		s.awaitGone()
		s.check(HoldOf(ctx) == nil, "that has none")
	}, "single")
}

// eater is a path that loses a reply: the connection ends with the first reply to what it is to eat.
func (s stage) eater(words string) (address string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	s.Cleanup(func() { _ = listener.Close() })
	var eaten atomic.Bool
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", addresses("single")[0])
			if err != nil {
				_ = near.Close()
				continue
			}
			var mu sync.Mutex
			eats := false
			go func() {
				defer far.Close()
				buffer := make([]byte, 1<<16)
				for {
					n, err := near.Read(buffer)
					if bytes.Contains(buffer[:n], []byte(words)) && !eaten.Swap(true) {
						mu.Lock()
						eats = true
						mu.Unlock()
					}
					if _, failed := far.Write(buffer[:n]); err != nil || failed != nil {
						return
					}
				}
			}()
			go func() {
				defer near.Close()
				buffer := make([]byte, 1<<16)
				for {
					n, err := far.Read(buffer)
					mu.Lock()
					over := eats
					mu.Unlock()
					if over || err != nil {
						return
					}
					if _, err := near.Write(buffer[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// The reply is lost: whether it has run is unknown, and it is not run again.
func TestGuardRunsOnce(t *testing.T) {
	in(t, func(s stage) {
		count := s.key + ":count"
		locks := s.with(redis.NewClient(&redis.Options{Addr: s.eater("INCR")}), Settings{Lease: long})
		hold := s.lock(locks)
		_, err := hold.Guard(ctx, "INCR", count)
		s.isError(err, ErrUnreachable)
		s.check(s.ask("GET", count) == "1", "%v times", s.ask("GET", count))
		s.awaitKept(hold, 0)
		s.must(hold.Release(ctx))
	}, "single")
}

// A cluster's client of go-redis would send it again, and the second answer says that it is not held.
func TestAReleaseWhoseReplyIsLostIsNoLoss(t *testing.T) {
	in(t, func(s stage) {
		nodes := []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: s.eater("DLOCK.RELEASE")}}}}
		slots := func(context.Context) ([]redis.ClusterSlot, error) { return nodes, nil }
		hold := s.lock(s.with(redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: slots}), Settings{Lease: long}))
		s.must(hold.Release(ctx))
		s.check(hold.Lost() == nil, "%v", hold.Lost())
		s.awaitGone()
	}, "single")
}

// A dialer that knows no context, as that of go-redis for TLS, takes no call beyond its end, and delays no loss.
func TestADialThatHangsOutlastsNoCall(t *testing.T) {
	in(t, func(s stage) {
		var hangs atomic.Bool
		over, late, path := make(chan struct{}), make(chan net.Conn, 1), s.path(addresses("single")[0])
		end := sync.OnceFunc(func() { close(over) })
		s.Cleanup(end)
		dial := func(_ context.Context, network, address string) (net.Conn, error) {
			if !hangs.Load() {
				return net.Dial(network, address)
			}
			began := time.Now()
			select {
			case <-over:
			case <-time.After(patience):
			}
			near, far := net.Pipe()
			if time.Since(began) > 2*time.Second { // twice the bound: nobody waits for this one
				select {
				case late <- far:
				default:
				}
			}
			return near, nil
		}
		locks := s.with(redis.NewClient(&redis.Options{Addr: path, Dialer: dial}), Settings{Lease: lease, ReplyTimeout: time.Second})
		hold := s.lock(locks)
		s.awaitKept(hold, 1)
		hangs.Store(true)
		s.control("cut " + path)
		began := time.Now()
		_, err := locks.IsHeld(ctx, s.key)
		s.isError(err, ErrUnreachable)
		s.check(time.Since(began) < time.Second+lateness(), "%v", time.Since(began))
		s.isLost(hold)
		s.check(time.Since(began) < lease+time.Second+lateness(), "%v", time.Since(began))
		time.Sleep(time.Until(began.Add(3 * time.Second))) // the first one is late by then
		end()
		far := <-late
		_ = far.SetDeadline(time.Now().Add(patience)) // an error: it is closed already
		_, err = far.Read(make([]byte, 1))
		s.check(errors.Is(err, io.EOF), "a connection that came late is open: %v", err)
	}, "single")
}

// Nobody answers the first word of TLS.
func TestASilentServerByTLSEndsWithinTheBound(t *testing.T) {
	in(t, func(s stage) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		s.must(err)
		defer listener.Close()
		options := &redis.Options{Addr: listener.Addr().String(), TLSConfig: &tls.Config{ServerName: "localhost"}, DialTimeout: patience}
		cluster := &redis.ClusterOptions{Addrs: []string{options.Addr}, TLSConfig: options.TLSConfig, DialTimeout: patience}
		for _, client := range []redis.UniversalClient{redis.NewClient(options), redis.NewClusterClient(cluster)} {
			locks := s.with(client, Settings{ReplyTimeout: time.Second})
			soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			began := time.Now()
			_, err = locks.IsHeld(soon, s.key)
			s.isError(err, ErrUnreachable)
			s.check(time.Since(began) < time.Second+lateness(), "%v", time.Since(began))
			cancel()
			_ = client.Close()
		}
		quorum := NewQuorum(time.Second, options)
		defer quorum.Close()
		began := time.Now()
		_, err = quorum.Acquire(ctx, s.key, lease, 100*time.Millisecond)
		s.isError(err, ErrQuorumUnreachable)
		s.check(time.Since(began) < 5*time.Second+lateness(), "%v", time.Since(began))
	}, "single")
}

func TestGuardEndsWithinTheBound(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		locks := s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{Lease: 2 * long, ReplyTimeout: time.Second})
		hold := s.lock(locks)
		s.control("silence " + path)
		began := time.Now()
		_, err := hold.Guard(ctx, "INCR", s.key+":count")
		s.isError(err, ErrUnreachable)
		s.check(time.Since(began) < time.Second+lateness(), "%v", time.Since(began))
		s.control("sound " + path)
	}, "single")
}

func TestGuardSpeaksAsGoRedisDoes(t *testing.T) {
	in(t, func(s stage) {
		hold := s.lock(s.locks)
		data := s.key + ":data"
		for _, one := range []struct {
			value any
			text  string
		}{
			{1, "1"}, {uint8(2), "2"}, {1.5, "1.5"}, {true, "1"}, {[]byte("bytes"), "bytes"}, {time.Second, "1000000000"}, {nil, ""},
			{time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), "2026-01-02T03:04:05.000000006Z"},
		} {
			_, err := hold.Guard(ctx, "SET", data, one.value)
			s.must(err)
			s.check(s.ask("GET", data) == one.text, "%v: %v", one.value, s.ask("GET", data))
		}
		none, err := hold.Guard(ctx, "GET", data+"none")
		s.check(none == nil && err == nil, "%v %v", none, err)
		_, err = hold.Guard(ctx, "SET", data, struct{}{})
		s.isError(err, ErrArgument)
		_, err = hold.Guard(ctx)
		s.isError(err, ErrArgument)
		_, err = hold.Guard(ctx, "NOSUCH")
		var said ServerError
		s.check(errors.As(err, &said), "%v", err)
		s.must(hold.Release(ctx))
	}, "single")
}

// Nobody needs to wait until the session tells of it.
func TestAFencedGuardIsALoss(t *testing.T) {
	in(t, func(s stage) {
		locks := s.with(client("single", "", "", ""), Settings{Lease: 4 * patience})
		hold := s.lock(locks)
		s.ask("DLOCK.FORCERELEASE", s.key)
		_, err := hold.Guard(ctx, "SET", s.key+":x", 1)
		s.isError(err, ErrFenced)
		s.check(hold.Lost() != nil, "it believes to hold it")
		s.isLost(hold)
	}, "single")
}

func TestADeadlineIsTaken(t *testing.T) {
	in(t, func(s stage) {
		s.hold()
		soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := s.locks.Lock(soon, s.key)
		s.isError(err, ErrTaken)
		s.isError(err, ErrTimeout)
		s.isError(err, context.DeadlineExceeded)
		path := s.path(addresses("single")[0])
		silent := s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{})
		s.control("silence " + path)
		soon, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err = silent.Lock(soon, s.key)
		s.isError(err, ErrUnreachable)
		s.check(!errors.Is(err, ErrTaken), "%v", err)
	}, "single")
}

func TestLockContext(t *testing.T) {
	in(t, func(s stage) {
		inner, hold, err := s.locks.LockContext(ctx, s.key)
		s.must(err)
		s.check(HoldOf(inner) == hold && inner.Err() == nil, "%v", inner.Err())
		s.must(hold.Release(ctx))
		<-inner.Done()
		s.isError(context.Cause(inner), context.Canceled)
		inner, hold, err = s.locks.LockContext(ctx, s.key)
		s.must(err)
		s.ask("DLOCK.FORCERELEASE", s.key)
		<-inner.Done()
		s.isError(context.Cause(inner), ErrNotHeld)
		s.isLost(hold)
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		s.hold()
		_, _, err = s.locks.LockContext(soon, s.key)
		s.isError(err, ErrTaken)
	}, "single")
}

// A process that was stopped for longer than its leases asks before it gives anything up: the server has kept the locks.
func TestAPauseLosesNothingThatTheServerHolds(t *testing.T) {
	in(t, func(s stage) {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "DLOCK_TEST_SLEEPER="+s.key)
		output, err := child.StdoutPipe()
		s.must(err)
		child.Stderr = os.Stderr
		s.must(child.Start())
		s.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
		s.until("it holds both, and keeps its session", func() bool {
			kept, _ := s.infoAt(s.key + ":kept")
			gone, _ := s.infoAt(s.key + ":gone")
			return len(kept) == 1 && len(gone) == 1 && kept[0].int("alive") == 1
		})
		s.must(child.Process.Signal(syscall.SIGSTOP))
		token := func() int64 {
			holders, _ := s.infoAt(s.key + ":kept")
			s.check(len(holders) == 1, "%v", holders)
			return holders[0].int("token")
		}
		before := token()
		held := func() int64 {
			holders, _ := s.infoAt(s.key + ":kept")
			return holders[0].int("held-ms")
		}
		begun := held()
		s.until("three leases have passed", func() bool { return held()-begun > 3*lease.Milliseconds() })
		s.askAt(s.key+":gone", "DLOCK.FORCERELEASE", s.key+":gone")
		s.must(child.Process.Signal(syscall.SIGCONT))
		said, err := io.ReadAll(output)
		s.must(err)
		s.check(strings.TrimSpace(string(said)) == "gone lost, kept held", "%s", said)
		s.check(token() == before, "it is another hold")
	}, "single")
}

func sleeper(key string) {
	locks := makeLocks("single", lease)
	kept, err := locks.Lock(ctx, key+":kept")
	if err != nil {
		panic(err)
	}
	gone, err := locks.Lock(ctx, key+":gone")
	if err != nil {
		panic(err)
	}
	<-gone.Done()
	time.Sleep(3 * time.Second) // an answer would have come by now
	fmt.Print("gone lost, kept ", map[bool]string{true: "held", false: fmt.Sprint(kept.Lost())}[kept.Lost() == nil && kept.Left() > 0])
	os.Exit(0)
}

// Old names work for one version.
func TestOldNames(t *testing.T) {
	in(t, func(s stage) {
		locks := s.with(client("single", "", "", ""), Settings{QueueGrace: time.Second})
		s.must(s.lock(locks, Owner("me")).Release(ctx))
	}, "single")
}

// A context that has ended is no reason to keep the lock, and a silent server none to wait for ever.
func TestReleaseUnderAContextThatHasEnded(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		locks := s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{Lease: 4 * patience, ReplyTimeout: time.Second})
		ended, cancel := context.WithCancel(ctx)
		cancel()
		s.must(s.lock(locks).Release(ended))
		s.check(s.holder() == nil, "it is held")
		hold := s.lock(locks)
		s.control("silence " + path)
		began := time.Now()
		s.isError(hold.Release(ended), ErrUnreachable)
		s.check(time.Since(began) < 2*time.Second+lateness(), "%v", time.Since(began))
		s.isError(hold.Release(ctx), ErrNotHeld)
		s.control("sound " + path)
		s.awaitGone()
	}, "single")
}

// Locks that are closed, and holds that are released, leave no goroutine.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := 0
	alone(t, func(s stage) {
		s.locks.Close()
		s.check(s.holder() == nil, "it is held")
		// By the older protocol: with the newer one go-redis starts goroutines for the program's own client.
		program := redis.NewClient(&redis.Options{Addr: addresses("single")[0], Protocol: 2})
		defer program.Close()
		before = runtime.NumGoroutine()
		locks := s.with(program, Settings{Lease: lease})
		for range 20 {
			s.must(s.lock(locks).Release(ctx))
		}
		s.check(runtime.NumGoroutine() <= before+2, "%d goroutines, and %d before", runtime.NumGoroutine(), before)
		kept, waiting := s.lock(locks), s.start(ctx, locks)
		s.awaitQueued(1)
		s.awaitKept(kept, 1)
		s.must(kept.Release(ctx))
		s.must(s.had(waiting).Release(ctx))
		locks.Close()
		s.until("they have ended", func() bool { return runtime.NumGoroutine() <= before })
	}, "single")
}

// closes has Close wait for as long as it takes, on a busy machine too. For tests that run alone.
func (s stage) closes() {
	before := closing
	closing = patience
	s.Cleanup(func() { closing = before })
}

func TestAClosedClientHoldsUpNobody(t *testing.T) {
	alone(t, func(s stage) {
		s.closes()
		s.hold()
		locks := s.with(client(s.place, "", "", ""), Settings{Lease: lease})
		s.start(ctx, locks)
		s.awaitQueued(1)
		locks.Close()
		s.check(len(s.queue()) == 0, "it has left the queue")
	}, "single", "cluster")
}

// The grant is on its way when the client is closed.
func TestACloseGivesBackWhatNobodyHas(t *testing.T) {
	alone(t, func(s stage) {
		s.closes()
		path := s.pathTo(addresses("single")[0])
		locks := s.with(redis.NewClient(&redis.Options{Addr: path.address()}), Settings{Lease: 10 * time.Minute})
		s.must(s.lock(locks).Release(ctx))
		path.freezeAt("*2\r\n:1")
		s.start(ctx, locks)
		s.until("it is granted", func() bool { return s.holder() != nil })
		time.AfterFunc(50*time.Millisecond, path.thaw)
		locks.Close()
		s.awaitGone()
	}, "single")
}

// A row of the grant is read after Close has ended the take, and before the take knows.
func TestAGrantAfterCloseIsGivenBack(t *testing.T) {
	in(t, func(s stage) {
		locks := s.make(4 * patience)
		s.hold()
		wait := s.start(ctx, locks)
		s.awaitQueued(1)
		locks.mu.Lock()
		locks.closed = true
		for owner, one := range locks.takes {
			locks.end(one, ErrClosed)
			s.handOver("other")
			locks.row(one.session, "granted", holdID{s.key, s.holder().int("token")}, owner, never)
		}
		locks.mu.Unlock()
		s.isError((<-wait).err, ErrClosed)
		s.awaitGone()
		locks.mu.Lock()
		locks.closed = false // so that the test closes it
		locks.mu.Unlock()
	}, "single")
}

func TestCounting(t *testing.T) {
	in(t, func(s stage) {
		counts := new(expvar.Map)
		locks := s.with(client(s.place, "", "", ""), Settings{Lease: lease, Observer: Observer{
			Waiting: func(string) { counts.Add("waiting", 1) },
			Waited:  func(string) { counts.Add("waiting", -1) },
			Granted: func(_ string, after time.Duration) {
				counts.Add("granted", 1)
				counts.AddFloat("granted_after_seconds", after.Seconds())
			},
			Refused:  func(string, time.Duration, error) { counts.Add("refused", 1) },
			Released: func(_ string, after time.Duration) { counts.AddFloat("held_seconds", after.Seconds()) },
			Lost:     func(string, string) { counts.Add("lost", 1) },
		}})
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

// A server that is full now has room later.
func TestAFullServerIsWaitedFor(t *testing.T) {
	in(t, func(s stage) {
		port := s.control("port")
		s.program("--port", port, "--bind", "127.0.0.1", "--save", "", "--maxclients", "3", "--loadmodule", s.module())
		full := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, PoolSize: 3})
		s.must(s.up(full))
		for range 3 {
			conn := full.Conn()
			s.must(conn.Ping(ctx).Err())
			defer conn.Close()
		}
		locks := s.with(redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port}), Settings{})
		_, err := locks.TryLock(ctx, s.key, 0)
		s.check(err != nil && isTransient(err), "%v", err) // in its words, if they come before the end
		wait := s.start(ctx, locks)
		select {
		case one := <-wait:
			s.Fatalf("it does not wait: %v", one.err)
		case <-time.After(300 * time.Millisecond):
		}
		s.must(full.Close())
		s.must(s.had(wait).Release(ctx))
	}, "single")
}

// away is a server whose address can refuse every connection, as that of a server that was killed does.
func (s stage) away() (options *redis.Options, leave, back func()) {
	path, gone := s.path(addresses("single")[0]), &atomic.Bool{}
	options = &redis.Options{Addr: path, Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
		if gone.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	return options, func() { gone.Store(true); s.control("cut " + path) }, func() { gone.Store(false) }
}

// A release that meets a refused connection was not answered, so it continues. The lease would last for minutes.
func TestAReleaseOutlastsARefusedConnection(t *testing.T) {
	in(t, func(s stage) {
		options, leave, back := s.away()
		locks := s.with(redis.NewClient(options), Settings{Lease: 4 * patience, ReplyTimeout: 500 * time.Millisecond})
		hold := s.lock(locks)
		leave()
		s.isError(hold.Release(ctx), ErrUnreachable)
		time.Sleep(5 * pause) // it was tried in the background
		back()
		s.awaitGone()
	}, "single")
}

// A refused login is no answer to a command: what was released during the change of a password is free after it.
func TestAReleaseOutlastsAWrongPassword(t *testing.T) {
	in(t, func(s stage) {
		name, server := randomKey(), connection(addresses("single")[0])
		password := func(word string) {
			s.must(server.Do(ctx, "ACL", "SETUSER", name, "on", "resetpass", ">"+word, "~*", "&*", "+@all").Err())
		}
		password("one")
		s.Cleanup(func() { server.Do(ctx, "ACL", "DELUSER", name) })
		path := s.path(addresses("single")[0])
		locks := s.with(redis.NewClient(&redis.Options{Addr: path, Username: name, Password: "one"}),
			Settings{Lease: 4 * patience, ReplyTimeout: time.Second})
		hold := s.lock(locks)
		password("two")
		s.control("cut " + path)
		err := hold.Release(ctx)
		s.check(err != nil, "it was released")
		time.Sleep(5 * pause)
		password("one")
		s.awaitGone()
	}, "single")
}

// The request was granted, and its reply is lost: nobody has the lock, so it is free.
func TestATryWithoutAReplyIsCancelled(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		locks := s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{Lease: 4 * patience})
		s.must(s.had(s.startAt(ctx, locks, s.key+":other")).Release(ctx)) // a connection is open
		s.control("delay " + path + " 2000")
		tried := make(chan error, 1)
		go func() {
			_, err := locks.TryLock(ctx, s.key, 0)
			tried <- err
		}()
		s.until("it is granted", func() bool { return s.holder() != nil })
		s.control("cut " + path)
		s.control("delay " + path + " 0")
		s.isError(<-tried, ErrUnreachable)
		s.awaitGone()
	}, "single")
}

// The server does not know so long a time: the error says so, and the lock is free.
func TestARefusedReleaseAfterReleases(t *testing.T) {
	in(t, func(s stage) {
		released := 0
		locks := s.with(client("single", "", "", ""), Settings{Lease: 4 * patience, Observer: Observer{Released: func(string, time.Duration) { released++ }}})
		hold := s.lock(locks)
		s.isError(hold.ReleaseAfter(ctx, 0), ErrArgument)
		err := hold.ReleaseAfter(ctx, 100*365*24*time.Hour)
		var said ServerError
		s.check(errors.As(err, &said), "%v", err)
		s.awaitGone()
		s.isError(hold.Release(ctx), ErrNotHeld)
		s.check(released == 1, "%d", released)
	}, "single")
}

// The reply to the first RENEW is lost, and the lock has ended as it should when the second one is answered.
func TestALockThatWasLeftMayEndBeforeAnAnswer(t *testing.T) {
	in(t, func(s stage) {
		locks := s.with(redis.NewClient(&redis.Options{Addr: s.eater("DLOCK.RENEW")}), Settings{Lease: long})
		hold := s.lock(locks)
		s.must(hold.ReleaseAfter(ctx, time.Millisecond))
		s.check(hold.Lost() == nil, "%v", hold.Lost())
	}, "single")
}

// Ten locks cost no more time than one.
func TestWithAllReleasesAllAtOnce(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		locks := s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{Lease: 4 * patience, ReplyTimeout: time.Second})
		var keys []string
		for i := range 10 {
			keys = append(keys, fmt.Sprint(s.key, i))
		}
		var began time.Time
		err := locks.WithAll(ctx, keys, func(context.Context, map[string]*Hold) error {
			s.control("silence " + path)
			began = time.Now()
			return nil
		})
		s.isError(err, ErrUnreachable)
		s.check(time.Since(began) < 2*time.Second+lateness(), "%v", time.Since(began))
		s.control("sound " + path)
		for _, key := range keys {
			s.until("it is free", func() bool { return s.askAt(key, "DLOCK.INFO", key) == nil })
		}
	}, "single")
}

// A release that finds a loss also reports it to OnLost.
func TestALossThatAReleaseFindsIsALoss(t *testing.T) {
	in(t, func(s stage) {
		lost := make(chan error, 1)
		locks := s.with(client("single", "", "", ""), Settings{Lease: 4 * patience})
		hold := s.lock(locks, OnLost(func(why error) { lost <- why }))
		s.ask("DLOCK.FORCERELEASE", s.key)
		s.isError(hold.Release(ctx), ErrNotHeld)
		s.isError(hold.Lost(), ErrNotHeld)
		s.isError(<-lost, ErrNotHeld)
	}, "single")
}

// While the second slot is waited for the first one's lock is lost: the error says so, and not that the caller has cancelled.
func TestWithAllTellsOfALossDuringTheWait(t *testing.T) {
	in(t, func(s stage) {
		locks := s.make(lease)
		first, second := s.key, "{"+randomKey()+"}lock"
		for locks.bySlot([]string{first, second})[0][0] != first {
			second = "{" + randomKey() + "}lock"
		}
		s.askAt(second, "DLOCK.ACQUIRE", second, "other", 600_000)
		result := make(chan error, 1)
		go func() {
			result <- locks.WithAll(ctx, []string{first, second}, func(context.Context, map[string]*Hold) error { return nil })
		}()
		s.awaitQueuedAt(second, 1)
		s.ask("DLOCK.FORCERELEASE", first)
		err := <-result
		s.isError(err, ErrNotHeld)
		s.awaitQueuedAt(second, 0)
	}, "cluster")
}

// Nothing was sent: the error is that of the context.
func TestAnEndedContextIsTheError(t *testing.T) {
	in(t, func(s stage) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err := s.locks.IsHeld(ended, s.key)
		s.check(errors.Is(err, context.Canceled) && !errors.Is(err, ErrUnreachable), "%v", err)
		hold := s.lock(s.locks)
		_, err = hold.Guard(ended, "SET", s.key+":x", 1)
		s.check(errors.Is(err, context.Canceled) && !errors.Is(err, ErrUnreachable), "%v", err)
		s.must(hold.Release(ctx))
	}, "single")
}

package dlock

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What does not answer, and who may not: nobody waits for it longer than he has said, or believes longer than is so.

const (
	short = 1500 * time.Millisecond
	// So much after its end a loss is told where a busy machine stops us; it is 200 ms where it does not.
	late = time.Second
)

// A path leads to a server. While it is frozen nothing comes through, and nobody is told.
type path struct {
	listener net.Listener
	mu       sync.Mutex
	thawed   *sync.Cond
	frozen   bool
	pattern  []byte
	met      func()
	sockets  []net.Conn
}

func (s stage) pathTo(server string) *path {
	s.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	p := &path{listener: listener, met: func() {}}
	p.thawed = sync.NewCond(&p.mu)
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			p.met()
			far, err := net.Dial("tcp", server)
			if err != nil {
				_ = near.Close()
				continue
			}
			p.mu.Lock()
			p.sockets = append(p.sockets, near, far)
			p.mu.Unlock()
			go p.pass(near, far)
			go p.pass(far, near)
		}
	}()
	s.Cleanup(func() {
		_ = listener.Close()
		p.thaw()
		for _, socket := range p.sockets {
			_ = socket.Close()
		}
	})
	return p
}

func (p *path) pass(from, to net.Conn) {
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		if p.pattern != nil && bytes.Contains(buffer[:n], p.pattern) {
			p.frozen = true
		}
		for p.frozen {
			p.thawed.Wait()
		}
		p.mu.Unlock()
		_, _ = to.Write(buffer[:n])
		if err != nil {
			if half, ok := to.(*net.TCPConn); ok && err == io.EOF {
				_ = half.CloseWrite()
			} else {
				_ = to.Close()
			}
			return
		}
	}
}

func (p *path) address() string { return p.listener.Addr().String() }

func (p *path) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// freezeAt lets through what comes before these words, and not them.
func (p *path) freezeAt(words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pattern = []byte(words)
}

func (p *path) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen, p.pattern = false, nil
	p.thawed.Broadcast()
}

// locksAt has locks with a short lease.
func (s stage) locksAt(options redis.Options, servers ...string) *Locks {
	var all []*redis.Options
	for _, server := range servers {
		one := options
		one.Addr = server
		all = append(all, &one)
	}
	locks := New(Settings{Lease: short, Auto: 30 * time.Second, Claim: 2 * time.Second}, all...)
	s.Cleanup(locks.Close)
	return locks
}

// within: it ends so soon. A timer of ours is as late as theirs, however busy the machine.
func (s stage) within(d time.Duration, what string, work func() error) error {
	s.Helper()
	ended := make(chan error, 1)
	go func() { ended <- work() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(d):
		s.Fatalf("%s: not within %v", what, d)
		return nil
	}
}

func (s stage) told(d time.Duration, hold *Hold) {
	s.Helper()
	_ = s.within(d, "the loss is told", func() error {
		<-hold.Lost()
		return nil
	})
}

func TestAServerThatHangsKeepsNoCaller(t *testing.T) {
	for _, before := range []bool{true, false} {
		in(t, func(s stage) {
			path := s.pathTo(addresses("single")[0])
			locks := s.locksAt(redis.Options{}, path.address())
			if !before {
				s.must(s.lock(locks).Release())
			}
			path.freeze()
			try := func(within time.Duration) func() error {
				return func() error {
					_, err := locks.TryLock(ctx, s.key, within)
					return err
				}
			}
			s.isError(s.within(5*time.Second, "a try", try(0)), ErrUnreachable)
			err := s.within(3*time.Second, "two seconds", try(2*time.Second))
			s.isError(err, ErrTimeout)
			s.isError(err, ErrUnreachable)
		}, "single")
	}
}

func TestWhatIsSaidLastDoesNotMeetTheNextRequest(t *testing.T) {
	in(t, func(s stage) {
		path := s.pathTo(addresses("single")[0])
		locks := s.locksAt(redis.Options{}, path.address())
		s.must(s.lock(locks).Release())
		path.freeze()
		_, err := locks.TryLock(ctx, s.key, 0, Owner("me"))
		s.isError(err, ErrUnreachable)
		path.thaw()
		hold := s.lock(locks, Owner("me"))
		s.until("it is kept", func() bool {
			holder := s.holder()
			s.check(holder != nil && holder.int("token") == hold.Token, "%v", holder)
			return holder.int("held-ms") > 2*short.Milliseconds()
		})
		s.must(hold.Release())
		s.awaitGone()
	}, "single")
}

func TestALossIsToldByTheClock(t *testing.T) {
	in(t, func(s stage) {
		path := s.pathTo(addresses("single")[0])
		healthy := s
		healthy.key += ":healthy"
		hold, other := s.lock(s.locksAt(redis.Options{}, path.address())), healthy.lock(s.make(lease))
		s.until("it is kept", func() bool { return s.holder().int("held-ms") > short.Milliseconds() })
		path.freeze()
		s.told(short+late, hold)
		healthy.awaitKept(other, 2)
		s.must(other.Release())
	}, "single")
}

func TestOneHungNodeOfThree(t *testing.T) {
	alone(t, func(s stage) {
		locks := s.locksAt(redis.Options{}, addresses("cluster")[:2]...)
		places, holds := map[*redis.Client]stage{}, map[*redis.Client]*Hold{}
		for i := 0; len(places) < 3; i++ {
			one := s
			one.key = "{" + strings.Repeat("x", i) + s.key[1:]
			if node := one.node(one.key); holds[node] == nil {
				places[node], holds[node] = one, one.lock(locks)
			}
		}
		var hung *redis.Client
		for hung = range places {
			break
		}
		s.must(hung.Do(ctx, "CLIENT", "PAUSE", 600_000, "WRITE").Err())
		defer places[hung].awaitGone()
		defer hung.Do(ctx, "CLIENT", "UNPAUSE")
		s.told(short+late, holds[hung])
		for node, one := range places {
			if node != hung {
				one.awaitKept(holds[node], 10*short.Milliseconds()/lease.Milliseconds())
				s.must(holds[node].Release())
			}
		}
	}, "cluster")
}

func TestRefusedAtOnce(t *testing.T) {
	in(t, func(s stage) {
		user := "user" + s.key[1:9]
		defer s.ask("ACL", "DELUSER", user)
		for _, one := range []struct{ words, rules, password string }{
			{"WRONGPASS", "~* &* +@all", "wrong"},
			{"NOPERM", "~* &* +@all -dlock.fairacquire -dlock.acquire", "right"},
			{"NOPERM", "~* resetchannels +@all", "right"},
			{"NOPERM", "~* &* +@all -dlock.renew", "right"},
		} {
			words := []any{"ACL", "SETUSER", user, "reset", "on", ">right"}
			for _, rule := range strings.Fields(one.rules) {
				words = append(words, rule)
			}
			s.ask(words...)
			locks := s.locksAt(redis.Options{Username: user, Password: one.password}, addresses("single")...)
			for _, within := range []time.Duration{0, 20 * time.Second} {
				// A tenth of a second where nothing else is done.
				err := s.within(5*time.Second, one.rules, func() error {
					_, err := locks.TryLock(ctx, s.key, within)
					return err
				})
				s.check(err != nil && code(err) == one.words && !errors.Is(err, ErrTimeout), "%s: %v", one.rules, err)
			}
			s.awaitGone()
		}
	}, "single")
}

func TestNothingIsTakenAfterTheEnd(t *testing.T) {
	in(t, func(s stage) {
		locks := s.locksAt(redis.Options{}, addresses("single")...)
		hold := s.lock(locks)
		waiting := s.start(ctx, locks)
		s.awaitQueued(1)
		locks.Close()
		s.told(short+late, hold)
		err := (<-waiting).err
		s.check(err != nil && !errors.Is(err, ErrTimeout), "%v", err)
		for _, within := range []time.Duration{0, 20 * time.Second} {
			err := s.within(5*time.Second, "after the end", func() error {
				_, err := locks.TryLock(ctx, s.key, within)
				return err
			})
			s.isError(err, errClosed)
		}
		s.awaitGone()
	}, "single")
}

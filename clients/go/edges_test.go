package dlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What seldom happens, and must go well all the same.

func TestInnerHoldsLeaveNothing(t *testing.T) {
	in(t, func(s stage) {
		outer := s.lock(s.locks, Owner("me"))
		for range 100 {
			s.must(s.lock(s.locks, Owner("me")).Release(ctx))
		}
		c := s.locks.core
		c.mu.Lock()
		states := len(outer.state.renewal.states)
		c.mu.Unlock()
		s.check(states <= 2, "%d holds are remembered", states)
		s.awaitKept(outer, 1)
		s.must(outer.Release(ctx))
		s.awaitGone()
	}, "single")
}

// While the keeper replaces a link that has ties too many, that one dies, and somebody else wants one.
func TestALinkThatIsReplacedLeavesNoOther(t *testing.T) {
	in(t, func(s stage) {
		path, name, dialled := s.path(addresses("single")[0]), "replaced-"+randomKey(), &atomic.Int64{}
		locks := s.with(redis.NewClient(&redis.Options{
			Addr: path, ClientName: name, Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
				dialled.Add(1)
				return (&net.Dialer{}).DialContext(ctx, network, address)
			},
		}), Settings{Lease: 2 * long, HangTimeout: 4 * long})
		hold := s.lock(locks)
		before := s.holder().int("client")
		s.control("delay " + path + " 200")
		c, n := locks.core, hold.state.renewal.node
		c.mu.Lock()
		stale := n.link
		stale.surplus = 2
		n.rouse()
		c.mu.Unlock()
		s.until("another is opened", func() bool { return dialled.Load() > 1 })
		stale.die(unreachable(errors.New("it has died")))
		other := s.had(s.startAt(ctx, locks, s.key+":other"))
		s.control("delay " + path + " 0")
		s.until("the hold has another connection", func() bool {
			client := s.holder().int("client")
			return client != 0 && client != before
		})
		s.until("there is one connection", func() bool {
			return strings.Count(connection(addresses("single")[0]).ClientList(ctx).Val(), name) == 1
		})
		s.awaitKept(hold, 0)
		s.must(other.Release(ctx))
		s.must(hold.Release(ctx))
		s.awaitGone()
	}, "single")
}

// What no time can mend ends a wait: without a bound it would last for ever.
func TestWhatNoTimeCanMendEndsAWait(t *testing.T) {
	in(t, func(s stage) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		s.must(err)
		defer listener.Close()
		go func() {
			for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
				_, _ = conn.Write([]byte("-ERR this server speaks no TLS\r\n"))
			}
		}()
		for name, options := range map[string]*redis.Options{
			"an address without a port": {Addr: "127.0.0.1"},
			"a network that is none":    {Network: "udp7", Addr: "127.0.0.1:6379"},
			"a server without TLS":      {Addr: listener.Addr().String(), TLSConfig: &tls.Config{ServerName: "localhost"}},
		} {
			client := redis.NewClient(options)
			bounded, cancel := context.WithTimeout(ctx, patience)
			_, err := s.with(client, Settings{ReplyTimeout: patience}).Lock(bounded, s.key)
			s.check(err != nil && bounded.Err() == nil, "%s: %v", name, err)
			cancel()
			_ = client.Close()
		}
	}, "single")
}

// user is one of the single server, with this rule.
func (s stage) user(rule ...any) (name string, set func(rule ...any)) {
	name, server := "user-"+randomKey(), connection(addresses("single")[0])
	set = func(rule ...any) { s.must(server.Do(ctx, append([]any{"ACL", "SETUSER", name}, rule...)...).Err()) }
	set(append([]any{"on", ">word", "~*", "&*", "+@all"}, rule...)...)
	s.Cleanup(func() { server.Do(ctx, "ACL", "DELUSER", name) })
	return name, set
}

// That a connection was refused once does not mean that messages cannot be heard.
func TestARefusedConnectionIsNoLackOfTheChannel(t *testing.T) {
	in(t, func(s stage) {
		name, set := s.user()
		log := &logged{}
		locks := s.with(client("single", "", name, "word"), Settings{Logger: slog.New(log)})
		s.hold()
		_, err := locks.TryLock(ctx, s.key, 0)
		s.isError(err, ErrTaken)
		set("resetpass", ">other")
		_, err = locks.Lock(ctx, s.key)
		s.check(err != nil && strings.Contains(err.Error(), "invalid username-password pair"), "%v", err)
		set("resetpass", ">word")
		wait := s.start(ctx, locks)
		s.awaitQueued(1)
		s.handOver("other")
		s.must(s.had(wait).Release(ctx))
		s.check(log.count("cannot be heard") == 0, "it is deaf")
		s.awaitGone()
	}, "single")
}

func TestNoRightToTheChannelIsSaidOnce(t *testing.T) {
	in(t, func(s stage) {
		name, _ := s.user("resetchannels")
		log := &logged{}
		locks := s.with(client("single", "", name, "word"), Settings{Logger: slog.New(log)})
		s.hold()
		waits := make(chan outcome, 10)
		for range cap(waits) {
			go func() {
				hold, err := locks.Lock(ctx, s.key)
				waits <- outcome{hold, err}
			}()
		}
		s.awaitTickets(cap(waits))
		s.handOver("other")
		for range cap(waits) {
			s.must(s.had(waits).Release(ctx))
		}
		s.check(log.count("cannot be heard") == 1, "%d times", log.count("cannot be heard"))
		s.awaitGone()
	}, "single")
}

// The collector takes no Locks that are at work, though nobody needs them afterwards.
func TestLocksAtWorkAreNotCollected(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		s.control("delay " + path + " 200")
		for name, work := range map[string]func(*Locks) error{
			"IsHeld": func(locks *Locks) error {
				_, err := locks.IsHeld(ctx, s.key)
				return err
			},
			"Leader": func(locks *Locks) error {
				election, err := locks.Election(s.key, "me")
				if err == nil {
					_, err = election.Leader(ctx)
				}
				return err
			},
			"TryLock": func(locks *Locks) error {
				_, err := locks.TryLock(ctx, s.key, 0)
				return err
			},
		} {
			done := make(chan error)
			go func() {
				locks, err := New(redis.NewClient(&redis.Options{Addr: path}), Settings{})
				if err == nil {
					err = work(locks)
				}
				done <- err
			}()
			for collect := true; collect; {
				select {
				case err := <-done:
					collect = false
					s.check(err == nil, "%s: %v", name, err)
				case <-time.After(20 * time.Millisecond):
					runtime.GC()
				}
			}
		}
		s.awaitGone()
	}, "single")
}

// Whoever reads late gets who leads now, and not who led before.
func TestWhoReadsLateGetsTheLastLeader(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		election, err := s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{}).Election(s.key, "me")
		s.must(err)
		asked := func() (seen int64) {
			_, err := fmt.Sscan(s.control("commands "+path), &seen)
			s.must(err)
			return seen
		}
		s.hold()
		leaders := election.Observe(s.Context())
		s.until("it was asked", func() bool { return asked() > 0 })
		s.handOver("other")
		before := asked()
		s.until("it was asked again, and was answered", func() bool { return asked() > before+1 })
		leader := <-leaders
		s.check(leader == Leader{}, "%v", leader)
	}, "single")
}

// Lease after lease the key is there, and its slot is not.
func TestASlotOnItsWayForLongerThanALeaseEndsNoHold(t *testing.T) {
	alone(t, func(s stage) {
		hold := s.lock(s.make(2 * lease))
		s.whileTheSlotMoves(func(askThere func(words ...any) any) {
			source := s.node(s.key)
			s.migrate(source)
			renewed := calls(source, "dlock.renew")
			s.until("two leases have passed", func() bool {
				s.check(hold.Lost() == nil, "%v", hold.Lost())
				info, ok := askThere("DLOCK.INFO", s.key).(map[any]any)
				s.check(ok, "nobody holds it")
				return row(info["holders"].([]any)[0].(map[any]any)).int("held-ms") > 5*lease.Milliseconds()
			})
			more := calls(source, "dlock.renew") - renewed
			s.check(more < 20, "it was asked for %d times where it is not", more)
			s.must(hold.Release(ctx))
			s.check(askThere("DLOCK.INFO", s.key) == nil, "it is still held")
		})
		s.awaitGone()
	}, "cluster")
}

// migrate: the key goes ahead of its slot.
func (s stage) migrate(source *redis.Client) {
	s.Helper()
	slots, err := source.Do(ctx, "CLUSTER", "NODES").Text()
	s.must(err)
	_, target, _ := strings.Cut(slots, "->-")
	target, _, _ = strings.Cut(target, "]")
	for line := range strings.Lines(slots) {
		if words := strings.Fields(line); words[0] == target {
			address, _, _ := strings.Cut(words[1], "@")
			host, port, err := net.SplitHostPort(address)
			s.must(err)
			s.must(source.Do(ctx, "MIGRATE", host, port, s.key, 0, 5000).Err())
		}
	}
}

func calls(server *redis.Client, command string) (calls int) {
	_, rest, _ := strings.Cut(server.Info(ctx, "commandstats").Val(), "cmdstat_"+command+":calls=")
	_, _ = fmt.Sscan(rest, &calls)
	return calls
}

// Others may publish what they like.
func TestWhatOthersPublishIsIgnored(t *testing.T) {
	in(t, func(s stage) {
		s.hold()
		wait := s.start(ctx, s.locks)
		s.awaitQueued(1)
		owner := s.queue()[0]
		names := fmt.Sprintf("%d:%s %d:%s", len(s.key), s.key, len(owner), owner)
		for _, text := range []string{
			"", " ", "timeout", "timeout 0", "timeout 0 99:x", "timeout 0 -1:x 3:y 1", "granted 1 99999999999999999999:x",
			"timeout 0 " + names, "timeout 0 " + names + " 0", "replaced 0 " + names + " word", "replaced 0 " + names + " 9999999999",
		} {
			s.must(connection(addresses("single")[0]).Publish(ctx, s.locks.core.channel, text).Err())
		}
		select {
		case one := <-wait:
			s.Fatalf("the wait has ended: %v", one.err)
		case <-time.After(time.Second):
		}
		s.handOverTo(wait)
	}, "single")
}

func TestACloseWhileItSubscribesEndsTheWait(t *testing.T) {
	in(t, func(s stage) {
		path := s.pathTo(addresses("single")[0])
		locks := s.with(redis.NewClient(&redis.Options{Addr: path.address()}), Settings{ReplyTimeout: 4 * patience})
		s.hold()
		path.freezeAt("SUBSCRIBE")
		wait := s.start(ctx, locks)
		s.until("it subscribes", func() bool {
			path.mu.Lock()
			defer path.mu.Unlock()
			return path.frozen
		})
		locks.Close()
		s.isError(s.ended(wait), ErrClosed)
	}, "single")
}

// ended gives the error of a wait that must end.
func (s stage) ended(wait <-chan outcome) error {
	s.Helper()
	select {
	case one := <-wait:
		return one.err
	case <-time.After(patience):
		s.Fatal("the wait does not end")
		return nil
	}
}

// A node that does not know its own name says where a slot is without a host.
func TestAMovedWithoutAHost(t *testing.T) {
	in(t, func(s stage) {
		c := s.locks.core
		for said, address := range map[string]string{
			"MOVED 123 :6381": "192.0.2.1:6381", "ASK 123 :6382": "192.0.2.1:6382", "MOVED 123 192.0.2.2:6383": "192.0.2.2:6383",
		} {
			target := c.redirected(c.node("192.0.2.1:6380"), s.key, ServerError(said))
			s.check(target.name == address, "%s: %s", said, target.name)
		}
	}, "cluster")
}

// A leader that does not know yet that it was deposed resigns without an error.
func TestWhoWasDeposedResignsWithoutAnError(t *testing.T) {
	in(t, func(s stage) {
		election, err := s.make(long).Election(s.key, "me")
		s.must(err)
		_, err = election.Campaign(ctx)
		s.must(err)
		s.ask("DLOCK.FORCERELEASE", s.key)
		s.must(election.Resign(ctx))
	}, "single")
}

package dlock

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What seldom happens, and must go well all the same.

// A permanent error ends a wait: without a bound the wait would last for ever.
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

// A reader that is late gets the current leader, and not an earlier one.
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

// A client of one node does not follow a slot. It says so.
func TestGuardOfAPlainClientWhileTheSlotMoves(t *testing.T) {
	alone(t, func(s stage) {
		source := s.node(s.key)
		hold := s.lock(s.with(redis.NewClient(&redis.Options{Addr: source.Options().Addr}), Settings{Lease: long, ReplyTimeout: time.Second}))
		s.whileTheSlotMoves(func(askThere func(words ...any) any) {
			s.migrate(source)
			_, err := hold.Guard(ctx, "EXISTS", s.key)
			s.check(err != nil && strings.HasPrefix(err.Error(), "ASK "), "%v", err)
			askThere("DLOCK.FORCERELEASE", s.key)
		})
	}, "cluster")
}

func TestNeverDoesNotOverflow(t *testing.T) {
	for _, moment := range []time.Duration{0, time.Millisecond, 10 * 365 * 24 * time.Hour} {
		if left := never - moment; left+time.Second < left || after(moment, never) != never {
			t.Errorf("after %v there is no more time: %v", moment, left)
		}
	}
}

// A pool is replaced once for all the calls that have failed with it, and not again at once: a thousand waits may be refused.
func TestAPoolIsNotReplacedForEachFailure(t *testing.T) {
	made := 0
	p := newPool(func() redis.UniversalClient {
		made++
		return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	}, time.Second)
	defer p.close()
	for range 100 {
		p.failed(p.get())
	}
	if made > 3 {
		t.Errorf("%d clients for a hundred failures", made)
	}
	// A burst that waits for a connection is no silence of the server.
	if o := bounded(&redis.Options{}, time.Second); o.PoolTimeout > time.Second-pause {
		t.Errorf("a full pool looks like a silent server after %v", o.PoolTimeout)
	}
}

// What was released in an outage that outlasts it is forgotten.
func TestAReleaseThatNobodyAnswersIsForgotten(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		short := time.Second
		locks := s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{Lease: short, HangTimeout: short, ReplyTimeout: short})
		hold := s.lock(locks)
		s.control("silence " + path)
		_ = hold.Release(ctx)
		s.until("nothing of it is left here", func() bool {
			locks.mu.Lock()
			defer locks.mu.Unlock()
			return len(locks.held) == 0 && len(locks.queues) == 0
		})
		s.control("sound " + path)
	}, "single")
}

// A SESSION that was answered before its lock was left to its time, and is read after that, is about no hold of nobody.
func TestALateRowFreesNothingThatStaysTaken(t *testing.T) {
	in(t, func(s stage) {
		locks := s.with(client("single", "", "", ""), Settings{Lease: 4 * patience, ReplyTimeout: time.Second})
		forgotten := s.key + ":forgotten"
		left, lost := s.lock(locks), s.had(s.startAt(ctx, locks, forgotten))
		tell := func(hold *Hold, id int64) {
			locks.mu.Lock()
			defer locks.mu.Unlock()
			session := locks.session(id, hold.Key)
			locks.row(session, "granted", hold.held.holdID, hold.Owner, never)
			locks.tidy(session)
		}
		isDone := func() bool {
			locks.mu.Lock()
			defer locks.mu.Unlock()
			return len(locks.queues) == 0
		}
		id := left.held.session.id
		s.must(left.ReleaseAfter(ctx, 4*patience))
		tell(left, id)
		locks.forget(lost.held)
		tell(lost, id)
		s.until("it is left to its lease", isDone)
		tell(lost, id)
		s.until("all is answered", isDone)
		for _, key := range []string{s.key, forgotten} {
			holders, _ := s.infoAt(key)
			s.check(len(holders) == 1, "%s is free", key)
		}
		s.until("nothing of them is left here", func() bool {
			locks.mu.Lock()
			defer locks.mu.Unlock()
			return len(locks.held) == 0
		})
		s.must(s.node(s.key).Del(ctx, s.key, forgotten).Err())
	}, "single")
}

// A command that was under way when a lock was left to its lease brings the hold back into the session, which a wait keeps.
func TestALateCommandKeepsNothingThatWasLeftToItsLease(t *testing.T) {
	in(t, func(s stage) {
		name, server := randomKey(), connection(addresses("single")[0])
		s.must(server.Do(ctx, "ACL", "SETUSER", name, "on", ">word", "~*", "&*", "+@all", "-dlock.release").Err())
		s.Cleanup(func() { server.Do(ctx, "ACL", "DELUSER", name) })
		program := client("single", "", name, "word")
		locks, other := s.with(program, Settings{Lease: 4 * patience, ReplyTimeout: patience}), s
		other.key += ":other"
		other.hold()
		other.start(ctx, locks)
		other.awaitQueued(1)
		for _, leave := range []func(*Hold){
			func(hold *Hold) { s.must(hold.ReleaseAfter(ctx, 4*patience)) },
			func(hold *Hold) { locks.forget(hold.held) },
			func(hold *Hold) { s.check(hold.Release(ctx) != nil, "it has the right") },
		} {
			for _, command := range []string{"DLOCK.RENEW", "DLOCK.FAIRACQUIRE"} {
				hold := s.lock(locks)
				late := func() {
					words := []any{command, s.key, hold.Owner, millis(4 * patience), "IN", locks.name}
					s.must(program.Do(ctx, words...).Err())
				}
				leave(hold)
				s.awaitAnswers(locks)
				late()
				s.until("no session has it", func() bool {
					holder := s.holder()
					s.check(holder != nil, "it is free")
					return holder.text("in") == ""
				})
				locks.mu.Lock()
				hold.held.staysUntil = now()
				locks.mu.Unlock()
				late()
				s.awaitGone()
			}
		}
	}, "single")
}

// Nor does a RENEW whose answer comes later than that. No SESSION tells of it.
func TestALateAnswerKeepsNothingThatWasLeftToItsLease(t *testing.T) {
	in(t, func(s stage) {
		locks := s.make(4 * patience)
		hold := s.lock(locks)
		locks.mu.Lock()
		id := hold.held.session.id
		locks.renew(hold.held, id)
		renewal := locks.queues[id][0]
		locks.mu.Unlock()
		s.awaitAnswers(locks)
		s.must(hold.ReleaseAfter(ctx, 4*patience))
		s.ask(append(hold.held.words("RENEW", millis(4*patience)), "IN", locks.name)...)
		s.check(s.holder().text("in") == locks.name, "%v", s.holder())
		locks.mu.Lock()
		renewal.then(now(), []any{(4 * patience).Milliseconds(), id}, nil)
		locks.mu.Unlock()
		s.until("no session has it", func() bool { return s.holder().text("in") == "" })
		s.check(s.holder() != nil, "it is free")
		s.must(s.node(s.key).Del(ctx, s.key).Err())
	}, "single")
}

// awaitAnswers waits until the servers have answered all that is delivered in the background.
func (s stage) awaitAnswers(locks *Locks) {
	s.Helper()
	s.until("all is answered", func() bool {
		locks.mu.Lock()
		defer locks.mu.Unlock()
		return len(locks.queues) == 0
	})
}

// A SESSION that blocks for a second does not know a hold that was granted since, whose lease is as short.
func TestAShortHoldIsNotLostBesideALongSession(t *testing.T) {
	alone(t, func(s stage) {
		locks, short := s.make(long), s
		short.key += ":short"
		s.hold()
		s.start(ctx, locks)
		s.awaitQueued(1)
		for range 3 {
			s.until("a SESSION has just been sent", func() bool {
				locks.mu.Lock()
				defer locks.mu.Unlock()
				for _, session := range locks.sessions {
					if session.due-now() > 940*time.Millisecond {
						return true
					}
				}
				return false
			})
			hold := short.lock(locks, Lease(time.Second))
			short.awaitOutlasts(hold, 2*time.Second)
			s.must(hold.Release(ctx))
		}
	}, "single")
}

// One RENEW may not be enough until that SESSION is answered.
func TestAHoldIsRenewedUntilASessionKnowsIt(t *testing.T) {
	in(t, func(s stage) {
		locks := s.make(4 * patience)
		hold := s.lock(locks)
		locks.mu.Lock()
		h, session := hold.held, hold.held.session
		session.kept, session.due, session.back = true, never, never
		h.since -= 2 * patience // more than a third of its lease
		before := h.end
		locks.check(h)
		locks.mu.Unlock()
		s.awaitAnswers(locks)
		locks.mu.Lock()
		end, alarm := h.end, h.alarm
		session.kept, session.due = false, 0
		locks.mu.Unlock()
		s.check(end > before, "it is not renewed")
		s.check(alarm < end-h.lease/2, "it is not renewed again")
		s.must(hold.Release(ctx))
	}, "single")
}

// A SESSION that takes longer than it may is a sign of a process that was stopped, once.
func TestALateSessionDelaysALossOnce(t *testing.T) {
	in(t, func(s stage) {
		locks := s.make(4 * patience)
		hold := s.lock(locks)
		locks.mu.Lock()
		session := hold.held.session
		session.kept, session.back = true, now()-2*stall
		locks.check(hold.held)
		first := locks.grace
		locks.check(hold.held)
		again := locks.grace
		session.kept = false
		locks.mu.Unlock()
		s.check(first > 0 && again == first, "%v after %v", again, first)
		s.must(hold.Release(ctx))
	}, "single")
}

// A leader that was stopped is in doubt of its term, which the server may still have. It does not wait behind itself.
func TestCampaignAfterAPauseDoesNotWaitForItself(t *testing.T) {
	in(t, func(s stage) {
		locks := s.make(4 * patience)
		election, err := locks.Election(s.key, "me")
		s.must(err)
		first, err := election.Campaign(ctx)
		s.must(err)
		locks.mu.Lock()
		first.held.end = now()
		locks.grace = now() + patience
		locks.mu.Unlock()
		s.check(!election.IsLeader() && first.Lost() == nil, "it is in no doubt")
		soon, cancel := context.WithTimeout(ctx, patience/4)
		defer cancel()
		second, err := election.Campaign(soon)
		s.must(err)
		s.check(second.Token > first.Token && election.IsLeader(), "%d after %d", second.Token, first.Token)
		s.must(election.Resign(ctx))
	}, "single")
}

// The server renews the hold, and one answer of it is lost with its connection: the next one comes in time.
func TestOneLostAnswerCostsNoHold(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		hold := s.lock(s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{Lease: lease}))
		s.awaitKept(hold, 1)
		s.control("strand " + path)
		s.awaitKept(hold, 4)
		_ = hold.Release(ctx) // by the other pool's connection, which is stranded too
		s.awaitGone()
	}, "single")
}

// A loss by the clock says since when nobody has confirmed the hold.
func TestTheReasonOfALossHasNumbers(t *testing.T) {
	in(t, func(s stage) {
		path := s.path(addresses("single")[0])
		hold := s.lock(s.with(redis.NewClient(&redis.Options{Addr: path}), Settings{Lease: lease}))
		s.awaitKept(hold, 2)
		silenced := time.Now()
		s.control("silence " + path)
		s.isLost(hold)
		most := (time.Since(silenced) + lease).Seconds() // the grant is older
		var since float64
		_, words, _ := strings.Cut(hold.Lost().Error(), "the last answer was sent ")
		_, err := fmt.Sscanf(words, "%f s ago", &since)
		s.check(err == nil && since > 2 && since < most, "%v", hold.Lost())
		s.control("sound " + path)
	}, "single")
}

// go-redis would ask any node for COMMAND before the first call, and wait five seconds for one that hangs.
func TestAClusterIsNotAskedForItsCommands(t *testing.T) {
	alone(t, func(s stage) {
		asked := func() (count int) {
			for _, address := range addresses("cluster") {
				count += calls(connection(address), "command")
			}
			return count
		}
		before := asked()
		hold := s.lock(s.locks)
		s.awaitKept(hold, 1)
		s.must(hold.Release(ctx))
		s.check(asked() == before, "%d times", asked()-before)
	}, "cluster")
}

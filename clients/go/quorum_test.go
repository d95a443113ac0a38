package dlock

import (
	"context"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A lock over the masters, of which the first is also the stage's place: its INFO shows the queue.

const ages = 600 * time.Second // no test lasts so long

// quorum is a client of these masters: A, B, C are alive, `dead` refuses and `hung` says nothing.
func (s stage) quorum(masters string) *Quorum {
	s.Helper()
	bound := patience // a busy machine answers in its own time
	var options []*redis.Options
	for _, name := range strings.Fields(masters) {
		options = append(options, &redis.Options{Addr: s.master(name)})
		if name == "hung" {
			bound = 3 * time.Second
		}
	}
	quorum := NewQuorum(bound, options...)
	s.Cleanup(quorum.Close)
	return quorum
}

func (s stage) master(name string) string {
	s.Helper()
	if i := strings.Index("ABC", name); i >= 0 {
		return addresses("masters")[i]
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the system takes connections for it, and nobody answers
	s.must(err)
	if name == "dead" {
		s.must(listener.Close())
	} else {
		s.Cleanup(func() { _ = listener.Close() })
	}
	return listener.Addr().String()
}

// at asks one master, whoever serves the key.
func (s stage) at(name string, words ...any) any {
	s.Helper()
	reply, err := connection(s.master(name)).Do(ctx, words...).Result()
	if err != redis.Nil {
		s.must(err)
	}
	return reply
}

func (s stage) isFree(names ...string) {
	s.Helper()
	for _, name := range names {
		info := s.at(name, "DLOCK.INFO", s.key)
		s.check(info == nil, "%s: %v", name, info)
	}
}

func (s stage) isHeldAt(name, owner string) {
	s.Helper()
	held, _ := s.at(name, "DLOCK.HELD", s.key).([]any)
	s.check(held != nil && held[3] == owner, "%s: %v, not %s", name, held, owner)
}

// isHeld: there are tokens of these masters and no others, and none of them will end it before the client thinks so.
func (s stage) isHeld(hold *QuorumHold, masters, with string) {
	s.Helper()
	var first time.Duration
	for i, name := range strings.Fields(masters) {
		if token := hold.Tokens()[i]; !strings.Contains(with, name) {
			s.check(token == 0, "a token of %s", name)
		} else {
			held, _ := s.at(name, "DLOCK.HELD", s.key, hold.Owner).([]any)
			s.check(held != nil && held[0] == token, "%s: %v, not %d", name, held, token)
			// The server was asked first, and both shrink alike. The allowance for clocks is in between.
			left, server := hold.Left(), time.Duration(held[2].(int64))*time.Millisecond
			s.check(0 < left && left <= server-server/100, "%s: %v left, believed %v", name, server, left)
			// When this client dies its successor at the first finds the others free: had they been asked for a full
			// lease it would be later by the time-out of one that hangs. A busy machine may make it a little later.
			s.check(first == 0 || server < first+2*time.Second, "%s: %v left, and %v at the first", name, server, first)
			first = max(first, server)
		}
	}
}

type won struct {
	hold *QuorumHold
	err  error
}

func (s stage) compete(ctx context.Context, quorum *Quorum) <-chan won {
	outcomes := make(chan won, 1)
	go func() {
		hold, err := quorum.Acquire(ctx, s.key, ages, 4*patience)
		outcomes <- won{hold, err}
	}()
	return outcomes
}

func (s stage) holds(outcomes <-chan won) *QuorumHold {
	s.Helper()
	got := <-outcomes
	s.must(got.err)
	s.Cleanup(got.hold.Release)
	return got.hold
}

func (s stage) acquire(quorum *Quorum, wait time.Duration) (*QuorumHold, error) {
	return quorum.Acquire(ctx, s.key, ages, wait)
}

func TestQuorumAMajorityIsEnough(t *testing.T) {
	t.Parallel()
	for _, masters := range []string{"A B dead", "A B hung", "dead A B", "hung A B"} {
		t.Run(masters, func(t *testing.T) {
			in(t, func(s stage) {
				one, two := s.quorum(masters), s.quorum(masters)
				hold, err := s.acquire(one, patience)
				s.must(err)
				s.isHeld(hold, masters, "A B")
				_, err = s.acquire(two, 0)
				s.isError(err, ErrQuorumTimeout)
				s.check(hold.Renew(2*ages) && hold.Left() > ages, "%v left", hold.Left())
				s.isHeld(hold, masters, "A B")
				hold.Release()
				s.check(hold.Left() == 0, "%v left", hold.Left())
				s.isFree("A", "B")
				next, err := s.acquire(two, patience)
				s.must(err)
				s.isHeld(next, masters, "A B")
				next.Release()
				s.isFree("A", "B")
			}, "masters")
		})
	}
}

func TestQuorumAMinorityIsNot(t *testing.T) {
	in(t, func(s stage) {
		_, err := s.acquire(s.quorum("A dead dead"), 0)
		s.isError(err, ErrQuorumUnreachable)
		s.check(strings.Count(err.Error(), "refused") == 2, "not each one's error: %v", err)
		s.isFree("A")
		// Another owner holds the others.
		other := map[string]any{}
		for _, name := range []string{"B", "C"} {
			other[name] = s.at(name, "DLOCK.ACQUIRE", s.key, "other", ages.Milliseconds())
			s.check(other[name] != nil, "%s is taken", name)
		}
		_, err = s.acquire(s.quorum("A B C"), 300*time.Millisecond)
		s.isError(err, ErrQuorumTimeout)
		s.isFree("A")
		// A client that waits asks again.
		wait := s.compete(ctx, s.quorum("A B C"))
		s.until("it has asked", func() bool { return s.at("A", "DLOCK.INFO", s.key) != nil })
		s.until("it has given that back", func() bool { return s.at("A", "DLOCK.INFO", s.key) == nil })
		s.at("B", "DLOCK.RELEASE", s.key, "other")
		hold := s.holds(wait)
		s.isHeld(hold, "A B C", "A B")
		hold.Release()
		s.isFree("A", "B")
		s.isHeldAt("C", "other")
		// A refusal is no vote.
		s.at("B", "SET", s.key, "no lock")
		s.at("C", "SET", s.key, "no lock")
		_, err = s.acquire(s.quorum("A B C"), 0)
		s.isError(err, ErrQuorumUnreachable)
		s.check(strings.Count(err.Error(), "WRONGTYPE") == 2, "not each one's error: %v", err)
		s.isFree("A")
	}, "masters")
}

func TestQuorumWaitsInOneQueue(t *testing.T) {
	in(t, func(s stage) {
		quorum := s.quorum("A B C")
		hold, err := s.acquire(quorum, patience)
		s.must(err)
		// One client, and one of another program.
		waits := []<-chan won{s.compete(ctx, quorum)}
		s.awaitQueued(1)
		waits = append(waits, s.compete(ctx, s.quorum("A B C")))
		s.awaitQueued(2)
		line := s.queue()
		for _, name := range []string{"B", "C"} {
			queue := s.at(name, "DLOCK.INFO", s.key).(map[any]any)["queue"].([]any)
			s.check(len(queue) == 0, "%s: %v", name, queue)
		}
		for i, wait := range waits {
			hold.Release()
			hold = s.holds(wait)
			s.check(hold.Owner == line[i], "%s has it, not %s", hold.Owner, line[i])
			s.isHeld(hold, "A B C", "A B C")
		}
		hold.Release()
		s.isFree("A", "B", "C")
	}, "masters")
}

func TestQuorumRenewsAndNoticesTheLoss(t *testing.T) {
	in(t, func(s stage) {
		const short = 10 * time.Second
		hold, err := s.quorum("A B C").Acquire(ctx, s.key, short, patience)
		s.must(err)
		tokens := hold.Tokens()
		for s.holder().int("held-ms") < 3*short.Milliseconds() {
			s.check(hold.Renew(short), "it is lost")
			s.isHeld(hold, "A B C", "A B C")
			time.Sleep(300 * time.Millisecond) // it is the server that says how much time has passed
		}
		s.check(slices.Equal(hold.Tokens(), tokens), "%v, not %v", hold.Tokens(), tokens)
		s.check(hold.Renew(ages), "it is lost")
		// One of three may lose it, two may not.
		s.at("C", "DLOCK.FORCERELEASE", s.key)
		s.check(hold.Renew(ages), "two of three have it")
		s.isHeld(hold, "A B C", "A B")
		s.at("B", "DLOCK.FORCERELEASE", s.key)
		before := hold.Deadline()
		s.check(!hold.Renew(2*ages), "one of three has it")
		s.check(hold.Deadline().Sub(before).Abs() < time.Second, "%v, not %v", hold.Deadline(), before)
		// One master has received a shorter lease.
		s.check(!hold.Renew(ages/10), "one of three has it")
		s.check(hold.Left() < ages/10, "%v left", hold.Left())
		// The next holder there is not overwritten.
		data, next := s.key+":data", s.at("B", "DLOCK.ACQUIRE", s.key, "next", ages.Milliseconds()).([]any)
		s.at("B", "DLOCK.GUARD", s.key, next[0], "SET", data, "next")
		err = connection(s.master("B")).Do(ctx, "DLOCK.GUARD", s.key, tokens[1], "SET", data, "late").Err()
		s.check(err != nil && strings.HasPrefix(err.Error(), "FENCED"), "%v", err)
		s.check(s.at("B", "GET", data) == "next", "it is overwritten")
		hold.Release()
		s.isFree("A", "C")
		s.isHeldAt("B", "next")
	}, "masters")
}

func TestQuorumIsLeftWhenCancelled(t *testing.T) {
	in(t, func(s stage) {
		quorum := s.quorum("A B C")
		hold, err := s.acquire(quorum, patience)
		s.must(err)
		inner, cancel := context.WithCancel(ctx)
		first := s.compete(inner, quorum)
		s.awaitQueued(1)
		second := s.compete(ctx, quorum)
		s.awaitQueued(2)
		last := s.queue()[1]
		cancel()
		s.isError((<-first).err, context.Canceled)
		s.check(slices.Equal(s.queue(), []string{last}), "%v", s.queue())
		hold.Release()
		hold = s.holds(second)
		s.isHeld(hold, "A B C", "A B C")
		// In the moment of the grant, too, and while the others are asked.
		for range 20 {
			inner, cancel := context.WithCancel(ctx)
			wait := s.compete(inner, quorum)
			s.awaitQueued(1)
			time.AfterFunc(mathrand.N(5*time.Millisecond), cancel) // so that all orders come about
			hold.Release()
			if got := <-wait; got.err == nil {
				got.hold.Release()
			} else {
				s.isError(got.err, context.Canceled)
			}
			s.isFree("A", "B", "C")
			hold, err = s.acquire(quorum, patience)
			s.must(err)
		}
		hold.Release()
		s.isFree("A", "B", "C")
	}, "masters")
}

// Before it has asked, as it asks, and when it has: the race detector looks on.
func TestQuorumIsLeftWhenCancelledAtOnce(t *testing.T) {
	in(t, func(s stage) {
		quorum := s.quorum("A B C")
		hold, err := s.acquire(quorum, patience)
		s.must(err)
		for range 100 {
			inner, cancel := context.WithCancel(ctx)
			time.AfterFunc(mathrand.N(5*time.Millisecond), cancel)
			_, err := quorum.Acquire(inner, s.key, ages, patience)
			s.isError(err, context.Canceled)
		}
		s.awaitQueued(0)
		hold.Release()
		s.isFree("A", "B", "C")
	}, "masters")
}

func TestQuorumGivesBackWhereNobodyAnswered(t *testing.T) {
	in(t, func(s stage) {
		path := s.pathTo(s.master("A"))
		options := func(addresses ...string) (all []*redis.Options) {
			for _, address := range addresses {
				all = append(all, &redis.Options{Addr: address})
			}
			return all
		}
		quorum := NewQuorum(3*time.Second, options(path.address(), s.master("B"), s.master("C"))...)
		s.Cleanup(quorum.Close)
		// The request is on its way, and arrives when nobody waits for it any longer.
		path.freezeAt("DLOCK.ACQUIRE")
		s.at("B", "DLOCK.ACQUIRE", s.key, "other", ages.Milliseconds())
		_, err := s.acquire(quorum, 0)
		s.isError(err, ErrQuorumTimeout)
		s.at("B", "DLOCK.RELEASE", s.key, "other")
		messages := s.messages() // before it has arrived, A is also free
		path.thaw()
		select {
		case <-messages:
		case <-time.After(patience):
			s.Fatal("it is not given back")
		}
		s.awaitGone()
		s.isFree("A", "B", "C")
	}, "masters")
}

func TestQuorumAsksTheSilentOneLast(t *testing.T) {
	in(t, func(s stage) {
		heldAtB := make(chan bool, 100)
		path := s.pathTo(s.master("A"), func() {
			held, _ := s.at("B", "DLOCK.HELD", s.key).([]any)
			heldAtB <- held != nil
		})
		path.freeze()
		quorum := NewQuorum(3*time.Second, &redis.Options{Addr: path.address()},
			&redis.Options{Addr: s.master("B")}, &redis.Options{Addr: s.master("C")})
		s.Cleanup(quorum.Close)
		for _, last := range []bool{false, true} {
			hold, err := s.acquire(quorum, 0)
			s.must(err)
			s.check(<-heldAtB == last, "last: %v", last)
			s.isHeldAt("B", hold.Owner)
			hold.Release()
			for len(heldAtB) > 0 { // A was also asked for its vote
				<-heldAtB
			}
		}
		s.isFree("B", "C")
	}, "masters")
}

package dlock

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The tests that every language has, by the same names: see clients/DESIGN.md.

type outcome struct {
	hold *Hold
	err  error
}

// start waits for the lock in a goroutine.
func (s stage) start(ctx context.Context, locks *Locks, options ...Option) <-chan outcome {
	return s.startAt(ctx, locks, s.key, options...)
}

func (s stage) startAt(ctx context.Context, locks *Locks, key string, options ...Option) <-chan outcome {
	outcomes := make(chan outcome, 1)
	go func() {
		hold, err := locks.TryLock(ctx, key, 4*patience, options...)
		outcomes <- outcome{hold, err}
	}()
	return outcomes
}

func (s stage) had(outcomes <-chan outcome) *Hold {
	s.Helper()
	got := <-outcomes
	s.must(got.err)
	return got.hold
}

func (s stage) lock(locks *Locks, options ...Option) *Hold {
	s.Helper()
	return s.had(s.start(ctx, locks, options...))
}

func (s stage) isError(err, expected error) {
	s.Helper()
	s.check(errors.Is(err, expected), "%v, not %v", err, expected)
}

// handOverTo checks that the next in the queue holds the lock in the step of the release, and that then nobody holds it.
func (s stage) handOverTo(wait <-chan outcome) {
	s.Helper()
	next := s.queue()[0]
	owner := s.handOver("other")
	s.check(owner == next, "%s has it, not %s", owner, next)
	hold := s.had(wait)
	s.check(hold.Owner == next, "%s has it, not %s", hold.Owner, next)
	s.must(hold.Release(ctx))
	s.awaitGone()
}

// awaitKept waits until the lock has been held for that many leases, under its token, and the server keeps it.
func (s stage) awaitKept(hold *Hold, leases int64) {
	s.Helper()
	s.until("it is kept", func() bool {
		holders, _ := s.info()
		i := slices.IndexFunc(holders, func(one row) bool { return one.int("token") == hold.Token })
		s.check(i >= 0, "it is not held under its token")
		return holders[i].int("held-ms") > leases*lease.Milliseconds() && holders[i].text("in") != ""
	})
	s.check(hold.Lost() == nil, "it is lost")
}

func (s stage) isLost(hold *Hold) {
	s.Helper()
	select {
	case <-hold.Done():
	case <-time.After(patience):
		s.Fatal("nothing is told of the loss")
	}
	s.isError(hold.Release(ctx), ErrNotHeld)
}

func TestCountsToAThousand(t *testing.T) {
	in(t, func(s stage) {
		node, count := s.node(s.key), s.key+":count"
		var all group
		failed := make(chan error, 50)
		for range 50 {
			all.Go(func() {
				for range 20 {
					err := s.locks.With(ctx, s.key, func(ctx context.Context, _ *Hold) error {
						n, _ := node.Get(ctx, count).Int()
						return node.Set(ctx, count, n+1, 0).Err()
					})
					if err != nil {
						failed <- err
						return
					}
				}
			})
		}
		all.Wait()
		close(failed)
		s.must(<-failed)
		n, err := node.Get(ctx, count).Int()
		s.check(n == 1000, "it is %d %v", n, err)
		s.awaitGone()
	}, "single", "cluster")
}

func TestWaitLongerThanTheTimeOut(t *testing.T) {
	in(t, func(s stage) {
		s.hold()
		hasty := makeLocks(s.place, lease)
		defer hasty.Close()
		first := s.start(ctx, hasty)
		s.awaitQueued(1)
		second := s.start(ctx, s.make(lease))
		s.awaitQueued(2)
		s.until("it has waited for five time-outs", func() bool {
			_, queue := s.info()
			return queue[0].int("waited-ms") > 2000
		})
		_, after := s.info()
		owner := s.handOver("other")
		s.check(owner == after[0].text("owner"), "%s has it", owner)
		hold := s.had(first)
		s.check(hold.Owner == owner && s.holder().int("holds") == 1, "%v", s.holder())
		s.must(hold.Release(ctx))
		s.must(s.had(second).Release(ctx))
		s.awaitGone()
	}, "single", "cluster")
}

func TestCancelledWait(t *testing.T) {
	in(t, func(s stage) {
		s.hold()
		inner, cancel := context.WithCancel(ctx)
		first := s.start(inner, s.locks)
		s.awaitQueued(1)
		second := s.start(ctx, s.make(lease))
		s.awaitQueued(2)
		cancel()
		s.isError((<-first).err, context.Canceled)
		s.awaitQueued(1)
		s.handOverTo(second)
		_, err := s.locks.Lock(inner, s.key)
		s.isError(err, context.Canceled)
		s.awaitGone()
	}, "single", "cluster")
}

func TestDeadlinePasses(t *testing.T) {
	in(t, func(s stage) {
		s.hold()
		first := make(chan error, 1)
		go func() {
			_, err := s.locks.TryLock(ctx, s.key, 3*time.Second)
			first <- err
		}()
		s.awaitQueued(1)
		second := s.start(ctx, s.make(lease))
		s.isError(<-first, ErrTimeout)
		s.awaitQueued(1)
		s.handOverTo(second)
		s.hold()
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := s.locks.Lock(soon, s.key)
		s.isError(err, context.DeadlineExceeded)
		s.awaitQueued(0)
	}, "single", "cluster")
}

func TestCancelAtTheGrant(t *testing.T) {
	in(t, func(s stage) {
		for range 30 {
			s.hold()
			inner, cancel := context.WithCancel(ctx)
			wait := s.start(inner, s.locks)
			s.awaitQueued(1)
			time.AfterFunc(mathrand.N(3*time.Millisecond), cancel) // so that all orders come about
			s.handOver("other")
			if got := <-wait; got.err == nil {
				s.must(got.hold.Release(ctx))
			} else {
				s.isError(got.err, context.Canceled)
			}
			s.awaitGone()
		}
	}, "single", "cluster")
}

func TestKilledWaiter(t *testing.T) {
	in(t, func(s stage) {
		s.hold()
		kill := s.process()
		s.awaitQueued(1)
		after := s.start(ctx, s.locks)
		s.awaitQueued(2)
		kill()
		s.until("the server has noticed", func() bool {
			_, queue := s.info()
			return len(queue) == 1 || queue[0].text("kind") == "absent"
		})
		s.handOver("other")
		hold := s.had(after)
		s.check(s.holder().text("owner") == hold.Owner && len(s.queue()) == 0, "%v", s.holder())
		s.must(hold.Release(ctx))
		s.awaitGone()
	}, "single", "cluster")
}

func TestKilledAtTheGrant(t *testing.T) {
	in(t, func(s stage) {
		for _, delay := range []time.Duration{0, 200 * time.Microsecond, time.Millisecond} {
			s.hold()
			kill := s.process()
			s.awaitQueued(1)
			after := s.start(ctx, s.locks)
			s.awaitQueued(2)
			killed := make(chan struct{})
			time.AfterFunc(delay, func() {
				kill()
				close(killed)
			})
			s.handOver("other")
			<-killed
			// It had the lock for no longer than its first lease, or its place for no longer than its claim.
			hold := s.had(after)
			s.check(s.holder().text("owner") == hold.Owner && len(s.queue()) == 0, "%v", s.holder())
			s.must(hold.Release(ctx))
			s.awaitGone()
		}
	}, "single", "cluster")
}

func TestKilledHolder(t *testing.T) {
	in(t, func(s stage) {
		messages := s.messages()
		kill := s.process()
		s.until("it is held and kept", func() bool {
			holder := s.holder()
			return holder != nil && holder.text("in") != ""
		})
		token := s.holder().int("token")
		after := s.start(ctx, s.locks)
		s.awaitQueued(1)
		kill()
		message := (<-messages).Payload
		s.check(message == fmt.Sprint("expired ", token), "%s", message)
		s.must(s.had(after).Release(ctx))
		s.awaitGone()
	}, "single", "cluster")
}

// The server shows the actor, and no hold has the owner of another one.
func TestAnActorIsInTheOwner(t *testing.T) {
	in(t, func(s stage) {
		host, _ := os.Hostname()
		begins := fmt.Sprintf("%s/%d/", host, os.Getpid())
		one, two := s.lock(s.locks, Actor("me"), Shared()), s.lock(s.locks, Owner("me"), Shared())
		for _, hold := range []*Hold{one, two} {
			s.check(strings.HasPrefix(hold.Owner, begins) && strings.Contains(hold.Owner, "/me#"), "%s", hold.Owner)
		}
		s.check(one.Owner != two.Owner && one.Token != two.Token, "%s", one.Owner)
		s.must(one.Release(ctx))
		s.isError(one.Release(ctx), ErrNotHeld)
		s.awaitKept(two, 1)
		s.must(two.Release(ctx))
		s.awaitGone()
	}, "single")
}

func TestManyOverSeveralSlots(t *testing.T) {
	in(t, func(s stage) {
		var keys []string
		for i := range 4 {
			keys = append(keys, fmt.Sprintf("{%d%s", i, s.key[1:]))
		}
		backwards := slices.Clone(keys)
		slices.Reverse(backwards)
		results := make(chan error, 2)
		for _, keys := range [][]string{keys, backwards} {
			go func() {
				var err error
				for i := 0; i < 15 && err == nil; i++ {
					err = s.locks.WithAll(ctx, keys, func(_ context.Context, holds map[string]*Hold) error {
						if len(holds) != 4 {
							return fmt.Errorf("%d holds", len(holds))
						}
						return nil
					})
				}
				results <- err
			}()
		}
		s.must(<-results)
		s.must(<-results)
		s.check(s.askAt(keys[2], "DLOCK.ACQUIRE", keys[2], "other", 600_000) != nil, "it is taken")
		soon, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		err := s.locks.WithAll(soon, keys, func(context.Context, map[string]*Hold) error { return nil })
		s.isError(err, context.DeadlineExceeded)
		for i, key := range keys {
			holders, _ := s.infoAt(key)
			s.check(len(holders) == 0 || i == 2 && holders[0].text("owner") == "other", "%s: %v", key, holders)
		}
	}, "single", "cluster")
}

func TestAThousandWaitsInOneSession(t *testing.T) {
	alone(t, func(s stage) { // or they stall for longer than a claim or a first lease
		s.hold()
		locks := s.make(long)
		var all group
		var served []string // under the lock
		failed := make(chan error, 1000)
		for range 1000 {
			all.Go(func() {
				err := locks.With(ctx, s.key, func(_ context.Context, hold *Hold) error {
					served = append(served, hold.Owner)
					return nil
				})
				if err != nil {
					failed <- err
				}
			})
		}
		s.awaitQueued(1000)
		_, queue := s.info()
		for _, place := range queue {
			s.check(place.text("in") == queue[0].text("in"), "they wait in several sessions")
		}
		s.handOver("other")
		all.Wait()
		close(failed)
		s.must(<-failed)
		s.check(slices.Equal(served, owners(queue)), "they were not served in their order")
		s.awaitGone()
	}, "single", "cluster")
}

// One command a second, whatever the number of locks.
func TestHeldLocksCostTheSameWhateverTheirNumber(t *testing.T) {
	t.Parallel()
	for _, count := range []int{10, 1_000, 10_000} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			in(t, func(s stage) {
				path, name := s.control("path "+addresses("single")[0]), "held-"+randomKey()
				s.Cleanup(func() { s.control("close " + path) })
				locks, err := New(redis.NewClient(&redis.Options{Addr: path, ClientName: name, PoolSize: 10}), Settings{})
				s.must(err)
				s.Cleanup(locks.Close)
				holds := make([]*Hold, count)
				failed := make(chan error, 100)
				var all group
				for worker := range 100 {
					all.Go(func() {
						for i := worker; i < count; i += 100 {
							hold, err := locks.Lock(ctx, fmt.Sprint(s.key, i))
							if holds[i] = hold; err != nil {
								failed <- err
								return
							}
						}
					})
				}
				all.Wait()
				close(failed)
				s.must(<-failed)
				commands := func() (seen int64) {
					_, err := fmt.Sscan(s.control("commands "+path), &seen)
					s.must(err)
					return seen
				}
				age := func() int64 {
					holders, _ := s.infoAt(holds[0].Key)
					s.check(len(holders) == 1, "it is not held any more")
					return holders[0].int("held-ms")
				}
				first, began := commands(), age()
				s.until("five seconds have passed", func() bool { return age()-began > 5_000 })
				sent, took := commands()-first, age()-began
				connections := strings.Count(connection(addresses("single")[0]).ClientList(ctx).Val(), name)
				s.check(sent*1000 <= took*3/2 && connections <= 12, "%d commands in %d ms, %d connections", sent, took, connections)
				for _, hold := range holds {
					s.check(hold.Lost() == nil, "%v", hold.Lost())
				}
				s.Logf("%d locks: %d commands in %d ms, %d connections", count, sent, took, connections)
			}, "single")
		})
	}
}

func TestLockOverASlotOnItsWay(t *testing.T) {
	alone(t, func(s stage) {
		s.whileTheSlotMoves(func(askThere func(words ...any) any) {
			hold := s.lock(s.locks)
			held, ok := askThere("DLOCK.HELD", s.key, hold.Owner).([]any)
			s.check(ok && held[0] == hold.Token, "%v", held)
			exists, err := hold.Guard(ctx, "EXISTS", s.key)
			s.check(exists == int64(1), "%v %v", exists, err)
			s.must(hold.Release(ctx))
			s.check(askThere("DLOCK.HELD", s.key, hold.Owner) == nil, "it is still held")
		})
		s.awaitGone()
	}, "cluster")
}

func TestWaitOverAPause(t *testing.T) {
	alone(t, func(s stage) {
		s.ask("CLIENT", "PAUSE", 600_000, "WRITE")
		defer s.awaitGone()
		defer s.ask("CLIENT", "UNPAUSE")
		// The server answers nothing, and the caller gets an answer all the same.
		_, err := s.locks.TryLock(ctx, s.key, 100*time.Millisecond)
		s.isError(err, ErrTimeout)
		inner, cancel := context.WithCancel(ctx)
		wait := s.start(inner, s.locks)
		cancel()
		s.isError((<-wait).err, context.Canceled)
	}, "single")
}

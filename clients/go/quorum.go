// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Why there is no lock over the masters. Ask by errors.Is.
var (
	// ErrQuorumTimeout: others had it, or the votes were split, until the time was up.
	ErrQuorumTimeout = errors.New("dlock: no majority in time")
	// ErrQuorumUnreachable: too many masters said neither yes nor no. The text has each one's error.
	ErrQuorumUnreachable = errors.New("dlock: no majority of the masters answers")
)

// A Quorum is one lock over three or five servers that know nothing of each other: an owner that holds it at a majority of
// them holds the lock. The reasons for what a Quorum does are in dlock's docs/cluster.md.
//
//	quorum := dlock.NewQuorum(0, a.Options(), b.Options(), c.Options()) // in the same order for every client
//	hold, err := quorum.Acquire(ctx, "stock", 10*time.Second, 5*time.Second)
//	if err != nil {
//		return err
//	}
//	defer hold.Release()
//
// It is for any number of goroutines: each Acquire has an owner of its own, and re-enters nothing.
type Quorum struct {
	bound   time.Duration
	masters []*redis.Client
	began   time.Time
	silent  []atomic.Int64 // when each was silent, since it began; 0: never
	closed  chan struct{}
	closing sync.Once
}

// Who has been silent so lately is asked last.
const silence = time.Second

// NewQuorum makes one of these masters. Each may take so long to connect, and to answer what it need not wait for (0: 300 ms). The options are
// copied; those of a client will do.
func NewQuorum(bound time.Duration, masters ...*redis.Options) *Quorum {
	if bound <= 0 {
		bound = 300 * time.Millisecond
	}
	q := &Quorum{
		bound: bound, began: time.Now(), silent: make([]atomic.Int64, len(masters)), closed: make(chan struct{}),
	}
	for _, master := range masters {
		q.masters = append(q.masters, q.client(master))
	}
	return q
}

func (q *Quorum) client(pattern *redis.Options) *redis.Client {
	client := redis.NewClient(bounded(pattern, q.bound)) // nothing is sent twice behind our back
	client.AddHook(dialBound(q.bound))
	return client
}

// Close ends the connections. What is still held lives on until its lease.
func (q *Quorum) Close() {
	q.closing.Do(func() { close(q.closed) })
	for _, master := range q.masters {
		_ = master.Close()
	}
}

// Acquire waits at the first master that can be reached, and then asks the others. Without a majority it releases
// everything, and tries again while wait lasts (0: once). It also releases everything when the context ends.
func (q *Quorum) Acquire(ctx context.Context, lock string, lease, wait time.Duration) (*QuorumHold, error) {
	end := time.Now().Add(wait)
	for ctx.Err() == nil {
		// Each try has its own owner: what a try leaves behind may come late, and must not release what the next is granted.
		h := &QuorumHold{Lock: lock, Owner: rand.Text(), quorum: q, asked: make([]bool, len(q.masters)), errs: map[int]error{}}
		h.votes.Store(&votes{})
		if h.try(ctx, lease, end) && ctx.Err() == nil {
			return h, nil
		}
		refused := ErrQuorumTimeout
		if answered := len(q.masters) - len(h.errs); answered <= len(q.masters)/2 {
			refused = fmt.Errorf("%w: %w", ErrQuorumUnreachable, errors.Join(slices.Collect(maps.Values(h.errs))...))
		}
		h.giveBack()
		h.giveBackLater()
		pause := 20*time.Millisecond + mathrand.N(180*time.Millisecond)
		if ctx.Err() == nil && time.Until(end) < pause {
			return nil, refused
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil, ctx.Err()
}

// A QuorumHold is a lock that is held at a majority until its deadline. Give it back by Release.
type QuorumHold struct {
	Lock, Owner string
	quorum      *Quorum
	first       int // where the queue is
	asked       []bool
	longest     time.Duration // of the leases that were asked for
	errs        map[int]error
	turn        sync.Mutex
	votes       atomic.Pointer[votes]
}

type votes struct {
	tokens   []int64
	deadline time.Duration // of now(), which also advances while the machine is suspended
}

// Deadline is until when it is held for sure. Ask again before each write: Go's own clock stops while the machine is suspended.
func (h *QuorumHold) Deadline() time.Time { return time.Now().Add(h.votes.Load().deadline - now()) }

// Left is the time until then.
func (h *QuorumHold) Left() time.Duration { return max(0, h.votes.Load().deadline-now()) }

// Tokens are each master's fencing token, or 0. Compare those of one master only.
func (h *QuorumHold) Tokens() []int64 { return slices.Clone(h.votes.Load().tokens) }

// Renew makes the leases new. When no majority agrees in time it is false, and the old deadline stays, or the new one if
// that is earlier.
func (h *QuorumHold) Renew(lease time.Duration) bool {
	h.turn.Lock()
	defer h.turn.Unlock()
	return h.collect(lease, h.Tokens(), false)
}

// Release gives it back at all masters. It needs no context: a deferred one must not fail because the work's has ended.
func (h *QuorumHold) Release() {
	h.turn.Lock()
	defer h.turn.Unlock()
	h.votes.Store(&votes{tokens: make([]int64, len(h.quorum.masters)), deadline: now()})
	h.giveBack()
	h.giveBackLater()
}

// try asks once.
func (h *QuorumHold) try(ctx context.Context, lease time.Duration, end time.Time) bool {
	tokens := make([]int64, len(h.quorum.masters))
	order := make([]int, len(tokens))
	for n := range order {
		order[n] = n
	}
	for _, n := range h.silentLast(order) {
		h.first = n
		token, err := h.wait(ctx, lease, end)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil && token == 0:
			h.asked[h.first] = false // nothing of ours is left there
			return false
		case err == nil:
			// The reply to a wait does not say when the lease began. So it is renewed, at a known time.
			tokens[h.first] = token
			return h.collect(lease, tokens, true)
		}
	}
	return false
}

// wait has a connection of its own: the wait ends when that is closed.
func (h *QuorumHold) wait(ctx context.Context, lease time.Duration, end time.Time) (int64, error) {
	client := h.quorum.client(h.quorum.masters[h.first].Options())
	defer client.Close()
	defer context.AfterFunc(ctx, func() { _ = client.Close() })()
	if err := h.connect(client, h.first); err != nil { // it is known before the wait, not after it
		return 0, err
	}
	block := max(1, time.Until(end).Milliseconds()) // BLOCK 0 would be without bound
	patient := client.WithTimeout(time.Duration(block)*time.Millisecond + h.quorum.bound)
	h.asked[h.first], h.longest = true, max(h.longest, lease)
	return h.ask(patient, h.first, "DLOCK.ACQUIRE", h.Lock, h.Owner, max(1, lease.Milliseconds()), "BLOCK", block)
}

func (h *QuorumHold) connect(client *redis.Client, n int) (err error) {
	if client.PoolStats().IdleConns == 0 {
		_, err = h.ask(client, n, "PING")
	}
	return err
}

// ask gives the token, or what is left of the lease; 0 for null.
func (h *QuorumHold) ask(client *redis.Client, n int, words ...any) (number int64, err error) {
	reply, err := client.Do(context.Background(), words...).Result()
	delete(h.errs, n)
	if err != nil && !errors.Is(err, redis.Nil) {
		h.errs[n] = fmt.Errorf("%s: %w", client.Options().Addr, err)
		if slow := net.Error(nil); errors.As(err, &slow) && slow.Timeout() {
			h.quorum.silent[n].Store(int64(time.Since(h.quorum.began)))
		}
	}
	if granted, ok := reply.([]any); ok {
		reply = granted[0]
	}
	number, _ = reply.(int64)
	return number, h.errs[n]
}

// collect renews where there is a token, acquires where there is none if that is wanted, and counts.
func (h *QuorumHold) collect(lease time.Duration, tokens []int64, acquire bool) bool {
	begun, agreed := now(), 0
	h.longest = max(h.longest, lease)
	deadline := begun + lease
	for _, n := range h.order(acquire) {
		token, master := tokens[n], h.quorum.masters[n]
		if token == 0 && !acquire {
			continue
		}
		err := h.connect(master, n) // else its lease would end so much later
		sent, length := now(), lease
		if n != h.first { // it ends earlier, so that the next owner at the first finds the others free
			length -= sent - begun + 5*time.Millisecond
		}
		words := []any{"DLOCK.RENEW", h.Lock, h.Owner, max(1, length.Milliseconds()), "TOKEN", token}
		if token == 0 {
			words = append([]any{"DLOCK.ACQUIRE"}, words[1:4]...)
		}
		if old := h.votes.Load(); sure(sent, length) < old.deadline {
			h.votes.Store(&votes{old.tokens, sure(sent, length)}) // it may hear of a shorter lease, whatever comes of it
		}
		var answer int64
		if err == nil {
			h.asked[n] = true
			answer, err = h.ask(master, n, words...)
		}
		switch {
		case err != nil || answer == 0:
			tokens[n] = 0
		case token == 0:
			tokens[n] = answer
		default: // dlock.max-hold-ms may have cut it
			length = min(length, time.Duration(answer)*time.Millisecond)
		}
		if tokens[n] != 0 {
			agreed++
		}
		deadline = min(deadline, sure(sent, length))
	}
	if agreed <= len(tokens)/2 || now() >= deadline {
		return false
	}
	h.votes.Store(&votes{tokens, deadline})
	return true
}

// sure: a server counts whole milliseconds, and no clock runs faster than another by more than a hundredth.
func sure(sent, lease time.Duration) time.Duration {
	return sent + lease - 2*time.Millisecond - lease/100
}

func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// giveBack asks all that were asked, also those that did not answer: they may do later what they were asked.
func (h *QuorumHold) giveBack() {
	for _, n := range h.order(false) {
		for _, words := range [][]any{
			{"DLOCK.CANCEL", h.Lock, h.Owner}, // a wait without an answer may still stand
			{"DLOCK.RELEASE", h.Lock, h.Owner, "HOLDS", 0},
		} {
			if h.asked[n] {
				_, err := h.ask(h.quorum.masters[n], n, words...)
				h.asked[n] = words[0] == "DLOCK.CANCEL" || err != nil && !isReply(err)
			}
		}
	}
}

// giveBackLater tells those again that have not answered, in the background, for as long as a lease may last.
func (h *QuorumHold) giveBackLater() {
	if !slices.Contains(h.asked, true) {
		return
	}
	end := time.Now().Add(h.longest)
	go func() {
		for more := true; more && time.Now().Before(end); {
			select {
			case <-time.After(silence):
			case <-h.quorum.closed:
				return
			}
			h.turn.Lock()
			h.giveBack()
			more = slices.Contains(h.asked, true)
			h.turn.Unlock()
		}
	}()
}

// order: the first one last, so that the next in its queue finds the others free. Or at once, to have the queue.
func (h *QuorumHold) order(firstAtOnce bool) (order []int) {
	for n := range h.quorum.masters {
		if n != h.first {
			order = append(order, n)
		}
	}
	if firstAtOnce {
		return h.silentLast(append([]int{h.first}, order...))
	}
	return h.silentLast(append(order, h.first))
}

// silentLast keeps their order else.
func (h *QuorumHold) silentLast(order []int) []int {
	lately := func(n int) int {
		at := time.Duration(h.quorum.silent[n].Load())
		if at > 0 && time.Since(h.quorum.began) < at+silence {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(order, func(a, b int) int { return lately(a) - lately(b) })
	return order
}

// Package history is what clients wrote down of one scene: the calls, the ends of connections, the restarts; and how the
// operations of the model follow from it.
//
// All times are microseconds of the wall clock. The server runs on the same machine, so it is the server's clock.
package history

import (
	"sync"
	"time"

	"dlock.example/judge/lock"
)

// Now returns the wall clock.
func Now() int64 { return time.Now().UnixMicro() }

// Millisecond in microseconds.
const Millisecond int64 = 1000

// Call is one command, from when it was sent until it was answered.
type Call struct {
	ID, Conn, Epoch int
	Name            lock.Name
	Locks           []int
	Owner           string
	LeaseMs         int64
	Limit           int
	// Permits is that of PERMITS, 0 without.
	Permits int
	// BlockMs is how long the request waits: 0 without bound, -1 not at all.
	BlockMs int64
	// ClaimMs is how long the ticket is kept, 0 without CLAIM.
	ClaimMs       int64
	Session, Auto bool
	// Holds is that of HOLDS, -1 without.
	Holds int
	Token uint64
	Sent  int64
	// Got is when the reply had been read; without a reply it is 0.
	Got   int64
	Reply lock.Reply
}

// The commands that may wait.
const (
	Acquire     lock.Name = "ACQUIRE"
	FairAcquire lock.Name = "FAIRACQUIRE"
	MAcquire    lock.Name = "MACQUIRE"
)

// Span is an interval in which something happened.
type Span struct{ From, Until int64 }

// History is what was written down of one scene.
type History struct {
	// Scene is the kind of scene, Locks how many locks it has.
	Scene string
	Locks int
	// ClaimMs is the claim window of all tickets of the scene, LeaseMs the lease of its holds.
	ClaimMs, LeaseMs int64

	mutex sync.Mutex
	ids   int
	Calls []Call
	// Ends are the ends of connections: from when one was closed until the server did not list it any more.
	Ends map[int]Span
	// Restarts are those of the server, by epoch.
	Restarts map[int]Restart
}

// Restart is from the signal to the server until it was dead, and then until the next one answered.
type Restart struct{ From, Dead, Until int64 }

// New returns an empty history.
func New(scene string, locks int, leaseMs, claimMs int64) *History {
	return &History{
		Scene: scene, Locks: locks, LeaseMs: leaseMs, ClaimMs: claimMs,
		Ends: map[int]Span{}, Restarts: map[int]Restart{},
	}
}

// ID returns a number for a call, and counts it as sent.
func (h *History) ID() int {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.ids++
	return h.ids
}

// Add notes a call.
func (h *History) Add(c Call) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.Calls = append(h.Calls, c)
}

// Ended notes the end of a connection.
func (h *History) Ended(conn int, span Span) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.Ends[conn] = span
}

// Granted returns how many requests were granted.
func (h *History) Granted() int {
	n := 0
	for i := range h.Calls {
		c := &h.Calls[i]
		if (c.Name == Acquire || c.Name == FairAcquire || c.Name == MAcquire) && outcome(&c.Reply) == lock.Granted {
			n++
		}
	}
	return n
}

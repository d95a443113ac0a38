// Package history has the clients' records of one scene: the calls, the ends of connections, the restarts; and derives the
// operations of the model from them.
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

// Millisecond is in microseconds.
const Millisecond int64 = 1000

// Call is one command, from its sending to its answer.
type Call struct {
	ID, Conn, Epoch int
	Name            lock.Name
	Locks           []int
	Owner           string
	LeaseMs         int64
	Limit           int
	// Permits is the value of PERMITS, 0 without.
	Permits int
	// BlockMs is how long the request waits: 0 without bound, -1 not at all.
	BlockMs int64
	// ClaimMs is how long the ticket is kept, 0 without CLAIM.
	ClaimMs         int64
	Ephemeral, Auto bool
	// Holds is the value of HOLDS, -1 without.
	Holds int
	Token uint64
	// Session is the session of the command, 0 for none, KeptMs for how long SESSION keeps it.
	Session int
	KeptMs  int64
	Sent    int64
	// Asked is when the reply of a request that waits in a session had been read; Got is when its row had been.
	Asked int64
	// Got is when the reply had been read; 0 without a reply.
	Got   int64
	Reply lock.Reply
}

// The commands that may wait.
const (
	Acquire     lock.Name = "ACQUIRE"
	FairAcquire lock.Name = "FAIRACQUIRE"
	MAcquire    lock.Name = "MACQUIRE"
)

// Session keeps a session.
const Session lock.Name = "SESSION"

// Span is an interval in which an event happened.
type Span struct{ From, Until int64 }

// History has the records of one scene.
type History struct {
	// Scene is the kind of scene, Locks the number of its locks.
	Scene string
	Locks int
	// ClaimMs is the claim window of all tickets of the scene, LeaseMs the lease of its holds.
	ClaimMs, LeaseMs int64

	mutex sync.Mutex
	ids   int
	Calls []Call
	// Ends are the ends of connections: from when one was closed until the server no longer listed it.
	Ends map[int]Span
	// Restarts are the server's restarts, by epoch.
	Restarts map[int]Restart
}

// Restart lasts from the signal to the server until its death, and then until the next server answered.
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

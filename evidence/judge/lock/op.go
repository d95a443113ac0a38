// Package lock has the promises of dlock, as a model with which Porcupine compares a history.
//
// The state has the locks and their queues, and no time. The effect of time is an operation like any other, which takes effect at
// some instant of an interval: the end of a lease, of a wait and of a claim window, the end of a connection, a restart. The
// history has the length of each interval.
//
// A request that waits is several operations: Ask, with which it enters the queue or is granted at once, and Answer, the instant
// of its reply, by which the grant must have come. The grant itself is no operation. It is part of the step that frees the lock,
// because dlock promises that: a release grants the lock to the next request. Since the whole history is known, the model grants
// with the token of the reply, and does not grant a request whose reply is no grant.
//
// An operation without a reply takes effect before the end of its connection or of the server, or not at all: after either it
// changes nothing.
package lock

// Outcome is the outcome of a request.
type Outcome int

// The outcomes of a request.
const (
	// Unknown: no reply arrived.
	Unknown Outcome = iota
	Granted
	// Null: not granted, at once or after the wait; cancelled.
	Null
	Replaced
	NotHeld
	Deadlock
	// BadPermits: a holder asked for more permits than it has, or, having several, for a stricter limit.
	BadPermits
)

func (o Outcome) String() string {
	return [...]string{"no answer", "granted", "null", "REPLACED", "NOTHELD", "DEADLOCK", "ERR PERMITS"}[o]
}

// Request is a call of ACQUIRE, FAIRACQUIRE or MACQUIRE, with its outcome.
type Request struct {
	ID, Conn, Epoch int
	// Locks are indices of the history's locks.
	Locks []int
	Owner string
	// Limit is 1 for an exclusive hold, 0 for SHARED.
	Limit int
	// Permits is the number of permits that the request takes; 0 stands for 1.
	Permits int
	Waits   bool
	// Ticket: the place in the queue is a ticket. Claim: it outlives the wait.
	Ticket, Claim   bool
	Ephemeral, Auto bool
	// Session is the session that it is in, 0 for none. Queued: the reply at once said that it waits.
	Session int
	Queued  bool
	// Holds is the least hold count, 0 for one more.
	Holds   int
	Outcome Outcome
	// Tokens are the tokens of the reply, one per lock.
	Tokens []uint64
	// Count is the hold count of the reply, 0 if it has none.
	Count int
}

func (r *Request) id() int {
	if r == nil {
		return 0
	}
	return r.ID
}

// permits returns the number of permits that the request takes.
func (r *Request) permits() int { return max(r.Permits, 1) }

// token returns the reply's token for the lock with this index, 0 if there is none.
func (r *Request) token(lock int) uint64 {
	if r == nil || r.Outcome != Granted {
		return 0
	}
	for i, l := range r.Locks {
		if l == lock {
			return r.Tokens[i]
		}
	}
	return 0
}

// The operations. Each is the input of one of Porcupine's; the reply is part of it.
type (
	// Ask is the arrival of a request.
	Ask struct{ *Request }
	// Answer is the instant of the reply to a request that waits.
	Answer struct{ *Request }
	// TimeUp ends the wait of a request, if it still waits.
	TimeUp struct{ *Request }
	// NotYet is an instant shortly before that of the token: the grant has not come by then.
	NotYet struct{ *Request }
	// LeaseEnd is the end of a lease. Of is the call without an answer that began it, if there is one.
	LeaseEnd struct {
		Term
		Of *Request
	}
	// Timer is the server's timer at the end of a lease: it grants the lock to the next request.
	Timer struct{ Term }
	// Stall is a time in which the server stalled for so long that it may have missed the renewals of AUTO: each such hold may have
	// ended.
	Stall struct{ From int64 }
	// WindowEnd is the end of a claim window.
	WindowEnd struct{ Term }
	// Disconnect is the instant at which the server learns that a connection has ended.
	Disconnect struct{ Conn int }
	// Keep is a SESSION command, which keeps a session by its connection.
	Keep struct {
		ID, Conn, Epoch, Session int
		Known                    bool
	}
	// Lapse is the end of the time for which a SESSION command keeps a session.
	Lapse struct{ ID, Session int }
	// EndSession is a SESSION command with 0 ms.
	EndSession struct {
		ID, Conn, Epoch, Session int
		Known                    bool
	}
	// Restart is the death of the server and its return from the AOF, with only the earlier decisions.
	Restart struct{ Epoch int }
	// Call is a command that does not wait.
	Call struct {
		ID, Conn, Epoch int
		Name            Name
		Locks           []int
		Owner           string
		// Token is the token that the command names, 0 if none.
		Token uint64
		// Holds is the count that RELEASE leaves, -1 for one less.
		Holds           int
		Limit           int
		Ephemeral, Auto bool
		Session         int
		Reply           Reply
	}
)

// Name is the name of a command without its prefix.
type Name string

// The commands that do not wait.
const (
	Release      Name = "RELEASE"
	MRelease     Name = "MRELEASE"
	Renew        Name = "RENEW"
	Downgrade    Name = "DOWNGRADE"
	Cancel       Name = "CANCEL"
	ForceRelease Name = "FORCERELEASE"
	Held         Name = "HELD"
	Position     Name = "POSITION"
	Check        Name = "CHECK"
)

// Reply is the reply to a Call.
type Reply struct {
	// Known: it has arrived.
	Known bool
	// Error is the first word of an error.
	Error string
	Null  bool
	// Numbers are the numbers of the reply; for MRELEASE -1 stands for null.
	Numbers []int64
	// Owner is the name in the reply of HELD without an owner.
	Owner string
}

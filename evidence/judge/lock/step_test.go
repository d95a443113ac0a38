package lock

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// at returns an operation in an interval.
func at(from, until int64, input interface{}) porcupine.Operation {
	return porcupine.Operation{Input: input, Call: from, Return: until}
}

// asks returns a request that is granted with this token, or answered null without one.
func asks(id int, owner string, token uint64, change ...func(*Request)) *Request {
	r := &Request{ID: id, Conn: id, Locks: []int{0}, Owner: owner, Limit: 1, Outcome: Null}
	if token != 0 {
		r.Outcome, r.Tokens, r.Count = Granted, []uint64{token}, 1
	}
	for _, one := range change {
		one(r)
	}
	return r
}

func waits(r *Request)     { r.Waits = true }
func shared(r *Request)    { r.Limit = 0 }
func ticket(r *Request)    { r.Ticket, r.Claim = true, true }
func ephemeral(r *Request) { r.Ephemeral = true }
func auto(r *Request)      { r.Auto = true }
func unknown(r *Request)   { r.Outcome, r.Tokens, r.Count = Unknown, nil, 0 }

func inSession(r *Request) { r.Session, r.Count = 7, 0 }

// keeps returns a SESSION command of that session, by connection 50.
func keeps(id int) Keep { return Keep{ID: id, Conn: 50, Session: 7, Known: true} }

func other(r *Request) { r.Locks = []int{1} }

func after(n int) func(*Request) { return func(r *Request) { r.Epoch = n } }
func limit(n int) func(*Request) { return func(r *Request) { r.Limit = n } }
func permits(k, of int) func(*Request) {
	return func(r *Request) { r.Permits, r.Limit = k, of }
}
func outcome(o Outcome) func(*Request) {
	return func(r *Request) { r.Outcome, r.Tokens, r.Count = o, nil, 0 }
}
func holds(n int) func(*Request) { return func(r *Request) { r.Count = n } }

// says returns the reply with these numbers.
func says(numbers ...int64) Reply { return Reply{Known: true, Numbers: numbers} }

func null() Reply { return Reply{Known: true, Null: true} }

func refused(code string) Reply { return Reply{Known: true, Error: code} }

func releases(id int, owner string, reply Reply) Call {
	return Call{ID: id, Conn: id, Name: Release, Locks: []int{0}, Owner: owner, Holds: -1, Reply: reply}
}

func looks(name Name, owner string, reply Reply) Call {
	return Call{ID: 900, Conn: 900, Name: name, Locks: []int{0}, Owner: owner, Reply: reply}
}

// queued returns a waiting request and its answer: it is asked at one instant, and answered at another.
func queued(r *Request, asked, answered int64) []porcupine.Operation {
	return []porcupine.Operation{at(asked, asked+1, Ask{r}), at(answered, answered, Answer{r})}
}

func history(parts ...interface{}) []porcupine.Operation {
	var all []porcupine.Operation
	for _, part := range parts {
		switch part := part.(type) {
		case porcupine.Operation:
			all = append(all, part)
		case []porcupine.Operation:
			all = append(all, part...)
		}
	}
	return all
}

// Each pair of histories differs in one answer or one instant: one is allowed, the other is not.
func TestWhatIsAllowed(t *testing.T) {
	a := func(token uint64, change ...func(*Request)) *Request { return asks(1, "a", token, change...) }
	b := func(token uint64, change ...func(*Request)) *Request { return asks(2, "b", token, change...) }
	c := func(token uint64, change ...func(*Request)) *Request { return asks(3, "c", token, change...) }
	lease := func(n int) Term { return Term{ByCall, n} }
	upgrade := func(o Outcome, token uint64) *Request {
		r := asks(4, "a", token, waits, holds(2))
		if o != Granted {
			outcome(o)(r)
		}
		return r
	}
	both := func(token uint64) *Request {
		r := asks(5, "m", token, waits)
		r.Locks, r.Count = []int{0, 1}, 0
		r.Tokens = []uint64{token, token + 1}
		return r
	}
	for _, test := range []struct {
		name    string
		allowed bool
		history []porcupine.Operation
	}{
		{"taken", true, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{b(0)}))},
		{"second grant", false, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{b(8)}))},
		{"a release in between, which nobody has seen in time", true,
			history(at(0, 1, Ask{a(7)}), at(2, 9, releases(10, "a", says(0))), at(3, 4, Ask{b(8)}))},
		{"free again", true, history(at(0, 1, Ask{a(7)}), at(2, 3, releases(10, "a", says(0))), at(4, 5, Ask{b(8)}))},
		{"lost release", false, history(at(0, 1, Ask{a(7)}), at(2, 3, releases(10, "a", says(0))), at(4, 5, Ask{b(0)}))},
		{"lost release, seen by HELD", false,
			history(at(0, 1, Ask{a(7)}), at(2, 3, releases(10, "a", says(0))), at(4, 5, looks(Held, "a", says(7, 1, 5))))},
		{"released twice", true,
			history(at(0, 1, Ask{a(7)}), at(2, 3, releases(10, "a", says(0))), at(4, 5, releases(11, "a", refused("NOTHELD"))))},
		{"token set back", false,
			history(at(0, 1, Ask{a(7)}), at(2, 3, releases(10, "a", says(0))), at(4, 5, Ask{b(6)}))},
		{"entered again", true, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{asks(4, "a", 7, holds(2))}))},
		{"entered again with another token", false, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{asks(4, "a", 8, holds(2))}))},
		{"entered again and not counted", false, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{asks(4, "a", 7, holds(1))}))},

		{"readers", true, history(at(0, 1, Ask{a(7, shared)}), at(2, 3, Ask{b(8, shared)}))},
		{"reader beside a writer", false, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{b(8, shared)}))},
		{"two of two", true, history(at(0, 1, Ask{a(7, limit(2))}), at(2, 3, Ask{b(8, limit(2))}), at(4, 5, Ask{c(0, limit(2))}))},
		{"three of two", false, history(at(0, 1, Ask{a(7, limit(2))}), at(2, 3, Ask{b(8, limit(2))}), at(4, 5, Ask{c(9, limit(2))}))},
		{"three of two, of whom one would have three", false,
			history(at(0, 1, Ask{a(7, limit(2))}), at(2, 3, Ask{b(8, limit(2))}), at(4, 5, Ask{c(9, limit(3))}))},

		{"two and one of three", true, history(at(0, 1, Ask{a(7, permits(2, 3))}), at(2, 3, Ask{b(8, limit(3))}), at(4, 5, Ask{c(0, limit(3))}))},
		{"two and two of three", false, history(at(0, 1, Ask{a(7, permits(2, 3))}), at(2, 3, Ask{b(8, permits(2, 3))}))},
		{"refused, and there is room", false, history(at(0, 1, Ask{a(7, permits(2, 3))}), at(2, 3, Ask{b(0, limit(3))}))},
		{"all of three beside a reader", false, history(at(0, 1, Ask{a(7, shared)}), at(2, 3, Ask{b(8, permits(3, 3))}))},
		{"one passes who waits for more", false, history(at(0, 1, Ask{a(7, permits(2, 3))}), queued(b(9, permits(3, 3), waits), 2, 21),
			at(4, 5, Ask{c(8, limit(3))}), at(20, 21, releases(10, "a", says(0))), at(20, 21, releases(11, "c", says(0))))},
		{"holder with fewer permits", true, history(at(0, 1, Ask{a(7, permits(2, 3))}), at(2, 3, Ask{asks(4, "a", 7, permits(1, 3), holds(2))}))},
		{"holder that gets more", false, history(at(0, 1, Ask{a(7, permits(2, 3))}), at(2, 3, Ask{asks(4, "a", 7, permits(3, 3), holds(2))}))},
		{"holder that is refused more", true,
			history(at(0, 1, Ask{a(7, permits(2, 3))}), at(2, 3, Ask{asks(4, "a", 0, permits(3, 3), outcome(BadPermits))}))},
		{"holder that is refused more, and would have waited", true,
			history(at(0, 1, Ask{a(7, permits(2, 3))}), queued(asks(4, "a", 0, permits(3, 3), waits, outcome(BadPermits)), 2, 9))},
		{"holder of one that is refused none", false,
			history(at(0, 1, Ask{a(7, permits(2, 3))}), at(2, 3, Ask{asks(4, "a", 0, permits(2, 3), outcome(BadPermits))}))},
		{"holder of several that is upgraded", false,
			history(at(0, 1, Ask{a(7, permits(2, 3))}), at(2, 3, Ask{asks(4, "a", 8, permits(2, 2), holds(2))}))},
		{"holder of one that is upgraded to two", true,
			history(at(0, 1, Ask{a(7, limit(3))}), at(2, 3, Ask{asks(4, "a", 8, permits(2, 2), holds(2))}))},

		{"in turn", true, history(at(0, 1, Ask{a(7)}), queued(b(8, waits), 2, 21), queued(c(9, waits), 4, 31),
			at(20, 21, releases(10, "a", says(0))), at(30, 31, releases(11, "b", says(0))))},
		{"swapped waiters", false, history(at(0, 1, Ask{a(7)}), queued(b(9, waits), 2, 31), queued(c(8, waits), 4, 21),
			at(20, 21, releases(10, "a", says(0))), at(30, 31, releases(11, "c", says(0))))},
		{"at once, in which order nobody knows", true, history(at(0, 1, Ask{a(7)}),
			at(2, 9, Ask{b(9, waits)}), at(31, 31, Answer{b(9, waits)}), at(3, 9, Ask{c(8, waits)}), at(21, 21, Answer{c(8, waits)}),
			at(20, 21, releases(10, "a", says(0))), at(30, 31, releases(11, "c", says(0))))},
		{"passed by one that does not wait", false, history(at(0, 1, Ask{a(7, shared)}), queued(b(9, waits), 2, 21),
			at(4, 5, Ask{c(8, shared)}), at(20, 21, releases(10, "a", says(0))), at(20, 21, releases(11, "c", says(0))))},
		{"not woken", false, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{b(0, waits)}), at(40, 41, TimeUp{b(0, waits)}),
			at(20, 21, releases(10, "a", says(0))))},
		{"not woken, but another one", false, history(at(0, 1, Ask{a(7)}), queued(b(8, waits), 2, 50),
			at(20, 21, releases(10, "a", says(0))), at(30, 31, looks(Held, "", null())))},
		{"position", true, history(at(0, 1, Ask{a(7)}), queued(b(8, waits), 2, 21), at(4, 5, looks(Position, "b", says(0))),
			at(20, 21, releases(10, "a", says(0))))},
		{"position of nobody", false, history(at(0, 1, Ask{a(7)}), queued(b(8, waits), 2, 21), at(4, 5, looks(Position, "b", null())),
			at(20, 21, releases(10, "a", says(0))))},

		{"lease over", true, history(at(0, 1, Ask{a(7)}), at(300, 302, LeaseEnd{Term: lease(1)}), at(300, 302, Timer{lease(1)}),
			at(303, 304, Ask{b(8)}))},
		{"lease late", false, history(at(0, 1, Ask{a(7)}), at(300, 302, LeaseEnd{Term: lease(1)}), at(300, 302, Timer{lease(1)}),
			at(303, 304, Ask{b(0)}))},
		{"lease early", false, history(at(0, 1, Ask{a(7)}), at(300, 302, LeaseEnd{Term: lease(1)}), at(300, 302, Timer{lease(1)}),
			at(100, 101, Ask{b(8)}))},
		{"lease late for one that waits", false, history(at(0, 1, Ask{a(7)}), queued(b(8, waits), 2, 700),
			at(695, 695, NotYet{b(8, waits)}), at(300, 302, LeaseEnd{Term: lease(1)}), at(300, 302, Timer{lease(1)}))},
		{"lease over, and a look sees the next one", true, history(at(0, 1, Ask{a(7)}), queued(b(8, waits), 2, 304),
			at(300, 302, LeaseEnd{Term: lease(1)}), at(300, 304, Timer{lease(1)}), at(302, 303, looks(Held, "b", says(8, 1, 300))))},
		{"lease over, and a look sees nobody while one waits", false, history(at(0, 1, Ask{a(7)}), queued(b(8, waits), 2, 304),
			at(300, 302, LeaseEnd{Term: lease(1)}), at(300, 304, Timer{lease(1)}), at(302, 303, looks(Held, "", null())))},
		{"renewed", true, history(at(0, 1, Ask{a(7)}), at(300, 302, LeaseEnd{Term: lease(1)}), at(300, 302, Timer{lease(1)}),
			at(100, 101, Call{ID: 9, Conn: 1, Name: Renew, Locks: []int{0}, Owner: "a", Reply: says(300)}), at(303, 304, Ask{b(0)}))},
		{"entered again: the later lease", true, history(at(0, 1, Ask{a(7)}), at(100, 101, Ask{asks(4, "a", 7, holds(2))}),
			at(300, 302, LeaseEnd{Term: lease(1)}), at(300, 302, Timer{lease(1)}), at(303, 304, Ask{b(0)}))},

		{"EPHEMERAL", true, history(at(0, 1, Ask{a(7, ephemeral)}), at(10, 12, Disconnect{1}), at(13, 14, Ask{b(8)}))},
		{"disconnect not reported", false, history(at(0, 1, Ask{a(7, ephemeral)}), at(10, 12, Disconnect{1}), at(13, 14, Ask{b(0)}))},
		{"AUTO outlives its lease", true, history(at(0, 1, Ask{a(7, auto)}), at(300, 302, LeaseEnd{Term: lease(1)}),
			at(300, 302, Timer{lease(1)}), at(303, 304, Ask{b(0)}))},
		{"AUTO ends with its lease", false, history(at(0, 1, Ask{a(7, auto)}), at(300, 302, LeaseEnd{Term: lease(1)}),
			at(300, 302, Timer{lease(1)}), at(303, 304, Ask{b(8)}))},
		{"AUTO ends while the server stands still", true,
			history(at(0, 1, Ask{a(7, auto)}), at(100, 303, Stall{100}), at(303, 304, Ask{b(8)}))},
		{"AUTO outlives that", true, history(at(0, 1, Ask{a(7, auto)}), at(100, 303, Stall{100}), at(303, 304, Ask{b(0)}))},
		{"AUTO ends with its connection, and its lease", true, history(at(0, 1, Ask{a(7, auto)}), at(10, 12, Disconnect{1}),
			at(210, 315, LeaseEnd{Term: Term{ByDisconnect, 1}}), at(210, 315, Timer{Term{ByDisconnect, 1}}), at(316, 317, Ask{b(8)}))},
		{"AUTO outlives its connection for ever", false, history(at(0, 1, Ask{a(7, auto)}), at(10, 12, Disconnect{1}),
			at(210, 315, LeaseEnd{Term: Term{ByDisconnect, 1}}), at(210, 315, Timer{Term{ByDisconnect, 1}}), at(316, 317, Ask{b(0)}))},
		{"the waiter of a dead connection", true, history(at(0, 1, Ask{a(7)}), at(2, 12, Ask{b(0, waits, unknown)}),
			at(10, 12, Disconnect{2}), at(13, 14, looks(Position, "b", null())))},
		{"the waiter of a dead connection stands on", false, history(at(0, 1, Ask{a(7)}), at(2, 12, Ask{b(0, waits, unknown)}),
			at(10, 12, Disconnect{2}), at(13, 14, looks(Position, "b", says(0))))},
		{"a grant that nobody heard is given back", true, history(at(0, 1, Ask{a(7)}), at(2, 22, Ask{b(0, waits, unknown)}),
			at(10, 11, releases(10, "a", says(0))), at(10, 22, Disconnect{2}), at(23, 24, Ask{c(8)}))},
		{"a grant that nobody heard stands", true, history(at(0, 1, Ask{a(7)}), at(2, 22, Ask{b(0, waits, unknown)}),
			at(10, 11, releases(10, "a", says(0))), at(10, 22, Disconnect{2}), at(23, 24, Ask{c(0)}))},
		{"a call without an answer, carried out", true, history(at(0, 1, Ask{a(7)}), at(2, 9, releases(1, "a", Reply{})),
			at(5, 9, Disconnect{1}), at(10, 11, Ask{b(8)}))},
		{"a call without an answer, not carried out", true, history(at(0, 1, Ask{a(7)}), at(2, 9, releases(1, "a", Reply{})),
			at(5, 9, Disconnect{1}), at(10, 11, Ask{b(0)}))},
		{"a call without an answer, carried out after the end", false, history(at(0, 1, Ask{a(7)}), at(2, 9, releases(1, "a", Reply{})),
			at(5, 9, Disconnect{1}), at(10, 11, Ask{b(0)}), at(12, 13, Ask{c(8)}))},

		{"a ticket stays", true, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{b(0, ticket)}), at(4, 5, releases(10, "a", says(0))),
			at(6, 7, Ask{c(0)}), at(8, 9, Ask{asks(6, "b", 8, ticket)}))},
		{"a ticket is passed", false, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{b(0, ticket)}), at(4, 5, releases(10, "a", says(0))),
			at(6, 7, Ask{c(8)}))},
		{"a window ends", true, history(at(0, 1, Ask{a(7)}), at(2, 3, Ask{b(0, ticket)}), at(4, 5, releases(10, "a", says(0))),
			at(10, 12, WindowEnd{Term{ByCall, 2}}), at(13, 14, Ask{c(8)}))},

		{"upgrade", true, history(at(0, 1, Ask{a(7, shared)}), at(2, 3, Ask{b(8, shared)}), queued(upgrade(Granted, 9), 4, 21),
			at(20, 21, releases(10, "b", says(0))))},
		{"upgrade beside a reader", false, history(at(0, 1, Ask{a(7, shared)}), at(2, 3, Ask{b(8, shared)}),
			queued(upgrade(Granted, 9), 4, 21), at(30, 31, releases(10, "b", says(0))))},
		{"upgrade with the old token", false, history(at(0, 1, Ask{a(7, shared)}), at(2, 3, Ask{b(8, shared)}),
			queued(upgrade(Granted, 7), 4, 21), at(20, 21, releases(10, "b", says(0))))},
		{"upgrade of a hold that ends", true, history(at(0, 1, Ask{a(7, shared)}), at(2, 3, Ask{b(8, shared)}),
			queued(upgrade(NotHeld, 0), 4, 21), at(20, 21, LeaseEnd{Term: lease(1)}), at(20, 21, Timer{lease(1)}))},
		{"second upgrade", true, history(at(0, 1, Ask{a(7, shared)}), at(2, 3, Ask{b(8, shared)}), queued(upgrade(Granted, 9), 4, 31),
			queued(asks(6, "b", 0, waits, outcome(Deadlock)), 10, 12), at(30, 31, releases(10, "b", says(0))))},
		{"DEADLOCK for nothing", false, history(at(0, 1, Ask{a(7)}), queued(b(0, waits, outcome(Deadlock)), 2, 4))},

		{"both", true, history(at(0, 1, Ask{a(7)}), queued(both(8), 2, 21), at(4, 5, Ask{c(0, other)}),
			at(20, 21, releases(10, "a", says(0))))},
		{"half of both", false, history(at(0, 1, Ask{a(7)}), queued(both(8), 2, 15), at(20, 21, releases(10, "a", says(0))))},

		{"restart", true, history(at(0, 1, Ask{a(7, ephemeral)}), at(10, 12, Restart{1}), at(13, 14, Ask{b(0, after(1))}))},
		{"a hold lost with the restart", false,
			history(at(0, 1, Ask{a(7, ephemeral)}), at(10, 12, Restart{1}), at(13, 14, Ask{b(8, after(1))}))},
		{"a place in a session that is kept is granted", true, history(at(0, 1, Ask{a(7)}), queued(b(8, waits, inSession), 2, 11),
			at(4, 5, keeps(20)), at(10, 11, releases(10, "a", says(0))))},
		{"a place in a session that nobody keeps is granted", false, history(at(0, 1, Ask{a(7)}), queued(b(8, waits, inSession), 2, 11),
			at(10, 11, releases(10, "a", says(0))))},
		{"kept again", true, history(at(0, 1, Ask{a(7)}), queued(b(8, waits, inSession), 2, 31), at(4, 5, keeps(20)),
			at(6, 7, Disconnect{50}), at(10, 11, releases(10, "a", says(0))), at(12, 13, Ask{c(0)}),
			at(30, 31, Keep{ID: 21, Conn: 51, Session: 7, Known: true}))},
		{"its window is over", true, history(at(0, 1, Ask{a(7)}), queued(b(0, waits, inSession), 2, 31), at(4, 5, keeps(20)),
			at(6, 7, Lapse{20, 7}), at(10, 11, releases(10, "a", says(0))), at(20, 21, WindowEnd{Term{ByLapse, 20}}), at(32, 33, Ask{c(9)}))},
		{"a lapsed session's hold ends with a lease", true, history(at(0, 1, keeps(20)), at(2, 3, Ask{a(7, inSession)}),
			at(4, 5, LeaseEnd{Term: lease(1)}), at(6, 7, Lapse{20, 7}), at(8, 9, LeaseEnd{Term: Term{ByLapse, 20}}), at(10, 11, Ask{b(8)}))},
		{"a kept session's hold ends with a lease", false, history(at(0, 1, keeps(20)), at(2, 3, Ask{a(7, inSession)}),
			at(4, 5, LeaseEnd{Term: lease(1)}), at(10, 11, Ask{b(8)}))},
		{"a session is ended", true, history(at(0, 1, keeps(20)), at(2, 3, Ask{a(7, inSession)}),
			at(4, 5, EndSession{21, 50, 0, 7, true}), at(10, 11, Ask{b(8)}))},
		{"a session's end is lost", false, history(at(0, 1, keeps(20)), at(2, 3, Ask{a(7, inSession)}),
			at(4, 5, EndSession{21, 50, 0, 7, true}), at(10, 11, Ask{b(0)}))},
		{"replaced", true, history(at(0, 1, Ask{a(7)}), queued(b(0, waits, outcome(Replaced)), 2, 6),
			queued(asks(6, "b", 8, waits), 4, 21), at(20, 21, releases(10, "a", says(0))))},
		{"cancelled", true, history(at(0, 1, Ask{a(7)}), queued(b(0, waits), 2, 6), at(4, 6, looks(Cancel, "b", says(1))))},
		{"null before the time is up", false, history(at(0, 1, Ask{a(7)}), queued(b(0, waits), 2, 6), at(40, 50, TimeUp{b(0, waits)}))},
	} {
		t.Run(test.name, func(t *testing.T) {
			if allowed := porcupine.CheckOperations(Model(2), test.history); allowed != test.allowed {
				t.Errorf("allowed: %v", allowed)
			}
		})
	}
}

package history

import (
	"testing"

	"github.com/anishathalye/porcupine"

	"dlock.example/judge/lock"
)

// beats answers each millisecond, except for one beat that takes until 350 ms.
func beats() *Pulse {
	p := &Pulse{}
	for at := int64(0); at < 1000; at++ {
		if at < 310 || at > 350 {
			p.Beat(at*Millisecond, at*Millisecond+100)
		}
		if at == 310 {
			p.Beat(at*Millisecond, 350*Millisecond)
		}
	}
	return p
}

func TestTheEndOfALeaseIsAsLateAsTheServerIs(t *testing.T) {
	p := beats()
	if at, known := p.After(200 * Millisecond); !known || at != 201*Millisecond+100 {
		t.Error(at, known)
	}
	if at, known := p.After(310 * Millisecond); !known || at != 351*Millisecond+100 {
		t.Error("it stood still:", at, known)
	}
	if _, known := p.After(2000 * Millisecond); known {
		t.Error("nobody knows what comes")
	}
	if gap := p.Gap(300*Millisecond, 400*Millisecond); gap < 40*Millisecond || gap > 42*Millisecond {
		t.Error(gap)
	}
}

// ask returns a request that was sent and answered at these milliseconds.
func ask(id int, owner string, sent, got int64, numbers ...int64) Call {
	return Call{
		ID: id, Conn: id, Name: Acquire, Locks: []int{0}, Owner: owner, LeaseMs: 300, Limit: 1, BlockMs: -1, Holds: -1,
		Sent: sent * Millisecond, Got: got * Millisecond,
		Reply: lock.Reply{Known: true, Null: numbers == nil, Numbers: numbers},
	}
}

func allowed(h *History) bool {
	return porcupine.CheckOperations(lock.Model(h.Locks), h.Operations(beats()))
}

func TestALeaseEndsInItsInterval(t *testing.T) {
	for _, test := range []struct {
		sent, got int64
		allowed   bool
	}{{250, 251, false}, {299, 301, true}, {330, 345, true}, {400, 401, true}} {
		h := New("", 1, 300, 0)
		h.Add(ask(1, "a", 0, 1, 1, 1))
		h.Add(ask(2, "b", test.sent, test.got, 400*Millisecond, 1))
		if allowed(h) != test.allowed {
			t.Errorf("granted to another at %d", test.sent)
		}
	}
	for _, test := range []struct {
		sent, got int64
		allowed   bool
	}{{250, 251, true}, {303, 304, true}, {345, 346, true}, {400, 401, false}} {
		h := New("", 1, 300, 0)
		h.Add(ask(1, "a", 10, 11, 1, 1))
		h.Add(ask(2, "b", test.sent, test.got))
		if allowed(h) != test.allowed {
			t.Errorf("refused to another at %d", test.sent)
		}
	}
}

func TestWhatWasWrittenDownUntilThen(t *testing.T) {
	h := New("", 1, 300, 0)
	h.Add(ask(1, "a", 0, 1, 1, 1))
	h.Add(ask(2, "b", 2, 5, 2, 1))
	if allowed(h) {
		t.Error("a second grant")
	}
	for at, is := range map[int64]bool{1: true, 4: true, 5: false} {
		if allowed(h.Until(at*Millisecond)) != is {
			t.Errorf("at %d ms", at)
		}
	}
	if len(h.Until(1*Millisecond).Calls) != 1 || len(h.Instants()) != 2 {
		t.Error("one call has been sent by then, and two are answered in the end")
	}
}

// An event that is left out because it would change nothing changes nothing.
func TestAReplacedLeaseIsLeftOut(t *testing.T) {
	h := New("", 1, 300, 0)
	h.Add(ask(1, "a", 0, 1, 1, 1))
	release := ask(2, "a", 2, 3, 0)
	release.Name = lock.Release
	h.Add(release)
	h.Add(ask(3, "b", 500, 501, 500*Millisecond, 1))
	for _, o := range h.Operations(beats()) {
		if end, is := o.Input.(lock.LeaseEnd); is && end.N == 1 {
			t.Error("the lease of a hold that was given back")
		}
	}
	if !allowed(h) {
		t.Error("free since the release")
	}
	h.Calls[1].Reply.Numbers[0] = 1
	if found := len(h.Operations(beats())); found != 5 {
		t.Errorf("a hold is left, so its lease still ends: %d steps", found)
	}
}

// A client may begin another session while the last one still has its time. Both end with the connection that keeps them.
func TestAConnectionKeepsTwoSessions(t *testing.T) {
	keep := func(id, conn, session int, sent int64) Call {
		c := ask(id, "", sent, sent+1, 1, 0, -1)
		c.Conn, c.Name, c.Owner, c.Session, c.KeptMs = conn, Session, "", session, 700
		return c
	}
	for _, test := range []struct {
		granted int64
		allowed bool
	}{{150, false}, {380, true}} {
		h := New("", 1, 300, 0)
		h.Add(keep(1, 1, 7, 0))
		held := ask(2, "a", 10, 11, 11*Millisecond, 1)
		held.Conn, held.Session = 1, 7
		h.Add(held)
		h.Add(keep(3, 1, 8, 20))
		h.Ends[1] = Span{60 * Millisecond, 61 * Millisecond}
		h.Add(keep(4, 2, 8, 70))
		h.Add(ask(5, "b", test.granted, test.granted+1, test.granted*Millisecond, 1))
		if allowed(h) != test.allowed {
			t.Errorf("granted to another at %d", test.granted)
		}
	}
}

// After a restart nobody knows the session: its end finds nothing, and the lease of what it held runs on.
func TestTheEndOfAForgottenSessionEndsNothing(t *testing.T) {
	for _, test := range []struct {
		granted int64
		allowed bool
	}{{150, false}, {380, true}} {
		h := New("", 1, 300, 0)
		keep := ask(1, "", 0, 1, 1, 0, -1)
		keep.Name, keep.Session, keep.KeptMs = Session, 7, 700
		h.Add(keep)
		held := ask(2, "a", 10, 11, 11*Millisecond, 1)
		held.Conn, held.Session = 1, 7
		h.Add(held)
		h.Restarts[1] = Restart{From: 20 * Millisecond, Dead: 22 * Millisecond, Until: 30 * Millisecond}
		end := ask(3, "", 40, 41, 0, 0, -1)
		end.Name, end.Session, end.Epoch = Session, 7, 1
		h.Add(end)
		other := ask(4, "b", test.granted, test.granted+1, test.granted*Millisecond, 1)
		other.Epoch = 1
		h.Add(other)
		if allowed(h) != test.allowed {
			t.Errorf("granted to another at %d", test.granted)
		}
	}
}

package lock

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
)

// Term names a running time: a lease or a claim window, by its cause.
type Term struct {
	// Why is one of the constants below.
	Why byte
	// N is the call, the connection or the restart that began it.
	N int
}

// The causes of a term.
const (
	ByCall       = 'r' // a grant, a re-entry, a renewal; for a window the last poll
	ByTimeUp     = 't' // the wait of a call that keeps its ticket was over
	ByDisconnect = 'c' // the connection ended: a ticket is absent, or AUTO renews no more
	ByKeeper     = 'k' // the connection that kept a session, since this call, ended
	ByRestart    = 's' // the server was started again
	ByLapse      = 'l' // the time of the call that kept a session was over
)

// hold is one owner's hold of one lock.
type hold struct {
	owner string
	// token is 0 while it is unknown: the reply to the granted request never arrived.
	token uint64
	// above bounds an unknown token from below.
	above uint64
	count int
	limit int
	// permits are its permits, of its limit.
	permits int
	// leases are the leases of which the last must end before the hold does. A re-entry adds one, a renewal replaces all.
	leases []Term
	// tie is the connection to which the hold is tied, by EPHEMERAL, by AUTO or by both; below 0 it is a session, which renews the hold
	// (auto) while it is alive.
	tie       int
	ephemeral bool
	auto      bool
	// fresh is the request that was granted this hold, until its answer has arrived or another command has touched the hold.
	fresh *Request
	// number is the number of the ticket that fresh would get back.
	number int
}

// place is one owner's place in a queue.
type place struct {
	owner string
	// number gives the order of arrival.
	number  int
	limit   int
	permits int
	// request waits here; nil for an absent ticket.
	request *Request
	upgrade bool
	ticket  bool
	// claim tells if the ticket outlives the wait.
	claim bool
	// window runs while the ticket is absent, or the session of the request is not alive.
	window Term
}

// isAbsent tells if nobody is there for the place.
func (p *place) isAbsent() bool { return p.request == nil || p.window != Term{} }

// session is one that has been kept.
type session struct {
	number int
	// keeper is its keeping connection, keep the call that made it that.
	keeper, keep int
	alive        bool
}

// lockState is one lock with its queue.
type lockState struct {
	// holds are sorted by owner.
	holds []hold
	queue []place
	// last is the last token that was granted here.
	last uint64
}

// ended is a waiting request whose answer is decided and has not arrived.
type ended struct {
	id   int
	with Outcome
}

// state is the state of all locks of a history. It does not change once a step has returned it.
type state struct {
	locks []lockState
	// last is the last token that was granted before this step; floor is that during a step.
	last, floor uint64
	epoch       int
	numbers     int
	// sessions are sorted by number.
	sessions []session
	// gone are connections that have ended.
	gone []int
	// done are the decided requests, sorted by id.
	done []ended
	// late are leases of requests without a known answer that ended before any grant: no grant may follow.
	late []int
	// key distinguishes states.
	key string
}

func (s *state) clone() *state {
	c := *s
	c.locks = make([]lockState, len(s.locks))
	for i, l := range s.locks {
		holds := slices.Clone(l.holds)
		for j := range holds {
			holds[j].leases = slices.Clone(holds[j].leases)
		}
		c.locks[i] = lockState{holds: holds, queue: slices.Clone(l.queue), last: l.last}
	}
	c.sessions = slices.Clone(s.sessions)
	c.gone = slices.Clone(s.gone)
	c.done = slices.Clone(s.done)
	c.late = slices.Clone(s.late)
	c.floor = s.last
	return &c
}

// seal computes the key.
func (s *state) seal() *state {
	b := make([]byte, 0, 128)
	num := func(n int) { b = binary.AppendVarint(b, int64(n)) }
	text := func(t string) {
		num(len(t))
		b = append(b, t...)
	}
	flag := func(flags ...bool) {
		n := 0
		for _, f := range flags {
			n <<= 1
			if f {
				n |= 1
			}
		}
		num(n)
	}
	term := func(t Term) {
		b = append(b, t.Why)
		num(t.N)
	}
	for _, l := range s.locks {
		num(len(l.holds))
		for _, h := range l.holds {
			text(h.owner)
			num(int(h.token))
			num(int(h.above))
			num(h.count)
			num(h.limit)
			num(h.permits)
			num(len(h.leases))
			for _, t := range h.leases {
				term(t)
			}
			num(h.tie)
			flag(h.ephemeral, h.auto)
			num(h.fresh.id())
			num(h.number)
		}
		num(len(l.queue))
		for _, p := range l.queue {
			text(p.owner)
			num(p.number)
			num(p.limit)
			num(p.permits)
			num(p.request.id())
			flag(p.upgrade, p.ticket, p.claim)
			term(p.window)
		}
		num(int(l.last))
	}
	num(int(s.last))
	num(s.epoch)
	num(len(s.sessions))
	for _, one := range s.sessions {
		num(one.number)
		num(one.keeper)
		num(one.keep)
		flag(one.alive)
	}
	num(len(s.gone))
	for _, c := range s.gone {
		num(c)
	}
	num(len(s.done))
	for _, d := range s.done {
		num(d.id)
		num(int(d.with))
	}
	for _, id := range s.late {
		num(id)
	}
	s.key = string(b)
	return s
}

func (s *state) hash() uint64 {
	h := fnv.New64a()
	h.Write([]byte(s.key))
	return h.Sum64()
}

func (l *lockState) hold(owner string) *hold {
	for i := range l.holds {
		if l.holds[i].owner == owner {
			return &l.holds[i]
		}
	}
	return nil
}

// isOver tells if the last lease has ended. A command that reads does not see such a hold; one that changes something ends it
// first.
func (h *hold) isOver() bool { return len(h.leases) == 0 && !h.auto }

// running returns an owner's hold if its lease has not ended.
func (l *lockState) running(owner string) *hold {
	if h := l.hold(owner); h != nil && !h.isOver() {
		return h
	}
	return nil
}

func (l *lockState) place(owner string) *place {
	for i := range l.queue {
		if l.queue[i].owner == owner {
			return &l.queue[i]
		}
	}
	return nil
}

func (l *lockState) endHold(owner string) {
	l.holds = slices.DeleteFunc(l.holds, func(h hold) bool { return h.owner == owner })
}

func (l *lockState) addHold(h hold) {
	at, _ := slices.BinarySearchFunc(l.holds, h, func(a, b hold) int {
		switch {
		case a.owner < b.owner:
			return -1
		case a.owner > b.owner:
			return 1
		}
		return 0
	})
	l.holds = slices.Insert(l.holds, at, h)
}

// addPlace puts a place where its number belongs; an upgrade stands before all others.
func (l *lockState) addPlace(p place) {
	at := 0
	if !p.upgrade {
		for at < len(l.queue) && (l.queue[at].upgrade || l.queue[at].number < p.number) {
			at++
		}
	}
	l.queue = slices.Insert(l.queue, at, p)
}

// fits is the granting rule, and the only function that counts permits: the permits of the other holders and its own exceed
// neither its limit nor the limit of any of them. 0 means no bound.
func (l *lockState) fits(r *Request) bool {
	n, alone := r.permits(), true
	for i := range l.holds {
		if h := &l.holds[i]; h.owner != r.Owner {
			n, alone = n+h.permits, false
		}
	}
	if alone {
		return true
	}
	if r.Limit != 0 && n > r.Limit {
		return false
	}
	for i := range l.holds {
		h := &l.holds[i]
		if h.owner != r.Owner && h.limit != 0 && n > h.limit {
			return false
		}
	}
	return true
}

// refuses tells if a holder asks for permits that it cannot have.
func (h *hold) refuses(r *Request) bool {
	if strict(h.limit, r.Limit) {
		return r.permits() > h.permits
	}
	return h.permits > 1
}

// strict tells if the limit a is as strict as b or stricter.
func strict(a, b int) bool {
	return a == b || b == 0 || a != 0 && a < b
}

func (s *state) finish(id int, with Outcome) {
	at, _ := slices.BinarySearchFunc(s.done, id, func(e ended, id int) int { return e.id - id })
	s.done = slices.Insert(s.done, at, ended{id, with})
}

func (s *state) decided(id int) (Outcome, bool) {
	at, found := slices.BinarySearchFunc(s.done, id, func(e ended, id int) int { return e.id - id })
	if !found {
		return 0, false
	}
	return s.done[at].with, true
}

func (s *state) forget(id int) {
	s.done = slices.DeleteFunc(s.done, func(e ended) bool { return e.id == id })
}

package lock

import (
	"slices"

	"github.com/anishathalye/porcupine"
)

// Model returns the model of this many locks.
func Model(locks int) porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []interface{} {
			s := &state{locks: make([]lockState, locks)}
			return []interface{}{s.seal()}
		},
		Step: func(before, input, _ interface{}) []interface{} {
			next := step(before.(*state), input)
			all := make([]interface{}, len(next))
			for i, s := range next {
				all[i] = s.seal()
			}
			return all
		},
		Equal: func(a, b interface{}) bool { return a.(*state).key == b.(*state).key },
		Hash:  func(s interface{}) uint64 { return s.(*state).hash() },
		DescribeOperation: func(input, _ interface{}) string {
			return Describe(input)
		},
		DescribeState: func(s interface{}) string { return s.(*state).String() },
	}
	return model.ToModel()
}

// step returns the states that may follow; none if the operation cannot have happened here.
func step(before *state, input interface{}) []*state {
	s := before.clone()
	ok := false
	switch op := input.(type) {
	case Ask:
		if s.isOver(op.Conn, op.Epoch) {
			return only(s, op.Outcome == Unknown)
		}
		ok = s.settle(op.Locks...) && s.ask(op.Request)
	case Answer:
		ok = s.answer(op.Request)
	case TimeUp:
		ok = s.leave(op.Request, Term{ByTimeUp, op.ID}) && s.serve()
	case NotYet:
		with, found := s.decided(op.ID)
		ok = !(found && with == Granted)
	case LeaseEnd:
		s.endLease(op)
		ok = true
	case Timer:
		ok = !s.runs(op.Term) && s.settle()
	case Stall:
		return s.stall()
	case WindowEnd:
		ok = s.endWindow(op.Term)
	case Disconnect:
		return s.disconnect(op.Conn)
	case Keep:
		if s.isOver(op.Conn, op.Epoch) {
			return only(s, !op.Known)
		}
		ok = s.keep(op)
	case Lapse:
		if of := s.session(op.Session); of != nil && of.keep == op.ID {
			s.stop(of, Term{ByLapse, op.ID})
		}
		ok = true
	case EndSession:
		if s.isOver(op.Conn, op.Epoch) {
			return only(s, !op.Known)
		}
		ok = s.endSession(op.Session)
	case Restart:
		ok = s.restart(op.Epoch)
	case Call:
		if s.isOver(op.Conn, op.Epoch) {
			return only(s, !op.Reply.Known)
		}
		ok = s.settle(op.Locks...) && s.call(&op)
	}
	return only(s, ok)
}

func only(s *state, ok bool) []*state {
	if !ok {
		return nil
	}
	return []*state{s}
}

// isOver tells if this connection has ended.
func (s *state) isOver(conn, epoch int) bool {
	return epoch < s.epoch || slices.Contains(s.gone, conn)
}

// ask is the arrival of a request.
func (s *state) ask(r *Request) bool {
	for _, at := range r.Locks {
		p := s.locks[at].place(r.Owner)
		if p != nil && p.request != nil && !r.Waits {
			return r.expects(Null)
		}
	}
	for _, at := range r.Locks {
		if h := s.locks[at].hold(r.Owner); h != nil && h.refuses(r) {
			return r.expects(BadPermits)
		}
	}
	if r.Outcome == BadPermits {
		return false
	}
	if s.isGrantable(r) {
		if r.Queued {
			return false
		}
		for _, at := range r.Locks {
			if p := s.locks[at].place(r.Owner); p != nil && !s.replace(p.request, at) {
				return false
			}
		}
		return s.grant(r) && s.serve()
	}
	if !r.Waits && (!r.Ticket || r.Session != 0) {
		return r.expects(Null)
	}
	if !r.Waits {
		l := &s.locks[r.Locks[0]]
		if h := l.hold(r.Owner); h != nil {
			return r.expects(Null)
		}
		p := l.place(r.Owner)
		if p == nil {
			s.numbers++
			l.addPlace(place{owner: r.Owner, number: s.numbers})
			p = l.place(r.Owner)
		}
		p.limit, p.permits, p.ticket, p.claim, p.window = r.Limit, r.permits(), true, r.Claim, Term{ByCall, r.ID}
		return r.expects(Null) && s.serve()
	}
	return s.wait(r)
}

// expects tells if the reply can be this one.
func (r *Request) expects(with Outcome) bool {
	return r.Outcome == Unknown || r.Outcome == with
}

// isGrantable tells if a request can be granted at its place, or at once if it has none.
func (s *state) isGrantable(r *Request) bool {
	for _, at := range r.Locks {
		l := &s.locks[at]
		if h := l.hold(r.Owner); h != nil {
			if !strict(h.limit, r.Limit) && !l.fits(r) {
				return false
			}
			continue
		}
		isFirst := len(l.queue) == 0 || l.queue[0].owner == r.Owner
		if !isFirst || !l.fits(r) {
			return false
		}
	}
	return true
}

// wait lets a request enter its queues, all at one instant.
func (s *state) wait(r *Request) bool {
	for _, at := range r.Locks {
		l := &s.locks[at]
		if l.hold(r.Owner) == nil {
			continue
		}
		if len(l.queue) > 0 && l.queue[0].upgrade && l.queue[0].owner != r.Owner {
			return r.expects(Deadlock)
		}
	}
	if r.Outcome == Deadlock {
		return false
	}
	s.numbers++
	for _, at := range r.Locks {
		l := &s.locks[at]
		p := l.place(r.Owner)
		if p == nil {
			upgrade := l.hold(r.Owner) != nil
			l.addPlace(place{owner: r.Owner, number: s.numbers, upgrade: upgrade})
			p = l.place(r.Owner)
		} else if !s.replace(p.request, at) {
			return false
		}
		p.request, p.limit, p.permits, p.window = r, r.Limit, r.permits(), Term{}
		if r.Session != 0 && !s.isAlive(r.Session) {
			p.window = Term{ByCall, r.ID}
		}
		if r.Ticket && !p.upgrade {
			p.ticket, p.claim = true, r.Claim
		}
		if !l.inOrder() {
			return false
		}
	}
	return s.serve()
}

// inOrder tells if the tokens of the queued requests' grants rise from the head on. Otherwise a later step would find the fault:
// no request is overtaken.
func (l *lockState) inOrder() bool {
	last := uint64(0)
	for i := range l.queue {
		p := &l.queue[i]
		if p.upgrade || p.request == nil || len(p.request.Locks) > 1 {
			continue
		}
		token := p.request.token(p.request.Locks[0])
		if token == 0 {
			continue
		}
		if token < last {
			return false
		}
		last = token
	}
	return true
}

// replace answers an older request whose place at this lock a newer one takes; a MACQUIRE leaves its other queues.
func (s *state) replace(older *Request, here int) bool {
	if older == nil {
		return true
	}
	for _, at := range older.Locks {
		if at != here {
			l := &s.locks[at]
			l.queue = slices.DeleteFunc(l.queue, func(p place) bool { return p.request == older })
		}
	}
	return s.decide(older, Replaced)
}

// decide ends the wait of a request with this answer.
func (s *state) decide(r *Request, with Outcome) bool {
	if r.Outcome == Unknown {
		return true
	}
	if r.Outcome != with {
		return false
	}
	s.finish(r.ID, with)
	return true
}

// grant makes the owner the holder of all locks of a request, whose places go.
func (s *state) grant(r *Request) bool {
	if !r.expects(Granted) || slices.Contains(s.late, r.ID) {
		return false
	}
	for _, at := range r.Locks {
		if !s.grantOne(r, at) {
			return false
		}
	}
	if r.Waits {
		return s.decide(r, Granted)
	}
	return true
}

func (s *state) grantOne(r *Request, at int) bool {
	l := &s.locks[at]
	number, hadClaim := 0, false
	if p := l.place(r.Owner); p != nil {
		number, hadClaim = p.number, p.ticket && p.claim
		l.queue = slices.DeleteFunc(l.queue, func(p place) bool { return p.owner == r.Owner })
	}
	token := r.token(at)
	h := l.hold(r.Owner)
	isNew := h == nil
	if isNew {
		l.addHold(hold{owner: r.Owner, limit: r.Limit, permits: r.permits()})
		h = l.hold(r.Owner)
	}
	switch {
	case r.Holds == 0:
		h.count++
	case h.count < r.Holds:
		h.count = r.Holds
	}
	if r.Count != 0 && r.Count != h.count {
		return false
	}
	switch {
	case !isNew && strict(h.limit, r.Limit):
		if !h.bind(token, l) {
			return false
		}
	default:
		if token != 0 && (token <= s.floor || token <= l.last) {
			return false
		}
		h.token, h.above, h.limit, h.permits = token, max(s.floor, l.last), r.Limit, r.permits()
		l.last, s.last = max(l.last, token), max(s.last, token)
	}
	h.leases = append(h.leases, Term{ByCall, r.ID})
	wasAuto := h.auto
	if r.Session != 0 {
		h.enter(s, r.Session)
	} else {
		h.tieTo(r.Conn, r.Ephemeral, r.Auto)
	}
	if wasAuto && !h.auto && r.Session == 0 {
		// The renewals have ended with at least the lease of this request.
		h.leases = []Term{{ByCall, r.ID}}
	}
	h.fresh, h.number = nil, 0
	// The server takes no grant in a session back: every answer has its row until the program has seen it.
	if isNew && r.Session == 0 && (r.Waits || r.Outcome == Unknown) {
		h.fresh = r
		if hadClaim {
			h.number = number
		}
	}
	return true
}

// bind compares a token of a reply with that of the hold, which may be unknown so far.
func (h *hold) bind(token uint64, l *lockState) bool {
	if token == 0 || token == h.token {
		return true
	}
	if h.token != 0 || token <= h.above {
		return false
	}
	h.token = token
	l.last = max(l.last, token)
	return true
}

func (h *hold) tieTo(conn int, ephemeral, auto bool) {
	switch {
	case !ephemeral && !auto:
	case h.tie == conn:
		h.ephemeral, h.auto = h.ephemeral || ephemeral, h.auto || auto
	default:
		h.tie, h.ephemeral, h.auto = conn, ephemeral, auto
	}
}

// serve grants the heads of all queues as long as they can be granted. It returns false if it grants a request whose answer is no
// grant.
func (s *state) serve() bool {
	for again := true; again; {
		again = false
		for at := range s.locks {
			l := &s.locks[at]
			if len(l.queue) == 0 || l.queue[0].isAbsent() {
				continue
			}
			head := l.queue[0]
			if head.upgrade && l.hold(head.owner) == nil {
				l.queue = l.queue[1:]
				again = true
				if !s.decide(head.request, NotHeld) {
					return false
				}
				continue
			}
			if s.isGrantable(head.request) {
				again = true
				if !s.grant(head.request) {
					return false
				}
			}
		}
	}
	return true
}

// answer is the instant of a reply, which has been decided by now.
func (s *state) answer(r *Request) bool {
	with, found := s.decided(r.ID)
	if !found {
		// A refusal is decided with the arrival.
		return r.Outcome == Deadlock || r.Outcome == BadPermits
	}
	if with != r.Outcome {
		return false
	}
	s.forget(r.ID)
	for _, at := range r.Locks {
		if h := s.locks[at].hold(r.Owner); h != nil && h.fresh == r {
			h.fresh, h.number = nil, 0
		}
	}
	return true
}

// leave takes a request out of its queues: its place goes, or becomes absent for this window.
func (s *state) leave(r *Request, window Term) bool {
	waited := false
	for _, at := range r.Locks {
		l := &s.locks[at]
		for i := range l.queue {
			p := &l.queue[i]
			if p.request != r {
				continue
			}
			waited = true
			if p.ticket && p.claim {
				p.request, p.window = nil, window
			}
		}
		l.queue = slices.DeleteFunc(l.queue, func(p place) bool { return p.request == r })
	}
	if !waited {
		return true
	}
	return s.decide(r, Null)
}

// endLease ends a lease. A hold without any is over, and the next request is granted with the next command at the lock, also one
// that only reads, or by the timer.
func (s *state) endLease(op LeaseEnd) {
	if !s.runs(op.Term) && op.Of != nil {
		s.late = append(s.late, op.Of.ID)
		slices.Sort(s.late)
	}
	for at := range s.locks {
		for i := range s.locks[at].holds {
			h := &s.locks[at].holds[i]
			h.leases = slices.DeleteFunc(h.leases, func(t Term) bool { return t == op.Term })
		}
	}
}

// runs tells if a lease runs for some hold.
func (s *state) runs(lease Term) bool {
	for at := range s.locks {
		for i := range s.locks[at].holds {
			if slices.Contains(s.locks[at].holds[i].leases, lease) {
				return true
			}
		}
	}
	return false
}

// settle ends the holds at these locks, or at all, whose leases have ended, and serves the queues.
func (s *state) settle(at ...int) bool {
	for i := range s.locks {
		if len(at) == 0 || slices.Contains(at, i) {
			l := &s.locks[i]
			l.holds = slices.DeleteFunc(l.holds, func(h hold) bool { return h.isOver() })
		}
	}
	return s.serve()
}

func (s *state) endWindow(term Term) bool {
	for at := range s.locks {
		l := &s.locks[at]
		for _, p := range l.queue {
			if p.window == term && p.request != nil && !s.decide(p.request, Null) {
				return false
			}
		}
		l.queue = slices.DeleteFunc(l.queue, func(p place) bool { return p.window == term })
	}
	return s.serve()
}

// disconnect is the end of a connection. The server revokes an undelivered grant if it had not sent it; that is unknown, so both
// may follow.
func (s *state) disconnect(conn int) []*state {
	s.gone = append(s.gone, conn)
	slices.Sort(s.gone)
	window := Term{ByDisconnect, conn}
	for i := range s.sessions {
		if of := &s.sessions[i]; of.keeper == conn {
			s.stop(of, Term{ByKeeper, of.keep})
		}
	}
	belongs := func(p *place) bool { return p.request != nil && p.request.Conn == conn && p.request.Session == 0 }
	unheard := false
	for at := range s.locks {
		l := &s.locks[at]
		for i := range l.queue {
			p := &l.queue[i]
			if belongs(p) && p.ticket && p.claim {
				p.request, p.window = nil, window
			}
		}
		l.queue = slices.DeleteFunc(l.queue, func(p place) bool { return belongs(&p) })
		l.holds = slices.DeleteFunc(l.holds, func(h hold) bool { return h.tie == conn && h.ephemeral })
		for i := range l.holds {
			h := &l.holds[i]
			if h.tie == conn {
				if h.auto {
					h.leases = []Term{window}
				}
				h.tie, h.auto = 0, false
			}
			unheard = unheard || h.fresh != nil && h.fresh.Conn == conn
		}
	}
	if !unheard {
		return only(s, s.serve())
	}
	stands, back := s.clone(), s
	stands.floor, back.floor = s.floor, s.floor
	for at := range s.locks {
		l := &back.locks[at]
		for _, h := range slices.Clone(l.holds) {
			if h.fresh == nil || h.fresh.Conn != conn {
				continue
			}
			stands.locks[at].hold(h.owner).fresh = nil
			l.endHold(h.owner)
			if h.number != 0 && l.place(h.owner) == nil {
				l.addPlace(place{
					owner: h.owner, number: h.number, limit: h.limit, permits: h.permits, ticket: true, claim: true, window: window,
				})
			}
		}
	}
	return append(only(stands, stands.serve()), only(back, back.serve())...)
}

// stall returns the states with and without each hold that lives by renewals. An ended one is over at once, and the next request
// is granted then or a little later.
func (s *state) stall() []*state {
	all := []*state{s}
	for at := range s.locks {
		for _, h := range s.locks[at].holds {
			if !h.auto {
				continue
			}
			for _, before := range slices.Clone(all) {
				after := before.clone()
				after.floor = s.floor
				over := after.locks[at].hold(h.owner)
				over.auto, over.leases = false, nil
				all = append(all, after)
			}
		}
	}
	for _, before := range slices.Clone(all[1:]) {
		served := before.clone()
		served.floor = s.floor
		if served.settle() {
			all = append(all, served)
		}
	}
	return all
}

// renewUntil ends the renewals: what is left is the rest of a renewed lease, or the lease that the last reply gave, which may be all
// that a hold in a session has.
func (h *hold) renewUntil(rest Term) {
	if h.tie >= 0 {
		h.leases = nil
	}
	h.leases = slices.DeleteFunc(h.leases, func(t Term) bool { return t.Why != ByCall })
	h.leases, h.auto = append(h.leases, rest), false
}

// enter brings a hold into a session.
func (h *hold) enter(s *state, session int) {
	h.tie, h.ephemeral, h.auto = -session, false, s.isAlive(session)
}

func (s *state) session(number int) *session {
	for i := range s.sessions {
		if s.sessions[i].number == number {
			return &s.sessions[i]
		}
	}
	return nil
}

func (s *state) isAlive(number int) bool {
	of := s.session(number)
	return of != nil && of.alive
}

// keep makes a session alive: its holds are renewed again, and its places may be granted.
func (s *state) keep(op Keep) bool {
	if s.session(op.Session) == nil {
		s.sessions = append(s.sessions, session{number: op.Session})
		slices.SortFunc(s.sessions, func(a, b session) int { return a.number - b.number })
	}
	*s.session(op.Session) = session{op.Session, op.Conn, op.ID, true}
	for at := range s.locks {
		l := &s.locks[at]
		for i := range l.holds {
			if h := &l.holds[i]; h.tie == -op.Session && !h.isOver() {
				h.auto = true
			}
		}
		for i := range l.queue {
			if p := &l.queue[i]; p.request != nil && p.request.Session == op.Session {
				p.window = Term{}
			}
		}
	}
	return s.serve()
}

// stop ends the life of a session: its holds have the rest of their leases, its places are absent.
func (s *state) stop(of *session, rest Term) {
	if !of.alive {
		return
	}
	of.alive = false
	for at := range s.locks {
		l := &s.locks[at]
		for i := range l.holds {
			if h := &l.holds[i]; h.tie == -of.number && h.auto {
				h.renewUntil(rest)
			}
		}
		for i := range l.queue {
			if p := &l.queue[i]; p.request != nil && p.request.Session == of.number {
				p.window = rest
			}
		}
	}
}

// endSession releases what a session holds, and ends its waits.
func (s *state) endSession(number int) bool {
	s.sessions = slices.DeleteFunc(s.sessions, func(one session) bool { return one.number == number })
	for at := range s.locks {
		l := &s.locks[at]
		l.holds = slices.DeleteFunc(l.holds, func(h hold) bool { return h.tie == -number })
		for _, p := range l.queue {
			if p.request != nil && p.request.Session == number && !s.decide(p.request, Null) {
				return false
			}
		}
		l.queue = slices.DeleteFunc(l.queue, func(p place) bool { return p.request != nil && p.request.Session == number })
	}
	return s.serve()
}

// restart is the death of the server and its return. Waiters and ties belong to connections, holds and tickets do not.
func (s *state) restart(epoch int) bool {
	s.epoch = epoch
	s.gone, s.sessions = nil, nil
	window := Term{ByRestart, epoch}
	for at := range s.locks {
		l := &s.locks[at]
		l.queue = slices.DeleteFunc(l.queue, func(p place) bool { return !p.ticket })
		for i := range l.queue {
			l.queue[i].request, l.queue[i].window = nil, window
		}
		for i := range l.holds {
			h := &l.holds[i]
			if h.auto {
				h.renewUntil(window)
			}
			h.tie, h.ephemeral, h.auto, h.fresh, h.number = 0, false, false, nil, 0
		}
	}
	return s.serve()
}

// call is a command that does not wait.
func (s *state) call(c *Call) bool {
	reply := &c.Reply
	if c.Name == MRelease {
		return s.mrelease(c)
	}
	l := &s.locks[c.Locks[0]]
	h := l.running(c.Owner)
	if h != nil && c.Token != 0 && c.Name != Check {
		if h.token == 0 && reply.Known && reply.Error == "" {
			h.bind(c.Token, l)
		}
		if h.token != c.Token {
			h = nil
		}
	}
	switch c.Name {
	case Release:
		if h == nil {
			return reply.is("NOTHELD")
		}
		left := h.count - 1
		if c.Holds >= 0 {
			left = min(h.count, c.Holds)
		}
		h.count, h.fresh, h.number = left, nil, 0
		if left == 0 {
			l.endHold(c.Owner)
		}
		return reply.says(int64(left)) && s.serve()
	case Renew:
		if h == nil {
			return reply.is("NOTHELD")
		}
		h.leases, h.fresh, h.number = []Term{{ByCall, c.ID}}, nil, 0
		if c.Session != 0 {
			h.enter(s, c.Session)
		} else {
			h.auto = h.auto && c.Auto
			h.tieTo(c.Conn, c.Ephemeral, c.Auto)
		}
		return reply.isFine()
	case Downgrade:
		if h == nil {
			return reply.is("NOTHELD")
		}
		if !strict(h.limit, c.Limit) {
			return reply.is("ERR")
		}
		h.limit, h.fresh, h.number = c.Limit, nil, 0
		return reply.isFine() && reply.shows(h, l) && s.serve()
	case Cancel:
		p := l.place(c.Owner)
		if p == nil {
			return reply.says(0)
		}
		request := p.request
		l.queue = slices.DeleteFunc(l.queue, func(p place) bool { return p.owner == c.Owner })
		if request != nil {
			for _, at := range request.Locks {
				other := &s.locks[at]
				other.queue = slices.DeleteFunc(other.queue, func(p place) bool { return p.request == request })
			}
			if !s.decide(request, Null) {
				return false
			}
		}
		return reply.says(1) && s.serve()
	case ForceRelease:
		n := len(l.holds)
		l.holds = nil
		return reply.says(int64(n)) && s.serve()
	case Held:
		if c.Owner == "" {
			if reply.Null || !reply.Known {
				return !reply.Known || !slices.ContainsFunc(l.holds, func(h hold) bool { return !h.isOver() })
			}
			h = l.running(reply.Owner)
		}
		if h == nil {
			return !reply.Known || reply.Null
		}
		return reply.isFine() && reply.shows(h, l)
	case Position:
		before := int64(0)
		for i := range l.queue {
			if l.queue[i].owner == c.Owner {
				return reply.says(before)
			}
			// A waiting upgrade stands before the queue, not in it.
			if !l.queue[i].upgrade {
				before++
			}
		}
		return !reply.Known || reply.Null
	case Check:
		// A hold with an unknown token may have this one.
		mayBe := false
		for i := range l.holds {
			h := &l.holds[i]
			if h.isOver() {
				continue
			}
			if h.token == c.Token {
				return reply.isFine()
			}
			mayBe = mayBe || h.token == 0 && h.above < c.Token
		}
		if mayBe && reply.isFine() {
			return true
		}
		return reply.is("FENCED")
	}
	return false
}

// mrelease releases several locks in one step.
func (s *state) mrelease(c *Call) bool {
	for i, at := range c.Locks {
		l, left := &s.locks[at], int64(-1)
		if h := l.hold(c.Owner); h != nil {
			h.count, h.fresh, h.number = h.count-1, nil, 0
			left = int64(h.count)
			if left == 0 {
				l.endHold(c.Owner)
			}
		}
		if c.Reply.Known && (len(c.Reply.Numbers) != len(c.Locks) || c.Reply.Numbers[i] != left) {
			return false
		}
	}
	return s.serve()
}

// is tells if the reply can be this error.
func (r *Reply) is(code string) bool { return !r.Known || r.Error == code }

// isFine tells if the reply can be something other than an error.
func (r *Reply) isFine() bool { return !r.Known || r.Error == "" }

// says tells if the reply can be this number.
func (r *Reply) says(n int64) bool {
	return !r.Known || r.Error == "" && !r.Null && len(r.Numbers) > 0 && r.Numbers[0] == n
}

// shows tells if the reply can be about this hold, whose token it may be the first to show.
func (r *Reply) shows(h *hold, l *lockState) bool {
	if !r.Known {
		return true
	}
	return len(r.Numbers) >= 2 && h.bind(uint64(r.Numbers[0]), l) && r.Numbers[1] == int64(h.count)
}

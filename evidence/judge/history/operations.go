package history

import (
	"cmp"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"

	"dlock.example/judge/lock"
	"dlock.example/judge/server"
)

const (
	// A lease may end up to two milliseconds early, counted from the sending of the request (docs/commands.md). So may a wait and a
	// claim window, which the server counts in milliseconds too.
	early = 2 * Millisecond
	// The server ends a lease by a timer, about one millisecond after its end. The pulse counts from then on.
	timer = 2 * Millisecond
	// The server's default claim window, the least that a ticket has after a restart, and that of places in sessions.
	defaultClaimMs = server.ClaimMs
	// A grant is not older than its token: by more than this it would have come before.
	tokenSlack = 5 * Millisecond
)

// Operations returns the operations for Porcupine.
func (h *History) Operations(pulse *Pulse) []porcupine.Operation {
	b := builder{history: h, pulse: pulse, owners: map[string][]int{}}
	for i := range h.Calls {
		b.owners[h.Calls[i].Owner] = append(b.owners[h.Calls[i].Owner], i)
	}
	for i := range h.Calls {
		b.call(&h.Calls[i])
	}
	autos := map[int]bool{}
	kept := b.sessions()
	for i := range h.Calls {
		if h.Calls[i].Auto {
			autos[h.Calls[i].Conn] = true
		}
	}
	for conn, span := range h.Ends {
		b.add(conn, lock.Disconnect{Conn: conn}, span.From, span.Until)
		if autos[conn] {
			b.autoEnd(conn, lock.Term{Why: lock.ByDisconnect, N: conn}, span)
		}
		for _, its := range kept[conn] {
			if !b.isOver(its, span.From) {
				b.sessionEnd(conn, lock.Term{Why: lock.ByKeeper, N: its.first.ID}, span, its.first)
			}
		}
		if len(kept[conn]) == 0 {
			b.window(conn, lock.Term{Why: lock.ByDisconnect, N: conn}, span, h.ClaimMs)
		}
	}
	for epoch, span := range h.Restarts {
		term := lock.Term{Why: lock.ByRestart, N: epoch}
		b.add(0, lock.Restart{Epoch: epoch}, span.From, span.Dead)
		if len(autos) > 0 {
			b.autoEnd(0, term, Span{span.From, span.Dead})
		}
		if len(kept) > 0 {
			alive := int64(0)
			for _, lives := range kept {
				for _, its := range lives {
					if its.first.Got < span.From {
						alive = max(alive, its.first.Got)
					}
				}
			}
			b.sessionLeasesEnd(0, term, Span{span.From, span.Dead}, alive)
		}
		b.window(0, term, Span{span.Dead, span.Until}, max(h.ClaimMs, defaultClaimMs))
	}
	if len(autos)+len(kept) > 0 {
		b.stalls()
	}
	// An event after everything else changes nothing: the ends of long leases.
	last := int64(0)
	for i := range h.Calls {
		last = max(last, h.Calls[i].Sent, h.Calls[i].Got)
	}
	return slices.DeleteFunc(b.operations, func(o porcupine.Operation) bool { return o.Call > last })
}

type builder struct {
	history *History
	pulse   *Pulse
	// owners are each owner's calls.
	owners     map[string][]int
	operations []porcupine.Operation
}

func (b *builder) add(client int, input interface{}, from, until int64) {
	b.operations = append(b.operations, porcupine.Operation{ClientId: client, Input: input, Call: from, Return: max(from, until)})
}

// over returns when the server has done everything due at this instant, at the latest.
func (b *builder) over(at int64) int64 {
	if until, known := b.pulse.After(at + timer); known {
		return until
	}
	return math.MaxInt64
}

// term returns when a term of this length ends that began in this span.
func (b *builder) term(began Span, lasts int64) Span {
	return Span{began.From + lasts - early, b.over(began.Until + lasts)}
}

func (b *builder) window(client int, term lock.Term, began Span, claimMs int64) {
	if claimMs > 0 {
		end := b.term(began, claimMs*Millisecond)
		for _, restart := range b.history.Restarts {
			if began.Until <= restart.Dead && end.From > restart.Dead {
				// The restart has begun another window.
				return
			}
		}
		b.add(client, lock.WindowEnd{Term: term}, end.From, end.Until)
	}
}

// isReplaced tells if a later call of the owner was answered before this time and ended everything that the call began: then the
// end of that changes nothing. There are many such ends, and each one left out halves Porcupine's search.
func (b *builder) isReplaced(c *Call, by func(*Call, int) bool, before int64) bool {
	if !c.Reply.Known {
		return false
	}
	left := slices.Clone(c.Locks)
	for _, i := range b.owners[c.Owner] {
		later := &b.history.Calls[i]
		if later.Reply.Known && later.Sent >= c.Got && later.Got < before {
			left = slices.DeleteFunc(left, func(at int) bool { return by(later, at) })
		}
	}
	return len(left) == 0
}

// endsLease tells if a call and its reply leave nothing of an earlier lease of the owner at this lock.
func endsLease(c *Call, at int) bool {
	if c.Locks[0] != at && c.Name != lock.MRelease {
		return false
	}
	switch c.Name {
	case lock.Release:
		return c.Token == 0 && c.Reply.Error == "NOTHELD" || len(c.Reply.Numbers) > 0 && c.Reply.Numbers[0] == 0
	case lock.Renew:
		return c.Reply.Error == ""
	case lock.Held:
		return c.Reply.Null
	case lock.MRelease:
		i := slices.Index(c.Locks, at)
		return i >= 0 && c.Reply.Numbers[i] <= 0
	}
	return false
}

// endsWindow tells if a call leaves nothing of an earlier claim window of the owner.
func endsWindow(c *Call, _ int) bool { return c.Name == FairAcquire && c.Reply.Error == "" }

// autoEnd adds the end of the leases that the server renewed until some instant of this span. At most a third of each had passed
// since the last renewal, if no timer was late.
func (b *builder) autoEnd(client int, term lock.Term, ended Span) {
	lease := b.history.LeaseMs * Millisecond
	late := b.pulse.Gap(ended.From-lease, ended.From)
	b.leasesEnd(client, term, Span{ended.From + lease*2/3 - early - late, ended.Until + lease})
}

// leasesEnd adds the end of leases within this span. None ends before it could if it had begun with the first call.
func (b *builder) leasesEnd(client int, term lock.Term, ends Span) {
	first := slices.MinFunc(b.history.Calls, func(one, other Call) int { return cmp.Compare(one.Sent, other.Sent) })
	begins, until := max(ends.From, first.Sent+b.history.LeaseMs*Millisecond-early), b.over(ends.Until)
	b.add(client, lock.LeaseEnd{Term: term}, begins, until)
	b.add(client, lock.Timer{Term: term}, begins, until)
}

// life is a time in which a session is alive: the first command made it so, the last was the last that prolonged it.
type life struct {
	first, last *Call
}

// isOver tells if the session was no longer kept at this instant, or had been ended.
func (b *builder) isOver(l *life, at int64) bool {
	lapsed := l.last.Reply.Known && b.over(l.last.Got+l.last.KeptMs*Millisecond) < at
	return lapsed || b.isEnded(l.first.Session, at)
}

// sessions adds what keeps sessions, and the ends of the times for which they are kept. A command that only prolongs that is no operation
// of its own: each operation that is open for long doubles Porcupine's search. It returns the lives that each connection kept. It can
// keep several: a client that begins another session leaves the last one to its time.
func (b *builder) sessions() map[int][]*life {
	kept := map[int][]*life{}
	now := map[int]*life{}
	for i := range b.history.Calls {
		c := &b.history.Calls[i]
		if c.Name != Session || c.KeptMs == 0 {
			continue
		}
		its := now[c.Session]
		if its != nil && its.last.Conn == c.Conn && its.last.Reply.Known && c.Reply.Known && c.Got < its.last.kept() {
			its.last = c
			continue
		}
		if its != nil && its.last.Reply.Known && (!c.Reply.Known || c.Got >= its.last.kept()) {
			b.lapse(its)
		}
		if its != nil && c.Reply.Known && b.history.Ends[its.last.Conn].From > c.Got {
			// Another connection keeps it before this one ends.
			kept[its.last.Conn] = slices.DeleteFunc(kept[its.last.Conn], func(l *life) bool { return l == its })
		}
		its = &life{c, c}
		now[c.Session], kept[c.Conn] = its, append(kept[c.Conn], its)
		b.add(c.Conn, lock.Keep{ID: c.ID, Conn: c.Conn, Epoch: c.Epoch, Session: c.Session, Known: c.Reply.Known}, c.Sent, b.last(c))
	}
	for _, its := range now {
		if its.last.Reply.Known {
			b.lapse(its)
		}
	}
	return kept
}

// kept returns until when a SESSION command keeps its session at least.
func (c *Call) kept() int64 { return c.Sent + c.KeptMs*Millisecond - early }

// lapse adds the end of the time for which a session was kept.
func (b *builder) lapse(its *life) {
	first, last := its.first, its.last
	end := Span{last.kept(), b.over(last.Got + last.KeptMs*Millisecond)}
	ended, isOver := b.history.Ends[last.Conn]
	restart, isDead := b.history.Restarts[last.Epoch+1]
	if isOver && ended.Until < end.From || isDead && restart.Dead < end.From {
		return
	}
	if b.isEnded(last.Session, end.From) {
		return
	}
	term := lock.Term{Why: lock.ByLapse, N: first.ID}
	b.add(last.Conn, lock.Lapse{ID: first.ID, Session: last.Session}, end.From, end.Until)
	b.sessionEnd(last.Conn, term, end, first)
}

// sessionEnd adds what follows when a session stops within this span: the ends of its leases and of its window, if it may hold or wait
// for something then. The first command made it alive.
func (b *builder) sessionEnd(client int, term lock.Term, ended Span, first *Call) {
	holds, waits := false, false
	for i := range b.history.Calls {
		c := &b.history.Calls[i]
		if c.Session != first.Session || c.Name == Session || c.Sent > ended.Until {
			continue
		}
		became := outcome(&c.Reply)
		if became == lock.Granted || became == lock.Unknown {
			holds = holds || !b.isReplaced(c, endsLease, ended.From)
		}
		waits = waits || c.BlockMs >= 0 && (!c.Reply.Known || c.Got >= ended.From)
	}
	// What is kept again in time does not end.
	lease := b.history.LeaseMs * Millisecond
	if (holds || waits) && !b.isKept(first.Session, ended.Until, ended.From+lease/2) {
		b.sessionLeasesEnd(client, term, ended, first.Got)
	}
	if waits && !b.isKept(first.Session, ended.Until, ended.From+defaultClaimMs*Millisecond-early) {
		b.window(client, term, ended, defaultClaimMs)
	}
}

// isKept tells if a SESSION command was sent and answered between these instants, which kept this session.
func (b *builder) isKept(session int, from, until int64) bool {
	return slices.ContainsFunc(b.history.Calls, func(c Call) bool {
		return c.Name == Session && c.Session == session && c.KeptMs > 0 && c.Reply.Known && c.Sent >= from && c.Got < until
	})
}

// isEnded tells if the session of a call had been ended before this instant, and all that was in it. After a restart the server does not
// know the session, and answers 0: its holds have stayed.
func (b *builder) isEnded(session int, before int64) bool {
	return session != 0 && slices.ContainsFunc(b.history.Calls, func(c Call) bool {
		found := len(c.Reply.Numbers) > 0 && c.Reply.Numbers[0] != 0
		return c.Name == Session && c.Session == session && c.KeptMs == 0 && found && c.Got < before
	})
}

// sessionLeasesEnd adds the end of the leases that a session renewed until some instant of this span, and that it did not renew if it
// had been alive for a moment only: renewals that are due come as soon as it is alive.
func (b *builder) sessionLeasesEnd(client int, term lock.Term, ended Span, alive int64) {
	if ended.From-alive > tokenSlack+b.pulse.Gap(alive, ended.From) {
		b.autoEnd(client, term, ended)
		return
	}
	b.leasesEnd(client, term, Span{ended.From, ended.Until + b.history.LeaseMs*Millisecond})
}

// stalls adds the times in which renewals may have been missed: they come at each third of a lease, and two thirds are left then.
func (b *builder) stalls() {
	calls := b.history.Calls
	for _, gap := range b.pulse.Gaps(b.history.LeaseMs*Millisecond*2/3 - tokenSlack) {
		inside := slices.ContainsFunc(calls, func(c Call) bool { return c.Sent < gap.Until })
		for _, restart := range b.history.Restarts {
			inside = inside && (gap.Until < restart.From || gap.From > restart.Dead)
		}
		if inside {
			b.add(0, lock.Stall{From: gap.From}, gap.From, b.over(gap.Until))
		}
	}
}

// last returns until when a call may have been carried out.
func (b *builder) last(c *Call) int64 {
	if c.Reply.Known {
		return c.Got
	}
	if end, ok := b.history.Ends[c.Conn]; ok {
		return end.Until
	}
	if end, ok := b.history.Restarts[c.Epoch+1]; ok {
		return end.Dead
	}
	return math.MaxInt64
}

func (b *builder) call(c *Call) {
	until := b.last(c)
	switch c.Name {
	case Acquire, FairAcquire, MAcquire:
		b.request(c, until)
		return
	case Session:
		if c.KeptMs == 0 {
			b.add(c.Conn, lock.EndSession{ID: c.ID, Conn: c.Conn, Epoch: c.Epoch, Session: c.Session, Known: c.Reply.Known}, c.Sent, until)
		}
		return
	case lock.Renew:
		if !c.Reply.Known || c.Reply.Error == "" {
			b.lease(c, nil, Span{c.Sent, until})
		}
	}
	b.add(c.Conn, lock.Call{
		ID: c.ID, Conn: c.Conn, Epoch: c.Epoch, Name: c.Name, Locks: c.Locks, Owner: c.Owner, Token: c.Token,
		Holds: c.Holds, Limit: c.Limit, Ephemeral: c.Ephemeral, Auto: c.Auto, Session: c.Session, Reply: c.Reply,
	}, c.Sent, until)
}

// lease adds the end of the lease that a call began.
func (b *builder) lease(c *Call, of *lock.Request, began Span) {
	end := lock.LeaseEnd{Term: lock.Term{Why: lock.ByCall, N: c.ID}}
	if of != nil && of.Outcome == lock.Unknown {
		end.Of = of
	}
	span := b.term(began, c.LeaseMs*Millisecond)
	if b.isReplaced(c, endsLease, span.From) || b.isEnded(c.Session, span.From) {
		return
	}
	b.add(c.Conn, end, span.From, span.Until)
	b.add(c.Conn, lock.Timer{Term: end.Term}, span.From, span.Until)
}

func (b *builder) request(c *Call, until int64) {
	r := &lock.Request{
		ID: c.ID, Conn: c.Conn, Epoch: c.Epoch, Locks: c.Locks, Owner: c.Owner, Limit: c.Limit, Permits: c.Permits,
		Waits:  c.BlockMs >= 0,
		Ticket: c.Name == FairAcquire, Claim: c.ClaimMs > 0, Ephemeral: c.Ephemeral, Auto: c.Auto, Holds: max(c.Holds, 0),
		Outcome: outcome(&c.Reply), Session: c.Session, Queued: c.Asked != 0,
	}
	asked := until
	if c.Session != 0 {
		// Asked for again the hold counts once.
		r.Holds = 1
		if c.Asked != 0 {
			asked = c.Asked
		}
		if c.BlockMs > 0 && !c.Reply.Known && asked != math.MaxInt64 {
			until = b.over(asked + c.BlockMs*Millisecond)
		}
		end := c.Sent + defaultClaimMs*Millisecond - early
		isOver := c.Reply.Known && c.Got < end || b.isKept(c.Session, c.Sent, end) || b.isEnded(c.Session, end)
		if r.Waits && !isOver {
			b.window(c.Conn, lock.Term{Why: lock.ByCall, N: c.ID}, Span{c.Sent, asked}, defaultClaimMs)
		}
	}
	began := Span{c.Sent, until}
	if r.Outcome == lock.Granted {
		if c.Name == MAcquire {
			for _, token := range c.Reply.Numbers {
				r.Tokens = append(r.Tokens, uint64(token))
			}
		} else {
			r.Tokens = []uint64{uint64(c.Reply.Numbers[0])}
			if c.Session == 0 {
				r.Count = int(c.Reply.Numbers[1])
			}
		}
		// A token is the time of its grant, if it is a new one.
		granted := int64(r.Tokens[0])
		if granted > c.Sent && granted <= c.Got {
			began.From = granted
			if r.Waits && granted-tokenSlack > c.Sent {
				b.add(c.Conn, lock.NotYet{Request: r}, granted-tokenSlack, granted-tokenSlack)
			}
		}
	}
	b.add(c.Conn, lock.Ask{Request: r}, c.Sent, asked)
	if r.Waits && c.Reply.Known {
		b.add(c.Conn, lock.Answer{Request: r}, c.Got, c.Got)
	}
	if r.Outcome == lock.Granted || r.Outcome == lock.Unknown {
		b.lease(c, r, began)
	}
	mayTimeOut := c.BlockMs > 0 && (r.Outcome == lock.Null || r.Outcome == lock.Unknown)
	timeUp := c.Sent + c.BlockMs*Millisecond - early
	if c.Asked != 0 {
		until = min(until, b.over(c.Asked+c.BlockMs*Millisecond))
	}
	if mayTimeOut && timeUp < until && !b.isEnded(c.Session, timeUp) {
		b.add(c.Conn, lock.TimeUp{Request: r}, timeUp, until)
		if r.Ticket && !b.isReplaced(c, endsWindow, timeUp+c.ClaimMs*Millisecond-early) {
			b.window(c.Conn, lock.Term{Why: lock.ByTimeUp, N: c.ID}, Span{timeUp, until}, c.ClaimMs)
		}
	}
	if r.Ticket && !r.Waits {
		claim := c.ClaimMs
		if claim == 0 {
			claim = defaultClaimMs
		}
		if !b.isReplaced(c, endsWindow, c.Sent+claim*Millisecond-early) {
			b.window(c.Conn, lock.Term{Why: lock.ByCall, N: c.ID}, Span{c.Sent, until}, claim)
		}
	}
}

func outcome(r *lock.Reply) lock.Outcome {
	switch {
	case !r.Known:
		return lock.Unknown
	case r.Error == "REPLACED":
		return lock.Replaced
	case r.Error == "NOTHELD":
		return lock.NotHeld
	case r.Error == "DEADLOCK":
		return lock.Deadlock
	case r.Error == "ERR":
		return lock.BadPermits
	case r.Null:
		return lock.Null
	}
	return lock.Granted
}

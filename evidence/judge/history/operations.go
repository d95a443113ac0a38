package history

import (
	"math"
	"slices"

	"github.com/anishathalye/porcupine"

	"dlock.example/judge/lock"
)

const (
	// A lease may end up to two milliseconds early, counted from the sending of the request (docs/commands.md). So may a wait and a
	// claim window, which the server counts in milliseconds too.
	early = 2 * Millisecond
	// The server ends a lease by a timer, about one millisecond after its end. The pulse counts from then on.
	timer = 2 * Millisecond
	// The default claim window, the least that a ticket has after a restart.
	defaultClaimMs = 5000
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
		b.window(conn, lock.Term{Why: lock.ByDisconnect, N: conn}, span, h.ClaimMs)
	}
	for epoch, span := range h.Restarts {
		term := lock.Term{Why: lock.ByRestart, N: epoch}
		b.add(0, lock.Restart{Epoch: epoch}, span.From, span.Dead)
		if len(autos) > 0 {
			b.autoEnd(0, term, Span{span.From, span.Dead})
		}
		b.window(0, term, Span{span.Dead, span.Until}, max(h.ClaimMs, defaultClaimMs))
	}
	if len(autos) > 0 {
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
	begins, ends := ended.From+lease*2/3-early-late, b.over(ended.Until+lease)
	b.add(client, lock.LeaseEnd{Term: term}, begins, ends)
	b.add(client, lock.Timer{Term: term}, begins, ends)
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
	case lock.Renew:
		if !c.Reply.Known || c.Reply.Error == "" {
			b.lease(c, nil, Span{c.Sent, until})
		}
	}
	b.add(c.Conn, lock.Call{
		ID: c.ID, Conn: c.Conn, Epoch: c.Epoch, Name: c.Name, Locks: c.Locks, Owner: c.Owner, Token: c.Token,
		Holds: c.Holds, Limit: c.Limit, Ephemeral: c.Ephemeral, Auto: c.Auto, Reply: c.Reply,
	}, c.Sent, until)
}

// lease adds the end of the lease that a call began.
func (b *builder) lease(c *Call, of *lock.Request, began Span) {
	end := lock.LeaseEnd{Term: lock.Term{Why: lock.ByCall, N: c.ID}}
	if of != nil && of.Outcome == lock.Unknown {
		end.Of = of
	}
	span := b.term(began, c.LeaseMs*Millisecond)
	if b.isReplaced(c, endsLease, span.From) {
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
		Outcome: outcome(&c.Reply),
	}
	began := Span{c.Sent, until}
	if r.Outcome == lock.Granted {
		if c.Name == MAcquire {
			for _, token := range c.Reply.Numbers {
				r.Tokens = append(r.Tokens, uint64(token))
			}
		} else {
			r.Tokens, r.Count = []uint64{uint64(c.Reply.Numbers[0])}, int(c.Reply.Numbers[1])
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
	b.add(c.Conn, lock.Ask{Request: r}, c.Sent, until)
	if r.Waits && c.Reply.Known {
		b.add(c.Conn, lock.Answer{Request: r}, c.Got, c.Got)
	}
	if r.Outcome == lock.Granted || r.Outcome == lock.Unknown {
		b.lease(c, r, began)
	}
	mayTimeOut := c.BlockMs > 0 && (r.Outcome == lock.Null || r.Outcome == lock.Unknown)
	timeUp := c.Sent + c.BlockMs*Millisecond - early
	if mayTimeOut && timeUp < until {
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

package lock

import (
	"fmt"
	"strings"
)

// Describe returns the text of an operation, for the picture of an illegal history.
func Describe(input interface{}) string {
	switch op := input.(type) {
	case Ask:
		return fmt.Sprintf("#%d %s asks for %v%s", op.ID, op.Owner, op.Locks, op.terms())
	case Answer:
		return fmt.Sprintf("#%d %s: %v %v", op.ID, op.Owner, op.Outcome, op.Tokens)
	case TimeUp:
		return fmt.Sprintf("#%d %s: time is up", op.ID, op.Owner)
	case NotYet:
		return fmt.Sprintf("#%d %s is not granted before its token", op.ID, op.Owner)
	case LeaseEnd:
		return fmt.Sprintf("lease %v ends", op.Term)
	case Timer:
		return fmt.Sprintf("timer of lease %v", op.Term)
	case Stall:
		return "the server stood still"
	case WindowEnd:
		return fmt.Sprintf("window %v ends", op.Term)
	case Keep:
		return fmt.Sprintf("#%d session %d is kept", op.ID, op.Session)
	case Lapse:
		return fmt.Sprintf("session %d: the time of #%d is over", op.Session, op.ID)
	case EndSession:
		return fmt.Sprintf("#%d session %d is ended", op.ID, op.Session)
	case Disconnect:
		return fmt.Sprintf("connection %d ends", op.Conn)
	case Restart:
		return fmt.Sprintf("restart %d", op.Epoch)
	case Call:
		return fmt.Sprintf("#%d %s %v %s %d → %v", op.ID, op.Name, op.Locks, op.Owner, op.Token, op.Reply)
	}
	return fmt.Sprint(input)
}

func (r *Request) terms() string {
	words := fmt.Sprintf(" %d of limit %d", r.permits(), r.Limit)
	for _, option := range []struct {
		word string
		is   bool
	}{{"waits", r.Waits}, {"ticket", r.Ticket}, {"claim", r.Claim}, {"ephemeral", r.Ephemeral}, {"auto", r.Auto}} {
		if option.is {
			words += " " + option.word
		}
	}
	if r.Session != 0 {
		words += fmt.Sprintf(" in session %d", r.Session)
	}
	return fmt.Sprintf("%s → %v %v", words, r.Outcome, r.Tokens)
}

func (t Term) String() string { return fmt.Sprintf("%c%d", t.Why, t.N) }

func (s *state) String() string {
	var b strings.Builder
	for at, l := range s.locks {
		fmt.Fprintf(&b, "lock %d:", at)
		for _, h := range l.holds {
			fmt.Fprintf(&b, " %s holds %d×%d (%d of limit %d, leases %v)", h.owner, h.token, h.count, h.permits, h.limit, h.leases)
		}
		for _, p := range l.queue {
			fmt.Fprintf(&b, " | %s waits #%d (%d of limit %d, window %v)", p.owner, p.request.id(), p.permits, p.limit, p.window)
		}
		b.WriteString("; ")
	}
	fmt.Fprintf(&b, "last %d, decided %v, sessions %v", s.last, s.done, s.sessions)
	return b.String()
}

package history

import (
	"sort"

	"dlock.example/judge/lock"
)

// noReply is the reply of a call without an answer.
var noReply lock.Reply

// Until returns the records up to this time: calls without an answer yet may still be carried out.
func (h *History) Until(at int64) *History {
	p := New(h.Scene, h.Locks, h.LeaseMs, h.ClaimMs)
	for _, c := range h.Calls {
		if c.Sent > at {
			continue
		}
		if c.Got > at {
			c.Got, c.Reply = 0, noReply
		}
		if c.Asked > at {
			c.Asked = 0
		}
		p.Calls = append(p.Calls, c)
	}
	for conn, span := range h.Ends {
		if span.From <= at {
			p.Ends[conn] = span
		}
	}
	for epoch, span := range h.Restarts {
		if span.From <= at {
			p.Restarts[epoch] = span
		}
	}
	return p
}

// Instants returns the times of all records, in order.
func (h *History) Instants() []int64 {
	var all []int64
	for i := range h.Calls {
		if got := h.Calls[i].Got; got != 0 {
			all = append(all, got)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all
}

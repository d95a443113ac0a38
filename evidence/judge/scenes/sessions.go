package scenes

import (
	"fmt"
	"strconv"
	"sync/atomic"

	"dlock.example/judge/history"
	"dlock.example/judge/lock"
	"dlock.example/judge/server"
)

const (
	// keptMs is for how long a SESSION command keeps a session.
	keptMs = 700
	// rowMs is how long it waits for a row.
	rowMs = 150
	// asks is how often a client asks for one lock.
	asks = 5
)

// session is one session of a client, which begins another one when it has ended it or forgets it.
type session struct {
	number int
	// id is the server's for it, seen the last row that was read.
	id, seen int64
}

var begun atomic.Int64

func nameOf(session int) string { return fmt.Sprintf("session-%d", session) }

// actor returns the owner of the client's latest request.
func (c *client) actor() string {
	if latest := c.latest.Load(); latest != nil {
		return *latest
	}
	return c.owner
}

// fresh returns an owner that was never used.
func (c *client) fresh() string {
	c.asked++
	owner := fmt.Sprintf("%s/%d", c.owner, c.asked)
	c.latest.Store(&owner)
	return owner
}

// forget gives up the session: the client no longer keeps it.
func (c *client) forget() {
	c.lose()
	c.session = nil
}

// lose records the request that waits: its outcome will not be known.
func (c *client) lose() {
	if c.pending != nil {
		c.scene.Add(*c.pending)
		c.pending = nil
	}
}

// row gives the request that waits the outcome that a row tells.
func (c *client) row(word string, token int64) {
	reply := lock.Reply{Known: true}
	switch word {
	case "granted":
		reply.Numbers = []int64{token}
	case "replaced":
		reply.Error = "REPLACED"
	case "timeout", "cancelled":
		reply.Null = true
	default:
		c.scene.fail(fmt.Errorf("the row of a wait says %s", word))
	}
	c.pending.Reply, c.pending.Got = reply, history.Now()
	c.lose()
}

// keep keeps the session for this time, and reads its rows. It returns the rows, and false without an answer.
func (c *client) keep(ms, blockMs int64) ([]server.Value, bool) {
	s := c.session
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	words := []string{"DLOCK.SESSION", c.scene.keys[0], nameOf(s.number), number(ms)}
	if s.id != 0 {
		words = append(words, "SEEN", number(s.id), number(s.seen))
	}
	if blockMs > 0 {
		words = append(words, "BLOCK", number(blockMs))
	}
	call := history.Call{Name: history.Session, Locks: []int{0}, Session: s.number, KeptMs: ms, BlockMs: blockMs, Holds: -1}
	reply, value, answered := c.send(call, words)
	if !answered || reply.Error != "" {
		return nil, false
	}
	s.meet(reply.Numbers[0])
	s.seen = reply.Numbers[1]
	return value.Items[3].Items, true
}

// meet notes the id that an answer has. Another one has told nothing yet.
func (s *session) meet(id int64) {
	if s.id != id {
		s.id, s.seen = id, 0
	}
}

// end ends the session. What waits there goes without a row.
func (c *client) end() {
	c.keep(0, 0)
	c.forget()
}

// hang lets the time pass for which the session is kept.
func (c *client) hang() { c.sleep(keptMs-100, keptMs+400) }

// takeIn asks for a lock in the session until it is granted, or gives up.
func (c *client) takeIn(call history.Call) (int64, bool) {
	for range asks {
		reply, answered := c.do(call)
		switch {
		case !answered && c.chance(30):
			c.forget()
			return 0, false
		case !answered:
			continue
		case reply.Error != "" || reply.Null:
			return 0, false
		}
		c.session.meet(reply.Numbers[len(reply.Numbers)-1])
		if token := reply.Numbers[0]; token != 0 {
			return token, true
		}
		if token, again := c.await(call.Owner); !again {
			return token, token != 0
		}
	}
	return 0, false
}

// await waits for the row of the request that waits. It returns the token, or whether the client has to ask again.
func (c *client) await(owner string) (token int64, again bool) {
	id, blockMs := c.session.id, int64(0)
	for c.pending != nil {
		switch n := c.rand.IntN(100); {
		case n < 3:
			c.do(history.Call{Name: lock.Cancel, Locks: []int{0}, Owner: owner, Holds: -1})
		case n < 5:
			c.end()
			return 0, false
		case n < 6:
			c.forget()
			return 0, false
		case n < 9:
			c.hang()
		}
		rows, answered := c.keep(keptMs, blockMs)
		blockMs = rowMs
		if !answered {
			blockMs = 0
			continue
		}
		if c.session.id != id {
			// A server that was started again knows nothing of the session.
			c.lose()
			return 0, true
		}
		for _, row := range rows {
			if row.Items[3].Text == owner && c.pending != nil {
				token = row.Items[4].Number
				c.row(row.Items[1].Text, token)
			}
		}
	}
	return token, false
}

// sessions takes the lock in a session, works, and gives it back by its token, with the session, or not at all.
func sessions(c *client) {
	c.sleep(2, 25)
	if c.session == nil {
		c.session = &session{number: int(begun.Add(1))}
	}
	if c.chance(10) {
		c.keep(keptMs, 0)
	}
	name := history.FairAcquire
	if c.chance(30) {
		name = history.Acquire
	}
	call := c.asks(name, 0)
	call.Owner, call.Session = c.fresh(), c.session.number
	if c.chance(30) {
		call.Limit = 0
	}
	if !c.chance(20) {
		call.BlockMs = int64(100 + c.rand.IntN(1200))
	}
	token, got := c.takeIn(call)
	if !got {
		return
	}
	c.scene.token.Store(uint64(token))
	c.work()
	if c.chance(30) {
		c.keep(keptMs, 0)
	}
	switch n := c.rand.IntN(100); {
	case n < 6:
		// The session lapses; where leases are short, some end.
		c.hang()
		if c.scene.LeaseMs < long && c.chance(50) {
			c.sleep(300, 1000)
		}
	case n < 22:
		c.end()
		return
	case n < 25 && c.scene.LeaseMs < long:
		c.forget()
		return
	}
	if c.chance(20) {
		renew := history.Call{
			Name: lock.Renew, Locks: []int{0}, Owner: call.Owner, LeaseMs: c.scene.LeaseMs, Token: uint64(token),
			Session: c.session.number, Holds: -1,
		}
		if reply, answered := c.do(renew); answered && reply.Error != "" {
			return
		}
		c.work()
	}
	release := history.Call{Name: lock.Release, Locks: []int{0}, Owner: call.Owner, Token: uint64(token), Holds: -1}
	for range asks {
		if _, answered := c.do(release); answered {
			return
		}
	}
}

package scenes

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"dlock.example/judge/history"
	"dlock.example/judge/lock"
	"dlock.example/judge/server"
)

// client is one owner with one connection. It records each of its calls.
type client struct {
	scene *Scene
	owner string
	rand  *rand.Rand

	// session is the session that it keeps, if any; pending its request that waits there.
	session *session
	pending *history.Call
	// latest is the owner of its latest request in a session, asked counts them.
	latest atomic.Pointer[string]
	asked  int

	mutex sync.Mutex
	conn  *server.Conn
	// gone is closed when the server no longer lists the connection that was cut.
	gone chan struct{}
}

// asks returns a request for a lock as most scenes make it; the caller changes it as needed.
func (c *client) asks(name lock.Name, locks ...int) history.Call {
	return history.Call{
		Name: name, Locks: locks, Owner: c.owner, LeaseMs: c.scene.LeaseMs, Limit: 1, BlockMs: -1, Holds: -1,
	}
}

// words returns the words of the command.
func (s *Scene) words(c *history.Call) []string {
	words := []string{"DLOCK." + string(c.Name)}
	if c.Name == history.MAcquire || c.Name == lock.MRelease {
		words = append(words, strconv.Itoa(len(c.Locks)))
	}
	for _, at := range c.Locks {
		words = append(words, s.keys[at])
	}
	option := func(word string, n int64) { words = append(words, word, strconv.FormatInt(n, 10)) }
	if c.Name == lock.Check {
		return append(words, strconv.FormatUint(c.Token, 10))
	}
	if c.Owner != "" {
		words = append(words, c.Owner)
	}
	takes := c.Name == history.Acquire || c.Name == history.FairAcquire || c.Name == history.MAcquire
	if takes || c.Name == lock.Renew {
		words = append(words, strconv.FormatInt(c.LeaseMs, 10))
	}
	if takes && c.BlockMs >= 0 {
		option("BLOCK", c.BlockMs)
	}
	if c.ClaimMs > 0 {
		option("CLAIM", c.ClaimMs)
	}
	if c.Holds >= 0 {
		option("HOLDS", int64(c.Holds))
	}
	if c.Token != 0 {
		option("TOKEN", int64(c.Token))
	}
	switch {
	case !takes && c.Name != lock.Downgrade:
	case c.Limit == 0:
		words = append(words, "SHARED")
	case c.Limit > 1:
		option("LIMIT", int64(c.Limit))
	}
	if c.Permits > 0 {
		option("PERMITS", int64(c.Permits))
	}
	if c.Ephemeral {
		words = append(words, "EPHEMERAL")
	}
	if c.Auto {
		option("AUTO", autoMs)
	}
	if c.Session != 0 {
		words = append(words, "IN", nameOf(c.Session))
	}
	return words
}

// do sends a call and records it with its reply. Without a reply it connects again and returns false.
func (c *client) do(call history.Call) (lock.Reply, bool) {
	reply, _, answered := c.send(call, c.scene.words(&call))
	return reply, answered
}

// send does so with these words. It also returns the reply as it came.
func (c *client) send(call history.Call, words []string) (lock.Reply, server.Value, bool) {
	conn := c.connection()
	if conn == nil {
		return lock.Reply{}, server.Value{}, false
	}
	call.ID, call.Conn, call.Epoch = c.scene.ID(), conn.Number, conn.Epoch
	call.Sent = history.Now()
	value, err := conn.Do(words...)
	got := history.Now()
	if err == nil {
		call.Got = got
		call.Reply = reply(value)
		known := strings.Contains(" NOTHELD DEADLOCK REPLACED FENCED ", " "+call.Reply.Error+" ") ||
			strings.HasPrefix(value.Text, "ERR PERMITS")
		if call.Reply.Error != "" && !known {
			c.scene.fail(fmt.Errorf("%s: %s", strings.Join(words, " "), value.Text))
		}
	}
	if said := call.Reply; call.Session != 0 && call.Name != history.Session && len(said.Numbers) > 0 && said.Numbers[0] == 0 {
		// Its row will have the outcome.
		call.Asked, call.Got, call.Reply = got, 0, lock.Reply{}
		c.pending = &call
		return said, value, true
	}
	c.scene.Add(call)
	if err != nil {
		c.reconnect(conn)
		return lock.Reply{}, value, false
	}
	return call.Reply, value, true
}

func (c *client) connection() *server.Conn {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.conn
}

// reconnect opens another connection in place of one that has ended: by the scene's own doing, or with the server.
func (c *client) reconnect(old *server.Conn) {
	if old.Cut.Load() {
		if c.scene.kind.many || c.rand.IntN(2) == 0 {
			<-c.gone
		}
	} else {
		for end := time.Now().Add(30 * time.Second); c.scene.server.Epoch() == old.Epoch; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				c.scene.fail(fmt.Errorf("a connection of %s has ended, and nobody ended it", c.owner))
				break
			}
		}
	}
	old.Close()
	c.connect()
}

func (c *client) connect() {
	conn, err := c.scene.server.Connect(c.scene.door)
	if err != nil {
		c.scene.fail(err)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.conn, c.gone = conn, make(chan struct{})
}

// cut ends the client's connection in one of three ways, and waits until the server has noticed.
func (c *client) cut(control *client) {
	c.mutex.Lock()
	conn, gone := c.conn, c.gone
	c.mutex.Unlock()
	if conn == nil || !conn.Cut.CompareAndSwap(false, true) {
		return
	}
	defer close(gone)
	span := history.Span{From: history.Now()}
	switch c.rand.IntN(3) {
	case 0:
		conn.Close()
	case 1:
		conn.Reset()
	default:
		// After a restart another connection may have its number.
		if by := control.connection(); by == nil || by.Epoch != conn.Epoch || by.Kill(conn) != nil {
			conn.Close()
		}
	}
	for c.scene.server.Epoch() == conn.Epoch {
		by := control.connection()
		if by == nil {
			break
		}
		listed, err := by.Lists(conn)
		if err != nil {
			control.reconnect(by)
			continue
		}
		if !listed {
			break
		}
		time.Sleep(time.Millisecond)
	}
	span.Until = history.Now()
	c.scene.Ended(conn.Number, span)
}

func reply(v server.Value) lock.Reply {
	r := lock.Reply{Known: true, Null: v.Null}
	switch v.Kind {
	case server.Error:
		r.Error, _, _ = strings.Cut(v.Text, " ")
	case server.Number:
		r.Numbers = []int64{v.Number}
	case server.Array:
		for _, item := range v.Items {
			switch {
			case item.Kind == server.Number:
				r.Numbers = append(r.Numbers, item.Number)
			case item.Null:
				r.Numbers = append(r.Numbers, -1)
			default:
				r.Owner = item.Text
			}
		}
	}
	return r
}

// granted returns the token of a grant.
func granted(r lock.Reply, answered bool) (uint64, bool) {
	if !answered || r.Error != "" || r.Null || len(r.Numbers) == 0 {
		return 0, false
	}
	return uint64(r.Numbers[0]), true
}

func (c *client) sleep(leastMs, mostMs int) {
	time.Sleep(time.Duration(leastMs*1000+c.rand.IntN((mostMs-leastMs)*1000)) * time.Microsecond)
}

// chance returns true in this many of a hundred cases.
func (c *client) chance(percent int) bool { return c.rand.IntN(100) < percent }

package scenes

import (
	"time"

	"dlock.example/judge/history"
	"dlock.example/judge/lock"
)

// The turns: a client repeats them. After a call without an answer it reads its holds, and releases them.

// take asks for a lock. Most requests wait.
func (c *client) take(call history.Call) (uint64, bool) {
	if !c.chance(20) {
		call.BlockMs = int64(100 + c.rand.IntN(1200))
	}
	return c.takes(call)
}

func (c *client) takes(call history.Call) (uint64, bool) {
	reply, answered := c.do(call)
	token, got := granted(reply, answered)
	if got {
		c.scene.token.Store(token)
	}
	if !answered {
		c.recover()
	}
	return token, got
}

// recover releases the holds that the owner turns out to have.
func (c *client) recover() {
	for at := 0; at < c.scene.Locks && c.scene.failed() == nil; {
		reply, answered := c.do(history.Call{Name: lock.Held, Locks: []int{at}, Owner: c.owner, Holds: -1})
		if _, held := granted(reply, answered); held && !c.chance(c.leaves()) {
			_, answered = c.release(at, 0)
		}
		if answered {
			at++
		}
	}
}

// leaves returns in how many of a hundred cases a client lets the lease of a re-entered hold end.
func (c *client) leaves() int {
	if c.scene.LeaseMs < 5000 && !c.scene.kind.many {
		return 50
	}
	return 0
}

// work holds the lock for a time. Where leases are short, some work outlasts them.
func (c *client) work() {
	if c.scene.LeaseMs == short && c.chance(12) {
		c.sleep(short, short+250)
		return
	}
	c.sleep(1, 15)
}

// release releases a hold: with a count of -1 one of its holds, otherwise down to this count.
func (c *client) release(at int, holds int) (lock.Reply, bool) {
	return c.do(history.Call{Name: lock.Release, Locks: []int{at}, Owner: c.owner, Holds: holds})
}

// holdAndRelease works under a token, enters once more, renews, and releases everything.
func (c *client) holdAndRelease(token uint64, again history.Call) {
	if c.chance(20) {
		again.BlockMs = -1
		if c.chance(50) {
			again.Holds = 1
		}
		if _, got := c.takes(again); !got {
			return
		}
	}
	c.work()
	if c.chance(20) {
		call := history.Call{
			Name: lock.Renew, Locks: []int{0}, Owner: c.owner, LeaseMs: c.scene.LeaseMs, Token: token, Holds: -1,
			Ephemeral: again.Ephemeral, Auto: again.Auto && c.chance(50),
		}
		if reply, answered := c.do(call); !answered {
			c.recover()
			return
		} else if reply.Error != "" {
			return
		}
		c.work()
	}
	call := history.Call{Name: lock.Release, Locks: []int{0}, Owner: c.owner, Holds: 0}
	if c.chance(50) {
		call.Token = token
	}
	if c.chance(40) {
		call.Holds = -1
	}
	reply, answered := c.do(call)
	if !answered {
		c.recover()
	} else if len(reply.Numbers) > 0 && reply.Numbers[0] > 0 {
		c.release(0, 0)
	}
}

func mutex(c *client) {
	c.sleep(2, 25)
	call := c.asks(history.Acquire, 0)
	if token, got := c.take(call); got {
		c.holdAndRelease(token, call)
	}
}

func readersAndWriters(c *client) {
	c.sleep(2, 25)
	call := c.asks(history.Acquire, 0)
	if !c.chance(30) {
		call.Limit = 0
	}
	token, got := c.take(call)
	if !got {
		return
	}
	if call.Limit == 1 && c.chance(40) {
		c.work()
		reply, answered := c.do(history.Call{Name: lock.Downgrade, Locks: []int{0}, Owner: c.owner, Limit: 0, Holds: -1})
		if !answered {
			c.recover()
			return
		}
		if reply.Error != "" {
			return
		}
		call.Limit = 0
	}
	c.holdAndRelease(token, call)
}

// semaphore takes one of three permits, or two of them, or all; sometimes one of two.
func semaphore(c *client) {
	c.sleep(2, 15)
	call := c.asks(history.Acquire, 0)
	call.Limit = 3
	switch {
	case c.chance(20):
		call.Limit = 2
	case c.chance(50):
		call.Permits = 1 + c.rand.IntN(3)
	}
	if token, got := c.take(call); got {
		c.holdAndRelease(token, call)
	}
}

// tickets asks until it has the lock: without waiting, or in slices. Some give up, and their tickets stay for the window.
func tickets(c *client) {
	c.sleep(2, 25)
	call := c.asks(history.FairAcquire, 0)
	call.ClaimMs = c.scene.ClaimMs
	if c.chance(50) {
		call.BlockMs = int64(50 + c.rand.IntN(150))
	}
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
		reply, answered := c.do(call)
		if token, got := granted(reply, answered); got {
			c.scene.token.Store(token)
			call.BlockMs = -1
			c.holdAndRelease(token, call)
			return
		}
		if reply.Error != "" || c.chance(3) {
			break
		}
		c.sleep(2, 60)
	}
	c.recover()
}

func ephemeral(c *client) {
	c.sleep(2, 25)
	call := c.asks(history.Acquire, 0)
	call.Ephemeral = true
	if token, got := c.take(call); got {
		c.work()
		c.holdAndRelease(token, call)
	}
}

func auto(c *client) {
	c.sleep(2, 25)
	call := c.asks(history.Acquire, 0)
	call.Auto = true
	call.Ephemeral = c.chance(20)
	token, got := c.take(call)
	if !got {
		return
	}
	if c.chance(15) {
		// Longer than the lease, if that is short.
		c.sleep(800, 1600)
	}
	c.holdAndRelease(token, call)
}

// upgrades turns readers into writers, and some of them back.
func upgrades(c *client) {
	c.sleep(2, 25)
	call := c.asks(history.Acquire, 0)
	call.Limit = 0
	token, got := c.take(call)
	if !got {
		return
	}
	c.sleep(1, 10)
	if c.chance(60) {
		call.Limit = 1
		if c.chance(75) {
			call.BlockMs = int64(50 + c.rand.IntN(400))
		} else {
			call.BlockMs = -1
		}
		if higher, upgraded := c.takes(call); upgraded {
			token = higher
			if c.chance(40) {
				c.work()
				c.do(history.Call{Name: lock.Downgrade, Locks: []int{0}, Owner: c.owner, Limit: 0, Holds: -1})
			}
		} else {
			c.recover()
			return
		}
	}
	c.work()
	if _, answered := c.do(history.Call{Name: lock.Release, Locks: []int{0}, Owner: c.owner, Holds: 0, Token: token}); !answered {
		c.recover()
	}
}

// pairs asks for both locks in one step, or for one of them.
func pairs(c *client) {
	c.sleep(2, 25)
	at := c.rand.IntN(4)
	if at < 2 {
		call := c.asks(history.Acquire, at)
		if c.chance(50) {
			call.Limit = 0
		}
		if _, got := c.take(call); got {
			c.work()
			if _, answered := c.release(at, 0); !answered {
				c.recover()
			}
		}
		return
	}
	call := c.asks(history.MAcquire, 0, 1)
	if at == 3 {
		call.Locks = []int{1, 0}
	}
	if c.chance(30) {
		call.Limit = 0
	}
	if _, got := c.take(call); !got {
		return
	}
	c.work()
	if c.chance(50) {
		c.recover()
		return
	}
	if _, answered := c.do(history.Call{Name: lock.MRelease, Locks: []int{0, 1}, Owner: c.owner, Holds: -1}); !answered {
		c.recover()
	}
}

// SPDX-License-Identifier: MIT

package dlock

import (
	"strconv"
	"time"
)

// Times are those of now, a clock that also counts while the machine is suspended, as leases do.

const (
	never   = time.Duration(1) << 62      // so far from the edge that sums with it do not overflow
	longest = 3_000_000_000 * time.Second // the server counts a little further
	slice   = time.Second                 // nobody sleeps longer: timers may stand still while the machine is suspended
	stall   = 500 * time.Millisecond      // a timer that is so late says that the process stood still
)

// after returns a time that lies so long behind another one. It does not overflow.
func after(t, d time.Duration) time.Duration {
	if d > never-t {
		return never
	}
	return t + d
}

func millis(d time.Duration) string {
	return strconv.FormatInt(max(1, min(d, longest).Milliseconds()), 10)
}

// A clock calls the sessions when the next hold is due. It waits for no server. All under the sessions' mutex.
type clock struct {
	timer *time.Timer
	alarm time.Duration // never, if nothing is due
	due   time.Duration // when the timer fires
	grace time.Duration // until then nothing is over
}

func (c *clock) set(due time.Duration) {
	if due < c.alarm {
		c.alarm = due
		c.wind()
	}
}

func (c *clock) wind() {
	if c.alarm == never {
		return
	}
	wait := min(max(0, c.alarm-now()), slice)
	c.due = now() + wait
	c.timer.Reset(wait)
}

// rung reports whether something is due. If the process stood still the server is asked before a loss is reported.
func (c *clock) rung(within time.Duration) bool {
	if now()-c.due > stall {
		c.grace = now() + within
	}
	if c.alarm > now() {
		c.wind()
		return false
	}
	c.alarm = never
	return true
}

func (c *clock) isOver(end time.Duration) bool { return end <= now() && c.grace <= now() }

// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"strconv"
	"time"
)

// All times are from now(), which also advances while the machine is suspended, as leases do.

const (
	never   = time.Duration(1) << 62      // so far from the edge that sums with it do not overflow
	longest = 3_000_000_000 * time.Second // the server counts a little further
	stall   = 500 * time.Millisecond      // a timer that fires so late says that the process was stopped
)

// after returns the time that lies d behind t. It does not overflow.
func after(t, d time.Duration) time.Duration {
	if d > never-t {
		return never
	}
	return t + d
}

func millis(d time.Duration) string {
	return strconv.FormatInt(max(1, min(d, longest).Milliseconds()), 10)
}

// timeLeft returns the time until the deadline of the context.
func timeLeft(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return never
}

// sleep returns early when the context ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

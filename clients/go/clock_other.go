// SPDX-License-Identifier: MIT

//go:build !linux

package dlock

import "time"

var began = time.Now()

// now returns the time on a clock that never goes back.
func now() time.Duration { return time.Since(began) }

// SPDX-License-Identifier: MIT

package dlock

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBootTime = 7 // it also advances while the machine is suspended

var (
	began       = time.Now()
	hasBootTime = bootTime() != 0
)

// now returns the time on a clock that never goes back.
func now() time.Duration {
	if hasBootTime {
		return bootTime()
	}
	return time.Since(began)
}

// bootTime makes the call that the syscall package has no function for. The one of golang.org/x/sys would be a dependency.
func bootTime() time.Duration {
	var t syscall.Timespec
	if _, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBootTime, uintptr(unsafe.Pointer(&t)), 0); failed != 0 {
		return 0
	}
	return time.Duration(t.Nano())
}

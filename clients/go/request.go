// SPDX-License-Identifier: MIT

package dlock

import (
	"crypto/rand"
	"strconv"
	"time"
)

// A request is one owner's wish for one lock, as words of commands.
type request struct {
	settings      *Settings
	key, owner    string
	named, looked bool
	limit         []string
	session       bool
	err           error
	lost          func(error)
	asked, queued bool
	atOnce        bool
	deadline, end time.Duration // of the wait, and of asking
	outer, before int64         // what the owner had: the token, and how many holds. Under the core's mutex, as are these:
	node          *node         // who was asked last
	asking        bool          // and its slot is on the way there
	tie           *tie
}

// An Option says how a lock is to be held.
type Option func(*request)

// Shared is with any number of others who share.
func Shared() Option {
	return func(r *request) { r.exclusive("shared"); r.limit = []string{"SHARED"} }
}

// Limit lets so many hold it at once: a semaphore.
func Limit(n int) Option {
	return func(r *request) {
		r.exclusive("limit")
		if n < 1 {
			r.err = badArgument("limit", "must be at least 1")
		}
		r.limit = []string{"LIMIT", strconv.Itoa(n)}
	}
}

func (r *request) exclusive(name string) {
	if r.limit != nil {
		r.err = badArgument(name, "is not for a lock that is shared or counted already")
	}
}

// Session ends the hold at once when the connection does. The connection is that of all goroutines.
func Session() Option { return func(r *request) { r.session = true } }

// Owner names whose lock it is; without it each hold is an owner. Nested locks of one goroutine should have one owner:
// only then can the server see that two wait for each other (ErrDeadlock).
func Owner(name string) Option {
	return func(r *request) {
		if name == "" {
			r.err = badArgument("owner", "must not be empty")
		}
		r.owner, r.named, r.looked = name, true, false
	}
}

// OnLost is called, by a goroutine of its own, when the lock is lost.
func OnLost(work func(why error)) Option { return func(r *request) { r.lost = work } }

func newRequest(settings *Settings, key string, options []Option) (*request, error) {
	r := &request{settings: settings, key: key, owner: rand.Text(), looked: true}
	if key == "" {
		return nil, badArgument("key", "must not be empty")
	}
	for _, option := range options {
		option(r)
	}
	return r, r.err
}

// within: what the owner held before is not ours to give back.
func (r *request) within(held any) {
	r.looked = true
	if held, ok := held.([]any); ok {
		r.outer, r.before = number(held[0]), number(held[1])
	}
}

func (r *request) words(name string, rest ...string) []string {
	words := make([]string, 0, 16) // room for the longest
	return append(append(words, "DLOCK."+name, r.key, r.owner), rest...)
}

func (r *request) auto(words []string) []string {
	if r.session {
		words = append(words, "SESSION")
	}
	return append(words, "AUTO", millis(r.settings.Auto))
}

func (r *request) holds(words []string) []string {
	return append(append(words, "HOLDS", strconv.FormatInt(r.before+1, 10)), r.limit...)
}

func (r *request) take() []string {
	verb := "FAIRACQUIRE"
	if r.atOnce {
		verb = "ACQUIRE"
	}
	words := r.holds(r.auto(r.words(verb, millis(r.settings.Lease))))
	if !r.atOnce {
		words = append(words, "CLAIM", millis(r.settings.Claim))
	}
	return words
}

// wait: the first lease is short, until whoever has waited has confirmed the grant.
func (r *request) wait(how ...string) []string {
	words := append(r.words("FAIRACQUIRE", millis(min(r.settings.Lease, 3*time.Second))), how...)
	return r.holds(append(words, "CLAIM", millis(r.settings.Claim)))
}

func (r *request) renew(token int64) []string {
	return r.auto(r.words("RENEW", millis(r.settings.Lease), "TOKEN", strconv.FormatInt(token, 10)))
}

// release: without a token all that is not the outer hold's.
func (r *request) release(token int64) []string {
	words := r.words("RELEASE", "HOLDS", strconv.FormatInt(r.before, 10))
	if token != 0 {
		words = append(words, "TOKEN", strconv.FormatInt(token, 10))
	}
	return words
}

func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

func number(reply any) int64 {
	n, _ := reply.(int64)
	return n
}

// SPDX-License-Identifier: MIT

package dlock

import (
	"crypto/rand"
	"encoding"
	"fmt"
	"math"
	"strconv"
	"time"
)

// An acquireRequest is one owner's request for one lock, in the words of the commands.
type acquireRequest struct {
	settings        *Settings
	key, owner      string
	named           bool   // the program has named the owner: it may re-enter
	name            string // of that owner, without what one of its requests may add
	limit           int    // how many permits may be held together; shared is unlimited
	permits         int    // how many of them its hold takes
	ephemeral       bool
	err             error
	lost            func(error)
	sent, queued    bool
	again           bool          // an answer to it was lost
	once            bool          // a try: one attempt
	deadline, until time.Duration // of the wait, and of asking again
	link            *link         // where it was sent last
	state           *state
}

const shared = math.MaxInt

// An Option says how a lock is to be held.
type Option func(*core, *acquireRequest)

// Shared shares the lock with all others who ask for it shared.
func Shared() Option {
	return func(_ *core, r *acquireRequest) { r.restrict("shared", shared) }
}

// Limit lets up to n hold the lock at once: a semaphore.
func Limit(n int) Option {
	return func(_ *core, r *acquireRequest) { r.restrict("limit", n) }
}

// Permits takes n of the limit, all at once, and gives them back together. It goes with Limit. Without it a hold takes one.
func Permits(n int) Option {
	return func(_ *core, r *acquireRequest) {
		r.permits = n
		if n < 1 {
			r.err = badArgument("permits", fmt.Sprintf("must be at least 1, not %d", n))
		}
	}
}

func (r *acquireRequest) restrict(name string, limit int) {
	switch {
	case limit < 1:
		r.err = badArgument(name, "must be at least 1")
	case r.limit != 0:
		r.err = badArgument(name, "is not for a lock that is shared or counted already")
	default:
		r.limit = limit
	}
}

// Ephemeral ends the hold as soon as the connection ends, which all goroutines share.
func Ephemeral() Option { return func(_ *core, r *acquireRequest) { r.ephemeral = true } }

// Owner names the party that holds the lock; without it each hold is a party of its own. Who asks again for a lock under
// the name that holds it here re-enters it at once. Nested locks of one goroutine should have one owner: only then does
// the server see that two wait for each other (ErrDeadlock). The name is this Locks' own: other processes that use it are
// other parties. The server shows it as host/pid/name#….
func Owner(name string) Option {
	return func(c *core, r *acquireRequest) {
		if name == "" {
			r.err = badArgument("owner", "must not be empty")
		}
		r.name, r.named = c.process+name+c.suffix, true
		r.owner = r.name
	}
}

// candidacy is an owner of this name that nobody else is.
func candidacy(name string) Option {
	return func(c *core, r *acquireRequest) { r.owner = c.process + name + "#" + rand.Text() }
}

// OnLost calls work in a goroutine of its own when the lock is lost.
func OnLost(work func(why error)) Option { return func(_ *core, r *acquireRequest) { r.lost = work } }

func newAcquireRequest(c *core, key string, options []Option) (*acquireRequest, error) {
	r := &acquireRequest{settings: &c.settings, key: key}
	if key == "" {
		return nil, badArgument("key", "must not be empty")
	}
	for _, option := range options {
		option(c, r)
	}
	if r.owner == "" {
		r.owner = c.process + rand.Text()
	}
	switch limited := r.limit != 0 && r.limit != shared; {
	case r.err != nil || r.permits == 0:
	case !limited:
		r.err = badArgument("permits", "must be given with limit")
	case r.permits > r.limit:
		r.err = badArgument("permits", fmt.Sprintf("must be at most limit, which is %d, not %d", r.limit, r.permits))
	}
	r.limit, r.permits = max(1, r.limit), max(1, r.permits)
	return r, r.err
}

func (r *acquireRequest) words(name string, rest ...string) []string {
	words := make([]string, 0, 16) // room for the longest
	return append(append(words, "DLOCK."+name, r.key, r.owner), rest...)
}

func (r *acquireRequest) auto(words []string) []string {
	if r.ephemeral {
		words = append(words, "EPHEMERAL")
	}
	return append(words, "AUTO", millis(r.settings.HangTimeout))
}

// limits says HOLDS 1, so that a request that is sent again counts once.
func (r *acquireRequest) limits(words []string) []string {
	words = append(words, "HOLDS", "1")
	switch r.limit {
	case 1:
		return words
	case shared:
		return append(words, "SHARED")
	}
	words = append(words, "LIMIT", strconv.Itoa(r.limit))
	if r.permits > 1 { // older servers do not know the word
		words = append(words, "PERMITS", strconv.Itoa(r.permits))
	}
	return words
}

func (r *acquireRequest) acquire() []string {
	verb := "FAIRACQUIRE"
	if r.once {
		verb = "ACQUIRE"
	}
	words := r.limits(r.auto(r.words(verb, millis(r.settings.Lease))))
	if !r.once {
		words = append(words, "CLAIM", millis(r.settings.QueueGrace))
	}
	return words
}

// wait asks for a short first lease, until the waiter has confirmed the grant.
func (r *acquireRequest) wait(how ...string) []string {
	words := append(r.words("FAIRACQUIRE", millis(min(r.settings.Lease, 3*time.Second))), how...)
	return r.limits(append(words, "CLAIM", millis(r.settings.QueueGrace)))
}

func (r *acquireRequest) renew(token int64) []string { return r.auto(r.untie(token, r.settings.Lease)) }

// untie renews the hold for the last time.
func (r *acquireRequest) untie(token int64, lease time.Duration) []string {
	return r.words("RENEW", millis(lease), "TOKEN", strconv.FormatInt(token, 10))
}

// release names the token, or all that this owner holds.
func (r *acquireRequest) release(token int64) []string {
	words := r.words("RELEASE", "HOLDS", "0")
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

// guardWords writes the arguments as go-redis does.
func guardWords(key string, token int64, command []any) ([]string, error) {
	if len(command) == 0 {
		return nil, badArgument("command", "must not be empty")
	}
	words := []string{"DLOCK.GUARD", key, strconv.FormatInt(token, 10)}
	for _, one := range command {
		switch one := one.(type) {
		case nil:
			words = append(words, "")
		case string:
			words = append(words, one)
		case []byte:
			words = append(words, string(one))
		case bool:
			words = append(words, map[bool]string{true: "1", false: "0"}[one])
		case float32:
			words = append(words, strconv.FormatFloat(float64(one), 'f', -1, 64))
		case float64:
			words = append(words, strconv.FormatFloat(one, 'f', -1, 64))
		case time.Time:
			words = append(words, one.Format(time.RFC3339Nano))
		case time.Duration:
			words = append(words, strconv.FormatInt(one.Nanoseconds(), 10))
		case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
			words = append(words, fmt.Sprint(one))
		case encoding.BinaryMarshaler:
			data, err := one.MarshalBinary()
			if err != nil {
				return nil, err
			}
			words = append(words, string(data))
		default:
			return nil, badArgument("command", fmt.Sprintf("has a %T, which is no word of a command", one))
		}
	}
	return words, nil
}

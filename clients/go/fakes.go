// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// FakeLocks are Locks without a server, for unit tests: give the program's code fake.Locks. They know the locks of one
// process, and have a fair queue. Guarded commands are noted, and not run: their reply is nil, or what ReplyWith
// says.
type FakeLocks struct {
	*Locks
	server *fakeServer
}

// NewFakeLocks returns locks of which nobody holds any.
func NewFakeLocks() *FakeLocks {
	server, settings := &fakeServer{}, Settings{}
	_ = settings.setDefaults() // no field is wrong
	return &FakeLocks{newLocks(func() redis.UniversalClient { return server }, settings), server}
}

// Lose takes all holds of the lock away, and reports them lost, as after a failure.
func (f *FakeLocks) Lose(key string) {
	f.server.mu.Lock()
	f.server.release(func(h fakeHold) bool { return h.key == key })
	f.server.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, h := range f.held {
		if id.key == key {
			f.lose(h, "forced")
		}
	}
}

// Commands returns what was guarded while its lock was held.
func (f *FakeLocks) Commands() [][]any {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	return slices.Clone(f.server.commands)
}

// ReplyWith sets what answers the commands that are guarded from now on.
func (f *FakeLocks) ReplyWith(reply func(command ...any) any) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	f.server.reply = reply
}

// A fakeServer answers the commands of this package, with one session whose id is 1.
type fakeServer struct {
	redis.UniversalClient // nothing else of it is called
	mu                    sync.Mutex
	token                 int64
	holds                 []fakeHold
	queue                 []fakeRequest
	rows                  []any
	commands              [][]any
	reply                 func(command ...any) any
}

type fakeHold struct {
	key, owner            string
	token, limit, permits int64
	end                   time.Time // of one that is left to its lease
}

type fakeRequest struct {
	keys                  []string
	owner                 string
	lease, limit, permits int64
	end                   time.Time
}

func (f *fakeServer) Close() error { return nil }

func (f *fakeServer) Pipeline() redis.Pipeliner { return &fakePipeline{server: f} }

type fakePipeline struct {
	redis.Pipeliner
	server *fakeServer
}

func (p *fakePipeline) Process(ctx context.Context, cmd redis.Cmder) error {
	return p.server.Process(ctx, cmd)
}

func (p *fakePipeline) Exec(context.Context) ([]redis.Cmder, error) { return nil, nil }

func (f *fakeServer) Process(ctx context.Context, cmd redis.Cmder) error {
	words := cmd.Args()
	block := time.Duration(0)
	if words[0] == "DLOCK.SESSION" {
		block = time.Duration(fakeNumber(words, "BLOCK", 0)) * time.Millisecond
	}
	for end := time.Now().Add(block); ; {
		f.mu.Lock()
		f.settle()
		reply, err := f.answer(words)
		f.settle()
		f.mu.Unlock()
		news, ok := reply.([]any)
		if ok = ok && block > 0 && len(news[3].([]any)) == 0 && time.Now().Before(end) && ctx.Err() == nil; !ok {
			one := cmd.(*redis.Cmd)
			one.SetVal(reply)
			one.SetErr(err)
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// fakeNumber returns the number behind a word of the command.
func fakeNumber(words []any, name string, usual int64) int64 {
	at := slices.Index(words, any(name)) + 1
	if at == 0 {
		return usual
	}
	switch number := words[at].(type) {
	case int64:
		return number
	case string:
		usual, _ = strconv.ParseInt(number, 10, 64)
	}
	return usual
}

func (f *fakeServer) answer(words []any) (any, error) {
	key, _ := words[1].(string)
	token := fakeNumber(words, "TOKEN", 0)
	if words[0] == "DLOCK.GUARD" {
		token, _ = words[2].(int64)
	}
	its := func(h fakeHold) bool { return h.key == key && (h.token == token || token == 0) }
	at := slices.IndexFunc(f.holds, its)
	switch words[0] {
	case "DLOCK.SESSION":
		seen, news := fakeNumber(words, "SEEN", 0), []any{}
		if seen == 1 { // the session's id; the row's number stands behind it
			seen, _ = words[slices.Index(words, any("SEEN"))+2].(int64)
		}
		for _, row := range f.rows {
			if row.([]any)[0].(int64) > seen {
				news = append(news, row)
			}
		}
		return []any{int64(1), int64(len(f.rows)), int64(60_000), news}, nil
	case "DLOCK.CANCEL":
		before := len(f.queue)
		f.queue = slices.DeleteFunc(f.queue, func(r fakeRequest) bool { return r.owner == words[2] })
		return int64(before - len(f.queue)), nil
	case "DLOCK.HELD":
		if at < 0 {
			return nil, nil
		}
		return []any{f.holds[at].token, int64(1), int64(0), f.holds[at].owner}, nil
	case "DLOCK.GUARD":
		if at < 0 {
			return nil, ServerError("FENCED the lock is not held under this token")
		}
		f.commands = append(f.commands, words[3:])
		if f.reply == nil {
			return nil, nil
		}
		return f.reply(words[3:]...), nil
	case "DLOCK.RELEASE", "DLOCK.RENEW":
		if at < 0 {
			return nil, ServerError("NOTHELD the owner does not hold this lock (under this token)")
		}
		if words[0] == "DLOCK.RELEASE" {
			f.release(its)
			return int64(0), nil
		}
		lease, _ := strconv.ParseInt(words[3].(string), 10, 64)
		if slices.Contains(words, any("IN")) {
			return []any{lease, int64(1)}, nil
		}
		f.holds[at].end = time.Now().Add(time.Duration(lease) * time.Millisecond)
		return lease, nil
	}
	return f.acquire(words), nil
}

func (f *fakeServer) acquire(words []any) any {
	r := fakeRequest{limit: fakeNumber(words, "LIMIT", 1), permits: fakeNumber(words, "PERMITS", 1)}
	in := slices.Index(words, any("IN"))
	first := 1
	if words[0] == "DLOCK.MACQUIRE" {
		first = 2
	}
	for _, key := range words[first : in-2] {
		r.keys = append(r.keys, key.(string))
	}
	r.owner, _ = words[in-2].(string)
	if slices.Contains(words, any("SHARED")) {
		r.limit = math.MaxInt64
	}
	waits := len(f.queue) > 0 && slices.ContainsFunc(f.queue, func(one fakeRequest) bool { return one.shares(r) })
	if !waits && f.fits(r) {
		var tokens []any
		for _, key := range r.keys {
			tokens = append(tokens, f.grant(key, r))
		}
		if len(tokens) > 1 {
			return []any{tokens, int64(1)}
		}
		return []any{tokens[0], int64(1)}
	}
	block := fakeNumber(words, "BLOCK", -1)
	if block < 0 {
		return nil
	}
	if block > 0 {
		r.end = time.Now().Add(time.Duration(block) * time.Millisecond)
	}
	f.queue = append(f.queue, r)
	return []any{int64(0), int64(len(f.queue)), int64(1)}
}

func (r fakeRequest) shares(other fakeRequest) bool {
	return slices.ContainsFunc(r.keys, func(key string) bool { return slices.Contains(other.keys, key) })
}

func (f *fakeServer) fits(r fakeRequest) bool {
	for _, key := range r.keys {
		limit, permits := r.limit, r.permits
		for _, h := range f.holds {
			if h.key == key {
				limit, permits = min(limit, h.limit), permits+h.permits
			}
		}
		if permits > limit {
			return false
		}
	}
	return true
}

func (f *fakeServer) grant(key string, r fakeRequest) (token int64) {
	f.token++
	f.holds = append(f.holds, fakeHold{key, r.owner, f.token, r.limit, r.permits, time.Time{}})
	return f.token
}

func (f *fakeServer) release(which func(fakeHold) bool) {
	f.holds = slices.DeleteFunc(f.holds, which)
	f.settle()
}

// settle ends what has ended, and grants what can be granted, in order.
func (f *fakeServer) settle() {
	f.holds = slices.DeleteFunc(f.holds, func(h fakeHold) bool { return !h.end.IsZero() && !time.Now().Before(h.end) })
	var before []fakeRequest
	for _, r := range f.queue {
		switch {
		case !slices.ContainsFunc(before, r.shares) && f.fits(r):
			for _, key := range r.keys {
				f.row("granted", key, r.owner, f.grant(key, r))
			}
		case !r.end.IsZero() && !time.Now().Before(r.end):
			f.row("timeout", r.keys[0], r.owner, 0)
		default:
			before = append(before, r)
		}
	}
	f.queue = before
}

func (f *fakeServer) row(word, key, owner string, token int64) {
	f.rows = append(f.rows, []any{int64(len(f.rows) + 1), word, key, owner, token, int64(60_000)})
}

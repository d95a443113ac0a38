// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// An Election has one leader at a time: the candidate that holds its lock. The fencing token is the term.
//
//	election, err := locks.Election("reports", "worker-1")
//	…
//	hold, err := election.Campaign(ctx) // waits until this one leads
//	defer election.Resign(ctx)
//	for election.IsLeader() {
//		work(hold)                      // hold.Guard refuses what comes too late; hold.Done ends the term
//	}
//
// A leader that receives no answer from the server steps down before its lease ends there, by its own clock.
type Election struct {
	locks     *Locks
	key, name string
	mu        sync.Mutex
	hold      *Hold
	options   []Option
	turn      chan struct{} // one campaign at a time
}

// A Leader is who leads, and since which term. The zero value: nobody.
type Leader struct {
	Name string
	Term int64
}

// Election is for one candidate. The name is shown to others; those of one name are rivals all the same.
func (l *Locks) Election(key, name string, options ...Option) (*Election, error) {
	if key == "" {
		return nil, badArgument("key", "must not be empty")
	}
	if name == "" {
		return nil, badArgument("name", "must not be empty")
	}
	if _, err := l.newRequest([]string{key}, options); err != nil {
		return nil, err
	}
	return &Election{locks: l, key: key, name: name, options: options, turn: make(chan struct{}, 1)}, nil
}

// Campaign waits until this candidate leads or the context ends. A candidate that already leads gets its present hold.
func (e *Election) Campaign(ctx context.Context) (*Hold, error) {
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if hold := e.leading(); hold != nil {
		return hold, nil
	}
	_ = e.Resign(ctx) // after a pause the server may still have the last term: else this candidate would wait for itself
	hold, err := e.locks.Lock(ctx, e.key, append(slices.Clone(e.options), Actor(e.name+"#"+rand.Text()))...)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold = hold
	return hold, nil
}

func (e *Election) leading() *Hold {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hold != nil && (e.hold.Lost() != nil || e.hold.Left() <= 0) {
		return nil
	}
	return e.hold
}

// IsLeader returns true while the lease lasts for sure. It sends nothing.
func (e *Election) IsLeader() bool { return e.leading() != nil }

// Resign releases the lead. It is no error not to lead.
func (e *Election) Resign(ctx context.Context) error {
	e.mu.Lock()
	hold := e.hold
	e.hold = nil
	e.mu.Unlock()
	if hold == nil || hold.Lost() != nil {
		return nil
	}
	if err := hold.Release(ctx); !errors.Is(err, ErrNotHeld) {
		return err
	}
	return nil
}

// Lead waits until this candidate leads, runs the work under a context that ends with the term, and resigns.
func (e *Election) Lead(ctx context.Context, work func(context.Context, *Hold) error) (err error) {
	hold, err := e.Campaign(ctx)
	if err != nil {
		return err
	}
	term, end := hold.Context(ctx)
	defer end()
	defer func() {
		if failed := e.Resign(ctx); err == nil {
			err = failed
		}
	}()
	return work(term, hold)
}

// Term is the fencing token while it leads, else 0. It rises with each election.
func (e *Election) Term() int64 {
	if hold := e.leading(); hold != nil {
		return hold.Token
	}
	return 0
}

// Guard runs a write under the term: ErrFenced if another one leads, ErrNotHeld if this one knows that it does not.
func (e *Election) Guard(ctx context.Context, command ...any) (any, error) {
	hold := e.leading()
	if hold == nil {
		return nil, fmt.Errorf("%w: %q does not lead", ErrNotHeld, e.name)
	}
	return hold.Guard(ctx, command...)
}

// Who is the former name of Leader.
//
// Deprecated: call Leader.
func (e *Election) Who(ctx context.Context) (Leader, error) { return e.Leader(ctx) }

// Leader asks the server who leads.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	reply, err := e.locks.heldBy(ctx, e.key)
	held, ok := reply.([]any)
	if err != nil || !ok {
		return Leader{}, err
	}
	owner, _ := held[3].(string)
	return Leader{nameOf(owner), number(held[0])}, nil
}

// nameOf returns the candidate's name in an owner's: host/pid/session/name#campaign#number.
func nameOf(owner string) string {
	if words := strings.SplitN(owner, "/", 4); len(words) == 4 {
		if _, err := strconv.Atoi(words[1]); err == nil {
			owner = words[3]
		}
	}
	for range 2 {
		owner = owner[:max(strings.LastIndexByte(owner, '#'), 0)]
	}
	return owner
}

// Observe gives who leads now, and each change (the last one, if the reader is slow), until the context ends. It asks the
// server once a second, and so may miss who led for less.
func (e *Election) Observe(ctx context.Context) <-chan Leader {
	leaders := make(chan Leader)
	go func() {
		defer close(leaders)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var last Leader
		for first := true; ; {
			leader, err := e.Leader(ctx)
			var news chan Leader
			if err == nil && (first || leader != last) {
				news = leaders
			}
			for asks := false; !asks; {
				select {
				case news <- leader:
					first, last, news = false, leader, nil
				case <-tick.C: // a slow reader gets the leader of the next check
					asks = true
				case <-ctx.Done():
					return
				case <-e.locks.ctx.Done():
					return
				}
			}
		}
	}()
	return leaders
}

// SPDX-License-Identifier: MIT

package dlock

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

type (
	id struct {
		key   string
		token int64
	}
	place struct{ key, owner string }
)

// A tie is a hold that a link's server renews for us. Under the core's mutex.
type tie struct {
	request *request
	token   int64
	node    *node         // whose keeper renews it
	asking  bool          // its slot is on the way there
	handed  time.Duration // when it came there
	serial  int
	until   time.Duration
	link    *link
	session bool // its link, when it dies, takes it along
	states  []*state
}

func (t *tie) name() id { return id{t.request.key, t.token} }

// live: somebody has it. Under the core's mutex.
func (t *tie) live() bool {
	return slices.ContainsFunc(t.states, func(s *state) bool { return !s.isOver() })
}

func (t *tie) attach(l *link, until time.Duration) {
	t.until = max(t.end(), until)
	if t.link != l {
		t.detach()
		l.ties++
		t.link = l
	}
	l.serial++
	t.serial = l.serial
}

func (t *tie) detach() {
	if t.link != nil {
		t.until = t.end()
		t.link.ties--
		t.link = nil
	}
}

// end: until then it is ours.
func (t *tie) end() time.Duration {
	if t.link != nil && t.serial <= t.link.kept {
		return max(t.until, t.link.believed)
	}
	return t.until
}

// A farewell is what is to be given back, and when its lease has ended anyhow.
type farewell struct {
	request *request
	token   int64 // 0: it is the wait that is left
	until   time.Duration
	asking  bool // its slot is on the way to where it is to be said
	handed  time.Duration
}

type message struct {
	word          string
	token, number int64
}

type waiter struct{ messages chan message }

func (w *waiter) tell(one message) {
	select {
	case w.messages <- one:
	default: // so many, and nobody has read them: the first is enough to ask again
	}
}

// A node is a server that we talk to, and what we have there.
type node struct {
	core    *core
	name    string
	opening chan struct{}
	kick    chan struct{}
	rings   *time.Timer // it is time for the next round

	// Under the core's mutex.
	link, ear   *link
	deaf, awake bool
	ties        map[id]*tie
	waits       map[place][]*waiter
	leaving     []farewell
	trouble     error // what has come of giving back and of tying anew
}

func (n *node) currentLink() *link {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.link
}

// hears says whether messages come from the node, and whether they never will.
func (n *node) hears() (heard, deaf bool) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.ear.alive(), n.deaf
}

func (n *node) idle() bool { return len(n.ties)+len(n.waits)+len(n.leaving) == 0 }

// rouse wakes the keeper at once.
func (n *node) rouse() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// wake: there is something to be kept or left, in its time: most locks are given back before that. Under the core's mutex.
func (n *node) wake() {
	if !n.awake {
		n.awake = true
		n.rings.Reset(n.core.settings.interval())
	}
}

// receive wakes the keeper for what was handed over to it: at once, and what is handed to and fro in its time. Under the
// core's mutex.
func (n *node) receive(handed *time.Duration) {
	if at := now(); at-*handed > n.core.settings.interval() {
		*handed = at
		n.rouse()
	} else {
		n.wake()
	}
}

// parted: with a connection end the holds with SESSION and the places of those who wait, and the others are to be tied anew.
func (n *node) parted(l *link) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	n.tell(message{word: "again"})
	if l.ties == 0 {
		return
	}
	for _, t := range n.ties {
		if t.session && t.link == l {
			n.core.lose(t, "session")
		}
	}
	n.rouse()
}

// tell tells all who wait. Under the core's mutex.
func (n *node) tell(one message) {
	for _, waits := range n.waits {
		for _, w := range waits {
			w.tell(one)
		}
	}
}

// heard: WORD TOKEN SIZE:KEY SIZE:OWNER NUMBER.
func (n *node) heard(text string) {
	word, text, _ := strings.Cut(text, " ")
	token, text, _ := strings.Cut(text, " ")
	var names [2]string
	for i := range names {
		size, rest, _ := strings.Cut(text, ":")
		count, err := strconv.Atoi(size)
		if err != nil || count < 0 || count >= len(rest) {
			return
		}
		names[i], text = rest[:count], rest[count+1:]
	}
	one := message{word: word}
	one.token, _ = strconv.ParseInt(token, 10, 64)
	one.number, _ = strconv.ParseInt(text, 10, 64)
	if one.number == 0 { // only our own have none
		return
	}
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	for _, w := range n.waits[place{names[0], names[1]}] {
		w.tell(one)
	}
}

// SPDX-License-Identifier: MIT

package dlock

import (
	"strconv"
	"strings"
	"time"
)

type notification struct {
	word          string
	token, number int64
}

type waiter struct{ notifications chan notification }

func (w *waiter) notify(one notification) {
	select {
	case w.notifications <- one:
	default: // it has not read the earlier ones: the first is enough to ask again
	}
}

// A node is a server, and what this client has there.
type node struct {
	core  *core
	name  string
	kick  chan struct{}
	rings *time.Timer // it is time for the next round

	// Under the core's mutex.
	link, subscriber  *link
	opening           *opening // of the link
	subscribing       *opening
	subscribeDenied   bool
	running           bool
	handed            time.Duration // when another node's renewals came last
	waits             map[place]*waiter
	crowd             map[string]int // how many wait for a key
	trouble           error          // why the last KEEP was not answered
	refused, reported bool           // and it was refused for good; and that is logged
}

// subscribed reports whether messages come from the node, and whether they never will.
func (n *node) subscribed() (heard, denied bool) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.subscriber.alive(), n.subscribeDenied
}

// crowded reports whether others of this program wait for the lock, and would hear of it.
func (n *node) crowded(key string) bool {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.crowd[key] > 0 && n.subscriber.alive()
}

// rouse starts a round of the keeper at once.
func (n *node) rouse() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// wake starts a round in its time: most locks are given back before that. Under the core's mutex.
func (n *node) wake() {
	if !n.running {
		n.running = true
		n.rings.Reset(n.core.settings.interval())
	}
}

// receive starts a round for a renewal of another node: at once, but for those that are handed to and fro. Under the
// core's mutex.
func (n *node) receive() {
	if at := now(); n.handed == 0 || at-n.handed > n.core.settings.interval() {
		n.handed = at
		n.rouse()
	} else {
		n.wake()
	}
}

// parted is called when a connection has ended: holds with EPHEMERAL and places in queues end with it, and the other
// holds are to be renewed for another one.
func (n *node) parted(l *link) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	n.notify(notification{word: "again"})
	if l.renewals == 0 {
		return
	}
	for _, t := range n.core.renewals {
		if t.request.ephemeral && t.link == l {
			n.core.lose(t, "closed")
		}
	}
	n.rouse()
}

// notify tells all waiters. Under the core's mutex.
func (n *node) notify(one notification) {
	for _, w := range n.waits {
		w.notify(one)
	}
}

// message reads WORD TOKEN SIZE:KEY SIZE:OWNER NUMBER. Others may publish on the channel: anything else is ignored.
func (n *node) message(text string) {
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
	one := notification{word: word}
	one.token, _ = strconv.ParseInt(token, 10, 64)
	one.number, _ = strconv.ParseInt(text, 10, 64)
	if one.number == 0 { // only those of this client have none
		return
	}
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	if w := n.waits[place{names[0], names[1]}]; w != nil {
		w.notify(one)
	}
}

// SPDX-License-Identifier: MIT

package dlock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

var errNoAnswer = fmt.Errorf("%w: the server does not answer", ErrUnreachable)

const (
	// A link outlives its bound by this: who has given up leaves behind what was sent, in case the server only hangs.
	lastWords = 100 * time.Millisecond

	few    = 16                    // commands under way: with more a buffer may be full
	moment = 10 * time.Millisecond // a wait may end this much late
)

// A handler is called with a reply where it is read.
type handler func(l *link, sent time.Duration, reply any, err error)

// An entry is a command whose reply is to come.
type entry struct {
	then      handler
	done      chan struct{}
	reply     any
	err       error
	sent, due time.Duration
}

// A link is one connection to a node that everybody shares: one writes at a time, and a goroutine reads replies in the
// order of the commands. What a reply changes is changed where it is read (then), whether or not anybody waits for it.
type link struct {
	node    *node
	bound   time.Duration
	conn    net.Conn
	closer  func()                     // what the library has around the connection
	onReply func(reply any, err error) // a subscriber's: nothing that comes answers a command

	mu      sync.Mutex
	pending []*entry
	watched bool
	writing bool // somebody does
	out     []byte
	err     error
	over    chan struct{}

	// Under the core's mutex. What is believed holds for renewals up to the serial number kept.
	renewals, serial, kept, surplus int
	believed                        time.Duration
	short                           bool // one of them may not last
}

func newLink(n *node, conn net.Conn, closer func()) *link {
	return &link{node: n, conn: conn, closer: closer, bound: n.core.settings.ReplyTimeout, over: make(chan struct{})}
}

func (l *link) start() *link {
	go l.read()
	return l
}

// write writes this, and gives what has come meanwhile. Nothing: nobody writes any more.
func (l *link) write(data []byte) []byte {
	if _, err := l.conn.Write(data); err != nil {
		l.die(unreachable(err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next(data[:0])
}

// next gives what there is to write, for a buffer that is free again. Under the link's mutex.
func (l *link) next(buffer []byte) (data []byte) {
	data, l.out = l.out, buffer
	l.writing = len(data) > 0
	return data
}

func (l *link) writeAll(data []byte) {
	for len(data) > 0 {
		data = l.write(data)
	}
}

func (l *link) read() {
	from := bufio.NewReaderSize(l.conn, 16<<10)
	for {
		reply, err := parse(from)
		var said ServerError
		if err != nil && !errors.As(err, &said) {
			l.die(unreachable(err))
			return
		}
		if l.onReply != nil {
			l.onReply(reply, err)
			continue
		}
		l.mu.Lock()
		if len(l.pending) == 0 {
			l.mu.Unlock()
			l.die(unreachable(errors.New("a reply to nothing")))
			return
		}
		one := l.pending[0]
		l.pending[0], l.pending = nil, l.pending[1:]
		l.mu.Unlock()
		l.answer(one, reply, err)
	}
}

func (l *link) answer(one *entry, reply any, err error) {
	one.reply, one.err = reply, err
	if one.then != nil {
		one.then(l, one.sent, reply, err)
	}
	close(one.done)
}

// post sends a command and waits for nothing.
func (l *link) post(words []string, then handler, asking bool) (*entry, error) {
	sent := now()
	one := &entry{then: then, done: make(chan struct{}), sent: sent, due: sent + l.bound + lastWords}
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return nil, l.err
	}
	if asking {
		l.out = pack(l.out, []string{"ASKING"})
		l.pending = append(l.pending, &entry{done: make(chan struct{}), sent: sent, due: one.due})
	}
	l.out = pack(l.out, words)
	if l.onReply == nil {
		l.pending = append(l.pending, one)
		if !l.watched {
			l.watched = true
			time.AfterFunc(min(l.bound, another), l.watch)
		}
	}
	if l.writing { // whoever does takes it along
		l.mu.Unlock()
		return one, nil
	}
	data, here := l.next(nil), len(l.pending) <= few
	l.mu.Unlock()
	if here { // with so little under way no buffer is full: it cannot block, and costs no switch of goroutines
		data = l.write(data)
	}
	if len(data) > 0 { // the rest, or all of it
		go l.writeAll(data)
	}
	return one, nil
}

// watch ends the link when a reply is missing for the bound: nobody knows any more what the server has read.
func (l *link) watch() {
	l.mu.Lock()
	late, age := time.Duration(-1), time.Duration(0)
	if l.watched = len(l.pending) > 0; l.watched {
		oldest := l.pending[0]
		late, age = now()-oldest.due, now()-oldest.sent
		if late < 0 {
			time.AfterFunc(max(moment, min(-late, another-min(age, another/2))), l.watch)
		}
	}
	l.mu.Unlock()
	switch {
	case late >= 0:
		l.die(errNoAnswer)
	case age >= another:
		go l.node.core.overdue(l)
	}
}

func (l *link) address() string { return l.conn.RemoteAddr().String() }

// result waits for the reply. The link ends what is late, so only who waits for less needs a timer.
func (e *entry) result(ctx context.Context, until time.Duration) (any, error) {
	var late <-chan time.Time
	if until < e.due-moment {
		timer := time.NewTimer(until - now())
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-e.done:
		return e.reply, e.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-late:
		return nil, errNoAnswer
	}
}

// die fails all commands that are under way, and all later ones. It must not be called under the core's mutex.
func (l *link) die(why error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = why
	pending := l.pending
	l.pending, l.out = nil, nil
	close(l.over)
	l.mu.Unlock()
	_ = l.conn.Close()
	go l.closer()
	for _, one := range pending {
		l.answer(one, nil, why)
	}
	l.node.parted(l)
}

func (l *link) alive() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err == nil
}

func pack(to []byte, words []string) []byte {
	head := func(kind byte, n int) {
		to = append(strconv.AppendInt(append(to, kind), int64(n), 10), '\r', '\n')
	}
	head('*', len(words))
	for _, word := range words {
		head('$', len(word))
		to = append(append(to, word...), '\r', '\n')
	}
	return to
}

// parse reads one reply of RESP2: nil, int64, string, []any; the server's errors are ServerError.
func parse(from *bufio.Reader) (any, error) {
	line, err := from.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, fmt.Errorf("unexpected reply: %q", line)
	}
	text := line[1 : len(line)-2]
	switch line[0] {
	case '+':
		return text, nil
	case '-':
		return nil, ServerError(text)
	case ':':
		return strconv.ParseInt(text, 10, 64)
	case '$', '*':
		size, err := strconv.Atoi(text)
		if err != nil || size < 0 {
			return nil, err
		}
		if line[0] == '$' {
			data := make([]byte, size+2)
			_, err := io.ReadFull(from, data)
			return string(data[:size]), err
		}
		values := make([]any, 0, min(size, 1024))
		for range size {
			value, err := parse(from)
			if said := ServerError(""); errors.As(err, &said) {
				value, err = said, nil
			}
			if err != nil {
				return nil, err
			}
			values = append(values, value)
		}
		return values, nil
	}
	return nil, fmt.Errorf("unexpected reply: %q", line)
}

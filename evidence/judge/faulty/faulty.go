// Package faulty makes a faulty server of a real one. It stands between clients and server and changes the traffic as a server
// with the fault would. The judge must find each fault in the clients' records.
package faulty

import (
	"bufio"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"dlock.example/judge/server"
)

// Fault is a planted fault.
type Fault string

// The faults.
const (
	// None shows that the findings are not caused by this proxy.
	None Fault = "none"
	// SecondGrant grants a lock that is held.
	SecondGrant Fault = "second grant"
	// LostRelease answers a RELEASE that the server never sees.
	LostRelease Fault = "lost release"
	// TokenSetBack grants with a token below the last one of the lock.
	TokenSetBack Fault = "token set back"
	// SwappedWaiters swaps two owners in the queue.
	SwappedWaiters Fault = "swapped waiters"
	// LateLease ends leases 400 ms late.
	LateLease Fault = "lease 400 ms late"
	// UnreportedDisconnect keeps a connection open after its client has gone.
	UnreportedDisconnect Fault = "disconnect not reported"
	// LostEnd answers the SESSION command that ends a session, which the server never sees.
	LostEnd Fault = "session not ended"
)

// All are the faults that must be found.
var All = []Fault{SecondGrant, LostRelease, TokenSetBack, SwappedWaiters, LateLease, UnreportedDisconnect, LostEnd}

// Door is the address at which clients connect to the faulty server.
type Door struct {
	fault    Fault
	server   string
	listener net.Listener
	// armed is the earliest time of the fault.
	armed time.Time

	mutex   sync.Mutex
	planted int
	first   int64
	// last is the last token granted, by key.
	last map[string]int64
	// queued are the owners whose tickets the server has confirmed, by key, in order.
	queued map[string][]string
	// swapped are two owners, and the key at which each has the other's name.
	swapped [2]string
	at      string
	// leases are the beginnings of the owners' leases, by key and owner.
	leases map[[2]string]time.Time
	// links are all connections, by the server's id.
	links map[int64]*link
}

// Open listens for clients of a server with this fault, which shows once, after this time.
func Open(to string, fault Fault, after time.Duration) (*Door, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &Door{
		fault: fault, server: to, listener: listener, armed: time.Now().Add(after),
		last: map[string]int64{}, queued: map[string][]string{}, links: map[int64]*link{},
		leases: map[[2]string]time.Time{},
	}
	go d.accept()
	return d, nil
}

// Address returns the door's address.
func (d *Door) Address() string { return d.listener.Addr().String() }

// Planted returns how often the fault has occurred, and when it first did, in microseconds of the wall clock.
func (d *Door) Planted() (int, int64) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.planted, d.first
}

// plant notes an occurrence of the fault.
func (d *Door) plant() {
	if d.planted == 0 {
		d.first = time.Now().UnixMicro()
	}
	d.planted++
}

// Close closes the door and all connections through it.
func (d *Door) Close() {
	d.listener.Close()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for _, l := range d.links {
		l.client.Close()
		l.server.Close()
	}
}

// isDue tells if the fault must occur now. It occurs once, except for leases, all of which are late, and for disconnects: the first
// may be of a hold that nobody asks for again.
func (d *Door) isDue(fault Fault) bool {
	often := fault == LateLease || fault == UnreportedDisconnect
	return d.fault == fault && time.Now().After(d.armed) && (d.planted == 0 || often)
}

func (d *Door) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", d.server)
		if err != nil {
			client.Close()
			continue
		}
		l := &link{door: d, client: client, server: to, replies: make(chan server.Value), from: bufio.NewReader(to)}
		go l.serve()
	}
}

// link is one connection through the door.
type link struct {
	door           *Door
	client, server net.Conn
	from           *bufio.Reader
	replies        chan server.Value
	id             int64
	// tied are key and owner of its hold by EPHEMERAL; orphan tells that its client has gone and the server does not
	// know.
	tied   []string
	orphan bool
}

func (l *link) serve() {
	commands := make(chan []string)
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer close(commands)
		from := bufio.NewReader(l.client)
		for {
			v, err := server.Read(from)
			if err != nil {
				return
			}
			select {
			case commands <- v.Words():
			case <-done:
				return
			}
		}
	}()
	go func() {
		defer close(l.replies)
		for {
			v, err := server.Read(l.from)
			if err != nil {
				return
			}
			select {
			case l.replies <- v:
			case <-done:
				return
			}
		}
	}()
	for {
		var words []string
		open := true
		select {
		case words, open = <-commands:
		case _, open = <-l.replies:
		}
		if open {
			open = l.carry(words, commands)
		}
		if !open {
			l.end()
			return
		}
	}
}

// end closes a link, or only its client's side if the server must not learn of it.
func (l *link) end() {
	l.client.Close()
	l.door.mutex.Lock()
	keeps := l.orphan || l.tied != nil && l.door.isDue(UnreportedDisconnect) && l.door.holds(l.tied)
	if keeps && !l.orphan {
		l.orphan = true
		l.door.plant()
	}
	l.door.mutex.Unlock()
	if !keeps {
		l.server.Close()
	}
}

// holds tells if an owner holds a lock, according to another connection. Otherwise the server could miss nothing.
func (d *Door) holds(tied []string) bool {
	c, err := server.Open(d.server)
	if err != nil {
		return false
	}
	defer c.Close()
	held, err := c.Do("DLOCK.HELD", tied[0], tied[1])
	return err == nil && held.Kind == server.Array && !held.Null
}

// ask sends a command to the server and waits for its reply. It returns false if either side has ended.
func (l *link) ask(words []string, commands <-chan []string) (server.Value, bool) {
	if _, err := l.server.Write(server.Command(words).Append(nil)); err != nil {
		return server.Value{}, false
	}
	select {
	case v, open := <-l.replies:
		return v, open
	case <-commands:
		// The client sends one command at a time, so it has gone.
		return server.Value{}, false
	}
}

func (l *link) tell(v server.Value) bool {
	_, err := l.client.Write(v.Append(nil))
	return err == nil
}

// carry takes a command to the server and its reply back, changed by the fault.
func (l *link) carry(words []string, commands <-chan []string) bool {
	d := l.door
	name := strings.ToUpper(words[0])
	if name == "CLIENT" {
		return l.clientCommand(words, commands)
	}
	if !strings.HasPrefix(name, "DLOCK.") || len(words) < 3 {
		reply, open := l.ask(words, commands)
		return open && l.tell(reply)
	}
	takes := name == "DLOCK.ACQUIRE" || name == "DLOCK.FAIRACQUIRE"
	words = slices.Clone(words)
	key, owner := words[1], words[2]
	d.mutex.Lock()
	lostEnd := name == "DLOCK.SESSION" && words[3] == "0" && d.isDue(LostEnd)
	second, lost := takes && d.isDue(SecondGrant), name == "DLOCK.RELEASE" && d.isDue(LostRelease)
	if takes && d.isDue(LateLease) && words[3] == "300" {
		words[3] = "700"
	}
	if d.at == key && name != "DLOCK.POSITION" {
		words[2] = d.alias(owner)
	}
	d.mutex.Unlock()
	switch {
	case second:
		return l.secondGrant(words, commands)
	case lostEnd:
		return l.lostEnd(words, commands)
	case lost:
		return l.lostRelease(words, commands)
	}
	reply, open := l.ask(words, commands)
	if !open {
		return false
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.fault == LateLease {
		d.noteLease(name, key, owner, reply)
	}
	if takes && reply.Kind == server.Array && !reply.Null {
		if slices.Contains(words, "EPHEMERAL") {
			l.tied = []string{key, owner}
		}
		token := &reply.Items[0].Number
		if last := d.last[key]; last != 0 && *token > last && d.isDue(TokenSetBack) {
			*token = last - 1
			d.plant()
		} else {
			d.last[key] = *token
		}
	}
	if name == "DLOCK.HELD" && d.at == key && len(reply.Items) > 3 {
		reply.Items[3].Text = d.alias(reply.Items[3].Text)
	}
	if name == "DLOCK.FAIRACQUIRE" {
		d.note(key, owner, reply.Null && !slices.Contains(words, "BLOCK"))
	}
	return l.tell(reply)
}

// alias returns the name of an owner at the key where two are swapped.
func (d *Door) alias(owner string) string {
	switch owner {
	case d.swapped[0]:
		return d.swapped[1]
	case d.swapped[1]:
		return d.swapped[0]
	}
	return owner
}

// note keeps the tickets that the server has confirmed: by null, without waiting. The first two are swapped when the fault is
// due.
func (d *Door) note(key, owner string, queued bool) {
	all := d.queued[key]
	at := slices.Index(all, owner)
	switch {
	case queued && at < 0:
		all = append(all, owner)
	case !queued && at >= 0:
		all = slices.Delete(all, at, at+1)
	}
	d.queued[key] = all
	if queued && len(all) >= 2 && d.isDue(SwappedWaiters) {
		d.at, d.swapped = key, [2]string{all[0], all[1]}
		d.plant()
	}
}

// noteLease notes renewed leases. The fault occurs when a client sees its hold 100 ms after it should have ended.
func (d *Door) noteLease(name, key, owner string, reply server.Value) {
	whose := [2]string{key, owner}
	began, isLate := d.leases[whose]
	isFine := reply.Kind != server.Error && !reply.Null
	switch name {
	case "DLOCK.ACQUIRE":
		if isFine && d.isDue(LateLease) {
			d.leases[whose] = time.Now()
		}
	case "DLOCK.RENEW":
		delete(d.leases, whose)
	case "DLOCK.RELEASE", "DLOCK.HELD":
		if isLate && isFine && time.Since(began) > 400*time.Millisecond {
			d.plant()
		}
		if !isFine || reply.Kind == server.Number && reply.Number == 0 {
			delete(d.leases, whose)
		}
	}
}

// secondGrant grants a request that the server refuses because the lock is held.
func (l *link) secondGrant(words []string, commands <-chan []string) bool {
	if at := slices.Index(words, "BLOCK"); at >= 0 {
		words = slices.Delete(words, at, at+2)
	}
	reply, open := l.ask(words, commands)
	if !open {
		return false
	}
	if reply.Null {
		token := server.Value{Kind: server.Number, Number: time.Now().UnixMicro()}
		reply = server.Value{Kind: server.Array, Items: []server.Value{token, {Kind: server.Number, Number: 1}}}
		l.door.mutex.Lock()
		l.door.plant()
		l.door.mutex.Unlock()
	}
	return l.tell(reply)
}

// lostRelease answers as the server would, without releasing, if this would be the last hold.
func (l *link) lostRelease(words []string, commands <-chan []string) bool {
	held, open := l.ask([]string{"DLOCK.HELD", words[1], words[2]}, commands)
	if !open {
		return false
	}
	named := slices.Index(words, "TOKEN")
	isHeld := !held.Null && (named < 0 || words[named+1] == strconv.FormatInt(held.Items[0].Number, 10))
	isLast := isHeld && (held.Items[1].Number == 1 || slices.Contains(words, "HOLDS"))
	if !isLast {
		reply, open := l.ask(words, commands)
		return open && l.tell(reply)
	}
	l.door.mutex.Lock()
	l.door.plant()
	l.door.mutex.Unlock()
	return l.tell(server.Value{Kind: server.Number, Number: 0})
}

// lostEnd answers as the server would, without ending the session, if there is a hold in it.
func (l *link) lostEnd(words []string, commands <-chan []string) bool {
	news, open := l.ask(append(slices.Clone(words[:3]), "1"), commands)
	if !open || len(news.Items) < 4 {
		return false
	}
	if news.Items[2].Null {
		reply, open := l.ask(words, commands)
		return open && l.tell(reply)
	}
	l.door.mutex.Lock()
	l.door.plant()
	l.door.mutex.Unlock()
	news.Items[2], news.Items[3] = server.Value{Kind: server.Bulk, Null: true}, server.Value{Kind: server.Array}
	return l.tell(news)
}

// clientCommand hides the connections that the server should have closed.
func (l *link) clientCommand(words []string, commands <-chan []string) bool {
	d := l.door
	if len(words) > 3 {
		id, _ := strconv.ParseInt(words[3], 10, 64)
		d.mutex.Lock()
		other := d.links[id]
		if strings.EqualFold(words[1], "KILL") && d.fault == UnreportedDisconnect && other != nil {
			// It ends like one whose client has gone.
			other.client.Close()
			d.mutex.Unlock()
			return l.tell(server.Value{Kind: server.Number, Number: 1})
		}
		hidden := other != nil && other.orphan
		d.mutex.Unlock()
		if hidden {
			return l.tell(server.Value{Kind: server.Bulk})
		}
	}
	reply, open := l.ask(words, commands)
	if !open {
		return false
	}
	if strings.EqualFold(words[1], "ID") {
		d.mutex.Lock()
		l.id = reply.Number
		d.links[l.id] = l
		d.mutex.Unlock()
	}
	return l.tell(reply)
}

// Package scenes plays clients at the server while it records their histories.
package scenes

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"dlock.example/judge/history"
	"dlock.example/judge/lock"
	"dlock.example/judge/server"
)

// Longer than any scene: the renewal of a hold that is tied by AUTO.
const autoMs = 600_000

// Kind is a kind of scene.
type Kind struct {
	Name string
	// Long and Short are its leases in milliseconds.
	Long, Short int64
	locks       int
	claimMs     int64
	// many: an owner of this scene asks for several locks, and asks again only when nothing is left of its earlier request.
	many bool
	// cutEvery is how often a connection is cut, on average.
	cutEvery time.Duration
	turn     func(*client)
}

const (
	long  = 60_000
	short = 300
	// The shortest lease that the server renews is a second.
	shortAuto = 1_200
)

// Kinds are all kinds of scenes.
var Kinds = []Kind{
	{Name: "mutex", Long: long, Short: short, locks: 1, cutEvery: 1500 * time.Millisecond, turn: mutex},
	{Name: "readers and writers", Long: long, Short: short, locks: 1, cutEvery: 1500 * time.Millisecond, turn: readersAndWriters},
	{Name: "semaphore", Long: long, Short: short, locks: 1, cutEvery: 1500 * time.Millisecond, turn: semaphore},
	{Name: "tickets", Long: long, Short: short, locks: 1, claimMs: 700, cutEvery: 1000 * time.Millisecond, turn: tickets},
	{Name: "EPHEMERAL", Long: long, Short: short, locks: 1, cutEvery: 300 * time.Millisecond, turn: ephemeral},
	{Name: "AUTO", Long: long, Short: shortAuto, locks: 1, cutEvery: 600 * time.Millisecond, turn: auto},
	{Name: "upgrades", Long: long, Short: short, locks: 1, cutEvery: 1500 * time.Millisecond, turn: upgrades},
	{Name: "MACQUIRE of two", Long: long, Short: short, locks: 2, many: true, cutEvery: 1500 * time.Millisecond, turn: pairs},
	{Name: "sessions", Long: long, Short: shortAuto, locks: 1, cutEvery: 1000 * time.Millisecond, turn: sessions},
}

// Named returns the kind of this name.
func Named(name string) *Kind {
	for i := range Kinds {
		if Kinds[i].Name == name {
			return &Kinds[i]
		}
	}
	panic("there is no scene " + name)
}

// Scene is one scene that is being played. It embeds its history.
type Scene struct {
	*history.History
	kind   *Kind
	server *server.Server
	door   string
	keys   []string
	token  atomic.Uint64

	mutex   sync.Mutex
	failure error
}

var played atomic.Int64

// New returns a scene of this kind, at locks that no other scene has. Its clients connect by this door, if one is named.
func New(kind *Kind, leaseMs int64, to *server.Server, door string) *Scene {
	s := &Scene{History: history.New(kind.Name, kind.locks, leaseMs, kind.claimMs), kind: kind, server: to, door: door}
	n := played.Add(1)
	for i := range kind.locks {
		s.keys = append(s.keys, fmt.Sprintf("scene:%d:%d", n, i))
	}
	return s
}

// fail notes a failure that no model can judge.
func (s *Scene) fail(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.failure == nil {
		s.failure = err
	}
}

func (s *Scene) failed() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.failure
}

// Play lets clients play for this time, with a seed.
func (s *Scene) Play(clients int, length time.Duration, seed uint64) error {
	end := time.Now().Add(length)
	var all []*client
	join := func(owner string) *client {
		c := &client{scene: s, owner: owner, rand: rand.New(rand.NewPCG(seed, uint64(len(all))))}
		c.connect()
		all = append(all, c)
		return c
	}
	// An owner that waits in two scenes could close a circle.
	for i := range clients {
		join(fmt.Sprintf("%s:owner-%d", s.keys[0], i))
	}
	observer, control := join(s.keys[0]+":observer"), join("")
	players := all[:clients]
	var everybody sync.WaitGroup
	goes := func(turn func()) {
		everybody.Add(1)
		go func() {
			defer everybody.Done()
			for time.Now().Before(end) && s.failed() == nil {
				turn()
			}
		}()
	}
	for _, c := range players {
		goes(func() { s.kind.turn(c) })
	}
	goes(func() { observe(observer, players) })
	chance := rand.New(rand.NewPCG(seed, 1<<32))
	goes(func() {
		time.Sleep(time.Duration(chance.Int64N(int64(2 * s.kind.cutEvery))))
		if time.Now().Before(end) {
			players[chance.IntN(clients)].cut(control)
		}
	})
	everybody.Wait()
	for _, c := range all {
		if conn := c.connection(); conn != nil {
			conn.Close()
		}
	}
	return s.failed()
}

// observe reads the locks, and now and then changes them.
func observe(c *client, players []*client) {
	c.sleep(4, 20)
	at := c.rand.IntN(c.scene.Locks)
	whose := players[c.rand.IntN(len(players))].actor()
	look := func(name lock.Name, owner string) {
		c.do(history.Call{Name: name, Locks: []int{at}, Owner: owner, Holds: -1})
	}
	switch n := c.rand.IntN(100); {
	case n < 25:
		look(lock.Held, "")
	case n < 40:
		look(lock.Held, whose)
	case n < 70:
		for _, one := range players {
			look(lock.Position, one.actor())
		}
	case n < 80:
		if token := c.scene.token.Load(); token != 0 && c.scene.Locks == 1 {
			c.do(history.Call{Name: lock.Check, Locks: []int{at}, Token: token, Holds: -1})
		}
	case n < 97:
		call := c.asks(history.Acquire, at)
		call.Limit = c.rand.IntN(3)
		if _, got := granted(c.do(call)); got {
			c.release(at, 0)
		}
	case n < 99:
		look(lock.Cancel, whose)
	default:
		look(lock.ForceRelease, "")
	}
}

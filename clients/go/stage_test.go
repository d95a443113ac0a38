package dlock

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The servers of a test, and what they show.

var patience = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("DLOCK_PATIENCE")); err == nil {
		return d
	}
	return time.Minute // above the ten leases that a test lets pass
}()

const (
	// No stall of this process takes two thirds of it, so the client reports a lease that ends.
	lease = 3 * time.Second
	long  = 15 * time.Second // no fault takes so long, however busy the machine
)

var ctx = context.Background()

func addresses(place string) []string {
	return strings.Split(os.Getenv("DLOCK_"+strings.ToUpper(place)), ",")
}

// client is go-redis' own for one of the places, with a time-out for replies as a program may have set it.
func client(place, address, user, password string) redis.UniversalClient {
	if place == "cluster" { // two nodes are named, and the others are found
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses(place)[:2], ReadTimeout: time.Second})
	}
	options := &redis.Options{Addr: address, ReadTimeout: time.Second, Username: user, Password: password}
	if address == "" {
		options.Addr = addresses(place)[0]
	}
	if place == "pair" { // connects to the present primary, as by Sentinel
		options.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, network, primary())
		}
	}
	return redis.NewClient(options)
}

// primary asks both at once: one that hangs is not waited for.
func primary() string {
	answers := make(chan string, 2)
	for _, address := range addresses("pair") {
		go func() {
			role, err := connection(address).Do(ctx, "ROLE").Slice()
			if err != nil || role[0] != "master" {
				address = ""
			}
			answers <- address
		}()
	}
	for range 2 {
		if address := <-answers; address != "" {
			return address
		}
	}
	return addresses("pair")[0]
}

func makeLocks(place string, lease time.Duration) *Locks {
	locks, err := New(client(place, "", "", ""), Settings{Lease: lease, HangTimeout: 30 * time.Second})
	if err != nil {
		panic(err)
	}
	return locks
}

// The other process: takes a lock and holds it until it is killed.
func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv("DLOCK_TEST_CANDIDATE")); len(words) == 3 {
		candidate(words[0], words[1], words[2])
	}
	if key := os.Getenv("DLOCK_TEST_SLEEPER"); key != "" {
		sleeper(key)
	}
	words := strings.Fields(os.Getenv("DLOCK_TEST_PROCESS"))
	if len(words) != 2 {
		os.Exit(m.Run())
	}
	hold, err := makeLocks(words[0], lease).Lock(ctx, words[1])
	if err != nil {
		panic(err)
	}
	<-hold.Done()
}

// stage is a test's view of one of the places.
type stage struct {
	*testing.T
	place, key string
	locks      *Locks
}

// in runs a test in these places, side by side with all others.
func in(t *testing.T, test func(stage), first string, others ...string) {
	t.Parallel()
	for _, place := range append([]string{first}, others...) {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			runIn(t, place, test)
		})
	}
}

// alone is for those that others would feel: Go runs them before all that are parallel.
func alone(t *testing.T, test func(stage), first string, others ...string) {
	for _, place := range append([]string{first}, others...) {
		t.Run(place, func(t *testing.T) { runIn(t, place, test) })
	}
}

func runIn(t *testing.T, place string, test func(stage)) {
	s := stage{T: t, place: place, key: "{" + rand.Text() + "}lock"}
	s.locks = s.make(lease)
	test(s)
}

func (s stage) make(lease time.Duration) *Locks {
	locks := makeLocks(s.place, lease)
	s.Cleanup(locks.Close)
	return locks
}

func (s stage) check(ok bool, format string, values ...any) {
	s.Helper()
	if !ok {
		s.Fatalf(format, values...)
	}
}

func (s stage) must(err error) {
	s.Helper()
	s.check(err == nil, "%v", err)
}

func (s stage) until(what string, condition func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		s.check(time.Now().Before(end), "gave up waiting until %s", what)
	}
}

// process is another one that wants the lock. It gives the function that kills it.
func (s stage) process() (kill func()) {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "DLOCK_TEST_PROCESS="+s.place+" "+s.key)
	child.Stderr = os.Stderr
	s.must(child.Start())
	kill = sync.OnceFunc(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	s.Cleanup(kill)
	return kill
}

// fault has something done to the servers: failover, crash, move; in the pair the first is `switch`.
func (s stage) fault(what string) {
	s.Helper()
	if s.place == "pair" {
		s.control("switch")
	} else {
		s.control(what + " " + s.key)
	}
}

func (s stage) control(line string) string {
	s.Helper()
	connection, err := net.Dial("tcp", os.Getenv("DLOCK_CONTROL"))
	s.must(err)
	defer connection.Close()
	fmt.Fprintln(connection, line)
	answer, err := bufio.NewReader(connection).ReadString('\n')
	s.check(err == nil && strings.HasPrefix(answer, "ok"), "%s: %s %v", line, answer, err)
	return strings.TrimSpace(strings.TrimPrefix(answer, "ok"))
}

var (
	nodes   = map[string]*redis.Client{}
	nodesMu sync.Mutex
)

func connection(address string) *redis.Client {
	nodesMu.Lock()
	defer nodesMu.Unlock()
	if nodes[address] == nil {
		nodes[address] = redis.NewClient(&redis.Options{
			Addr: address, MaxRetries: -1, ReadTimeout: patience, PoolTimeout: patience, PoolSize: 100,
			ContextTimeoutEnabled: true,
		})
	}
	return nodes[address]
}

// node is whoever serves a key now; some nodes may know it later than others.
func (s stage) node(key string) (node *redis.Client) {
	s.Helper()
	s.until(key+" is served", func() bool {
		for _, address := range addresses(s.place) {
			node = connection(address)
			// One that hangs is not waited for.
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			role, err := node.Do(ctx, "ROLE").Slice()
			found := err == nil && role[0] == "master" && node.Exists(ctx, key).Err() == nil
			if cancel(); found {
				return true
			}
		}
		return false
	})
	return node
}

func (s stage) ask(words ...any) any { return s.askAt(s.key, words...) }

func (s stage) askAt(key string, words ...any) any {
	s.Helper()
	reply, err := s.node(key).Do(ctx, words...).Result()
	if err != redis.Nil {
		s.must(err)
	}
	return reply
}

// group is sync.WaitGroup with the Go of Go 1.25.
type group struct{ sync.WaitGroup }

func (g *group) Go(work func()) {
	g.Add(1)
	go func() {
		defer g.Done()
		work()
	}()
}

func randomKey() string { return rand.Text() }

type row map[any]any

// text: empty where nobody stands.
func (e row) text(name string) string {
	text, _ := e[name].(string)
	return text
}

// int: zero where nobody stands.
func (e row) int(name string) int64 {
	number, _ := e[name].(int64)
	return number
}

func (s stage) info() (holders, queue []row) { return s.infoAt(s.key) }

func (s stage) infoAt(key string) (holders, queue []row) {
	s.Helper()
	reply, ok := s.askAt(key, "DLOCK.INFO", key, "COUNT", 5000).(map[any]any)
	if !ok {
		return nil, nil
	}
	entries := func(name string) (all []row) {
		for _, one := range reply[name].([]any) {
			all = append(all, one.(map[any]any))
		}
		return all
	}
	return entries("holders"), entries("queue")
}

func owners(entries []row) (all []string) {
	for _, one := range entries {
		all = append(all, one.text("owner"))
	}
	return all
}

func (s stage) holder() row {
	s.Helper()
	holders, _ := s.info()
	if len(holders) == 0 {
		return nil
	}
	return holders[0]
}

func (s stage) queue() []string {
	s.Helper()
	_, queue := s.info()
	return owners(queue)
}

func (s stage) awaitQueued(count int) {
	s.Helper()
	s.awaitQueuedAt(s.key, count)
}

func (s stage) awaitQueuedAt(key string, count int) {
	s.Helper()
	s.until(fmt.Sprint(count, " are queued"), func() bool {
		_, queue := s.infoAt(key)
		there := 0
		for _, one := range queue {
			if one.text("kind") != "absent" {
				there++
			}
		}
		return there == count && len(queue) == count
	})
}

// awaitTickets: nobody waits for some of them at present.
func (s stage) awaitTickets(count int) {
	s.Helper()
	s.until(fmt.Sprint(count, " have tickets"), func() bool { return len(s.queue()) == count })
}

func (s stage) awaitGone() {
	s.Helper()
	s.until("nobody holds it and nobody waits", func() bool { return s.ask("DLOCK.INFO", s.key) == nil })
}

// hold makes another owner take the lock, for longer than any test lasts.
func (s stage) hold(options ...any) {
	s.Helper()
	words := append([]any{"DLOCK.ACQUIRE", s.key, "other", 600_000}, options...)
	s.check(s.ask(words...) != nil, "the lock is taken")
}

// whileTheSlotMoves works while the slot of the key is on its way to another master, and nothing that was there.
func (s stage) whileTheSlotMoves(work func(askThere func(words ...any) any)) {
	s.Helper()
	source, slot := s.node(s.key), s.ask("CLUSTER", "KEYSLOT", s.key)
	var target *redis.Client
	s.until("there is another master", func() bool {
		for _, address := range addresses("cluster") {
			one := connection(address)
			role, err := one.Do(ctx, "ROLE").Slice()
			if err == nil && one != source && role[0] == "master" {
				target = one
			}
		}
		return target != nil
	})
	from, to := source.Do(ctx, "CLUSTER", "MYID").Val(), target.Do(ctx, "CLUSTER", "MYID").Val()
	defer func() { // whatever comes of it: the next test needs all slots
		s.must(source.Do(ctx, "CLUSTER", "SETSLOT", slot, "STABLE").Err())
		s.must(target.Do(ctx, "CLUSTER", "SETSLOT", slot, "STABLE").Err())
	}()
	s.must(target.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", from).Err())
	s.must(source.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", to).Err())
	work(func(words ...any) any {
		s.Helper()
		step := target.Pipeline()
		step.Do(ctx, "ASKING")
		reply := step.Do(ctx, words...)
		_, err := step.Exec(ctx)
		if err != redis.Nil {
			s.must(err)
		}
		return reply.Val()
	})
}

// handOver releases the lock for that owner, and returns the next holder, which it reads in the same step.
func (s stage) handOver(owner string) (next string) {
	s.Helper()
	step := s.node(s.key).TxPipeline()
	released := step.Do(ctx, "DLOCK.RELEASE", s.key, owner, "HOLDS", 0)
	held := step.Do(ctx, "DLOCK.HELD", s.key)
	_, _ = step.Exec(ctx)
	s.must(released.Err())
	if reply, err := held.Slice(); err == nil {
		next = reply[3].(string)
	}
	return next
}

// messages gives the unlock messages of the lock from now on.
func (s stage) messages() <-chan *redis.Message {
	node, channel := s.node(s.key), "__dlock@0__:"+s.key
	var ear *redis.PubSub
	if s.place == "cluster" {
		ear = node.SSubscribe(ctx, channel)
	} else {
		ear = node.Subscribe(ctx, channel)
	}
	_, err := ear.Receive(ctx)
	s.must(err)
	s.Cleanup(func() { _ = ear.Close() })
	return ear.Channel()
}

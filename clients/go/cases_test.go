package dlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Runs the cases that all languages have (../cases): a method for each step.

type step map[string]any

func (s step) text(name, usual string) string {
	if value, ok := s[name].(string); ok {
		return value
	}
	return usual
}

func (s step) number(name string, usual float64) float64 {
	if value, ok := s[name].(float64); ok {
		return value
	}
	return usual
}

func (s step) seconds(name string, usual float64) time.Duration {
	if d := s.number(name, usual) * float64(time.Second); d < math.MaxInt64 {
		return time.Duration(d)
	}
	return math.MaxInt64
}

const forever = time.Duration(-1)

// timeout: null is none. Where a fault is planted nobody is waited for without a bound.
func (s step) timeout() time.Duration {
	if value, there := s["timeout"]; there && value == nil {
		if os.Getenv("DLOCK_BOUND") != "" && s["do"] != "start" {
			return 5 * time.Second
		}
		return forever
	}
	return s.seconds("timeout", patience.Seconds())
}

// lateness is the delay that a busy machine causes by itself. The delays that the cases look for are longer.
func lateness() time.Duration {
	if seconds, err := strconv.ParseFloat(os.Getenv("DLOCK_LATE"), 64); err == nil {
		return time.Duration(seconds * float64(time.Second))
	}
	return 4 * time.Second
}

// atOnce is the bound of a try. A client that asks more than once takes longer, however busy the machine.
const atOnce = 250 * time.Millisecond

// logged is what the client has logged.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logged) WithGroup(string) slog.Handler            { return l }
func (l *logged) Handle(_ context.Context, record slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := record.Message
	record.Attrs(func(one slog.Attr) bool {
		line += " " + one.String()
		return true
	})
	l.lines = append(l.lines, line)
	return nil
}

func (l *logged) count(text string) (count int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		count += strings.Count(line, text)
	}
	return count
}

// A run is what a case has made so far.
type run struct {
	stage
	log     *logged
	paths   map[string]string
	clients map[string]*Locks
	held    map[string][]*Hold
	starts  map[string]<-chan outcome
	marks   map[string][2]int
	spread  map[string]string
	user    string
	mu      sync.Mutex
	many    map[*Hold]func() error // releases them all
}

// What stops a server, or counts what this process has, is run before all others. The others leave the pair to one at a time.
var pairs sync.Mutex

func TestCasesAlone(t *testing.T) { cases(t, true) }

func TestCases(t *testing.T) {
	t.Parallel()
	cases(t, false)
}

type oneCase struct {
	Name, At string
	Steps    []step
}

// gone has the cases of all languages that look for something that is gone, or that Go does not have.
var gone = map[string]string{
	"no_right_to_ping":                "nothing is pinged; and a session has no EPHEMERAL holds",
	"a_refused_renewal_is_the_reason": "the session renews; sessions.json has a refused SESSION",
	"no_right_to_renew":               "a grant after a wait is told by its row, and is not confirmed by RENEW",
	"a_fork":                          "a program in Go does not fork",
	"work_that_is_yet_to_be_done":     "a function in Go has no generators and no coroutines: it returns when its work is done",

	"an_ephemeral_hold_over_a_failover_elsewhere": "a session has no EPHEMERAL holds",
	"an_ephemeral_hold_ends_with_its_connection":  "a session has no EPHEMERAL holds",
}

func readCases(t *testing.T) (cases []oneCase) {
	directory := "../cases"
	if file := os.Getenv("DLOCK_CASES"); file != "" {
		directory = filepath.Dir(file)
	}
	seen := 0
	for _, file := range []string{"cases.json", "sessions.json"} {
		var some []oneCase
		data, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &some); err != nil {
			t.Fatal(err)
		}
		for _, one := range some {
			if _, is := gone[one.Name]; is {
				seen++
			} else {
				cases = append(cases, one)
			}
		}
	}
	if seen != len(gone) {
		t.Fatalf("%d of %d cases that are left out are there", seen, len(gone))
	}
	return cases
}

func cases(t *testing.T, alone bool) {
	for _, one := range readCases(t) {
		disturbs := func(s step) bool {
			return one.At != "pair" && slices.Contains([]string{"freeze", "fault", "connections", "forget"}, s["do"].(string))
		}
		if slices.ContainsFunc(one.Steps, disturbs) != alone {
			continue
		}
		t.Run(one.Name, func(t *testing.T) {
			if !alone {
				t.Parallel()
			}
			place := one.At
			switch place {
			case "":
				place = "single"
			case "pair":
				pairs.Lock()
				t.Cleanup(pairs.Unlock)
			}
			r := &run{
				stage: stage{T: t, place: place, key: "{" + randomKey() + "}lock"}, log: &logged{},
				paths: map[string]string{}, clients: map[string]*Locks{}, held: map[string][]*Hold{},
				starts: map[string]<-chan outcome{}, marks: map[string][2]int{}, spread: map[string]string{},
				many: map[*Hold]func() error{},
			}
			for _, s := range one.Steps {
				name := "Do_" + s["do"].(string)
				method := reflect.ValueOf(r).MethodByName(name)
				r.check(method.IsValid(), "no step %s", name)
				method.Call([]reflect.Value{reflect.ValueOf(s)})
			}
		})
	}
}

func (r *run) named(key string) string {
	if name := r.spread[key]; name != "" {
		return name
	}
	return r.key + ":" + key
}

func (r *run) keyOf(s step) string { return r.named(s.text("key", "lock")) }

// What is done to the servers and on the way to them.

func (r *run) Do_path(s step) {
	target := addresses("single")[0]
	switch s.text("to", "") {
	case "bare":
		target = addresses("bare")[0]
	case "primary":
		target = primary()
	case "replica":
		target = replica()
	}
	path := r.control("path " + target)
	r.paths[s.text("as", "")] = path
	r.Cleanup(func() { r.control("close " + path) })
}

func replica() (address string) {
	for _, one := range addresses("pair") {
		if one != primary() {
			address = one
		}
	}
	return address
}

func (r *run) on(what string, s step) string {
	return r.control(what + " " + r.paths[s.text("path", "")])
}

func (r *run) Do_close(s step)   { r.on("close", s) }
func (r *run) Do_silence(s step) { r.on("silence", s) }
func (r *run) Do_strand(s step)  { r.on("strand", s) }
func (r *run) Do_sound(s step)   { r.on("sound", s) }
func (r *run) Do_cut(s step)     { r.on("cut", s) }
func (r *run) Do_delay(s step) {
	r.control(fmt.Sprintf("delay %s %v", r.paths[s.text("path", "")], s.number("ms", 0)))
}

func (r *run) Do_freeze(s step) {
	var address string
	if s["replica"] == true {
		address = replica()
	} else {
		address = r.node(r.keyOf(s)).Options().Addr
	}
	r.control("freeze " + address)
	r.paths["frozen"] = address
	r.Cleanup(func() { r.control("thaw " + address) })
}

func (r *run) Do_thaw(step) { r.control("thaw " + r.paths["frozen"]) }

func (r *run) Do_settings(s step) {
	names := []string{"min-replicas-to-write", "dlock.max-hold-ms", "dlock.quarantine-ms", "dlock.replicas", "dlock.ack-timeout-ms", "dlock.grants"}
	server := connection(primary())
	for _, name := range names {
		if value, there := s[name]; there {
			before := server.ConfigGet(ctx, name).Val()[name]
			r.must(server.ConfigSet(ctx, name, fmt.Sprint(value)).Err())
			r.Cleanup(func() { r.must(server.ConfigSet(ctx, name, before).Err()) })
		}
	}
	r.check(len(s)-1 <= len(names), "other settings: %v", s)
}

func (r *run) Do_commands(s step) {
	seen, err := strconv.Atoi(r.on("commands", s))
	r.must(err)
	if most := s.number("at_most", -1); most >= 0 {
		r.check(seen-r.marks["commands"][0] <= int(most), "%d commands", seen-r.marks["commands"][0])
	}
	r.marks["commands"] = [2]int{seen}
}

func (r *run) Do_fault(s step) {
	if what := s.text("what", ""); what == "switch" {
		r.control(what)
	} else {
		r.control(what + " " + r.keyOf(s))
	}
}

// words are those of a step. Some stand for something of this case.
func (r *run) words(s step) []any {
	words := slices.Clone(s["words"].([]any))
	for i, word := range words {
		switch word {
		case "KEY":
			words[i] = r.named("lock")
		case "DATA":
			words[i] = r.named("data")
		case "USER":
			words[i] = r.user
		case "OWNER": // of the first in the queue
			_, queue := r.infoAt(r.named("lock"))
			words[i] = queue[0].text("owner")
		case "SESSION": // of the lock's holder
			words[i] = r.sessionOf("lock")
		}
	}
	return words
}

func (r *run) sessionOf(key string) string {
	holders, _ := r.infoAt(r.named(key))
	r.check(len(holders) > 0, "%s is not held", key)
	return holders[0].text("in")
}

func (r *run) Do_ask(s step) {
	reply := r.askAt(r.named("lock"), r.words(s)...)
	r.check(s["replies"] == nil || reply == s["replies"], "%v", reply)
}

func (r *run) Do_other(s step) {
	other := r.stage
	other.key = r.keyOf(s)
	if s["shared"] == true {
		other.hold("SHARED")
	} else {
		other.hold()
	}
}

func (r *run) Do_hand_over(s step) {
	other := r.stage
	other.key = r.keyOf(s)
	other.handOver("other")
}

func (r *run) Do_user(s step) {
	name := strings.Trim(r.key, "{}lock") + "user"
	server := connection(addresses("single")[0])
	r.must(server.Do(ctx, "ACL", "SETUSER", name, "on", ">word", "~*", "&*", "+@all", s["rule"]).Err())
	r.Cleanup(func() { server.Do(ctx, "ACL", "DELUSER", name) })
	r.user = name
	with := maps.Clone(s)
	with["user"], with["password"] = name, "word"
	r.Do_client(with)
}

// What the server shows.

func (r *run) Do_queued(s step) {
	if s["absent"] == true { // between two requests nobody waits there
		other := r.stage
		other.key = r.keyOf(s)
		other.awaitTickets(int(s.number("count", 1)))
		return
	}
	r.awaitQueuedAt(r.keyOf(s), int(s.number("count", 1)))
}

func (r *run) Do_free(s step) {
	key := r.keyOf(s)
	r.until("nobody holds it and nobody waits", func() bool {
		return r.askAt(key, "DLOCK.INFO", key) == nil
	})
}

// The hold is so old: what was not kept has ended.
func (r *run) Do_outlasts(s step) {
	key := r.keyOf(s)
	r.until("it is held for so long", func() bool {
		holders, _ := r.infoAt(key)
		r.check(len(holders) > 0, "%s is not held any more", key)
		return holders[0].int("held-ms") > int64(s.number("ms", 0))
	})
}

// It is in a session: the server renews it.
func (r *run) Do_renewed(s step) {
	key := r.keyOf(s)
	r.until("it is renewed", func() bool {
		holders, _ := r.infoAt(key)
		return len(holders) > 0 && holders[0].text("in") != ""
	})
}

// It is held, and its session is not alive.
func (r *run) Do_unkept(s step) {
	key := r.keyOf(s)
	r.until("nobody keeps it", func() bool {
		holders, _ := r.infoAt(key)
		r.check(len(holders) > 0, "%s is not held any more", key)
		return holders[0].int("alive") == 0
	})
}

// More happens in the session of the lock's holder than a server remembers.
func (r *run) Do_overflow(step) {
	session, one := r.sessionOf("lock"), r.named("overflow")
	pipe := r.node(r.named("lock")).Pipeline()
	for i := range 5100 {
		pipe.Do(ctx, "DLOCK.ACQUIRE", one, fmt.Sprint("overflow/", i), 60000, "IN", session)
		pipe.Do(ctx, "DEL", one)
	}
	_, err := pipe.Exec(ctx)
	r.must(err)
}

// Those of the client to the server, and the goroutines of this process.
func (r *run) Do_connections(s step) {
	list := connection(addresses("single")[0]).ClientList(ctx).Val()
	seen := [2]int{strings.Count(list, "cmd=dlock"), runtime.NumGoroutine()}
	if name := s.text("as", ""); name != "" {
		r.marks[name] = seen
		return
	}
	// go-redis' pool has a connection for each worker that asks at once, and one for the loop.
	before, most := r.marks[s.text("same", "")], r.marks["workers"][0]+1
	r.check(seen[0] <= max(before[0], most) && seen[1] <= before[1]+2, "%v, and %v before", seen, before)
}

// What the client does.

func (r *run) Do_client(s step) {
	place := r.place
	if s["path"] != nil {
		place = "single"
	}
	locks, err := New(client(place, r.paths[s.text("path", "")], s.text("user", ""), s.text("password", "")), Settings{
		Lease: s.seconds("lease", 10), HangTimeout: s.seconds("auto", 60), Logger: slog.New(r.log),
	})
	r.must(err)
	r.Cleanup(locks.Close)
	r.clients[s.text("as", "client")] = locks
}

func (r *run) client(s step) *Locks { return r.clients[s.text("client", "client")] }

func (r *run) judge(s step, work func() (*Hold, error)) {
	r.Helper()
	took := time.Duration(0)
	if s["at_once"] == true {
		took = time.Hour
	}
	for i := 0; i < 20 && took >= atOnce; i++ { // a busy machine is late by itself: one of twenty is enough
		asked := time.Now()
		_, _ = work()
		took = time.Since(asked)
	}
	r.check(took < atOnce, "it took %v", took)
	began := time.Now()
	hold, err := work()
	took = time.Since(began)
	var said ServerError
	got := "failure"
	switch {
	case err == nil && hold != nil:
		got = "hold"
		r.held[s.text("as", "hold")] = []*Hold{hold}
	case err == nil:
		got = "nothing"
	case errors.Is(err, ErrTaken):
		got = "none"
	case errors.Is(err, ErrTimeout):
		got = "timeout"
		r.check(s["cause"] != true || errors.As(err, &said) || errors.Is(err, ErrUnreachable), "no cause: %v", err)
	case errors.Is(err, ErrNotHeld):
		got = "not held"
	case errors.Is(err, ErrNoAck):
		got = "unconfirmed"
	case errors.Is(err, ErrFenced):
		got = "fenced"
	case errors.Is(err, ErrReplaced):
		got = "replaced"
	case errors.Is(err, ErrDeadlock):
		got = "deadlock"
	case errors.As(err, &said):
		got = "refusal"
	case !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrClosed):
		got = "something else"
	}
	r.check(got == s["gives"], "%s: %v, not %s", got, err, s["gives"])
	r.check(err == nil || strings.Contains(err.Error(), s.text("text", "")), "%v", err)
	if within := s.number("within", 0); within > 0 {
		r.check(took < s.seconds("within", 0)+lateness(), "within %v", took)
	}
}

func (s step) options() (options []Option) {
	if actor := s.text("actor", s.text("owner", "")); actor != "" { // the old word of the cases is owner
		options = append(options, Actor(actor))
	}
	if s["lease"] != nil {
		options = append(options, Lease(s.seconds("lease", 0)))
	}
	if s["max_hold"] != nil {
		options = append(options, MaxHold(s.seconds("max_hold", 0)))
	}
	if limit, ok := s["limit"].(float64); ok {
		options = append(options, Limit(int(limit)))
	}
	if permits, ok := s["permits"].(float64); ok {
		options = append(options, Permits(int(permits)))
	}
	if s["shared"] == true {
		options = append(options, Shared())
	}
	return options
}

func (r *run) take(s step, locks *Locks) (*Hold, error) {
	if timeout := s.timeout(); timeout != forever {
		return locks.TryLock(ctx, r.keyOf(s), timeout, s.options()...)
	}
	return locks.Lock(ctx, r.keyOf(s), s.options()...)
}

func (r *run) Do_lock(s step) {
	r.Helper()
	if s["slots"] == true { // a key of another node for each
		taken := map[*redis.Client]bool{}
		for _, key := range r.spread {
			taken[r.node(key)] = true
		}
		for key := s.text("key", "lock"); r.spread[key] == ""; {
			if one := "{" + randomKey() + "}lock"; !taken[r.node(one)] {
				r.spread[key] = one
			}
		}
	}
	r.judge(s, func() (*Hold, error) { return r.take(s, r.client(s)) })
}

// all takes several locks of one slot, and holds them until they are to be released, which fails if one of them does.
func (r *run) all(s step) (*Hold, error) {
	wait := ctx
	if timeout := s.timeout(); timeout != forever {
		soon, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		wait = soon
	}
	var keys []string
	for _, key := range s["keys"].([]any) {
		keys = append(keys, r.named(key.(string)))
	}
	locks, release, done := r.client(s), make(chan struct{}), make(chan error, 1)
	held := make(chan *Hold, 1)
	go func() {
		done <- locks.WithAll(wait, keys, func(_ context.Context, holds map[string]*Hold) error {
			held <- holds[keys[0]]
			<-release
			return nil
		})
	}()
	select {
	case hold := <-held:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.many[hold] = func() error {
			close(release)
			return <-done
		}
		return hold, nil
	case err := <-done:
		return nil, err
	}
}

func (r *run) Do_many(s step) {
	r.Helper()
	r.judge(s, func() (*Hold, error) { return r.all(s) })
}

func (r *run) Do_start(s step) {
	outcomes, locks := make(chan outcome, 1), r.client(s)
	if s["keys"] != nil {
		go func() {
			hold, err := r.all(s)
			outcomes <- outcome{hold, err}
		}()
		r.starts[s.text("as", "")] = outcomes
		return
	}
	go func() {
		hold, err := r.take(s, locks)
		outcomes <- outcome{hold, err}
	}()
	r.starts[s.text("as", "")] = outcomes
}

func (r *run) Do_joined(s step) {
	r.judge(s, func() (*Hold, error) {
		select {
		case got := <-r.starts[s.text("start", "")]:
			return got.hold, got.err
		case <-time.After(patience):
			return nil, errors.New("it waits for ever")
		}
	})
}

func (r *run) Do_release(s step) {
	for _, hold := range r.held[s.text("hold", "hold")] {
		r.mu.Lock()
		all := r.many[hold]
		r.mu.Unlock()
		switch {
		case all != nil:
			r.must(all())
		case s["after"] != nil:
			r.must(hold.ReleaseAfter(ctx, s.seconds("after", 0)))
		case s["gives"] == nil:
			r.must(hold.Release(ctx))
		default:
			r.judge(s, func() (*Hold, error) { return nil, hold.Release(ctx) })
		}
	}
}

// Do_block: the work releases its lock. To do so again is an error, and to leave the block is none.
func (r *run) Do_block(s step) {
	r.must(r.client(s).With(ctx, r.keyOf(s), func(_ context.Context, hold *Hold) error {
		r.must(hold.Release(ctx))
		r.isError(hold.Release(ctx), ErrNotHeld)
		return nil
	}))
}

func (r *run) Do_guard(s step) {
	for _, hold := range r.held[s.text("hold", "hold")] {
		_, err := hold.Guard(ctx, r.words(s)...)
		if s["gives"] == nil {
			r.must(err)
		} else {
			r.judge(s, func() (*Hold, error) { return nil, err })
		}
	}
}

// Do_holds takes them in hundreds: a lease counts from the request, and a pool's connections are few.
func (r *run) Do_holds(s step) {
	locks, count, as := r.client(s), int(s.number("count", 0)), s.text("as", "")
	for first := 0; first < count; first += 100 {
		var waits []<-chan outcome
		for i := first; i < min(first+100, count); i++ {
			waits = append(waits, r.startAt(ctx, locks, r.named(strconv.Itoa(i))))
		}
		for _, wait := range waits {
			r.held[as] = append(r.held[as], r.had(wait))
		}
	}
}

func (r *run) Do_lost(s step) {
	within := time.After(s.seconds("within", 0) + lateness())
	for _, hold := range r.held[s.text("hold", "hold")] {
		select {
		case <-hold.Done():
		case <-within:
			r.Fatal("nothing is told of the loss")
		}
		r.check(strings.Contains(hold.Lost().Error(), s.text("text", "")), "%v", hold.Lost())
	}
}

func (r *run) Do_kept(s step) {
	for _, hold := range r.held[s.text("hold", "hold")] {
		r.check(hold.Lost() == nil, "%s: %v", hold.Key, hold.Lost())
	}
}

func (r *run) Do_forget(s step) {
	delete(r.held, s.text("hold", "hold"))
	for range 3 {
		runtime.GC()
	}
}

func (r *run) Do_end(s step) { r.client(s).Close() }

func (r *run) Do_cycles(s step) {
	locks, failed := r.client(s), make(chan error, 100)
	workers := int(s.number("workers", 1))
	r.marks["workers"] = [2]int{workers}
	var all group
	for range workers {
		all.Go(func() {
			for range int(s.number("count", 1)) {
				hold, err := locks.Lock(ctx, r.named("lock"))
				if err == nil {
					err = hold.Release(ctx)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	r.must(<-failed)
}

func (r *run) Do_objects(s step) {
	for i := range int(s.number("count", 1)) {
		hold, err := r.client(s).Lock(ctx, r.named(strconv.Itoa(i)))
		r.must(err)
		r.must(hold.Release(ctx))
	}
}

func (r *run) Do_logged(s step) {
	seen := func() int { return r.log.count(s.text("text", "-")) }
	r.until("it is logged", func() bool { return seen() >= int(s.number("at_least", 1)) })
	r.check(seen() <= int(s.number("at_most", 1e9)), "%d times", seen())
}

// A timeout that is not a duration does not compile in Go, so a negative one stands for it.
func (r *run) Do_bad(s step) {
	key, timeout := r.named("lock"), time.Duration(0)
	if s["key"] == "" {
		key = ""
	}
	if s["timeout"] != nil {
		timeout = -time.Second
	}
	_, err := r.client(s).TryLock(ctx, key, timeout, s.options()...)
	r.check(errors.Is(err, ErrArgument) && strings.Contains(err.Error(), s.text("names", "-")), "%v", err)
}

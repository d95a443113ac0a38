// SPDX-License-Identifier: MIT

// Package dlock has locks of the dlock module, by go-redis. Copy this file.
//
//	locks := dlock.New(dlock.Settings{}, client.Options())
//	err := locks.With(ctx, "stock", func(ctx context.Context, hold *dlock.Hold) error {
//		_, err := hold.Guard(ctx, "SET", "stock:left", 41) // runs only while the lock is held: else ErrFenced
//		return err                                        // ctx ends when the lock is lost: its cause is ErrNotHeld
//	})
//
// The options are patterns: this opens connections of its own, two to each node, for all goroutines together. They
// wait by NOTIFY, and a context ends the wait.
package dlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Why there is no lock, or none any more. The text of an error has more; ask by errors.Is.
var (
	// ErrNotHeld: the lock is not, or no longer, held under this name and token.
	ErrNotHeld = errors.New("dlock: not held")
	// ErrFenced: a guarded command was not run, as the lock is not held under this token.
	ErrFenced = errors.New("dlock: fenced")
	// ErrDeadlock: the wait could never end.
	ErrDeadlock = errors.New("dlock: deadlock")
	// ErrReplaced: somebody else asked under the same owner's name and has the place. Never asked again by itself.
	ErrReplaced = errors.New("dlock: replaced")
	// ErrTimeout: the lock was not granted in time.
	ErrTimeout = errors.New("dlock: not granted in time")
	// ErrUnreachable: the connection is lost, or the server does not answer.
	ErrUnreachable = errors.New("dlock: unreachable")
)

var (
	codes = map[string]error{
		"NOTHELD": ErrNotHeld, "FENCED": ErrFenced, "DEADLOCK": ErrDeadlock, "REPLACED": ErrReplaced,
	}
	// What another node or a little time can mend. UNBLOCKED: the server has become a replica.
	passing = []string{
		"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED", "NOREPLICAS", "MISCONF",
	}
)

const (
	// So long we wait for a connection, and for a reply.
	replyTime = 3 * time.Second
	// So long a caller who has given up waits for the answer, and an attempt that does not wait for a server.
	grace = 500 * time.Millisecond
)

var errClosed = errors.New("dlock: these locks are closed")

func translated(err error) error {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if known := codes[code(reply)]; known != nil {
		return fmt.Errorf("%w: %s", known, reply)
	}
	return reply // its own words, whatever the library says around them
}

func code(err error) string {
	word, _, _ := strings.Cut(err.Error(), " ")
	return strings.TrimSuffix(word, ":")
}

func passes(err error) bool {
	return errors.Is(err, ErrUnreachable) || slices.Contains(passing, code(err))
}

func pause() time.Duration {
	return 20*time.Millisecond + mathrand.N(80*time.Millisecond)
}

// ---- connections --------------------------------------------------------------------------------------------------

// A link is two connections to a node: over one we ask, over the other we hear. They end together.
type link struct {
	locks     *Locks
	name      string
	options   redis.Options
	channel   string
	questions chan *question
	opening   sync.Once
	opened    chan struct{}
	closing   sync.Once
	closed    chan struct{}
	client    *redis.Client
	ear       *redis.PubSub
	err       error // why it is closed
}

// A question is asked in one piece; the last reply is its answer.
type question struct {
	words    [][]any
	reply    *redis.Cmd
	answered chan struct{}
}

// open: whatever the library tries in whatever order, nobody waits for it longer than for a reply.
func (k *link) open() {
	late := time.AfterFunc(replyTime, func() { k.close(fmt.Errorf("%w: no connection in time", ErrUnreachable)) })
	go func() {
		defer close(k.opened)
		k.client = redis.NewClient(&k.options)
		k.ear = k.client.Subscribe(context.Background(), k.channel)
		_, err := k.ear.ReceiveTimeout(context.Background(), replyTime)
		late.Stop()
		if err != nil {
			k.close(translated(err))
			return
		}
		go k.hear()
		go k.send()
	}()
}

func (k *link) close(why error) {
	k.closing.Do(func() {
		k.err = why
		close(k.closed)
		k.locks.drop(k)
		go func() {
			k.opening.Do(func() { close(k.opened) })
			if <-k.opened; k.client != nil {
				_ = k.ear.Close()
				_ = k.client.Close()
			}
		}()
	})
}

func (k *link) hear() {
	for {
		message, err := k.ear.Receive(context.Background())
		if err != nil {
			k.close(translated(err))
			return
		}
		if message, ok := message.(*redis.Message); ok {
			k.locks.hear(message.Payload)
		}
	}
}

// send asks what many goroutines have to ask in one go, in their order, over one connection.
func (k *link) send() {
	ctx := context.Background()
	for {
		var batch []*question
		select {
		case one := <-k.questions:
			batch = append(batch, one)
		case <-k.closed:
			return
		}
		for more := true; more; {
			select {
			case one := <-k.questions:
				batch = append(batch, one)
			default:
				more = false
			}
		}
		pipe := k.client.Pipeline()
		for _, one := range batch {
			for _, words := range one.words {
				one.reply = pipe.Do(ctx, words...)
			}
		}
		_, _ = pipe.Exec(ctx) // each has its own error
		last := batch[len(batch)-1].reply.Err()
		if last != nil && errors.Is(translated(last), ErrUnreachable) {
			k.close(translated(last))
		}
		for _, one := range batch {
			close(one.answered)
		}
	}
}

// ask opens the link if need be. What is to be asked before goes right before it.
func (k *link) ask(ctx context.Context, words func(channel string) []any, before ...[]any) (any, error) {
	k.opening.Do(k.open)
	one := &question{words: append(before, words(k.channel)), answered: make(chan struct{})}
	select {
	case k.questions <- one:
	case <-k.closed:
		return nil, k.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case <-one.answered:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	reply, err := one.reply.Result()
	if err == nil || errors.Is(err, redis.Nil) {
		return reply, nil
	}
	return nil, translated(err)
}

// ---- locks --------------------------------------------------------------------------------------------------------

// Settings: how long things last. What is left out has the default.
type Settings struct {
	Lease time.Duration // what the lock has left when this program dies or loses the server: 10 s
	Auto  time.Duration // how long a program that hangs, its connection open, keeps its locks: 60 s
	Claim time.Duration // how long a place in the queue is kept while the connection is lost: 5 s
}

// Locks on one server, a cluster (some of its nodes), or a primary and its replicas.
type Locks struct {
	settings Settings
	first    time.Duration
	servers  []*redis.Options

	mu      sync.Mutex
	closed  bool
	links   map[string]*link
	slots   map[uint16]string // which node serves a slot, as far as errors have told
	start   int               // the server to begin with where nothing is known
	waiting map[[2]string]map[chan news]struct{}
	leaving map[[2]string]chan struct{} // whose earlier request is on its way out
}

// news is what is told to somebody who waits; the zero value: ask again.
type news struct {
	word  string
	token int64
	wait  int64
}

// New makes locks. The options are copied; those of a client (client.Options()) will do.
func New(settings Settings, servers ...*redis.Options) *Locks {
	orElse := func(value *time.Duration, usual time.Duration) {
		if *value <= 0 {
			*value = usual
		}
	}
	orElse(&settings.Lease, 10*time.Second)
	orElse(&settings.Auto, time.Minute)
	orElse(&settings.Claim, 5*time.Second)
	settings.Auto = max(settings.Auto, settings.Lease)
	return &Locks{
		settings: settings,
		// The lease until the grant is confirmed; a message that was lost is noticed within it.
		first:   min(settings.Lease, 3*time.Second),
		servers: servers,
		links:   map[string]*link{},
		slots:   map[uint16]string{},
		waiting: map[[2]string]map[chan news]struct{}{},
		leaving: map[[2]string]chan struct{}{},
	}
}

// An Option says what is asked for; without any: the lock alone, under a name of its own.
type Option func(*request)

// Shared: any number of holders that share, as the readers of a read-write lock.
func Shared() Option { return func(r *request) { r.limit = []any{"SHARED"} } }

// Limit: at most so many holders, a semaphore.
func Limit(n int) Option { return func(r *request) { r.limit = []any{"LIMIT", n} } }

// Session: the hold ends with the connection, at once, whatever has cut it.
func Session() Option { return func(r *request) { r.session = []any{"SESSION"} } }

// Owner: under this name. Locks that one goroutine holds within each other should have one owner: only then can the
// server see a circle (ErrDeadlock). Goroutines of their own need owners of their own.
func Owner(name string) Option { return func(r *request) { r.owner, r.named = name, true } }

// Lock waits for the lock until the context ends. Give it back by Release.
func (l *Locks) Lock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return l.take(ctx, key, false, options)
}

// TryLock is Lock with a time of its own (0: at once), after which it is ErrTimeout.
func (l *Locks) TryLock(ctx context.Context, key string, within time.Duration, options ...Option) (*Hold, error) {
	if within <= 0 {
		return l.take(ctx, key, true, options)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, ErrTimeout)
	defer cancel()
	return l.take(ctx, key, false, options)
}

// With works under the lock, with a context that ends when the lock is lost.
func (l *Locks) With(
	ctx context.Context, key string, work func(context.Context, *Hold) error, options ...Option,
) error {
	return l.WithAll(ctx, []string{key}, func(ctx context.Context, holds map[string]*Hold) error {
		return work(ctx, holds[key])
	}, options...)
}

// WithAll works under several locks, of any slots: they are taken in one fixed order under one owner and given back in
// reverse. The server sees no circle that goes over several nodes: it is the order that prevents them, so take several
// locks of a cluster by this. An error of the work comes before one of giving back.
func (l *Locks) WithAll(
	ctx context.Context, keys []string, work func(context.Context, map[string]*Hold) error, options ...Option,
) (err error) {
	inner, holds := ctx, map[string]*Hold{}
	if len(keys) > 1 {
		options = append([]Option{Owner(rand.Text())}, options...)
	}
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		hold, refused := l.Lock(ctx, key, options...)
		if refused != nil {
			return refused
		}
		holds[key] = hold
		defer func() {
			if failed := hold.Release(); err == nil {
				err = failed
			}
		}()
		var cancel context.CancelFunc
		inner, cancel = hold.Context(inner)
		defer cancel()
	}
	return work(inner, holds)
}

// Close ends the connections. What is still held lives on until its lease, and says then that it is lost. Every call
// after it is an error.
func (l *Locks) Close() {
	l.mu.Lock()
	l.closed = true
	links := slices.Collect(maps.Values(l.links))
	l.mu.Unlock()
	for _, one := range links {
		one.close(errClosed)
	}
}

// A request is one owner's wish for one lock.
type request struct {
	key, owner     string
	named          bool
	limit, session []any
	before, outer  int64 // the holds of this owner before, and their token: those are not ours to give back
}

func (r *request) words(name string, rest ...any) []any {
	return append([]any{"DLOCK." + name, r.key, r.owner}, rest...)
}

func millis(d time.Duration) int64 { return max(1, d.Milliseconds()) }

func number(reply any) int64 {
	n, _ := reply.(int64)
	return n
}

func (l *Locks) renew(r *request, token int64) []any {
	words := r.words("RENEW", millis(l.settings.Lease), "TOKEN", token)
	if r.before > 0 { // an outer hold is not to be tied to our connection
		return words
	}
	return append(append(words, r.session...), "AUTO", millis(l.settings.Auto))
}

func (l *Locks) take(ctx context.Context, key string, atOnce bool, options []Option) (*Hold, error) {
	r := &request{key: key, owner: rand.Text()}
	for _, option := range options {
		option(r)
	}
	type result struct {
		hold *Hold
		err  error
	}
	results, late := make(chan result, 1), make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, func() { close(late) }) })
	defer stop()
	go func() {
		hold, err := l.wait(ctx, r, atOnce)
		results <- result{hold, err}
	}()
	select {
	case got := <-results:
		return got.hold, got.err
	case <-late:
	}
	// The server does not answer, and the caller need not wait for it: what is granted all the same is given back.
	go func() {
		if got := <-results; got.hold != nil {
			_ = got.hold.Release()
		}
	}()
	return nil, over(ctx, fmt.Errorf("%w: no answer in time", ErrUnreachable))
}

// over says why it has ended, and what the last trouble on the way was, if there was any.
func over(ctx context.Context, trouble error) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); errors.Is(cause, ErrTimeout) {
		err = cause
	}
	if trouble != nil {
		err = fmt.Errorf("%w: %w", err, trouble)
	}
	return err
}

// wait leaves nothing behind, whatever ends it. It has the answers to all that it has asked.
func (l *Locks) wait(ctx context.Context, r *request, atOnce bool) (*Hold, error) {
	mailbox, who, began, asked := make(chan news, 16), [2]string{r.key, r.owner}, time.Now(), false
	l.mu.Lock()
	if before := l.leaving[who]; before != nil { // what it says last must not meet this one
		l.mu.Unlock()
		trouble := fmt.Errorf("%w: an earlier request of this owner is still on its way out", ErrUnreachable)
		if atOnce {
			return nil, trouble
		}
		select {
		case <-before:
		case <-ctx.Done():
			return nil, over(ctx, trouble)
		}
		l.mu.Lock()
	}
	if l.waiting[who] == nil {
		l.waiting[who] = map[chan news]struct{}{}
	}
	l.waiting[who][mailbox] = struct{}{}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(l.waiting[who], mailbox); len(l.waiting[who]) == 0 {
			delete(l.waiting, who)
		}
	}()
	var trouble error
	for ctx.Err() == nil {
		if !asked && r.named {
			held, err := l.call(context.Background(), r.key, func(string) []any { return r.words("HELD") })
			if held, ok := held.([]any); ok {
				r.outer, r.before, r.session = number(held[0]), number(held[1]), nil
			}
			if err != nil && !(passes(err) && (!atOnce || time.Since(began) < grace)) {
				return nil, err
			}
			if err != nil {
				trouble = err
				time.Sleep(pause())
				continue
			}
		}
		asked = true
		token, confirmed, err := l.ask(ctx, r, mailbox, atOnce)
		switch {
		case err == nil && token != 0 && ctx.Err() == nil:
			return newHold(l, r, token, confirmed), nil
		case err == nil && token == 0 && atOnce:
			return nil, ErrTimeout
		case err == nil:
		case errors.Is(err, ErrReplaced):
			return nil, err // the place is somebody else's
		case errors.Is(err, ErrNotHeld) && r.before == 0: // we were slower than the first lease
		case passes(err) && (!atOnce || time.Since(began) < grace):
			trouble = err
			time.Sleep(pause())
		default:
			left := make(chan struct{})
			go func() {
				l.leave(r)
				close(left)
			}()
			select {
			case <-left:
			case <-time.After(grace): // it goes on without the caller where nobody answers
			}
			return nil, err
		}
	}
	if asked {
		l.leave(r)
	}
	return nil, over(ctx, trouble)
}

// ask asks once, waits a while for the message, and confirms the grant. No token: ask again.
func (l *Locks) ask(
	ctx context.Context, r *request, mailbox chan news, atOnce bool,
) (token int64, confirmed time.Time, err error) {
	reply, err := l.call(context.Background(), r.key, func(channel string) []any {
		words := r.words("ACQUIRE", millis(l.first))
		if !atOnce {
			words = r.words("FAIRACQUIRE", millis(l.first), "NOTIFY", channel, "CLAIM", millis(l.settings.Claim))
		}
		// The same answer and no second hold, however often it is asked.
		words = append(words, "HOLDS", r.before+1)
		return append(append(words, r.limit...), r.session...)
	})
	answer, ok := reply.([]any)
	if err != nil || !ok {
		return 0, confirmed, err
	}
	if token = number(answer[0]); token == 0 {
		if token, err = await(ctx, mailbox, number(answer[2]), l.first/2); token == 0 {
			return 0, confirmed, err
		}
	}
	confirmed = time.Now()
	_, err = l.call(context.Background(), r.key, func(string) []any { return l.renew(r, token) })
	if err == nil && token != r.outer {
		// An upgrade is a new grant: the outer hold has ended with its token, and all of this one is ours.
		r.before = 0
	}
	return token, confirmed, err
}

func await(ctx context.Context, mailbox chan news, wait int64, slice time.Duration) (int64, error) {
	timer := time.NewTimer(slice)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, nil
		case <-timer.C:
			return 0, nil
		case told := <-mailbox:
			word := strings.ToUpper(told.word)
			switch {
			case word == "":
				return 0, nil
			case told.wait != wait: // of an earlier asking of ours
			case word == "GRANTED":
				return told.token, nil
			case codes[word] != nil:
				return 0, fmt.Errorf("%w: told by a message", codes[word])
			case word == "WRONGTYPE" || word == "REFUSED":
				return 0, errors.New("dlock: " + word)
			default: // moved, gone, cancelled
				return 0, nil
			}
		}
	}
}

// leave: no place, and no hold beyond those of before.
func (l *Locks) leave(r *request) {
	who, left := [2]string{r.key, r.owner}, make(chan struct{})
	l.mu.Lock()
	l.leaving[who] = left
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if close(left); l.leaving[who] == left {
			delete(l.leaving, who)
		}
	}()
	say := func(words []any) any {
		for range 3 {
			reply, err := l.call(context.Background(), r.key, func(string) []any { return words })
			if err == nil || !passes(err) {
				return reply
			}
			time.Sleep(pause())
		}
		return nil
	}
	say(r.words("CANCEL"))
	say(r.words("RELEASE", "HOLDS", r.before))
	if r.before > 0 {
		// An upgrade that came first has ended the outer hold: nobody knows its token.
		if held, ok := say(r.words("HELD")).([]any); ok && number(held[0]) != r.outer {
			say(r.words("RELEASE", "TOKEN", held[0], "HOLDS", 0))
		}
	}
}

// call gives the reply of whoever serves the key. What was not executed is sent on to where the server says.
func (l *Locks) call(ctx context.Context, key string, words func(channel string) []any) (any, error) {
	slot := slotOf(key)
	for hops := 0; ; hops++ {
		at := l.serving(slot)
		reply, err := at.ask(ctx, words)
		if err == nil {
			return reply, nil
		}
		parts := strings.Fields(err.Error())
		switch {
		case code(err) == "MOVED" && len(parts) == 3 && hops < 5:
			l.learn(slot, parts[2])
		case code(err) == "ASK" && len(parts) == 3 && hops < 5:
			return l.link(parts[2]).ask(ctx, words, []any{"ASKING"})
		default:
			if passes(err) {
				l.forget(slot, at.name)
			}
			if c := code(err); c == "READONLY" || c == "MASTERDOWN" {
				at.close(err) // whoever is the primary now: not this one
			}
			return nil, err
		}
	}
}

func (l *Locks) serving(slot uint16) *link {
	l.mu.Lock()
	name, known := l.slots[slot]
	if !known {
		name = l.beginning()
	}
	l.mu.Unlock()
	return l.link(name)
}

// beginning is the server to begin with where nothing is known, by its number.
func (l *Locks) beginning() string { return "#" + strconv.Itoa(l.start%len(l.servers)) }

func (l *Locks) learn(slot uint16, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slots[slot] = name
}

// forget: the node may not be there any more, or be no primary. Another one will be asked.
func (l *Locks) forget(slot uint16, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.slots, slot)
	if name == l.beginning() {
		l.start++
	}
}

func (l *Locks) link(name string) *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.links[name]; known != nil {
		return known
	}
	k := &link{
		locks: l, name: name, channel: "dlock:" + rand.Text(),
		questions: make(chan *question), opened: make(chan struct{}), closed: make(chan struct{}),
	}
	if l.closed {
		k.opening.Do(func() {})
		k.err = errClosed
		close(k.closed)
		return k
	}
	if number, ok := strings.CutPrefix(name, "#"); ok {
		i, _ := strconv.Atoi(number)
		k.options = *l.servers[i]
	} else {
		k.options = *l.servers[0]
		k.options.Addr = name
	}
	// One connection, that no pool closes for idleness, on which nothing is sent twice behind our back.
	k.options.PoolSize, k.options.MinIdleConns, k.options.MaxIdleConns, k.options.MaxActiveConns = 1, 0, 1, 0
	k.options.ConnMaxIdleTime, k.options.ConnMaxLifetime, k.options.MaxRetries = -1, 0, -1
	k.options.DialTimeout, k.options.DialerRetries = replyTime, 1
	k.options.ReadTimeout, k.options.WriteTimeout = replyTime, replyTime
	k.options.PushNotificationProcessor = nil // that of the client whose options these are is its own
	l.links[name] = k
	return k
}

// drop: all who wait ask again, since they may have lost their places, or missed a message.
func (l *Locks) drop(k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.links[k.name] == k {
		delete(l.links, k.name)
	}
	for _, mailboxes := range l.waiting {
		tell(mailboxes, news{})
	}
}

// A full mailbox has enough to ask again for.
func tell(mailboxes map[chan news]struct{}, one news) {
	for mailbox := range mailboxes {
		select {
		case mailbox <- one:
		default:
		}
	}
}

// hear: `word token keylen:key ownerlen:owner number`
func (l *Locks) hear(rest string) {
	name := func() (name string) {
		var length string
		length, rest, _ = strings.Cut(rest, ":")
		if n, err := strconv.Atoi(length); err == nil && n < len(rest) {
			name, rest = rest[:n], rest[n+1:]
		}
		return name
	}
	word, rest, _ := strings.Cut(rest, " ")
	token, rest, _ := strings.Cut(rest, " ")
	who, one := [2]string{name(), name()}, news{word: word}
	one.token, _ = strconv.ParseInt(token, 10, 64)
	one.wait, _ = strconv.ParseInt(rest, 10, 64)
	l.mu.Lock()
	defer l.mu.Unlock()
	tell(l.waiting[who], one)
}

// ---- holds --------------------------------------------------------------------------------------------------------

// A Hold is a lock that is held. Give it back by Release.
type Hold struct {
	Key, Owner string
	Token      int64 // the fencing token

	locks   *Locks
	request *request
	lost    context.Context
	lose    context.CancelCauseFunc

	mu    sync.Mutex
	over  bool
	until time.Time
	timer *time.Timer
	end   *time.Timer // of what is believed; it waits for nobody
}

func newHold(l *Locks, r *request, token int64, confirmed time.Time) *Hold {
	h := &Hold{Key: r.key, Owner: r.owner, Token: token, locks: l, request: r}
	h.lost, h.lose = context.WithCancelCause(context.Background())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = confirmed.Add(l.settings.Lease)
	h.timer = time.AfterFunc(l.settings.Lease/3, h.keep)
	h.end = time.AfterFunc(time.Until(h.until), h.ended)
	return h
}

func (h *Hold) ended() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if left := time.Until(h.until); left > 0 { // it was confirmed in this moment
		h.end.Reset(left)
	} else if !h.over {
		h.over = true
		h.lose(fmt.Errorf("%w: the lease has ended", ErrNotHeld))
	}
}

// Lost is closed when the lock is lost.
func (h *Hold) Lost() <-chan struct{} { return h.lost.Done() }

// Context is a context that ends when the lock is lost, too; its cause is ErrNotHeld then.
func (h *Hold) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(h.lost, func() { cancel(context.Cause(h.lost)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Guard runs a command in one step with the look whether the lock is still held under this token.
func (h *Hold) Guard(ctx context.Context, command ...any) (any, error) {
	words := append([]any{"DLOCK.GUARD", h.Key, h.Token}, command...)
	return h.locks.call(ctx, h.Key, func(string) []any { return words })
}

// Release gives back what was granted here, and nothing else. ErrNotHeld if it was lost. It needs no context: a
// deferred one must not fail because the work's has ended. It tries for as long as the lease lasts.
func (h *Hold) Release() error {
	h.mu.Lock()
	h.over = true
	h.timer.Stop()
	h.end.Stop()
	until := h.until
	h.mu.Unlock()
	words := h.request.words("RELEASE", "TOKEN", h.Token, "HOLDS", h.request.before)
	for unsure := false; ; time.Sleep(pause()) {
		_, err := h.locks.call(context.Background(), h.Key, func(string) []any { return words })
		switch {
		case err == nil || unsure && errors.Is(err, ErrNotHeld): // an earlier one may have been heard
			return nil
		case !passes(err) || time.Now().After(until):
			return err
		}
		unsure = unsure || errors.Is(err, ErrUnreachable)
	}
}

// keep says it again in time: so a new connection is tied to the hold after a loss, and the end is noticed.
func (h *Hold) keep() {
	now := time.Now()
	_, err := h.locks.call(context.Background(), h.Key, func(string) []any {
		return h.locks.renew(h.request, h.Token)
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over: // it was given back meanwhile, or has ended
	case err == nil:
		h.until = now.Add(h.locks.settings.Lease)
		h.timer.Reset(time.Until(now.Add(h.locks.settings.Lease / 3)))
		h.end.Reset(time.Until(h.until))
	case errors.Is(err, ErrNotHeld):
		h.over = true
		h.end.Stop()
		h.lose(err)
	default:
		h.timer.Reset(pause())
	}
}

// slotOf is the cluster's slot of a key: CRC-16 of the first non-empty `{…}` in it, or of all of it.
func slotOf(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return crc % 16384
}

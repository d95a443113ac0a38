package gocron

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"crypto/rand"

	"dlock.example/dlock"

	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"
)

const every = 4 * time.Second // a process that stalls for less misses no tick

var ctx = context.Background()

func client() *redis.Client { return redis.NewClient(&redis.Options{Addr: os.Getenv("DLOCK_SINGLE")}) }

// A process of the test: a scheduler with one job, which writes down its tick and takes its time.
func TestMain(m *testing.M) {
	words := strings.Fields(os.Getenv("DLOCK_TEST_SCHEDULER"))
	if len(words) != 2 {
		os.Exit(m.Run())
	}
	if err := schedule(words[0], words[1]); err != nil {
		panic(err)
	}
	time.Sleep(2 * time.Minute) // it is killed before
}

func schedule(kind, key string) error {
	server := client()
	locks, err := dlock.New(server, dlock.Settings{Lease: 3 * time.Second})
	if err != nil {
		return err
	}
	var how gocron.SchedulerOption
	if kind == "locker" {
		locker, err := NewLocker(locks, every)
		if err != nil {
			return err
		}
		how = gocron.WithDistributedLocker(locker)
	} else {
		elector, err := NewElector(locks, key, fmt.Sprint(os.Getpid()), dlock.Lease(3*time.Second))
		if err != nil {
			return err
		}
		how = gocron.WithDistributedElector(elector)
	}
	scheduler, err := gocron.NewScheduler(how)
	if err != nil {
		return err
	}
	_, err = scheduler.NewJob(gocron.CronJob("*/4 * * * * *", true), gocron.NewTask(func() {
		tick := time.Now().Truncate(every).Unix()
		server.RPush(ctx, key+":log", fmt.Sprint(tick, " ", os.Getpid()))
		time.Sleep(every / 8)
	}), gocron.WithName(key))
	if err != nil {
		return err
	}
	server.Incr(ctx, key+":ready")
	scheduler.Start()
	return nil
}

func TestOneProcessRunsEachTick(t *testing.T) {
	for _, kind := range []string{"locker", "elector"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server, key, children := client(), "gocron:"+rand.Text(), map[string]*exec.Cmd{}
			for range 3 {
				child := exec.Command(os.Args[0])
				child.Env = append(os.Environ(), "DLOCK_TEST_SCHEDULER="+kind+" "+key)
				child.Stderr = os.Stderr
				if err := child.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
				children[strconv.Itoa(child.Process.Pid)] = child
			}
			killed := ""
			var lines []string
			for end := time.Now().Add(100 * time.Second); len(lines) < 9; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("too few ticks: %v", lines)
				}
				lines = server.LRange(ctx, key+":log", 0, -1).Val()
				if len(lines) == 4 && killed == "" { // in the middle of its tick
					_, killed, _ = strings.Cut(lines[3], " ")
					if err := children[killed].Process.Kill(); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Logf("%s was killed: %v", killed, lines)
			last := int64(0)
			for i, line := range lines {
				word, who, _ := strings.Cut(line, " ")
				tick, _ := strconv.ParseInt(word, 10, 64)
				if last != 0 && tick != last+int64(every.Seconds()) {
					t.Errorf("tick %d after %d", tick, last)
				}
				if i > 3 && who == killed {
					t.Errorf("%s is dead", who)
				}
				last = tick
			}
		})
	}
}

// The process that ran the tick has ended, and so have its leases: a process that is late does not run it again.
func TestATickIsRememberedWithoutItsProcess(t *testing.T) {
	const every = time.Hour
	job := rand.Text()
	run := func() error {
		locks, err := dlock.New(client(), dlock.Settings{Lease: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		locker, err := NewLocker(locks, every)
		if err != nil {
			t.Fatal(err)
		}
		lock, err := locker.Lock(ctx, job)
		if err == nil {
			err = lock.Unlock(ctx)
		}
		return err
	}
	if err := run(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // nothing happens
	if err := run(); !errors.Is(err, dlock.ErrTaken) {
		t.Errorf("it is run again: %v", err)
	}
}

// Whenever the tick is, a process that is late by less than three quarters of every finds it taken, and the next one is free.
func TestATickLastsForThreeQuarters(t *testing.T) {
	const every = 8 * time.Second
	locks, err := dlock.New(client(), dlock.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(locks.Close)
	locker, err := NewLocker(locks, every)
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range []time.Duration{0, every / 4, every / 2, every * 3 / 4} {
		t.Run(phase.String(), func(t *testing.T) {
			t.Parallel()
			job := rand.Text()
			time.Sleep(time.Until(time.Now().Truncate(every).Add(every + phase)))
			if _, err := locker.Lock(ctx, job); err != nil {
				t.Fatal(err)
			}
			key := "gocron:{" + job + "}"
			left, err := client().Do(ctx, "DLOCK.HELD", key).Slice()
			if err != nil {
				t.Fatal(err)
			}
			if ms, _ := left[2].(int64); ms <= (every/2).Milliseconds() || ms > (every*3/4).Milliseconds() {
				t.Errorf("it is left for %d ms", ms)
			}
			if _, err := locker.Lock(ctx, job); !errors.Is(err, dlock.ErrTaken) {
				t.Errorf("a late process: %v", err)
			}
			for end := time.Now().Add(every); ; time.Sleep(20 * time.Millisecond) {
				if _, err = locker.Lock(ctx, job); err == nil || time.Now().After(end) {
					break
				}
			}
			if err != nil {
				t.Errorf("the next tick: %v", err)
			}
		})
	}
}

// A server without the module refuses each campaign.
func TestAnElectorSaysWhyItCannotLead(t *testing.T) {
	locks, err := dlock.New(redis.NewClient(&redis.Options{Addr: os.Getenv("DLOCK_BARE")}), dlock.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	elector, err := NewElector(locks, rand.Text(), "me")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = elector.Close(ctx) }()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err = elector.IsLeader(ctx)
		if err != nil && strings.Contains(err.Error(), "unknown command") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v", err)
		}
	}
}

func TestBadArguments(t *testing.T) {
	locks, err := dlock.New(client(), dlock.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	_, none := NewLocker(nil, 0)
	_, negative := NewLocker(locks, -1)
	_, nobody := NewElector(locks, "key", "")
	for name, err := range map[string]error{"locks": none, "every": negative, "name": nobody} {
		if !errors.Is(err, dlock.ErrArgument) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

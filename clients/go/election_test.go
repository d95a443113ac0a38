package dlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// candidate is what a process of the test does: it campaigns, and writes under guard while it leads.
func candidate(address, key, name string) {
	locks, err := New(client("single", address, "", ""), Settings{Lease: lease, HangTimeout: 2 * lease})
	if err != nil {
		panic(err)
	}
	election, err := locks.Election(key, name)
	if err != nil {
		panic(err)
	}
	for {
		hold, err := election.Campaign(ctx)
		if err != nil {
			continue
		}
		for election.IsLeader() {
			// A path that is silent must not keep it from looking again.
			soon, cancel := context.WithTimeout(ctx, time.Second)
			_, _ = election.Guard(soon, "RPUSH", key+":log", fmt.Sprint(hold.Token, " ", name))
			cancel()
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func (s stage) candidate(address, name string) *exec.Cmd {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "DLOCK_TEST_CANDIDATE="+strings.Join([]string{address, s.key, name}, " "))
	child.Stderr = os.Stderr
	s.must(child.Start())
	s.Cleanup(sync.OnceFunc(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}))
	return child
}

// One leader is killed, one is stopped, one's path is silent, one's is cut: no two write in one term, and no older term
// after a newer one.
func TestNoTwoLeaders(t *testing.T) {
	in(t, func(s stage) {
		address := addresses("single")[0]
		silent, cut := s.control("path "+address), s.control("path "+address)
		s.Cleanup(func() { s.control("close " + silent); s.control("close " + cut) })
		children := map[string]*exec.Cmd{
			"killed": s.candidate(address, "killed"), "stopped": s.candidate(address, "stopped"),
			"silent": s.candidate(silent, "silent"), "cut": s.candidate(cut, "cut"),
		}
		watcher, err := s.locks.Election(s.key, "watcher")
		s.must(err)
		watching, end := context.WithCancel(ctx)
		defer end()
		changes, seen := watcher.Observe(watching), map[string]bool{}
		faults := map[string]func(){
			"killed":  func() { _ = children["killed"].Process.Kill() },
			"stopped": func() { _ = children["stopped"].Process.Signal(syscall.SIGSTOP) },
			"silent":  func() { s.control("silence " + silent) },
			"cut": func() {
				s.control("cut " + cut) // its hold continues over a new connection
				s.until("it has written again", s.writes("cut"))
				_ = children["cut"].Process.Kill()
			},
		}
		for len(seen) < 4 {
			var leader Leader
			select {
			case leader = <-changes:
			case <-time.After(patience):
				s.Fatalf("nobody leads after %v", seen)
			}
			if leader.Name == "" || seen[leader.Name] {
				continue
			}
			seen[leader.Name] = true
			s.until(leader.Name+" writes", s.writes(leader.Name))
			faults[leader.Name]()
		}
		// Those that believed to lead find out.
		s.control("sound " + silent)
		_ = children["stopped"].Process.Signal(syscall.SIGCONT)
		s.until("one of them leads", func() bool {
			leader, err := watcher.Leader(ctx)
			return err == nil && (leader.Name == "silent" || leader.Name == "stopped")
		})
		leader, err := watcher.Leader(ctx)
		s.must(err)
		s.until("it writes", s.writes(leader.Name))
		last, names := int64(0), map[int64]string{}
		for _, line := range connection(address).LRange(ctx, s.key+":log", 0, -1).Val() {
			word, name, _ := strings.Cut(line, " ")
			term, _ := strconv.ParseInt(word, 10, 64)
			s.check(term >= last, "term %d after %d", term, last)
			s.check(names[term] == "" || names[term] == name, "term %d: %s and %s", term, names[term], name)
			last, names[term] = term, name
		}
		s.check(len(names) >= 4, "%v", names)
	}, "single")
}

// writes: there are more of this one's writes than there were.
func (s stage) writes(name string) func() bool {
	count := func() (count int) {
		for _, line := range connection(addresses("single")[0]).LRange(ctx, s.key+":log", 0, -1).Val() {
			if strings.HasSuffix(line, " "+name) {
				count++
			}
		}
		return count
	}
	before := count()
	return func() bool { return count() > before }
}

func TestElection(t *testing.T) {
	in(t, func(s stage) {
		first, err := s.locks.Election(s.key, "a")
		s.must(err)
		second, err := s.locks.Election(s.key, "a")
		s.must(err)
		_, err = s.locks.Election(s.key, "")
		s.isError(err, ErrArgument)
		hold, err := first.Campaign(ctx)
		s.must(err)
		again, err := first.Campaign(ctx)
		s.check(err == nil && again == hold && first.IsLeader(), "%v", err)
		leader, err := second.Leader(ctx)
		s.check(err == nil && leader == Leader{"a", hold.Token}, "%v %v", leader, err)
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		_, err = second.Campaign(soon)
		cancel()
		s.isError(err, context.DeadlineExceeded)
		s.check(!second.IsLeader() && second.Term() == 0 && first.Term() == hold.Token, "one of the same name is a rival")
		s.must(first.Resign(ctx))
		s.check(!first.IsLeader(), "it has resigned")
		hold, err = second.Campaign(ctx)
		s.check(err == nil && hold.Token > leader.Term, "%v", err)
		s.ask("DLOCK.FORCERELEASE", s.key)
		s.until("it has stepped down", func() bool { return !second.IsLeader() })
		s.must(second.Resign(ctx))
	}, "single", "cluster")
}

// The work of a leader ends with its term, and the next one leads when it has returned.
func TestLead(t *testing.T) {
	in(t, func(s stage) {
		first, err := s.locks.Election(s.key, "a")
		s.must(err)
		second, err := s.make(lease).Election(s.key, "b")
		s.must(err)
		failed := errors.New("of the work")
		err = first.Lead(ctx, func(ctx context.Context, hold *Hold) error {
			s.check(first.IsLeader() && first.Term() == hold.Token && HoldOf(ctx) == hold, "it does not lead")
			s.ask("DLOCK.FORCERELEASE", s.key)
			<-ctx.Done()
			s.isError(context.Cause(ctx), ErrNotHeld)
			return failed
		})
		s.isError(err, failed)
		s.must(second.Lead(ctx, func(context.Context, *Hold) error { return nil }))
		s.awaitGone()
	}, "single")
}

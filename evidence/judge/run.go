package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"dlock.example/judge/faulty"
	"dlock.example/judge/history"
	"dlock.example/judge/scenes"
	"dlock.example/judge/server"
)

// Between the ends of a server's leases and the processes' turns of the CPU no clock deviates by more.
const clockMs = 10

// Row is one kind of scene with one lease, and its verdicts.
type Row struct {
	Scene                     string
	LeaseMs                   int64
	Histories, Calls, Steps   int
	Cut, Restarts, Unanswered int
	Granted                   int
	Ok, Illegal, Undecided    int
	JudgedMs, LongestJudgedMs int64
}

// Run is the run at one server.
type Run struct {
	Server, Module, Date       string
	Seconds                    int
	Rows                       []Row
	Faults                     []FaultRow
	PulseMedianUs, PulseMostUs int64
	// Wrong are failures of the run itself.
	Wrong []string
}

// stage is a server with a pulse.
type stage struct {
	server  *server.Server
	pulse   *history.Pulse
	results string
	stop    chan struct{}
	done    sync.WaitGroup
}

func (o *options) start(program string) (*stage, func(), error) {
	directory, err := os.MkdirTemp("", "judge")
	if err != nil {
		return nil, nil, err
	}
	s, err := server.Start(program, o.module, directory)
	if err != nil {
		os.RemoveAll(directory)
		return nil, nil, err
	}
	st := &stage{server: s, pulse: &history.Pulse{}, results: o.results, stop: make(chan struct{})}
	st.done.Add(1)
	go st.beat()
	return st, func() {
		close(st.stop)
		st.done.Wait()
		s.Stop()
		os.RemoveAll(directory)
	}, nil
}

// beat sends a command every three milliseconds.
func (st *stage) beat() {
	defer st.done.Done()
	var c *server.Conn
	for {
		select {
		case <-st.stop:
			return
		case <-time.After(3 * time.Millisecond):
		}
		if c == nil {
			if c, _ = st.server.Connect(""); c == nil {
				continue
			}
		}
		sent := history.Now()
		if _, err := c.Do("PING"); err != nil {
			c.Close()
			c = nil
			continue
		}
		st.pulse.Beat(sent, history.Now())
	}
}

// settle waits until the pulse has passed every instant that a history can ask for.
func (st *stage) settle() {
	for now := history.Now() + 10*history.Millisecond; ; time.Sleep(5 * time.Millisecond) {
		if _, known := st.pulse.After(now); known {
			return
		}
	}
}

// round plays all kinds of scenes at once, each with both leases, and restarts the server in the middle.
func (st *stage) round(length time.Duration, seed uint64, by syscall.Signal) ([]*scenes.Scene, error) {
	begun := time.Now()
	var all []*scenes.Scene
	for i := range scenes.Kinds {
		kind := &scenes.Kinds[i]
		all = append(all, scenes.New(kind, kind.Long, st.server, ""), scenes.New(kind, kind.Short, st.server, ""))
	}
	failures := make(chan error, len(all)+1)
	var playing sync.WaitGroup
	for i, scene := range all {
		playing.Add(1)
		go func() {
			defer playing.Done()
			if err := scene.Play(clients, length, seed+uint64(i)); err != nil {
				failures <- fmt.Errorf("%s: %w", scene.Scene, err)
			}
		}()
	}
	time.Sleep(length / 2)
	span := history.Restart{From: history.Now()}
	err := st.server.Kill(by)
	span.Dead = history.Now()
	if err == nil {
		err = st.server.Again()
	}
	if err != nil {
		failures <- err
	}
	span.Until = history.Now()
	playing.Wait()
	for _, scene := range all {
		scene.Restarts[st.server.Epoch()] = span
	}
	st.settle()
	wall := time.Duration(history.Now()-begun.UnixMicro()) * time.Microsecond
	if step := wall - time.Since(begun); step.Abs() > clockMs*time.Millisecond {
		failures <- fmt.Errorf("the wall clock was set by %v: no lease can be judged", step)
	}
	close(failures)
	return all, <-failures
}

// judgeAll adds Porcupine's verdicts on these scenes to the rows.
func (o *options) judgeAll(st *stage, rows []Row, all []*scenes.Scene) {
	for i, scene := range all {
		v := judge(scene.History, st.pulse, o.timeout, o.picture("", scene))
		row := &rows[i]
		row.Scene, row.LeaseMs = scene.Scene, scene.LeaseMs
		row.Histories++
		row.Calls += v.Calls
		row.Steps += v.Steps
		row.Cut += len(scene.Ends)
		row.Restarts += len(scene.Restarts)
		for i := range scene.Calls {
			if !scene.Calls[i].Reply.Known {
				row.Unanswered++
			}
		}
		row.Granted += scene.Granted()
		row.count(v)
	}
}

// picture returns the path of an illegal history's picture, without the extension.
func (o *options) picture(prefix string, scene *scenes.Scene) string {
	name := fmt.Sprintf("%s%s-%d-%d", prefix, scene.Scene, scene.LeaseMs, history.Now())
	return filepath.Join(o.results, strings.ReplaceAll(name, " ", "-"))
}

func (r *Row) count(v Verdict) {
	switch v.Result {
	case "Ok":
		r.Ok++
	case "Illegal":
		r.Illegal++
	default:
		r.Undecided++
	}
	r.JudgedMs += v.Took.Milliseconds()
	r.LongestJudgedMs = max(r.LongestJudgedMs, v.Took.Milliseconds())
}

// play does the whole run at one server: first the planted faults, then rounds until the time is over.
func (o *options) play(program string) (Run, error) {
	begun := time.Now()
	st, stop, err := o.start(program)
	if err != nil {
		return Run{}, err
	}
	defer stop()
	run := Run{Date: begun.UTC().Format("2006-01-02")}
	if run.Server, run.Module, err = st.server.Versions(); err != nil {
		return run, err
	}
	fmt.Printf("%s, dlock %s\n", run.Server, run.Module)
	run.Faults, run.Wrong = o.plant(st)
	for _, f := range run.Faults {
		fmt.Println("  " + f.String())
	}
	run.Rows = make([]Row, 2*len(scenes.Kinds))
	for n := uint64(0); n == 0 || time.Since(begun) < o.length; n++ {
		by := syscall.SIGKILL
		if n%2 == 1 {
			by = syscall.SIGTERM
		}
		all, err := st.round(o.round, o.seed+100*n, by)
		if err != nil {
			run.Wrong = append(run.Wrong, err.Error())
			break
		}
		o.judgeAll(st, run.Rows, all)
	}
	run.PulseMostUs, run.PulseMedianUs = st.pulse.Longest()
	run.Seconds = int(time.Since(begun).Seconds())
	for i := range run.Rows {
		fmt.Println("  " + run.Rows[i].String())
	}
	run.Wrong = append(run.Wrong, run.check()...)
	return run, nil
}

// check returns the failures.
func (r *Run) check() []string {
	var wrong []string
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Illegal+row.Undecided > 0 || row.Histories == 0 || row.Granted == 0 {
			wrong = append(wrong, row.String())
		}
	}
	for _, f := range r.Faults {
		isNone := f.Fault == string(faulty.None)
		if !isNone && (f.Planted == 0 || f.Found != f.Planted) || f.Alarms > 0 {
			wrong = append(wrong, f.String())
		}
	}
	return wrong
}

func (r *Row) String() string {
	return fmt.Sprintf("%s, %d ms: %d histories, %d calls, %d granted, %d allowed, %d not allowed, %d undecided",
		r.Scene, r.LeaseMs, r.Histories, r.Calls, r.Granted, r.Ok, r.Illegal, r.Undecided)
}

package main

import (
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"dlock.example/judge/faulty"
	"dlock.example/judge/history"
	"dlock.example/judge/scenes"
)

// FaultRow is one fault: how often it was planted and found.
type FaultRow struct {
	Fault string
	// Scene is the scene in which it was planted, LeaseMs its lease.
	Scene   string
	LeaseMs int64
	// Planted are histories in which it occurred, Found the illegal ones among them, Calls their calls in all.
	Planted, Found, Calls int
	// Alarms are histories without any fault that were judged illegal.
	Alarms int
	// After are the calls from the fault to the answer that proves it, sorted.
	After []int
}

func (f *FaultRow) String() string {
	if f.Fault == string(faulty.None) {
		return fmt.Sprintf("no fault, %s, %d ms: %d calls, %d histories not allowed", f.Scene, f.LeaseMs, f.Calls, f.Alarms)
	}
	return fmt.Sprintf("%s, %s, %d ms: planted in %d histories of %d calls, found in %d, after %v calls",
		f.Fault, f.Scene, f.LeaseMs, f.Planted, f.Calls, f.Found, f.After)
}

// where is the scene in which a fault can be seen.
var where = map[faulty.Fault]struct {
	scene string
	short bool
}{
	faulty.SecondGrant:          {"mutex", false},
	faulty.LostRelease:          {"mutex", false},
	faulty.TokenSetBack:         {"mutex", false},
	faulty.SwappedWaiters:       {"tickets", false},
	faulty.LateLease:            {"mutex", true},
	faulty.UnreportedDisconnect: {"EPHEMERAL", false},
	faulty.LostEnd:              {"sessions", false},
}

// The number of scenes at faulty servers at one time: more of them would slow each other down.
const together = 26

// trial is one scene at a faulty server.
type trial struct {
	fault faulty.Fault
	row   *FaultRow
	kind  *scenes.Kind
	scene *scenes.Scene
	door  *faulty.Door
}

// plant plays the scenes at servers with a fault, and each such scene at one without: so a finding is due to the fault.
func (o *options) plant(st *stage) ([]FaultRow, []string) {
	var rows []*FaultRow
	var trials []*trial
	add := func(fault faulty.Fault, name string, isShort bool, times int) {
		kind := scenes.Named(name)
		lease := kind.Long
		if isShort {
			lease = kind.Short
		}
		row := &FaultRow{Fault: string(fault), Scene: name, LeaseMs: lease}
		rows = append(rows, row)
		for range times {
			trials = append(trials, &trial{fault: fault, row: row, kind: kind})
		}
	}
	for _, fault := range faulty.All {
		add(fault, where[fault].scene, where[fault].short, o.trials)
	}
	add(faulty.None, "mutex", false, 1)
	add(faulty.None, "mutex", true, 1)
	add(faulty.None, "tickets", false, 1)
	add(faulty.None, "EPHEMERAL", false, 1)
	add(faulty.None, "sessions", false, 1)
	var wrong []string
	seed := o.seed
	for some := range slices.Chunk(trials, together) {
		wrong = append(wrong, o.try(st, some, seed)...)
		seed += together
	}
	all := make([]FaultRow, len(rows))
	for i, row := range rows {
		all[i] = *row
	}
	return all, wrong
}

// try plays some of the scenes at once and judges each. It returns all other failures.
func (o *options) try(st *stage, trials []*trial, seed uint64) []string {
	failures := make(chan string, len(trials))
	var playing sync.WaitGroup
	for i, t := range trials {
		door, err := faulty.Open(st.server.Address, t.fault, o.faulty/4)
		if err != nil {
			return []string{err.Error()}
		}
		t.door, t.scene = door, scenes.New(t.kind, t.row.LeaseMs, st.server, door.Address())
		playing.Add(1)
		go func() {
			defer playing.Done()
			if err := t.scene.Play(clients, o.faulty, seed+uint64(i)); err != nil {
				failures <- fmt.Sprintf("%s, %s: %v", t.fault, t.scene.Scene, err)
			}
		}()
	}
	playing.Wait()
	close(failures)
	st.settle()
	for _, t := range trials {
		o.find(st, t)
	}
	var wrong []string
	for failure := range failures {
		wrong = append(wrong, failure)
	}
	return wrong
}

// find judges a scene at a faulty server, in which the fault may not have occurred.
func (o *options) find(st *stage, t *trial) {
	times, first := t.door.Planted()
	t.door.Close()
	isNone := t.fault == faulty.None
	if times == 0 && !isNone {
		return
	}
	h, row := t.scene.History, t.row
	v := judge(h, st.pulse, o.timeout, "")
	row.Calls += v.Calls
	switch {
	case isNone && v.Result != porcupine.Ok:
		row.Alarms++
	case isNone:
	case v.Result == porcupine.Illegal:
		row.Planted++
		row.Found++
		row.After = append(row.After, proof(h, st.pulse, o.timeout, first))
		slices.Sort(row.After)
	default:
		row.Planted++
	}
	if isNone != (v.Result == porcupine.Ok) {
		keepHistory(h, st.pulse, o.picture(row.Fault+" ", t.scene)+".json")
	}
}

// proof returns how many calls were answered from the fault until the records were illegal.
func proof(h *history.History, pulse *history.Pulse, timeout time.Duration, fault int64) int {
	instants := h.Instants()
	begin := sort.Search(len(instants), func(i int) bool { return instants[i] >= fault })
	return sort.Search(len(instants)-begin, func(i int) bool {
		return judge(h.Until(instants[begin+i]), pulse, timeout, "").Result == porcupine.Illegal
	}) + 1
}

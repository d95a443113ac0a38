// Package chaos reads the histories of `make chaos` (evidence/chaos/HISTORIES.md) and lets Porcupine judge them.
//
// Replication is asynchronous, so a failover may take a grant back. What can be judged is what an owner may rely on: while it
// believes in its hold, no owner that the limits exclude is granted the lock, and the tokens of a lock rise. These are histories
// of many servers, and the server of an answer does not matter.
package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// How much later than its token a grant was answered at best, in microseconds: the fastest answer aligns the tokens with the
// run's clock.
const slack = 5000

// line is one line of a history.
type line struct {
	Type    string `json:"type"`
	Process string `json:"process"`
	F       string `json:"f"`
	Key     string `json:"key"`
	Owner   string `json:"owner"`
	Token   uint64 `json:"token"`
	Limit   int    `json:"limit"`
	Time    int64  `json:"time"`
	What    string `json:"what"`
	// OneOwner: the setting promises that no two owners hold a lock.
	OneOwner bool `json:"one-owner"`
}

// Cell is the history of one cell of the chaos run.
type Cell struct {
	// Name is mode, server, fault and setting.
	Name string
	// Promises tells if two owners at once would break a promise.
	Promises bool
	// Lines is the number of lines of the file.
	Lines int
	// Locks are the operations of each lock.
	Locks map[string][]porcupine.Operation
}

// Verdict is Porcupine's verdict on a cell.
type Verdict struct {
	Cell       string
	Promises   bool
	Locks      int
	Operations int
	// Illegal are locks with excluded owners or falling tokens; Unknown those that took too long.
	Illegal, Unknown int
	// Planted and Found count the second owners that were put into copies of these histories.
	Planted, Found int
}

// Read reads all histories of a directory.
func Read(directory string) ([]Cell, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	var cells []Cell
	for _, file := range files {
		cell, err := read(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		cells = append(cells, cell)
	}
	return cells, nil
}

func read(file string) (Cell, error) {
	opened, err := os.Open(file)
	if err != nil {
		return Cell{}, err
	}
	defer opened.Close()
	var lines []line
	scanner := bufio.NewScanner(opened)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var l line
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			return Cell{}, fmt.Errorf("line %d: %w", len(lines)+1, err)
		}
		lines = append(lines, l)
	}
	if err := scanner.Err(); err != nil {
		return Cell{}, err
	}
	return cellOf(lines)
}

// cellOf pairs the lines of each process.
func cellOf(lines []line) (Cell, error) {
	if len(lines) == 0 || lines[0].F != "cell" {
		return Cell{}, fmt.Errorf("the first line describes no cell")
	}
	c := Cell{Name: lines[0].What, Promises: lines[0].OneOwner, Lines: len(lines), Locks: map[string][]porcupine.Operation{}}
	clients := map[string]int{}
	open := map[string]line{}
	type grant struct {
		client        int
		begins, until line
	}
	var grants []grant
	// The run's beginning by the clock of the tokens: no grant is answered before it is made.
	begun := int64(0)
	// Owners whose request at this lock had no answer: a later call may show its grant.
	unanswered := map[[2]string]bool{}
	seen := map[uint64]bool{}
	for _, l := range lines[1:] {
		if l.Process == "faults" {
			continue
		}
		client, known := clients[l.Process]
		if !known {
			client = len(clients)
			clients[l.Process] = client
		}
		if l.Type == "invoke" {
			open[l.Process] = l
			continue
		}
		first, isOpen := open[l.Process]
		if !isOpen {
			return c, fmt.Errorf("%s of %s at %d ends and has not begun", l.F, l.Process, l.Time)
		}
		delete(open, l.Process)
		if l.Type != "ok" {
			if l.Type == "info" {
				unanswered[[2]string{l.Key, l.Owner}] = true
			}
			continue
		}
		switch l.F {
		case "hold":
			hold := &hold{owner: l.Process, limit: first.Limit}
			c.Locks[l.Key] = append(c.Locks[l.Key],
				porcupine.Operation{ClientId: client, Input: believe{hold}, Call: first.Time, Return: first.Time},
				porcupine.Operation{ClientId: client, Input: stop{hold}, Call: l.Time, Return: l.Time})
		case "acquire", "fairacquire", "macquire":
			begun = max(begun, int64(l.Token)-l.Time)
			// A holder gets the token that it has.
			if !seen[l.Token] && !unanswered[[2]string{l.Key, l.Owner}] {
				grants = append(grants, grant{client, first, l})
			}
			seen[l.Token] = true
		}
	}
	for _, g := range grants {
		granted := int64(g.until.Token) - begun - slack
		c.Locks[g.until.Key] = append(c.Locks[g.until.Key], porcupine.Operation{
			ClientId: g.client, Input: token(g.until.Token),
			Call: min(max(g.begins.Time, granted), g.until.Time), Return: g.until.Time,
		})
	}
	return c, nil
}

// The operations.
type (
	hold struct {
		owner string
		limit int
	}
	// believe is the instant from which an owner works, stop the one until which it does.
	believe struct{ *hold }
	stop    struct{ *hold }
	// token is a grant.
	token uint64
)

// state has the owners that believe in the lock, and the last token.
type state struct {
	holds string
	last  token
}

// Model returns the model of one lock: excluded owners do not believe at one time, and tokens rise.
func Model() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return state{} },
		Step: func(before, input, _ interface{}) (bool, interface{}) {
			s := before.(state)
			switch op := input.(type) {
			case token:
				if op <= s.last {
					return false, nil
				}
				s.last = op
			case believe:
				all := append(split(s.holds), fmt.Sprintf("%d %s", op.limit, op.owner))
				for _, one := range all {
					var limit int
					fmt.Sscanf(one, "%d", &limit)
					if limit != 0 && len(all) > limit {
						return false, nil
					}
				}
				slices.Sort(all)
				s.holds = strings.Join(all, "\n")
			case stop:
				all := split(s.holds)
				at := slices.Index(all, fmt.Sprintf("%d %s", op.limit, op.owner))
				if at < 0 {
					return false, nil
				}
				s.holds = strings.Join(slices.Delete(all, at, at+1), "\n")
			}
			return true, s
		},
		Equal: func(a, b interface{}) bool { return a == b },
	}
}

func split(holds string) []string {
	if holds == "" {
		return nil
	}
	return strings.Split(holds, "\n")
}

// Judge lets Porcupine judge each lock of a cell. It puts a second owner into a copy of each legal history, which Porcupine must
// find.
func Judge(c Cell, timeout time.Duration) Verdict {
	v := Verdict{Cell: c.Name, Promises: c.Promises, Locks: len(c.Locks)}
	for _, operations := range c.Locks {
		v.Operations += len(operations)
		switch porcupine.CheckOperationsTimeout(Model(), operations, timeout) {
		case porcupine.Illegal:
			v.Illegal++
			continue
		case porcupine.Unknown:
			v.Unknown++
			continue
		}
		if worse, planted := second(operations); planted {
			v.Planted++
			if porcupine.CheckOperationsTimeout(Model(), worse, timeout) == porcupine.Illegal {
				v.Found++
			}
		}
	}
	return v
}

// second adds an owner next to the middle one of those that exclude others.
func second(operations []porcupine.Operation) ([]porcupine.Operation, bool) {
	var begins []porcupine.Operation
	ends := map[*hold]int64{}
	for _, o := range operations {
		switch op := o.Input.(type) {
		case believe:
			if op.limit == 1 {
				begins = append(begins, o)
			}
		case stop:
			ends[op.hold] = o.Call
		}
	}
	begins = slices.DeleteFunc(begins, func(o porcupine.Operation) bool { return ends[o.Input.(believe).hold]-o.Call < 3 })
	if len(begins) == 0 {
		return nil, false
	}
	beside := begins[len(begins)/2]
	from, until := beside.Call+1, ends[beside.Input.(believe).hold]-1
	another := &hold{owner: "planted", limit: 1}
	return append(slices.Clone(operations),
		porcupine.Operation{Input: believe{another}, Call: from, Return: from},
		porcupine.Operation{Input: stop{another}, Call: until, Return: until}), true
}

// IsWrong tells if a promise was broken, a lock was not decided, or a planted owner was not found.
func (v *Verdict) IsWrong() bool {
	return v.Promises && v.Illegal > 0 || v.Unknown > 0 || v.Found != v.Planted || v.Operations == 0
}

func (v *Verdict) String() string {
	promise := "two owners may be"
	if v.Promises {
		promise = "one owner is promised"
	}
	return fmt.Sprintf("%s: %d operations at %d locks, %d not allowed (%s), %d undecided; planted %d, found %d",
		v.Cell, v.Operations, v.Locks, v.Illegal, promise, v.Unknown, v.Planted, v.Found)
}

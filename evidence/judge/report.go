package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sort"
	"strings"

	"dlock.example/judge/faulty"
)

// Figures are those of all kept runs, one per server and version.
type Figures struct {
	Runs []Run
	// Machine is the machine of the run and its load, Checker the version of Porcupine, Go that of the compiler.
	Machine, Checker, Go string
}

// keep adds a run to the figures, in the place of an earlier one at that server, and writes them and the page.
func (o *options) keep(run Run) error {
	path := filepath.Join(o.results, "judge.json")
	var f Figures
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.Machine, f.Checker, f.Go = o.machine, checker(), runtime.Version()
	f.Runs = slices.DeleteFunc(f.Runs, func(old Run) bool { return old.Server == run.Server })
	f.Runs = append(f.Runs, run)
	sort.Slice(f.Runs, func(i, j int) bool { return f.Runs[i].Server < f.Runs[j].Server })
	if text, err = json.MarshalIndent(f, "", " "); err != nil {
		return err
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.results, "judge.md"), []byte(page(&f)), 0o644)
}

// machine returns this machine and its load, in the words of the other programs' pages (integration/harness/src/servers/made.rs).
func machine() string {
	name := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for _, line := range strings.Split(string(text), "\n") {
			if word, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(word) == "model name" {
				name = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel, _ := exec.Command("uname", "-srm").Output()
	load, _ := os.ReadFile("/proc/loadavg")
	now, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%s, %d cores shared by servers and clients, %s, load before the run %s",
		name, runtime.NumCPU(), strings.TrimSpace(string(kernel)), now)
}

func checker() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/anishathalye/porcupine" {
				return module.Version
			}
		}
	}
	return "unknown"
}

// page returns the result page. The worst comes first.
func page(f *Figures) string {
	var b strings.Builder
	say := func(format string, values ...any) { fmt.Fprintf(&b, format, values...) }
	rows, faults, sum, wrong := f.sums()
	planted, found := 0, 0
	for _, fault := range faults {
		planted += fault.Planted
		found += fault.Found
	}
	var servers, modules, dates []string
	for _, run := range f.Runs {
		servers, modules, dates = append(servers, run.Server), append(modules, run.Module), append(dates, run.Date)
	}
	slices.Sort(modules)
	slices.Sort(dates)
	say("Made by `make judge`: dlock %s, %s, %s, %s. It leaves the figures in `target/judge/judge.json`. ",
		strings.Join(slices.Compact(modules), ", "), strings.Join(slices.Compact(dates), ", "), strings.Join(servers, ", "), f.Machine)
	say("Histories from real servers are judged by [Porcupine](https://github.com/anishathalye/porcupine). [What is judged](../../evidence/judge/README.md)\n\n")
	say("**Not what dlock promises: %d of %s histories. Undecided: %d. ", sum.Illegal, number(sum.Histories), sum.Undecided)
	say("Planted faults: %d of %d found.** %s calls, %s of them grants; %s connections were cut, %s calls never answered.\n\n",
		found, planted, number(sum.Calls), number(sum.Granted), number(sum.Cut), number(sum.Unanswered))
	for _, line := range wrong {
		say("- Not as promised: %s\n", line)
	}
	if len(wrong) > 0 {
		say("\n")
	}
	say("Porcupine %s, %s. It took %.1f s for %s steps, and %.1f s at most for one history.\n\n",
		f.Checker, f.Go, float64(sum.JudgedMs)/1000, number(sum.Steps), float64(sum.LongestJudgedMs)/1000)
	say("| server | dlock | date | seconds | restarts | histories | calls | not allowed | undecided | ")
	say("answer to a PING, ms: median, longest |\n")
	say("|---|---|---|---|---|---|---|---|---|---|\n")
	for _, run := range f.Runs {
		of := run.sum()
		say("| %s | %s | %s | %d | %d | %d | %s | %d | %d | %.1f, %.0f |\n", run.Server, run.Module, run.Date, run.Seconds,
			run.Rows[0].Restarts, of.Histories, number(of.Calls), of.Illegal, of.Undecided,
			float64(run.PulseMedianUs)/1000, float64(run.PulseMostUs)/1000)
	}
	say("\n| scene | lease, s | histories | calls | grants | connections cut | calls without an answer | not allowed | undecided |\n")
	say("|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range rows {
		say("| %s | %g | %d | %s | %s | %d | %d | %d | %d |\n", row.Scene, float64(row.LeaseMs)/1000, row.Histories,
			number(row.Calls), number(row.Granted), row.Cut, row.Unanswered, row.Illegal, row.Undecided)
	}
	say("\n| planted fault | scene | lease, s | calls | histories with it | found | answers until it is proven: median, most |\n")
	say("|---|---|---|---|---|---|---|\n")
	for _, fault := range faults {
		lease := float64(fault.LeaseMs) / 1000
		if fault.Fault == string(faulty.None) {
			say("| none, in the same way | %s | %g | %s | – | %d | – |\n", fault.Scene, lease, number(fault.Calls), fault.Alarms)
			continue
		}
		after := "–"
		if n := len(fault.After); n > 0 {
			after = fmt.Sprintf("%d, %d", fault.After[n/2], fault.After[n-1])
		}
		say("| %s | %s | %g | %s | %d | %d | %s |\n",
			fault.Fault, fault.Scene, lease, number(fault.Calls), fault.Planted, fault.Found, after)
	}
	return b.String()
}

// sums adds up the rows and the faults of all servers, and returns the failures of each.
func (f *Figures) sums() (rows []Row, faults []FaultRow, sum Row, wrong []string) {
	for _, run := range f.Runs {
		for _, line := range run.Wrong {
			wrong = append(wrong, run.Server+": "+line)
		}
		for _, row := range run.Rows {
			at := slices.IndexFunc(rows, func(r Row) bool { return r.Scene == row.Scene && r.LeaseMs == row.LeaseMs })
			if at < 0 {
				at = len(rows)
				rows = append(rows, Row{Scene: row.Scene, LeaseMs: row.LeaseMs})
			}
			rows[at].add(&row)
			sum.add(&row)
		}
		for _, fault := range run.Faults {
			at := slices.IndexFunc(faults, func(r FaultRow) bool {
				return r.Fault == fault.Fault && r.Scene == fault.Scene && r.LeaseMs == fault.LeaseMs
			})
			if at < 0 {
				faults = append(faults, fault)
				continue
			}
			all := &faults[at]
			all.Planted += fault.Planted
			all.Found += fault.Found
			all.Calls += fault.Calls
			all.Alarms += fault.Alarms
			all.After = append(slices.Clone(all.After), fault.After...)
			slices.Sort(all.After)
		}
	}
	return rows, faults, sum, wrong
}

func (r *Run) sum() Row {
	var sum Row
	for i := range r.Rows {
		sum.add(&r.Rows[i])
	}
	return sum
}

func (r *Row) add(other *Row) {
	r.Histories += other.Histories
	r.Calls += other.Calls
	r.Steps += other.Steps
	r.Cut += other.Cut
	r.Restarts += other.Restarts
	r.Unanswered += other.Unanswered
	r.Granted += other.Granted
	r.Ok += other.Ok
	r.Illegal += other.Illegal
	r.Undecided += other.Undecided
	r.JudgedMs += other.JudgedMs
	r.LongestJudgedMs = max(r.LongestJudgedMs, other.LongestJudgedMs)
}

// number writes a number with commas.
func number(n int) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

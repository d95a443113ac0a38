package dlock

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Each case fails on a client with a fault: a case that nothing fails proves nothing. The source is replaced as the test
// is built, and nothing of it is left.
var faults = []struct{ cases, file, old, new string }{
	{"closed_try", "dlock.go", "case err != nil:\n\t\treturn nil, err\n\tcase t != nil", "case err != nil:\n\t\treturn nil, ErrTaken\n\tcase t != nil"},
	{"closed_two_seconds", "acquire.go", `"%w: %q within %v: %w", ErrTimeout, r.key, timeout, trouble`, `"%w: %q within %v: %v", ErrTimeout, r.key, timeout, trouble`},
	{"closed_without_bound", "acquire.go", `c.log.Warn("still`, `c.log.Debug("-`},
	{"hung_try,hung_later,TestGuardEndsWithinTheBound", "dlock.go", "s.HangTimeout = max(", "s.ReplyTimeout = 20 * time.Second\n\ts.HangTimeout = max("},
	{"silent_path", "core.go", "c.alarm = never\n\tvar", "c.alarm = never\n\tat = never\n\tvar"},
	{"slow_path", "dlock.go", "s.HangTimeout = max(", "s.ReplyTimeout = 150 * time.Millisecond\n\ts.HangTimeout = max("},
	{"wrong_password,no_right_to_the_command,no_module,two_that_wait_for_each_other,replaced,no_right_to_renew", "errors.go", "return slices.Contains(passing, said.code())", "return slices.Contains(passing, \"ASK\")"},
	{"no_channel", "connect.go", "!passes(err) && !errors.Is(err, ErrClosed)", "passes(err) && !errors.Is(err, ErrClosed)"},
	{"two_dead_links_of_five,one_hung_node_of_three", "keep.go", "l, err := c.round(n)", "inTurn <- struct{}{}\n\t\tl, err := c.round(n)\n\t\tif err != nil {\n\t\t\tc.sleep(context.Background(), c.settings.Lease)\n\t\t}\n\t\t<-inTurn"},
	{"two_thousand_holds_at_200_ms", "keep.go", "if t.link != l {", "if t.link != nil {"},
	{"forced,expired,deleted", "keep.go", "lost, known := parts[2].([]any)", "lost, known := []any(nil), true\n\tl.renewals = count"},
	{"cut_and_kept,hold_over_a_failover,hold_over_a_switch,hold_over_a_slot_move,an_ephemeral_hold_over_a_failover_elsewhere", "keep.go", "range unrenewed {", "range unrenewed[:0] {"},
	{"cut_wait,wait_over_a_failover,wait_over_a_switch,wait_over_a_crash,wait_over_a_slot_move", "node.go", "for _, w := range n.waits {", "for _, w := range map[place]*waiter{} {"},
	{"after_close,closed_without_a_channel", "dlock.go", "{ l.core.close() }", "{}"},
	{"a_thousand_cycles", "connect.go", "if n.link.alive() {", "if n.link == nil {\n\t\treturn n.link, nil\n\t}\n\tif n.link.serial < 0 {"},
	{"dropped,sixty_forgotten_at_200_ms", "dlock.go", "if !over && last {", "if over && last {"},
	{"a_late_release_ends_no_later_hold,a_late_release_of_a_lost_hold,TestWhatIsReadLateEndsNoHold", "core.go", "r.owner = r.name + c.owner(place{r.key, r.name}).alias", "r.owner = r.name"},
	{"taken_again_after_a_loss", "release.go", "if token == 0 {\n\t\t\tanswered()", "{\n\t\t\tanswered()"},
	{"asked_again_after_a_lost_reply", "acquire.go", "r.again, r.sent = r.sent, true", "r.sent = true"},
	{"TestWhatNoTimeCanMendEndsAWait", "errors.go", "case errors.As(err, &plain), errors.As(err, &address), errors.As(err, &network):", "case false:"},
	{"TestAForgottenHoldIsLost", "dlock.go", `s.lose("forgotten`, "s.leave()\n\ts.lose(\"forgotten"},
	{"TestAContextCarriesItsHold", "dlock.go", "context.WithValue(ctx, holdKey{}, h)", "context.WithValue(ctx, holdKey{}, h.Key)"},
	{"TestGuardRunsOnce", "dlock.go", "\treply, err := c.call(ctx, &r, words, now()+c.settings.ReplyTimeout, nil)", "\treply, err := c.call(ctx, &r, words, now()+c.settings.ReplyTimeout, nil)\n\tif errors.Is(err, ErrUnreachable) {\n\t\treply, err = c.call(ctx, &r, words, now()+c.settings.ReplyTimeout, nil)\n\t}"},
	{"TestAFencedGuardIsALoss", "dlock.go", `c.lose(h.state.renewal, "fenced")`, ""},
	{"a_refused_keep_is_the_reason", "core.go", `reason += ": " + why.Error()`, ""},
	{"a_refused_keep_is_the_reason", "acquire.go", "if !refused {", "if !refused || true {"},
	{"a_try_at_a_closed_port,a_try_at_a_replica,a_try_without_replicas,a_try_at_a_busy_server,a_try_at_a_loading_server", "acquire.go", "if r.once {\n\t\t\treturn nil, err", "if r.once && now() > r.until {\n\t\t\treturn nil, err"},
	{"a_hold_over_a_busy_server", "errors.go", `"LOADING", "BUSY",`, `"LOADING",`},
	{"a_wait_at_a_loading_server", "errors.go", `"LOADING", "BUSY",`, `"BUSY",`},
	{"TestADeadlineIsTaken", "acquire.go", "trouble = ErrTaken", "trouble = errNoAnswer"},
	{"a_turn_takes_three_commands", "node.go", "return n.crowd[key] > 0", "return n.crowd[key] > 1000"},
	{"TestAPauseLosesNothingThatTheServerHolds", "core.go", "case t.asked == 0 &&", "case t.asked != 0 &&"},
	{"the_replica_frozen", "errors.go", `"ASK", "NOACK",`, `"ASK",`},
	{"a_hold_that_may_not_last", "keep.go", "l.short = least <", "l.short = l.short && least <"},
	{"a_time_out_leaves_no_place,a_time_out_in_the_queue", "acquire.go", "(err != nil || r.queued)", "err != nil"},
	{"TestAMapThatNobodyTellsStopsNoKeeper", "routes.go", "c.cluster.ReloadState(", "_, _ = c.cluster.Options().ClusterSlots("},
	{"several_permits,a_large_request_is_not_overtaken,permits_outlast_a_cut", "request.go", "if r.permits > 1 {", "if r.permits < 1 {"},
	{"permits_of_an_owner", "core.go", "if r.permits > t.request.permits {", "if r.permits > t.request.permits+9 {"},
	{"first_come_first_served", "acquire.go", "case heard:\n\t\treturn c.wait(ctx, n, r)", "case heard:\n\t\treturn c.poll(ctx, r)"},
	{"a_try_takes_no_place", "request.go", `verb := "FAIRACQUIRE"`, "once := r.once\n\tr.once = false\n\tdefer func() { r.once = once }()\n\tverb := \"FAIRACQUIRE\""},
	{"an_ephemeral_hold_ends_with_its_connection", "request.go", "if r.ephemeral {", `if r.ephemeral && r.key == "" {`},
	{"readers_and_a_writer,a_semaphore_of_three", "request.go", `words = append(words, "HOLDS", "1")`, "words = append(words, \"HOLDS\", \"1\")\n\tif r.limit > 0 {\n\t\treturn words\n\t}"},
	{"an_inner_hold_ends_no_outer_one", "release.go", "return !t.live()", "return true"},
	{"a_name_is_of_one_client", "request.go", "c.process+name+c.suffix, true", "c.process+name, true"},
	{"no_write_after_the_loss", "request.go", `words := []string{"DLOCK.GUARD", key, strconv.FormatInt(token, 10)}`, "words := []string{}"},
	{"no_right_to_ping", "connect.go", `strings.HasPrefix(err.Error(), "NOPERM")`, `strings.HasPrefix(err.Error(), "OK")`},
	{"no_right_to_release", "keep.go", "l.surplus > 1\n", "l.surplus > 1000\n"},
	{"a_re_entry_sends_nothing", "acquire.go", "t, err := c.reenter(ctx, r); t != nil || err != nil", "t, err := c.reenter(ctx, r); err != nil"},
	{"no_time_out_is_too_long", "acquire.go", "= after(asked, timeout), after(asked, timeout)", "= asked+timeout, asked+timeout"},
	{"bad_arguments", "request.go", `if key == "" {`, `if key == "-" {`},
}

func TestEveryCaseHasItsFault(t *testing.T) {
	var planted []string
	for _, fault := range faults {
		planted = append(planted, strings.Split(fault.cases, ",")...)
	}
	for _, one := range readCases(t) {
		if !slices.Contains(planted, one.Name) {
			t.Errorf("%s has none", one.Name)
		}
	}
}

func TestAPlantedFaultIsSeen(t *testing.T) {
	if os.Getenv("DLOCK_PLANTED") == "" {
		t.Skip("DLOCK_PLANTED=1")
	}
	for _, fault := range faults {
		for name := range strings.SplitSeq(fault.cases, ",") {
			t.Run(name, func(t *testing.T) {
				source, err := os.ReadFile(fault.file)
				if err != nil {
					t.Fatal(err)
				}
				faulty := strings.ReplaceAll(string(source), fault.old, fault.new)
				if faulty == string(source) {
					t.Fatalf("%q is not in %s", fault.old, fault.file)
				}
				if strings.Contains(fault.new, "inTurn") {
					faulty += "\nvar inTurn = make(chan struct{}, 1)\n"
				}
				here, err := os.Getwd()
				if err != nil {
					t.Fatal(err)
				}
				there := t.TempDir()
				overlay, _ := json.Marshal(map[string]any{
					"Replace": map[string]string{filepath.Join(here, fault.file): filepath.Join(there, fault.file)},
				})
				for name, data := range map[string]string{fault.file: faulty, "overlay.json": string(overlay)} {
					if err := os.WriteFile(filepath.Join(there, name), []byte(data), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				built := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(there, "overlay.json"), "-o", filepath.Join(there, "faulty"), ".")
				if said, err := built.CombinedOutput(); err != nil {
					t.Fatalf("it does not build: %s", said)
				}
				which := "^TestCases(Alone)?$/^" + name + "$"
				if strings.HasPrefix(name, "Test") {
					which = "^" + name + "$"
				}
				run := exec.Command(filepath.Join(there, "faulty"), "-test.v", "-test.timeout=90s", "-test.run="+which)
				run.Env = append(os.Environ(), "DLOCK_LATE=0.5", "DLOCK_PATIENCE=25s")
				said, err := run.CombinedOutput()
				if err == nil || !strings.Contains(string(said), "FAIL: ") && !strings.Contains(string(said), "panic:") {
					t.Fatalf("nobody has seen it: %v\n%s", err, said)
				}
				for line := range strings.Lines(string(said)) {
					if strings.Contains(line, "_test.go:") {
						t.Log(strings.TrimSpace(line))
						break
					}
				}
			})
		}
	}
}

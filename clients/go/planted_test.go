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
type edit struct{ file, old, new string }

var (
	cancels    = edit{"take.go", "s.send(&errand{\n\t\tkey: key, words: []any{\"DLOCK.CANCEL\"", "_ = one\n\t_ = (&errand{\n\t\tkey: key, words: []any{\"DLOCK.CANCEL\""}
	blocksLong = edit{"take.go", `words = append(words, "BLOCK", millis(left))`, `words = append(words, "BLOCK", "600000")`}
	patient    = edit{"dlock.go", "s.HangTimeout = max(", "s.ReplyTimeout = 20 * time.Second\n\ts.HangTimeout = max("}
)

var faults = []struct {
	cases string
	edits []edit
}{
	{"closed_try", []edit{{"take.go", "\treturn why\n}\n", "\treturn fmt.Errorf(\"%w: %q\", ErrTaken, key)\n}\n"}}},
	{"closed_two_seconds", []edit{{"take.go", `"%w: %q within %v: %w", ErrTimeout, key, t.wait, why`, `"%w: %q within %v: %v", ErrTimeout, key, t.wait, why`}}},
	{"closed_without_bound", []edit{{"take.go", `go t.s.log.Warn("still`, `go t.s.log.Debug("-`}}},
	{"hung_try,hung_later,TestGuardEndsWithinTheBound", []edit{patient}},
	{"silent_path", []edit{{"clock.go", "return end <= now() && c.grace <= now()", "return false"}}},
	{"slow_path", []edit{{"dlock.go", "s.HangTimeout = max(", "s.ReplyTimeout = 150 * time.Millisecond\n\ts.HangTimeout = max("}}},
	{"wrong_password,no_right_to_the_command,no_module,two_that_wait_for_each_other", []edit{{"errors.go", "return slices.Contains(passing, said.code())", "return true || slices.Contains(passing, said.code())"}}},
	{"replaced", []edit{{"session.go", `"cancelled", "replaced",`, `"cancelled",`}}},
	{"two_dead_links_of_five,one_hung_node_of_three", []edit{
		{"session.go", "reply, err := by.call(ctx, wait, words...)", "if words[0] == \"DLOCK.SESSION\" {\n\t\t\t\tinTurn <- struct{}{}\n\t\t\t}\n\t\t\treply, err := by.call(ctx, wait, words...)\n\t\t\tif words[0] == \"DLOCK.SESSION\" {\n\t\t\t\tif err != nil {\n\t\t\t\t\ttime.Sleep(s.settings.Lease)\n\t\t\t\t}\n\t\t\t\t<-inTurn\n\t\t\t}"},
		{"session.go", "func number(", "var inTurn = make(chan struct{}, 1)\n\nfunc number("},
	}},
	{"two_thousand_holds_at_200_ms", []edit{{"session.go", "one.sent, one.until = sent, until", "one.sent, one.until = sent, until\n\t\tfor _, h := range one.holds {\n\t\t\ts.renew(h)\n\t\t}"}}},
	{"forced,expired,deleted,cut_and_kept", []edit{{"session.go", "if one.loop == nil && !s.closed {", "if one.loop == nil && s.closed {"}}},
	{"a_short_hold_beside_a_long_one", []edit{{"session.go", "if until-now() < one.longest/2 {", "if false {"}}},
	{"cut_wait", []edit{{"session.go", "one.err, l.notBefore = err, now()+pause", "one.err, l.notBefore = err, now()+never/4"}}},
	{"wait_over_a_failover,wait_over_a_switch,wait_over_a_crash,wait_over_a_slot_move", []edit{{"take.go", "\tt.word = word\n", "\tif word == \"again\" || word == \"gone\" {\n\t\treturn\n\t}\n\tt.word = word\n"}}},
	{"hold_over_a_failover,hold_over_a_switch,hold_over_a_slot_move,a_hold_over_a_crash,an_overflow_of_rows", []edit{{"session.go", "if h.isRenewed || h.over {", "if true || h.isRenewed || h.over {"}}},
	{"after_close", []edit{{"dlock.go", "{ l.sessions.close() }", "{}"}}},
	{"a_thousand_cycles", []edit{{"library.go", "return p.current\n", "return p.connect()\n"}}},
	{"dropped,sixty_forgotten_at_200_ms,TestAForgottenHoldIsLost", []edit{{"hold.go", "if !h.over {", "if false {"}}},
	{"the_replica_frozen", []edit{{"errors.go", `"ASK", "NOACK",`, `"ASK",`}}},
	{"a_time_out_leaves_no_place,a_time_out_in_the_queue", []edit{cancels, blocksLong, {"session.go", "linger = time.Second", "linger = 600 * time.Second"}, {"session.go", "s.send(&errand{key: h.key, words: h.words(\"RELEASE\")", "_ = (&errand{key: h.key, words: h.words(\"RELEASE\")"}}},
	{"a_late_word", []edit{{"session.go", "one.heard = max(one.heard, sent)", ""}}},
	{"a_hold_that_may_not_last", []edit{{"session.go", "case \"taken\":", "case \"taken\":\n\t\t\treturn"}}},
	{"several_permits,a_large_request_is_not_overtaken,permits_outlast_a_cut", []edit{{"take.go", "if r.permits > 1 {", "if r.permits > 99 {"}}},
	{"bad_arguments", []edit{{"take.go", `if slices.Contains(keys, "") {`, `if slices.Contains(keys, "-") {`}}},
	{"first_come_first_served", []edit{{"dlock.go", "holds, err := l.take(ctx, r, wait)", "holds, err := l.take(ctx, r, 0)\n\tfor wait != 0 && err != nil {\n\t\ttime.Sleep(50 * time.Millisecond)\n\t\tholds, err = l.take(ctx, r, 0)\n\t}"}}},
	{"a_try_takes_no_place", []edit{cancels, {"take.go", "t.request.words(s.name, t.owner, t.wait == 0, left)", "t.request.words(s.name, t.owner, false, 600*time.Second)"}}},
	{"readers_and_a_writer,a_semaphore_of_three", []edit{{"take.go", "switch {\n\tcase r.limit == shared:", "switch {\n\tcase true:\n\tcase r.limit == shared:"}}},
	{"no_write_after_the_loss", []edit{{"hold.go", `append([]any{"DLOCK.GUARD", h.Key, h.Token}, command...)...`, "command..."}}},
	{"no_right_to_release", []edit{{"hold.go", "if err != nil && !errors.Is(err, ErrNotHeld) { // it may", "if false { // it may"}}},
	{"a_turn_takes_three_commands", []edit{{"session.go", "s.clock.set(due)\n}", "s.clock.set(due)\n\ts.renew(h)\n}"}}},
	{"a_try_at_a_closed_port,a_try_at_a_replica,a_try_without_replicas,a_try_at_a_busy_server,a_try_at_a_loading_server", []edit{{"take.go", "if t.wait == 0 || !passes(err) {", "if t.wait == 0 && now() > t.deadline || !passes(err) {"}}},
	{"a_hold_over_a_busy_server", []edit{{"errors.go", `"LOADING", "BUSY",`, `"LOADING",`}}},
	{"a_wait_at_a_loading_server", []edit{{"errors.go", `"LOADING", "BUSY",`, `"BUSY",`}}},
	{"no_time_out_is_too_long", []edit{{"take.go", "t.deadline = after(t.began, wait)", "t.deadline = t.began + wait"}}},
	{"asked_again_after_a_lost_reply", []edit{{"take.go", "number(tokens[0]) == 0 || t.asked > 1 {", "number(tokens[0]) == 0 {"}}},
	{"late_commands_of_open_connections", []edit{
		{"session.go", `return s.name + "/" + number`, `return s.name + "/me"`},
		{"take.go", "s, key, one := t.s, t.request.keys[0], t.session\n", "s, key, one := t.s, t.request.keys[0], t.session\n\ts.send(&errand{key: key, words: []any{\"DLOCK.RELEASE\", key, t.owner, \"HOLDS\", 0}, until: never})\n"},
	}},
	{"a_late_request_is_given_back,a_loss_is_given_back,a_row_that_nobody_knows", []edit{{"session.go", "s.send(&errand{key: h.key, words: h.words(\"RELEASE\"), until: s.patience(h.lease)})", ""}}},
	{"released_during_a_failover", []edit{{"session.go", "if e.done = isAnswer(err); e.done", "if e.done = true; e.done"}}},
	{"released_while_the_server_is_away", []edit{{"hold.go", "if s.send(e); ctx.Err() != nil {", "if ctx.Err() != nil {"}}},
	{"the_last_word", []edit{{"session.go", "\t\tl.isLast = true\n", "\t\tone.loop = nil\n\t\tif true {\n\t\t\treturn nil, 0\n\t\t}\n"}}},
	{"a_free_lock_takes_two_commands", []edit{{"hold.go", "return now() >= h.since+h.lease/3", "return true"}}},
	{"said_twice", []edit{{"take.go", "if t.wait == 0 || !passes(err) {", "if true {"}}},
	{"two_actors_of_one_client,an_actor_that_waits_for_itself", []edit{{"session.go", `return s.name + "/" + actor + "#" + number`, `return s.name + "/" + number`}}},
	{"forgotten_and_left_to_its_lease", []edit{{"hold.go", "\t\ts.send(s.left(h, h.lease))\n\t}\n}", "\t\ts.giveBack(h)\n\t}\n}"}}},
	{"max_hold", []edit{{"take.go", "h.bound = after(h.since, r.maxHold)", "h.bound = never"}}},
	{"release_after,TestReleaseAfter", []edit{{"hold.go", "releasedAfter(h.held, d)", "released(h.held)"}}},
	{"many_of_one_slot", []edit{{"many.go", "return [][]string{keys}", "for _, key := range keys {\n\t\t\tgroups = append(groups, []string{key})\n\t\t}\n\t\treturn groups"}}},
	{"a_refused_session_is_the_reason", []edit{{"session.go", "one.err, l.notBefore = err, now()+pause", "one.err, l.notBefore = nil, now()+pause"}}},
	{"a_refused_session_is_the_reason", []edit{{"session.go", "if !passes(err) {\n\t\tfor t := range", "if false {\n\t\tfor t := range"}}},

	{"TestWhatNoTimeCanMendEndsAWait", []edit{{"errors.go", "case errors.As(err, &plain), errors.As(err, &address), errors.As(err, &network):", "case errors.As(err, &plain) && false, errors.As(err, &address) && false, errors.As(err, &network) && false:"}}},
	{"TestAContextCarriesItsHold", []edit{{"hold.go", "context.WithValue(ctx, holdKey{}, h)", "context.WithValue(ctx, holdKey{}, h.Key)"}}},
	{"TestGuardRunsOnce", []edit{{"hold.go", "	if errors.Is(err, ErrFenced) {", "	if errors.Is(err, ErrUnreachable) {\n\t\treply, err = s.library.client.call(ctx, s.settings.ReplyTimeout, append([]any{\"DLOCK.GUARD\", h.Key, h.Token}, command...)...)\n\t}\n\tif errors.Is(err, ErrFenced) {"}}},
	{"TestAFencedGuardIsALoss", []edit{{"hold.go", `s.lose(h.held, "fenced")`, ""}}},
	{"TestADeadlineIsTaken", []edit{{"take.go", "t.isLeft, t.taken = true, t.taken || isTaken", "t.isLeft = isTaken || true"}, {"take.go", "20*time.Millisecond:\n\t\tt.taken = true", "20*time.Millisecond:\n\t\tt.isLate = true"}}},
	{"TestAPauseLosesNothingThatTheServerHolds", []edit{{"clock.go", "c.grace = now() + within", "_ = within"}}},
	{"TestAMapThatNobodyTellsStopsNoKeeper", []edit{{"library.go", "p.cluster.ReloadState(", "_, _ = p.cluster.Options().ClusterSlots("}}},
	{"TestReleaseUnderAContextThatHasEnded", []edit{{"hold.go", "ctx = context.WithoutCancel(ctx)", "_ = ctx"}}},
	{"TestAReleaseOutlastsARefusedConnection", []edit{{"library.go", "cmd.SetErr(failed)", "_ = failed"}, {"library.go", "cmd.Err() == nil && cmd.Val() == nil && failed != nil", "false"}}},
	{"TestAReleaseOutlastsAWrongPassword", []edit{{"errors.go", ` && said.code() != "WRONGPASS" && said.code() != "NOAUTH"`, ""}}},
	{"TestCampaignAfterAPauseDoesNotWaitForItself", []edit{{"election.go", "_ = e.Resign(ctx) // after", "// after"}}},
	{"TestGuardOfAPlainClientWhileTheSlotMoves", []edit{{"library.go", "case isAsk && p.cluster != nil:", "case isAsk:"}}},
	{"TestATryWithoutAReplyIsCancelled", []edit{{"take.go", " || mayHaveRun(err)", ""}}},
	{"TestALossThatAReleaseFindsIsALoss", []edit{{"hold.go", "e.tries == 1 && errors", "false && errors"}}},
	{"TestARefusedReleaseAfterReleases", []edit{{"hold.go", "\t\t\ts.giveBack(h)\n", ""}}},
	{"TestOneLostAnswerCostsNoHold", []edit{{"session.go", "min(max(lease/2, 500*time.Millisecond), s.settings.ReplyTimeout)", "s.settings.ReplyTimeout"}}},
	{"TestTheReasonOfALossHasNumbers", []edit{{"session.go", "last = max(last, h.session.heard)", ""}}},
	{"TestNoGoroutineIsLeft", []edit{{"session.go", "case s.closed, l.isOver && !isNeeded:", "case l.isOver && !isNeeded:"}, {"session.go", "if l.needed+linger < now() {", "if l.needed+linger < 0 {"}, {"session.go", "s.end()\n", ""}}},
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

// build makes a test program of the package with these edits.
func build(t *testing.T, edits []edit) (program string) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	there, sources, replaced := t.TempDir(), map[string]string{}, map[string]string{}
	for _, one := range edits {
		source, ok := sources[one.file]
		if !ok {
			data, err := os.ReadFile(one.file)
			if err != nil {
				t.Fatal(err)
			}
			source = string(data)
		}
		if sources[one.file] = strings.ReplaceAll(source, one.old, one.new); sources[one.file] == source {
			t.Fatalf("%q is not in %s", one.old, one.file)
		}
	}
	for file, source := range sources {
		replaced[filepath.Join(here, file)] = filepath.Join(there, file)
		if err := os.WriteFile(filepath.Join(there, file), []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, program := filepath.Join(there, "overlay.json"), filepath.Join(there, "faulty")
	data, _ := json.Marshal(map[string]any{"Replace": replaced})
	if err := os.WriteFile(overlay, data, 0o600); err != nil {
		t.Fatal(err)
	}
	built := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, ".")
	if said, err := built.CombinedOutput(); err != nil {
		t.Fatalf("it does not build: %s", said)
	}
	return program
}

func TestAPlantedFaultIsSeen(t *testing.T) {
	if os.Getenv("DLOCK_PLANTED") == "" {
		t.Skip("DLOCK_PLANTED=1")
	}
	for _, fault := range faults {
		t.Run(strings.ReplaceAll(fault.cases, ",", "+"), func(t *testing.T) {
			program := build(t, fault.edits)
			for name := range strings.SplitSeq(fault.cases, ",") {
				t.Run(name, func(t *testing.T) { isSeen(t, program, name) })
			}
		})
	}
}

func isSeen(t *testing.T, program, name string) {
	which := "^TestCases(Alone)?$/^" + name + "$"
	if strings.HasPrefix(name, "Test") {
		which = "^" + name + "$"
	}
	run := exec.Command(program, "-test.v", "-test.timeout=90s", "-test.run="+which)
	run.Env = append(os.Environ(), "DLOCK_PATIENCE=25s", "DLOCK_BOUND=1")
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
}

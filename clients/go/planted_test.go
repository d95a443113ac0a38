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
	cancels    = edit{"take.go", "l.enqueue(s.number(), &delivery{\n\t\tkey: key, words: []any{\"DLOCK.CANCEL\"", "_ = (&delivery{\n\t\tkey: key, words: []any{\"DLOCK.CANCEL\""}
	releases   = edit{"delivery.go", `l.enqueue(s.number(), l.delivery(h, h.words("RELEASE"), nil))`, "_ = s"}
	blocksLong = edit{"take.go", `words = append(words, "BLOCK", millis(left))`, `words = append(words, "BLOCK", "600000")`}
	patient    = edit{"dlock.go", "s.HangTimeout = max(", "s.ReplyTimeout = 20 * time.Second\n\ts.HangTimeout = max("}
)

var faults = []struct {
	cases string
	edits []edit
}{
	{"closed_try", []edit{{"take.go", "\treturn nil, err\n}\n\n// whyWaiting", "\treturn nil, fmt.Errorf(\"%w: %q\", ErrTaken, key)\n}\n\n// whyWaiting"}}},
	{"closed_two_seconds", []edit{{"take.go", `"%w: %q: %w: %w", ErrTimeout`, `"%w: %q: %w: %v", ErrTimeout`}}},
	{"closed_without_bound", []edit{{"take.go", `l.log.Warn("still`, `l.log.Debug("-`}}},
	{"hung_try,hung_later,TestGuardEndsWithinTheBound", []edit{patient}},
	{"silent_path", []edit{{"session.go", "if l.endOf(h) <= now() {", "if false {"}}},
	{"slow_path", []edit{{"dlock.go", "s.HangTimeout = max(", "s.ReplyTimeout = 150 * time.Millisecond\n\ts.HangTimeout = max("}}},
	{"wrong_password,no_right_to_the_command,no_module,two_that_wait_for_each_other", []edit{{"errors.go", "return slices.Contains(transient, said.code())", "return true || slices.Contains(transient, said.code())"}}},
	{"replaced", []edit{{"session.go", `"cancelled", "replaced",`, `"cancelled",`}}},
	{"two_dead_links_of_five,one_hung_node_of_three", []edit{
		{"session.go", "reply, err := l.keeper.call(l.ctx, within, words...)", "inTurn <- struct{}{}\n\t\treply, err := l.keeper.call(l.ctx, within, words...)\n\t\tif err != nil {\n\t\t\ttime.Sleep(l.settings.Lease)\n\t\t}\n\t\t<-inTurn"},
		{"session.go", "func number(", "var inTurn = make(chan struct{}, 1)\n\nfunc number("},
	}},
	{"two_thousand_holds_at_200_ms", []edit{{"session.go", "s.sent, s.until = sent, until\n", "s.sent, s.until = sent, until\n\tfor _, h := range s.holds {\n\t\tl.renew(h, s.id)\n\t}\n"}}},
	{"forced,expired,deleted,cut_and_kept", []edit{{"session.go", "if !s.kept && !l.closed {", "if !s.kept && l.closed {"}}},
	{"a_short_hold_beside_a_long_one", []edit{{"session.go", "if until-now() < h.lease/2 && ", "if false && "}}},
	{"cut_wait", []edit{{"session.go", "sleep(l.ctx, pause)", "sleep(l.ctx, never)"}}},
	{"wait_over_a_failover,wait_over_a_switch,wait_over_a_crash,wait_over_a_slot_move", []edit{{"take.go", "rejected(t *take, event string) {\n", "rejected(t *take, event string) {\n\tif event == \"again\" || event == \"gone\" {\n\t\treturn\n\t}\n"}}},
	{"hold_over_a_failover,hold_over_a_switch,hold_over_a_slot_move,a_hold_over_a_crash,an_overflow_of_rows", []edit{{"session.go", "if h.renewing || h.over {", "if true || h.renewing || h.over {"}}},
	{"after_close", []edit{{"dlock.go", "func (l *Locks) Close() {\n", "func (l *Locks) Close() {\n\tif true {\n\t\treturn\n\t}\n"}}},
	{"a_thousand_cycles", []edit{{"library.go", "return p.current\n", "return p.connect()\n"}}},
	{"dropped,sixty_forgotten_at_200_ms", []edit{{"hold.go", "if !h.over {", "if false {"}}},
	{"the_replica_frozen", []edit{{"errors.go", `"ASK", "NOACK",`, `"ASK",`}}},
	{"a_time_out_leaves_no_place,a_time_out_in_the_queue", []edit{cancels, releases, blocksLong, {"session.go", "linger = time.Second", "linger = 600 * time.Second"}}},
	{"a_late_word", []edit{{"session.go", "s.heard = max(s.heard, sent)", ""}}},
	{"a_hold_that_may_not_last", []edit{{"session.go", "case \"taken\":", "case \"taken\":\n\t\treturn"}}},
	{"several_permits,a_large_request_is_not_overtaken,permits_outlast_a_cut", []edit{{"take.go", "if r.permits > 1 {", "if r.permits > 99 {"}}},
	{"bad_arguments", []edit{{"take.go", `if slices.Contains(keys, "") {`, `if slices.Contains(keys, "-") {`}}},
	{"first_come_first_served", []edit{{"dlock.go", "holds, err := l.take(ctx, r, try)", "holds, err := l.take(ctx, r, true)\n\tfor !try && err != nil {\n\t\ttime.Sleep(50 * time.Millisecond)\n\t\tholds, err = l.take(ctx, r, true)\n\t}"}}},
	{"a_try_takes_no_place", []edit{cancels, {"take.go", "t.request.words(l.name, t.owner, try, timeLeft(ctx))", "t.request.words(l.name, t.owner, false, 600*time.Second)"}}},
	{"readers_and_a_writer,a_semaphore_of_three", []edit{{"take.go", "switch {\n\tcase r.limit == shared:", "switch {\n\tcase true:\n\tcase r.limit == shared:"}}},
	{"no_write_after_the_loss", []edit{{"hold.go", `append([]any{"DLOCK.GUARD", h.held.key, h.held.token}, command...)...`, "command..."}}},
	{"no_right_to_release", []edit{{"delivery.go", "&& instead != nil {", "&& false {"}}},
	{"a_turn_takes_three_commands", []edit{{"take.go", "\treply, err := l.commands.call(ctx", "\t_, _ = l.heldBy(ctx, t.request.keys[0])\n\treply, err := l.commands.call(ctx"}}},
	{"a_try_at_a_closed_port,a_try_at_a_replica,a_try_without_replicas,a_try_at_a_busy_server,a_try_at_a_loading_server", []edit{{"take.go", "err == nil || try ||", "err == nil || try && t.asked > 9 ||"}}},
	{"a_hold_over_a_busy_server", []edit{{"errors.go", `"LOADING", "BUSY",`, `"LOADING",`}}},
	{"a_wait_at_a_loading_server", []edit{{"errors.go", `"LOADING", "BUSY",`, `"BUSY",`}}},
	{"a_wait_at_a_drained_server", []edit{{"errors.go", `"NOACK", "QUARANTINE",`, `"NOACK",`}}},
	{"no_time_out_is_too_long", []edit{{"dlock.go", "context.WithTimeout(ctx, timeout)", "context.WithDeadline(ctx, time.Unix(0, time.Now().UnixNano()+int64(timeout)))"}}},
	{"asked_again_after_a_lost_reply", []edit{{"take.go", "number(tokens[0]) != 0 && t.asked == 1 {", "number(tokens[0]) != 0 {"}}},
	{"late_commands_of_open_connections", []edit{
		{"session.go", `return l.name + "/" + number`, `return l.name + "/me"`},
		{"take.go", "key, s := t.request.keys[0], t.session\n", "key, s := t.request.keys[0], t.session\n\tl.enqueue(0, &delivery{\n\t\tkey: key, words: []any{\"DLOCK.RELEASE\", key, t.owner, \"HOLDS\", 0}, patience: never,\n\t\tthen: func(time.Duration, any, error) {},\n\t})\n"},
	}},
	{"a_late_request_is_given_back,a_loss_is_given_back,a_row_that_nobody_knows", []edit{releases}},
	{"released_during_a_failover", []edit{{"delivery.go", "isAnswer(err)", "true"}, {"delivery.go", "isAnswer(answers[i].err)", "true"}}},
	{"released_while_the_server_is_away", []edit{{"delivery.go", "\t\t\tl.enqueue(id, d)\n", "\t\t\t_ = id\n"}}},
	{"the_last_word", []edit{{"session.go", "\t\tms = \"1\"\n", ""}}},
	{"a_free_lock_takes_two_commands", []edit{{"hold.go", "return now() >= h.since+h.lease/3", "return true"}}},
	{"said_twice", []edit{{"take.go", "ctx.Err() != nil || !isTransient(err) {", "true {"}}},
	{"two_actors_of_one_client,an_actor_that_waits_for_itself", []edit{{"session.go", `return l.name + "/" + actor + "#" + number`, `return l.name + "/" + number`}}},
	{"forgotten_and_left_to_its_lease", []edit{{"hold.go", `l.enqueue(id, l.delivery(h, h.words("RENEW", millis(h.lease)), nil))`, "_ = id\n\t\tl.giveBack(h, nil)"}}},
	{"released_by_the_work_itself", []edit{{"hold.go", "if errors.Is(err, ErrNotHeld) && h.Lost() == nil {", "if false {"}}},
	{"max_hold", []edit{{"take.go", "h.maxHoldEnd = after(h.since, r.maxHold)", "h.maxHoldEnd = never"}}},
	{"release_after", []edit{{"hold.go", `return h.finish(ctx, h.held.words("RENEW", millis(d)), h.held.words("RELEASE"), after(now(), d))`, "return h.Release(ctx)"}}},
	{"many_of_one_slot", []edit{{"many.go", "return [][]string{keys}", "for _, key := range keys {\n\t\t\tgroups = append(groups, []string{key})\n\t\t}\n\t\treturn groups"}}},
	{"a_refused_session_is_the_reason", []edit{{"session.go", "s.err, s.due, s.back = err, 0, never", "s.err, s.due, s.back = nil, 0, never"}}},
	{"a_refused_session_is_the_reason", []edit{{"session.go", "if !isTransient(err) {\n\t\t\tl.end(t, err)", "if false {\n\t\t\tl.end(t, err)"}}},

	{"TestWhatNoTimeCanMendEndsAWait", []edit{{"errors.go", "case errors.As(err, &plain), errors.As(err, &address), errors.As(err, &network):", "case errors.As(err, &plain) && false, errors.As(err, &address) && false, errors.As(err, &network) && false:"}}},
	{"TestAContextCarriesItsHold", []edit{{"hold.go", "context.WithValue(ctx, holdKey{}, h)", "context.WithValue(ctx, holdKey{}, h.Key)"}}},
	{"TestAReleaseWhoseReplyIsLostIsNoLoss", []edit{{"delivery.go", "if first {", "if false {"}}},
	{"TestADialThatHangsOutlastsNoCall,TestASilentServerByTLSEndsWithinTheBound", []edit{{"library.go", "func (within dialBound) DialHook(next redis.DialHook) redis.DialHook {\n", "func (within dialBound) DialHook(next redis.DialHook) redis.DialHook {\n\tif true {\n\t\treturn next\n\t}\n"}}},
	{"TestASilentServerByTLSEndsWithinTheBound", []edit{{"quorum.go", "client.AddHook(dialBound(q.bound))", ""}}},
	{"TestALateRowFreesNothingThatStaysTaken", []edit{{"delivery.go", `if err == nil && words[0] == "DLOCK.RENEW" {`, "if false {"}}},
	{"TestALateRowFreesNothingThatStaysTaken", []edit{{"hold.go", "l.held[h.holdID] = h //", "//"}}},
	{"TestALateCommandKeepsNothingThatWasLeftToItsLease", []edit{{"session.go", "l.leaveAgain(h, s.id)", ""}}},
	{"TestALateCommandKeepsNothingThatWasLeftToItsLease", []edit{{"delivery.go", "h.staysUntil = now() + h.lease //", "//"}}},
	{"TestALateAnswerKeepsNothingThatWasLeftToItsLease", []edit{{"session.go", "l.leaveAgain(h, number(answer[1]))", ""}}},
	{"TestAShortHoldIsNotLostBesideALongSession,TestAHoldIsRenewedUntilASessionKnowsIt", []edit{{"session.go", "\t\t\tl.renew(h, s.id)\n\t\t}\n\t}\n\tl.watch(h)", "\t\t}\n\t}\n\tl.watch(h)"}}},
	{"TestAHoldIsRenewedUntilASessionKnowsIt", []edit{{"session.go", "(!h.needsKeepAlive() || s.isLateFor(h))", "!h.needsKeepAlive()"}}},
	{"TestAGrantAfterCloseIsGivenBack", []edit{{"session.go", "t != nil && !l.closed &&", "t != nil &&"}}},
	{"TestALateSessionDelaysALossOnce", []edit{{"session.go", "s.back = never // it", "// it"}}},
	{"TestGuardRunsOnce", []edit{{"hold.go", "	if errors.Is(err, ErrFenced) {", "	if errors.Is(err, ErrUnreachable) {\n\t\treply, err = l.commands.call(ctx, l.settings.ReplyTimeout, append([]any{\"DLOCK.GUARD\", h.Key, h.Token}, command...)...)\n\t}\n\tif errors.Is(err, ErrFenced) {"}}},
	{"TestAFencedGuardIsALoss", []edit{{"hold.go", `l.lose(h.held, "fenced")`, ""}}},
	{"TestADeadlineIsTaken", []edit{{"take.go", "return ErrTaken\n\t}\n\treturn unreachable", "return errTimeUp\n\t}\n\treturn unreachable"}, {"take.go", "\t\terr = ErrTaken\n", "\t\terr = errTimeUp\n"}}},
	{"TestAPauseLosesNothingThatTheServerHolds", []edit{{"session.go", "l.grace = now() + l.settings.ReplyTimeout", ""}}},
	{"TestAMapThatNobodyTellsStopsNoKeeper", []edit{{"library.go", "p.cluster.ReloadState(", "_, _ = p.cluster.Options().ClusterSlots("}}},
	{"TestReleaseUnderAContextThatHasEnded", []edit{{"delivery.go", "ctx = context.WithoutCancel(ctx)", "_ = ctx"}}},
	{"TestAReleaseOutlastsARefusedConnection", []edit{{"library.go", "cmd.Err() == nil && cmd.Val() == nil && failed != nil", "false"}}},
	{"TestAReleaseOutlastsAWrongPassword", []edit{{"errors.go", ` && said.code() != "WRONGPASS" && said.code() != "NOAUTH"`, ""}}},
	{"TestCampaignAfterAPauseDoesNotWaitForItself", []edit{{"election.go", "_ = e.Resign(ctx) // after", "// after"}}},
	{"TestGuardOfAPlainClientWhileTheSlotMoves", []edit{{"library.go", `case code == "ASK" && p.cluster != nil:`, `case code == "ASK":`}}},
	{"TestATryWithoutAReplyIsCancelled", []edit{{"take.go", " || mayHaveRun(err)", ""}}},
	{"TestALossThatAReleaseFindsIsALoss", []edit{{"hold.go", "l.lose(h.held, err.Error())", ""}}},
	{"TestARefusedReleaseAfterReleases", []edit{{"hold.go", `h.held.words("RENEW", millis(d)), h.held.words("RELEASE")`, `h.held.words("RENEW", millis(d)), nil`}}},
	{"TestAReleaseThatNobodyAnswersIsForgotten", []edit{{"delivery.go", "d.then(0, nil, ErrNotHeld)", "_ = d"}}},
	{"TestAPoolIsNotReplacedForEachFailure", []edit{{"library.go", "|| now()-p.made < pause", ""}}},
	{"TestWithAllTellsOfALossDuringTheWait", []edit{{"errors.go", `return fmt.Errorf("%w: %w", err, cause)`, "return err"}}},
	{"TestOneLostAnswerCostsNoHold", []edit{{"session.go", "min(max(3*slack, 500*time.Millisecond), l.settings.ReplyTimeout)", "l.settings.ReplyTimeout"}}},
	{"TestTheReasonOfALossHasNumbers", []edit{{"session.go", "last, err = max(last, s.heard), cmp.Or(err, s.err)", "err = cmp.Or(err, s.err)"}}},
	{"TestAClosedClientHoldsUpNobody", []edit{{"dlock.go", "l.isLeaving() && now() < end", "false && now() < end"}}},
	{"TestNoGoroutineIsLeft", []edit{{"session.go", "if l.closed || (last ||", "if (last ||"}, {"session.go", "last := now()-needed > linger", "last := now()-needed > never"}, {"dlock.go", "\tl.stop()\n", ""}}},
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
	for _, fault := range faults {
		for _, one := range fault.edits {
			source, err := os.ReadFile(one.file)
			if err != nil || !strings.Contains(string(source), one.old) {
				t.Errorf("%s: %q is not in %s: %v", fault.cases, one.old, one.file, err)
			}
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
	built := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program, ".")
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

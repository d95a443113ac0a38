package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"dlock.example/judge/history"
	"dlock.example/judge/lock"
)

// Verdict is Porcupine's verdict on one history.
type Verdict struct {
	Result porcupine.CheckResult
	// Calls are those of clients; Steps are those of the model: calls, answers, ends of leases, of waits, of connections.
	Calls, Steps int
	Took         time.Duration
}

// judge lets Porcupine judge a history. If it breaks a promise, a picture of it is drawn into this file.
func judge(h *history.History, pulse *history.Pulse, timeout time.Duration, picture string) Verdict {
	begun := time.Now()
	operations := h.Operations(pulse)
	model := lock.Model(h.Locks)
	result := porcupine.CheckOperationsTimeout(model, operations, timeout)
	if result != porcupine.Ok && picture != "" {
		keepHistory(h, pulse, picture+".json")
	}
	if result != porcupine.Ok && picture != "" {
		_, info := porcupine.CheckOperationsVerbose(model, operations, timeout)
		if file, err := os.Create(picture + ".html"); err == nil {
			porcupine.Visualize(model, info, file)
			file.Close()
		}
		if file, err := os.Create(picture + ".txt"); err == nil {
			explain(file, model, operations, info)
			file.Close()
		}
	}
	return Verdict{Result: result, Calls: len(h.Calls), Steps: len(operations), Took: time.Since(begun)}
}

// kept is a history as it is written for --again.
type kept struct {
	History *history.History
	Pulse   *history.Pulse
}

// keepHistory writes a history, so that it can be judged again.
func keepHistory(h *history.History, pulse *history.Pulse, path string) {
	text, err := json.Marshal(kept{h, pulse})
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
	}
}

// again judges a written history.
func again(path string, timeout time.Duration) (Verdict, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Verdict{}, err
	}
	var k kept
	if err := json.Unmarshal(text, &k); err != nil {
		return Verdict{}, err
	}
	return judge(k.History, k.Pulse, timeout, strings.TrimSuffix(path, ".json")), nil
}

package main

import (
	"fmt"
	"io"
	"sort"

	"github.com/anishathalye/porcupine"

	"dlock.example/judge/lock"
)

// explain writes how far a history could be followed: the last legal steps, the state of the locks then, and the steps that would
// have to follow and cannot.
func explain(to io.Writer, model porcupine.Model, operations []porcupine.Operation, info porcupine.LinearizationInfo) {
	var longest []porcupine.Operation
	for _, some := range info.PartialLinearizationsOperations()[0] {
		if len(some) > len(longest) {
			longest = some
		}
	}
	state := model.Init()
	// Inputs need not be comparable, their descriptions are.
	type step struct {
		what        string
		call, until int64
	}
	key := func(o porcupine.Operation) step { return step{lock.Describe(o.Input), o.Call, o.Return} }
	done := map[step]bool{}
	for _, o := range longest {
		_, state = model.Step(state, o.Input, o.Output)
		done[key(o)] = true
	}
	var left []porcupine.Operation
	for _, o := range operations {
		if !done[key(o)] {
			left = append(left, o)
		}
	}
	sort.Slice(left, func(i, j int) bool { return left[i].Return < left[j].Return })
	if len(left) == 0 {
		return
	}
	begin := operations[0].Call
	for _, o := range operations {
		begin = min(begin, o.Call)
	}
	line := func(o porcupine.Operation) {
		fmt.Fprintf(to, "  %10.3f – %10.3f ms  connection %d: %s\n",
			float64(o.Call-begin)/1000, float64(o.Return-begin)/1000, o.ClientId, lock.Describe(o.Input))
	}
	fmt.Fprintf(to, "%d of %d steps are in order. The last of them:\n", len(longest), len(operations))
	for _, o := range longest[max(0, len(longest)-25):] {
		line(o)
	}
	fmt.Fprintf(to, "Then it is so: %s\nOne of these must be next, and none can:\n", model.DescribeState(state))
	for _, o := range left {
		if o.Call <= left[0].Return {
			line(o)
		}
	}
}

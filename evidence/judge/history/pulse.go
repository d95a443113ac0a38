package history

import (
	"sort"
	"sync"
)

// Pulse are commands to the server at short intervals. Whatever the server was to do by some instant, it has done when it has
// answered one that was sent later: that is how far the end of a lease can be off, whatever the machine is busy with.
type Pulse struct {
	mutex sync.Mutex
	// Beats are from when a command was sent until it was answered.
	Beats []Span
}

// Beat notes one of them.
func (p *Pulse) Beat(sent, got int64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.Beats = append(p.Beats, Span{sent, got})
}

// After returns when the server had answered the second command that was sent at this time or later. It had gone through its
// timers then: they come after the commands of the same turn of its event loop. Without such a command nobody knows.
func (p *Pulse) After(at int64) (int64, bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	first := sort.Search(len(p.Beats), func(i int) bool { return p.Beats[i].From >= at })
	if first+1 >= len(p.Beats) {
		return 0, false
	}
	return p.Beats[first+1].Until, true
}

// Gap returns the longest time without an answer within an interval.
func (p *Pulse) Gap(from, until int64) int64 {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	longest, last := int64(0), from
	first := sort.Search(len(p.Beats), func(i int) bool { return p.Beats[i].Until >= from })
	for _, beat := range p.Beats[first:] {
		if beat.Until > until {
			break
		}
		longest, last = max(longest, beat.Until-last), beat.Until
	}
	return max(longest, until-last)
}

// Gaps returns the times without an answer that were at least as long as this.
func (p *Pulse) Gaps(least int64) []Span {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var gaps []Span
	for i := 1; i < len(p.Beats); i++ {
		if gap := (Span{p.Beats[i-1].Until, p.Beats[i].Until}); gap.Until-gap.From >= least {
			gaps = append(gaps, gap)
		}
	}
	return gaps
}

// Longest returns the longest time from a command to its answer, and the median.
func (p *Pulse) Longest() (longest, median int64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var all []int64
	for _, beat := range p.Beats {
		all = append(all, beat.Until-beat.From)
	}
	if len(all) == 0 {
		return 0, 0
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all[len(all)-1], all[len(all)/2]
}

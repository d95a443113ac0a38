package history

import (
	"sort"
	"sync"
)

// Pulse are commands to the server at short intervals. By the answer to one that was sent after an instant, the server has done
// everything due at that instant: that bounds the delay of the end of a lease, however busy the machine is.
type Pulse struct {
	mutex sync.Mutex
	// Beats last from the sending of a command to its answer.
	Beats []Span
}

// Beat notes one beat.
func (p *Pulse) Beat(sent, got int64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.Beats = append(p.Beats, Span{sent, got})
}

// After returns when the server had answered the second command that was sent at this time or later. It had run its timers then:
// they come after the commands of a turn of its event loop. Without such a command the time is unknown.
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

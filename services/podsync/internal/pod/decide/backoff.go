package decide

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const (
	// InitialBackoff is the delay of a container's second restart; the first one has none.
	InitialBackoff = 10 * time.Second
	// DefaultMaxBackoff is the longest delay unless crashLoopBackOff.maxContainerRestartPeriod of
	// the KubeletConfiguration says otherwise (KEP-4603).
	DefaultMaxBackoff = 300 * time.Second
	// forgottenAfter is how long a start counts, whatever the longest delay is.
	forgottenAfter = 600 * time.Second
)

// Backoff remembers how long each container of one pod has to stay down before its next
// restart. It belongs to the pod's worker and is not safe for concurrent use.
//
// The delay doubles with every restart from 10 s up to the maximum. A start is forgotten after 600 s,
// even while the container waits: it starts at once, and from the beginning.
type Backoff struct {
	initial, max time.Duration
	entries      map[string]backoffEntry
}

type backoffEntry struct {
	delay   time.Duration
	started time.Time
}

// NewBackoff returns an empty memory. A max of 0 stands for DefaultMaxBackoff; one below
// InitialBackoff is the initial delay as well.
func NewBackoff(max time.Duration) *Backoff {
	if max <= 0 {
		max = DefaultMaxBackoff
	}
	return &Backoff{initial: min(InitialBackoff, max), max: max, entries: map[string]backoffEntry{}}
}

// Started is to be called for each container just before its start is attempted, so that an
// attempt that fails counts too. The first start of a container leaves no trace.
func (b *Backoff) Started(s Start, now time.Time) {
	if s.Previous.IsZero() {
		return
	}
	entry, known := b.entries[s.Name]
	if !known || s.Changed || entry.forgotten(now) {
		entry.delay = b.initial
	} else {
		entry.delay = min(entry.delay*2, b.max)
	}
	entry.started = now
	b.entries[s.Name] = entry
}

// Adopt fills the memory after a restart of podsync, from the instances that the runtime still has: the pause between
// the end of one and the start of the next shows the delay that was in force. The number of restarts bounds the delay,
// because podsync may also not have run during a long pause.
func (b *Backoff) Adopt(st *pod.State) {
	if st == nil {
		return
	}
	for i := range st.Containers {
		newest := &st.Containers[i]
		if _, done := b.entries[newest.Name]; done || newest.Started.IsZero() || newest.RestartCount < 1 {
			continue
		}
		before := exitedBefore(st, i)
		if before == nil {
			continue
		}
		pause := newest.Started.Sub(before.Finished)
		delay := b.initial
		for n := int32(1); n < newest.RestartCount && delay < b.max && delay <= pause; n++ {
			delay = min(delay*2, b.max)
		}
		b.entries[newest.Name] = backoffEntry{delay: delay, started: newest.Started}
	}
}

// wait reports whether a container that ended at that time has to wait at the moment now, and
// until when. It wakes earlier if its last start is forgotten before. A container that never ran does not wait.
func (b *Backoff) wait(name string, ended, now time.Time) (until, wake time.Time, delay time.Duration, waits bool) {
	if b == nil || ended.IsZero() {
		return until, wake, 0, false
	}
	entry, known := b.entries[name]
	if !known || entry.forgotten(now) {
		return until, wake, 0, false
	}
	until, wake = ended.Add(entry.delay), entry.started.Add(forgottenAfter+time.Nanosecond)
	if until.Before(wake) {
		wake = until
	}
	return until, wake, entry.delay, now.Before(until)
}

// forgotten also reports that the start has yet to come: the clock was set back since, by any time, and podsync was
// restarted. What it has started itself is on its own clock.
func (e backoffEntry) forgotten(now time.Time) bool {
	since := now.Sub(e.started)
	return since > forgottenAfter || since < 0
}

// exitedBefore returns the newest exited instance that is older than the container at index i.
func exitedBefore(st *pod.State, i int) *pod.Container {
	for j := i + 1; j < len(st.Containers); j++ {
		c := &st.Containers[j]
		if c.Name == st.Containers[i].Name && exited(c) {
			return c
		}
	}
	return nil
}

func exited(c *pod.Container) bool {
	return c != nil && c.State == runtimeapi.ContainerState_CONTAINER_EXITED
}

func backoffMessage(p *v1.Pod, name string, delay time.Duration) string {
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
		delay, name, p.Name, p.Namespace, p.UID)
}

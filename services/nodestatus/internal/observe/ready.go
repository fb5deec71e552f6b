package observe

import (
	"errors"
	"fmt"
	"sync"
	"time"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// How long what is known of each holds when it is not confirmed; the kubelet's figures.
const (
	RuntimeSlack = 30 * time.Second
	PLEGSlack    = 3 * time.Minute
)

// Value is what the bus knows of one key.
type Value[M any] struct {
	Message M
	// Known is false when there is no such key.
	Known bool
	// Age is for how long the key has not been put although the bus would have delivered it. It does not
	// grow while the bus is away.
	Age time.Duration
}

// Ready judges whether the node is ready. Observe feeds it.
type Ready struct {
	podsync *Podsync

	mu            sync.Mutex
	looked        time.Time
	runtime, pleg held
	last          *podsyncv1.Runtime
	relistError   string
	assumed       bool
	silentSince   time.Time // zero while the bus is there
}

// held is one value that holds for its slack.
type held struct {
	ever bool      // it was good once, or was assumed to be
	good time.Time // when it was good last; moved on while nothing can be known
}

// NewReady returns a judge by whom the node is not ready until all has been seen, or Assume is called.
func NewReady(podsync *Podsync) *Ready {
	return &Ready{podsync: podsync, looked: time.Now()}
}

// Assume takes over what an earlier life of this service reported: the node was ready. So all counts
// as good as of now, and is lost only when its slack is over.
func (r *Ready) Assume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.assumed = true
	for _, h := range []*held{&r.runtime, &r.pleg} {
		if !h.ever {
			h.ever, h.good = true, now
		}
	}
}

// Observe takes what the bus knows now; connected is false while the bus is away. It is to be called
// every second or so.
func (r *Ready) Observe(connected bool, runtime Value[*podsyncv1.Runtime], relist Value[*plegv1.Relist]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	pause := now.Sub(r.looked)
	r.looked = now
	switch {
	case connected:
		r.silentSince = time.Time{}
	case r.silentSince.IsZero():
		r.silentSince = now
	}
	if !connected || pause > slept { // nothing could be known: nothing grows older
		r.runtime.good = r.runtime.good.Add(pause)
		r.pleg.good = r.pleg.good.Add(pause)
	}
	if runtime.Known {
		r.last = runtime.Message
		// podsync puts this on change. So a value without an error stands for as long as podsync
		// works, which Podsync judges; an error makes it older from when it came.
		if runtime.Message.GetError() == "" && connected {
			r.runtime = held{ever: true, good: now}
		}
	}
	if relist.Known && connected {
		r.relistError = relist.Message.GetError()
		if at := now.Add(-relist.Age); r.relistError == "" && at.After(r.pleg.good) {
			r.pleg = held{ever: true, good: at}
		}
	}
}

// errNetworkUnknown and the other texts are the kubelet's: people and tools search for them.
var (
	errNetworkUnknown  = errors.New("network state unknown")
	errRuntimeUnknown  = errors.New("container runtime status check may not have completed yet")
	errRuntimeDown     = errors.New("container runtime is down")
	errPLEGUnknown     = errors.New("PLEG is not healthy: pleg has yet to be successful")
	errPodsyncUnproven = errors.New("podsync is not healthy: podsync has yet to be seen active")
)

// Problems returns why the node is not ready; none when it is.
func (r *Ready) Problems() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	switch age := r.looked.Sub(r.runtime.good); {
	case !r.runtime.ever:
		errs = append(errs, errRuntimeUnknown)
	case age >= RuntimeSlack:
		errs = append(errs, errRuntimeDown)
	}
	switch age := r.looked.Sub(r.pleg.good); {
	case !r.pleg.ever:
		errs = append(errs, errPLEGUnknown)
	case age >= PLEGSlack:
		errs = append(errs,
			fmt.Errorf("PLEG is not healthy: pleg was last seen active %v ago; threshold is %v", age.Round(time.Second),
				PLEGSlack))
	}
	if err := r.podsync.Turns(); err != nil {
		errs = append(errs, fmt.Errorf("podsync is not healthy: %w", err))
	} else if !r.assumed && !r.podsync.Seen() {
		errs = append(errs, errPodsyncUnproven)
	}
	if r.last.GetError() != "" || r.last == nil {
		// What the runtime said before its error is no longer known.
		if !r.assumed && r.last == nil {
			errs = append(errs, errNetworkUnknown)
		}
		return errs
	}
	if c := r.last.GetRuntimeReady(); !c.GetStatus() {
		errs = append(errs, fmt.Errorf("container runtime not ready: %s", condition("RuntimeReady", c)))
	}
	if c := r.last.GetNetworkReady(); !c.GetStatus() {
		errs = append(errs, fmt.Errorf("container runtime network not ready: %s", condition("NetworkReady", c)))
	}
	return errs
}

// silenceTold is how long the bus may be away before the node's condition mentions it: a restart of
// the bus is no news.
const silenceTold = 30 * time.Second

// Warning says what the judgement does not rest on; "" while it rests on all.
func (r *Ready) Warning() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.silentSince.IsZero() && r.looked.Sub(r.silentSince) >= silenceTold {
		return "the node's bus is away; runtime, network and PLEG are as they were known last"
	}
	return ""
}

func condition(name string, c *podsyncv1.Runtime_Condition) string {
	return fmt.Sprintf("%s=%t reason:%s message:%s", name, c.GetStatus(), c.GetReason(), c.GetMessage())
}

// Settled reports whether runtime and pleg were seen good, or assumed to be: until then the node may
// become ready any moment.
func (r *Ready) Settled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runtime.ever && r.pleg.ever && r.last != nil
}

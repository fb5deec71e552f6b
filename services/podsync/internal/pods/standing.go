package pods

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	podfields "github.com/microlet/microlet/services/podsync/internal/pod/fields"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// Standing is how far a worker has come with its pod, and what holds the worker up. It is a copy.
type Standing struct {
	Pod    *v1.Pod
	Source podsyncv1.PodSource
	// Phase is the worker's, as "sync" or "terminating". Syncing: it may still run. Released: nothing of it is left but
	// its object.
	Phase             string
	Syncing, Released bool
	// Admitted and Rejection are both zero before the pod's admission is decided.
	Admitted  bool
	Rejection *admission.Result
	// Awaits is what the pod waits for before its admission is decided, in words; empty for nothing in particular.
	Awaits string
	// Refused are the fields of the pod that are not supported.
	Refused []string
	// Began is when the sync that is under way began; zero if none is. Next is when the next one begins at the latest.
	Began, Next time.Time
	// FailedStep and Error are what the last sync failed to do. Failures counts the syncs that failed one after another.
	FailedStep, Error string
	Failures          int
	// Mounting is when the mount that is under way began; zero if none is. Mounted: every volume was mounted once.
	Mounting time.Time
	Mounted  bool
	// NotMounted is why a volume could not be mounted, by its name.
	NotMounted map[string]string
	// Pulling are the pulls that containers wait for, by the container's name.
	Pulling map[string]Pulling
	// Waits are the containers that CrashLoopBackOff holds.
	Waits []decide.Wait
	// State is what the runtime had of the pod last; nil before it was read.
	State *pod.State
}

// Pulling is what a container waits for before it can start.
type Pulling struct {
	// Image is the container's, or that of an image volume.
	Image string
	// Began is when the container began to wait for its images.
	Began time.Time
}

// Standings returns that of every pod that has a worker.
func (s *Workers) Standings() []Standing {
	workers := s.all()
	standings := make([]Standing, 0, len(workers))
	for _, w := range workers {
		c := w.standing.current()
		c.Pod, c.Source = w.inbox.latest(), w.source
		standings = append(standings, c)
	}
	return standings
}

// Held is the Standing.Phase of a static pod that has no worker yet.
const Held = "held"

// Held returns the static pods that wait for the end of another of their name. It waits for the dispatcher's loop.
func (d *Dispatcher) Held(ctx context.Context) ([]Standing, error) {
	reply := make(chan []Standing, 1)
	d.post(func(context.Context) {
		var all []Standing
		for _, pods := range d.held {
			for _, h := range pods {
				all = append(all, Standing{Pod: h.pod, Source: h.from, Phase: Held})
			}
		}
		reply <- all
	})
	select {
	case all := <-reply:
		return all, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// standing is what others may ask about a worker. Its methods may be called from any goroutine.
type standing struct {
	mu  sync.Mutex
	now Standing
	// digest is that of the state that was read last; read: there is one.
	digest string
	read   bool
	// tried is when the first sync began; reported: the pod's state was reported at least once.
	tried    time.Time
	reported bool
	// forgotten: only remains are left of the pod, which nothing waits for.
	forgotten bool
}

func newStanding() *standing {
	return &standing{now: Standing{Phase: syncing.String(), Syncing: true}}
}

// current returns a copy, without the pod and its source.
func (s *standing) current() Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.now
	c.NotMounted, c.Pulling, c.Waits = maps.Clone(c.NotMounted), maps.Clone(c.Pulling), slices.Clone(c.Waits)
	return c
}

// note changes the standing. What it is given may not keep it.
func (s *standing) note(change func(s *Standing)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.now)
}

// noteState notes what the runtime has of the pod.
func (s *standing) noteState(state *pod.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.digest, s.read = state.Digest(), true
	s.now.State = state
}

// seen returns the digest of the state that was read last, and whether there is one.
func (s *standing) seen() (digest string, read bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.digest, s.read
}

// noteBegin notes that a sync begins.
func (s *standing) noteBegin(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tried.IsZero() {
		s.tried = began
	}
	s.now.Began = began
}

// noteReported notes that the pod's state was reported.
func (s *standing) noteReported() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported = true
}

// hasReported reports whether the pod's state was reported, and whether that is late if it was not.
func (s *standing) hasReported() (reported, late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reported, !s.reported && !s.tried.IsZero() && time.Since(s.tried) >= lateReport
}

// noteForgotten notes that only remains are left of the pod.
func (s *standing) noteForgotten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgotten = true
}

func (s *standing) isForgotten() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forgotten
}

// noteSync notes the end of a sync: what it failed to do, if it failed, and when the next one is due.
func (s *standing) noteSync(failed error, failures int, again time.Duration) {
	step, text := failedStep(failed)
	s.note(func(s *Standing) {
		s.Began, s.Next = time.Time{}, time.Now().Add(again)
		s.FailedStep, s.Error, s.Failures = step, text, failures
	})
}

// failedStep splits the error of a sync into what was tried and why it failed.
func failedStep(err error) (step, text string) {
	var passing *transientError
	var shown *reportedError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &passing):
		return passing.what, plain(passing.err).Error()
	case errors.As(err, &shown):
		return shown.what, plain(shown.err).Error()
	}
	return "sync the pod", plain(err).Error()
}

// noteRefused notes the fields that are not supported; none for nil.
func (s *standing) noteRefused(refusal error) {
	var unsupported *podfields.UnsupportedError
	var fields []string
	if errors.As(refusal, &unsupported) {
		fields = unsupported.Fields
	}
	s.note(func(s *Standing) { s.Refused = fields })
}

// noteMount notes that a mount begins, or how it ended.
func (s *standing) noteMount(began time.Time, err error) {
	failed := map[string]string{}
	for _, one := range joined(err) {
		var v *volumes.Error
		if errors.As(one, &v) {
			failed[v.Volume] = v.Problem()
		}
	}
	s.note(func(s *Standing) {
		s.Mounting, s.NotMounted = began, failed
		s.Mounted = s.Mounted || err == nil && began.IsZero()
	})
}

// notePull notes what a container waits for. An entry that began later stays.
func (s *standing) notePull(container string, p Pulling) {
	s.note(func(s *Standing) {
		if s.Pulling == nil {
			s.Pulling = map[string]Pulling{}
		}
		if !s.Pulling[container].Began.After(p.Began) {
			s.Pulling[container] = p
		}
	})
}

// notePulled notes that the wait that began then has ended. A newer one of the same container goes on.
func (s *standing) notePulled(container string, began time.Time) {
	s.note(func(s *Standing) {
		if s.Pulling[container].Began.Equal(began) {
			delete(s.Pulling, container)
		}
	})
}

// joined are the errors that err joins.
func joined(err error) []error {
	if err == nil {
		return nil
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return []error{err}
}

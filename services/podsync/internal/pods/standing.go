package pods

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	podfields "github.com/microlet/microlet/services/podsync/internal/pod/fields"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// Standing is how far a worker has come with its pod, and what keeps it. It is a copy: nobody changes it.
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
	// Refused are the fields of the pod that are not supported.
	Refused []string
	// Began is when the sync that is under way began; zero if none is. Next is when the next one begins at the latest.
	Began, Next time.Time
	// FailedStep and Error say what the last sync failed to do; Failures counts those that failed one after another.
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
		standings = append(standings, w.currentStanding())
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

func (w *worker) currentStanding() Standing {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.standing
	s.Pod, s.Source = w.pod, w.source
	s.NotMounted, s.Pulling, s.Waits = maps.Clone(s.NotMounted), maps.Clone(s.Pulling), slices.Clone(s.Waits)
	return s
}

// note changes the standing. What it is given may not keep it.
func (w *worker) note(change func(s *Standing)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.standing)
}

// noteSync tells of the end of a sync: what it failed to do, if it did, and when the next one is due.
func (w *worker) noteSync(failed error, failures int, again time.Duration) {
	step, text := failedStep(failed)
	w.note(func(s *Standing) {
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
func (w *worker) noteRefused(refusal error) {
	var unsupported *podfields.UnsupportedError
	var fields []string
	if errors.As(refusal, &unsupported) {
		fields = unsupported.Fields
	}
	w.note(func(s *Standing) { s.Refused = fields })
}

// noteMount tells that a mount begins, or how it ended.
func (w *worker) noteMount(began time.Time, err error) {
	failed := map[string]string{}
	for _, one := range joined(err) {
		var v *volumes.Error
		if errors.As(one, &v) {
			failed[v.Volume] = v.Problem()
		}
	}
	w.note(func(s *Standing) {
		s.Mounting, s.NotMounted = began, failed
		s.Mounted = s.Mounted || err == nil && began.IsZero()
	})
}

// notePull tells what a container waits for. One that began later stays.
func (w *worker) notePull(container string, p Pulling) {
	w.note(func(s *Standing) {
		if s.Pulling == nil {
			s.Pulling = map[string]Pulling{}
		}
		if !s.Pulling[container].Began.After(p.Began) {
			s.Pulling[container] = p
		}
	})
}

// notePulled tells that what began then has ended. A newer one of the same container goes on.
func (w *worker) notePulled(container string, began time.Time) {
	w.note(func(s *Standing) {
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

package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const (
	// answerPatience is how long the question for a pod's devices may take before the pod's status says so.
	answerPatience = 3 * time.Second
	// leavingPatience is how long a pod for which there are no devices waits for the end of pods that leave.
	leavingPatience = time.Minute
	// waitEventPeriod bounds the Events about one pod that waits.
	waitEventPeriod = time.Minute
)

// allocating is how the question for a pod's devices fares, until it is answered.
type allocating struct {
	// since is when it was asked first; zero before.
	since time.Time
	tries int
	// said is what the last Event said, and saidAt when that was.
	said   string
	saidAt time.Time
}

// allocate asks for the devices of a pod that has its place. With an error, the pod waits and keeps its place, and its
// status says for what.
func (w *worker) allocate(ctx context.Context, p *v1.Pod, state *pod.State) (admission.Result, error) {
	const what = "allocate the pod's devices"
	if w.allocating.since.IsZero() {
		w.allocating.since = time.Now()
	}
	v, err := w.askForDevices(ctx, p, false, func(why error) { w.showWaits(p, state, why) })
	switch {
	case ctx.Err() != nil:
		return admission.Result{}, transient(what, context.Cause(ctx))
	case err != nil:
		w.showWaits(p, state, err)
		return admission.Result{}, w.tryAgain(what, err)
	}
	w.allocating = allocating{}
	w.standing.note(func(s *Standing) { s.Awaits = "" })
	for c := range podutil.Containers(&p.Spec) {
		w.reporter.runs(c.Name)
	}
	return v, nil
}

// askForDevices asks, and calls slow if the answer takes long. A rejection is an error while other pods leave that may
// have what is lacking.
func (w *worker) askForDevices(ctx context.Context, p *v1.Pod, running bool,
	slow func(why error)) (admission.Result, error) {
	placed, err := w.deps.Admission.Placed(ctx)
	if err != nil {
		return admission.Result{}, err
	}
	var v admission.Result
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		v, err = w.deps.Grants.Allocate(ctx, p, placed, running)
	}()
	late := time.NewTimer(answerPatience)
	defer late.Stop()
	select {
	case <-answered:
	case <-late.C:
		slow(errors.New("waits for the answer of the service resources"))
		<-answered // Allocate has a deadline
	}
	if err == nil && !v.Admitted() && placed.Leaving && !running &&
		time.Since(w.allocating.since) < leavingPatience {
		err = fmt.Errorf("waits for the end of pods that were removed: %s", v.Message)
	}
	return v, err
}

// tryAgain is the error of a pod that waits: it is asked for again, less and less often.
func (w *worker) tryAgain(what string, why error) error {
	w.allocating.tries++
	again := min(transientRetry<<min(w.allocating.tries-1, 5), startRetry)
	return &reportedError{what, why, jitter(again)}
}

// showWaits has the status of a pod that waits for its devices say so.
func (w *worker) showWaits(p *v1.Pod, state *pod.State, why error) {
	for c := range podutil.Containers(&p.Spec) {
		w.reporter.waits(c.Name, waitReason(p), why.Error())
	}
	w.standing.note(func(s *Standing) { s.Awaits = why.Error() })
	w.waitEvent(p, why)
	w.reporter.report(p, state)
}

// waitReason is that of a container that has not been created.
func waitReason(p *v1.Pod) string {
	if len(p.Spec.InitContainers) > 0 {
		return reasonPodInitializing
	}
	return reasonContainerCreating
}

// waitEvent records what a pod waits for, when that changes, and not too often.
func (w *worker) waitEvent(p *v1.Pod, why error) {
	a := &w.allocating
	if a.said == why.Error() || !a.saidAt.IsZero() && time.Since(a.saidAt) < waitEventPeriod {
		return
	}
	a.said, a.saidAt = why.Error(), time.Now()
	w.deps.event(p, v1.EventTypeWarning, ReasonResourcesNotReady, "%s", why.Error())
}

// devicesOf returns what a container that is about to start was granted of devices; nil for nothing. It asks only if
// that is not known, as after a restart of podsync.
func (w *worker) devicesOf(ctx context.Context, p *v1.Pod, c *v1.Container) (*resourcesv1.ContainerResources, error) {
	const allocates, prepares = "allocate the devices of container ", "prepare the devices of container "
	if w.deps.Grants.Lacks(p, c) {
		v, err := w.askForDevices(ctx, p, true, func(why error) { w.reporter.waits(c.Name, waitReason(p), why.Error()) })
		switch {
		case ctx.Err() != nil:
			return nil, transient(allocates+c.Name, context.Cause(ctx))
		case err != nil:
			w.reporter.waits(c.Name, waitReason(p), err.Error())
			w.waitEvent(p, err)
			return nil, w.tryAgain(allocates+c.Name, err)
		case !v.Admitted():
			return nil, w.misconfigured(p, c.Name, allocates, errors.New(v.Message))
		}
		w.allocating = allocating{}
	}
	r, err := w.deps.Grants.Container(ctx, p, c)
	switch {
	case ctx.Err() != nil:
		return nil, transient(prepares+c.Name, context.Cause(ctx))
	case err != nil:
		return nil, w.misconfigured(p, c.Name, prepares, err)
	}
	return r, nil
}

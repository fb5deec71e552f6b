package pods

import "github.com/microlet/microlet/services/internal/logkey"

// phase is a stage of a pod's life. It only changes along transitions. After a restart of podsync, the pod's object and
// the runtime determine it again.
type phase int

const (
	// syncing: the pod should run.
	syncing phase = iota
	// terminating: its containers are being stopped.
	terminating
	// terminated: nothing of it runs; what it held is being given back.
	terminated
	// released: all is given back, the object's end is awaited.
	released
	// gone: the object has ended and nothing of the pod is left on the node.
	gone
)

func (p phase) String() string {
	return [...]string{"sync", "terminating", "terminated", "released", "gone"}[p]
}

// cause is what moves a pod on.
type cause string

const (
	// causeDeleted: its object has a deletion timestamp.
	causeDeleted cause = "deleted"
	// causeRemoved: its source wants it no longer.
	causeRemoved cause = "removed"
	// causeEvicted: the node ended it: pressure, preemption, shutdown.
	causeEvicted cause = "evicted"
	// causeDeadline: activeDeadlineSeconds are over.
	causeDeadline cause = "deadline"
	// causeRejected: admission rejected it.
	causeRejected cause = "rejected"
	// causeEnded: its containers have ended and none is to run again.
	causeEnded cause = "ended"
	// causeStopped: no container and no sandbox of it runs.
	causeStopped cause = "stopped"
	// causeReleased: volumes are unmounted and the cgroup is removed.
	causeReleased cause = "released"
	// causeCleanedUp: what the runtime and the log folder had of it is removed.
	causeCleanedUp cause = "cleaned_up"
)

// transition is one arrow of the drawing in docs/pod-lifecycle.md.
type transition struct {
	from phase
	on   cause
	to   phase
}

// transitions are all that there are.
var transitions = []transition{
	{syncing, causeDeleted, terminating},
	{syncing, causeRemoved, terminating},
	{syncing, causeEvicted, terminating},
	{syncing, causeDeadline, terminating},
	{syncing, causeRejected, terminating},
	{syncing, causeEnded, terminating},
	{terminating, causeStopped, terminated},
	{terminated, causeReleased, released},
	{released, causeCleanedUp, gone},
}

// next returns the phase to which a cause leads from a phase. A cause that leads nowhere changes nothing.
func next(from phase, on cause) phase {
	for _, t := range transitions {
		if t.from == from && t.on == on {
			return t.to
		}
	}
	return from
}

// move moves the pod on. The other services learn of the first step towards its end.
func (w *worker) move(on cause) {
	before, now := w.reporter.move(on)
	if now == before {
		return
	}
	w.standing.note(func(s *Standing) {
		s.Phase, s.Syncing, s.Released = now.String(), now == syncing, now >= released
	})
	w.deps.Log.Debug("pod phase changed", logkey.Pod, podName(w.inbox.latest()), logkey.PodUID, w.uid,
		"from", before.String(), "to", now.String(), "cause", string(on))
	switch now {
	case terminating:
		w.inbox.stopping()
		w.pulls.abandon()
		w.publish()
	case terminated:
		w.deps.Admission.Ended(w.uid)
		w.deps.Allocation.Ended(w.uid)
		w.inbox.end()
		w.publish()
	case syncing, released, gone:
	}
}

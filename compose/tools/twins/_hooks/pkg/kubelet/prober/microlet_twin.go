package prober

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"k8s.io/kubernetes/pkg/kubelet/prober/results"
)

// TwinManager is a manager that has begun to probe the pod, in a kubelet that has run since that moment.
func TwinManager(p *v1.Pod, ready, started results.Manager, since time.Time) Manager {
	m := &manager{readinessManager: ready, startupManager: started, workers: map[probeKey]*worker{}, start: since}
	add := func(c *v1.Container, kind probeType, probe *v1.Probe) {
		if probe != nil {
			m.workers[probeKey{p.UID, c.Name, kind}] = &worker{probeType: kind}
		}
	}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			add(&list[i], liveness, list[i].LivenessProbe)
			add(&list[i], readiness, list[i].ReadinessProbe)
			add(&list[i], startup, list[i].StartupProbe)
		}
	}
	return m
}

package cgroups

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/podcgroup"
)

type fakeCgroups struct {
	root     podcgroup.Name
	fails    int
	tried    []time.Duration
	started  time.Time
	reserved []Reserved
	missing  string
}

func (c *fakeCgroups) PodsRoot() podcgroup.Name { return c.root }

func (c *fakeCgroups) LimitPods() error {
	c.tried = append(c.tried, time.Since(c.started))
	if len(c.tried) <= c.fails {
		return errors.New("device or resource busy")
	}
	return nil
}

func (c *fakeCgroups) LimitReserved(r Reserved) error {
	if r.Cgroup == c.missing {
		return errors.New("cgroup does not have memory")
	}
	c.reserved = append(c.reserved, r)
	return nil
}

func enforcer(c *fakeCgroups, levels ...string) (*Enforcer, *record.FakeRecorder) {
	k := &kubeletconfig.Config{Kubelet: kubeletconfig.Default()}
	k.Kubelet.EnforceNodeAllocatable = levels
	k.Kubelet.SystemReservedCgroup, k.Kubelet.KubeReservedCgroup = "/system", "/kube"
	k.Kubelet.SystemReserved = map[string]string{"cpu": "500m", "pid": "100"}
	k.Kubelet.KubeReserved = map[string]string{"memory": "1Gi"}
	events := record.NewFakeRecorder(10)
	return NewEnforcer(EnforcerOptions{
		Kubelet: k, Cgroups: c, Events: events, Node: &v1.ObjectReference{Kind: "Node", Name: "n"},
		Log: slog.New(slog.DiscardHandler),
	}), events
}

func drain(events *record.FakeRecorder) []string {
	var all []string
	for {
		select {
		case e := <-events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// The limit of all pods is tried once a minute until it holds, each time with an Event.
func TestPodsAreLimitedAtLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCgroups{root: podcgroup.Name{"a", "kubepods"}, fails: 2, started: time.Now()}
		e, events := enforcer(c, "pods")
		if err := e.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]time.Duration{0, time.Minute, 2 * time.Minute}, c.tried); d != "" {
			t.Errorf("tries: -want +got\n%s", d)
		}
		failed := `Warning FailedNodeAllocatableEnforcement Failed to update Node Allocatable Limits ["a" "kubepods"]: device or resource busy`
		want := []string{failed, failed, "Normal NodeAllocatableEnforced Updated Node Allocatable limit across pods"}
		if d := cmp.Diff(want, drain(events)); d != "" {
			t.Errorf("events: -want +got\n%s", d)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCgroups{root: podcgroup.Name{"kubepods"}, fails: 1000, started: time.Now()}
		e, _ := enforcer(c, "pods")
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		if err := e.Run(ctx); err != nil || len(c.tried) != 2 || time.Since(c.started) != 90*time.Second {
			t.Errorf("%d tries in %v, %v", len(c.tried), time.Since(c.started), err)
		}
	})
}

// The root of the hierarchy, which a node without cgroups a class has, cannot be limited.
func TestRootIsLeftAlone(t *testing.T) {
	c := &fakeCgroups{}
	e, events := enforcer(c, "none")
	if err := e.Run(t.Context()); err != nil || len(c.tried) != 0 || len(drain(events)) != 0 {
		t.Errorf("%d tries, %v", len(c.tried), err)
	}
}

func TestReservations(t *testing.T) {
	const system = "Normal NodeAllocatableEnforced Updated limits on system reserved cgroup /system"
	const kube = "Normal NodeAllocatableEnforced Updated limits on kube reserved cgroup /kube"
	for _, test := range []struct {
		name    string
		levels  []string
		missing string
		events  []string
		err     string
		limits  []string
	}{
		{name: "pods alone", levels: []string{"pods"}},
		{name: "none", levels: []string{"none"}},
		{name: "both", levels: []string{"kube-reserved", "pods", "system-reserved"}, events: []string{system, kube},
			limits: []string{"/system cpu 500m, memory 0, false", "/kube cpu 0, memory 1Gi, false"}},
		{name: "compressible after the rest", levels: []string{"system-reserved-compressible", "kube-reserved"},
			events: []string{kube, system},
			limits: []string{"/kube cpu 0, memory 1Gi, false", "/system cpu 500m, memory 0, true"}},
		{name: "kube compressible", levels: []string{"kube-reserved-compressible"}, events: []string{kube},
			limits: []string{"/kube cpu 0, memory 1Gi, true"}},
		{name: "missing", levels: []string{"system-reserved", "kube-reserved"}, missing: "/kube", events: []string{system,
			`Warning FailedNodeAllocatableEnforcement Failed to enforce Kube Reserved Cgroup Limits on "/kube": cgroup does not ` +
				`have memory`},
			limits: []string{"/system cpu 500m, memory 0, false"},
			err: "enforceNodeAllocatable has kube-reserved, and kubeReservedCgroup=/kube cannot be limited: cgroup does " +
				"not have memory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &fakeCgroups{missing: test.missing}
			e, events := enforcer(c, test.levels...)
			err := e.Reservations()
			if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("error %v, want %q", err, test.err)
			}
			var limits []string
			for _, r := range c.reserved {
				limits = append(limits, r.Cgroup+" cpu "+r.Limits.Cpu().String()+", memory "+r.Limits.Memory().String()+", "+
					map[bool]string{true: "true", false: "false"}[r.CompressibleOnly])
			}
			if d := cmp.Diff(test.limits, limits); d != "" {
				t.Errorf("limits: -want +got\n%s", d)
			}
			if d := cmp.Diff(test.events, drain(events)); d != "" {
				t.Errorf("events: -want +got\n%s", d)
			}
		})
	}
}

func TestBadQuantityIsNamed(t *testing.T) {
	e, _ := enforcer(&fakeCgroups{}, "system-reserved")
	e.o.Kubelet.Kubelet.SystemReserved = map[string]string{"cpu": "lots"}
	if err := e.Reservations(); err == nil || !strings.Contains(err.Error(), "systemReserved.cpu=lots is no quantity") {
		t.Errorf("err = %v", err)
	}
}

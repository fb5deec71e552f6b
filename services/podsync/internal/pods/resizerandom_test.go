package pods

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

// TestRandomResizes has resizes fail, be taken back, and meet restarts of containers and of podsync. In the end the pod
// has what was granted.
func TestRandomResizes(t *testing.T) {
	for seed := range uint64(600) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomResizes(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func randomResizes(t *testing.T, r *rand.Rand) {
	n := newResizedNode(t)
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	resources := func() v1.ResourceRequirements {
		return sizes(one("", "100m", "200m"), one("", "300m", "500m"), one("1000", "2000"), one("", "4Ki", "8Ki", "12Ki"))
	}
	p := resizedPod(withSibling(), resources(), resources())
	if r.IntN(2) == 0 {
		restarting(p, 0, v1.ResourceName(one("cpu", "memory")))
	}
	wholes := r.IntN(2) == 0
	next := func() *v1.Pod {
		p := resizedPod(p, resources(), resources())
		if wholes {
			p.Spec.Resources = new(sizes("500m", one("1", "2"), "5000", one("24Ki", "32Ki")))
		}
		return p
	}
	p = next()
	n.apply(p)
	versions := []*v1.Pod{p}
	var done []string
	for range 12 {
		what := r.IntN(9)
		done = append(done, fmt.Sprint(what))
		switch what {
		case 0, 1, 2:
			p = next()
			versions = append(versions, p)
			n.resize(p)
		case 3:
			p = resizedPod(versions[r.IntN(len(versions))])
			n.resize(p)
		case 4:
			n.groups.use("a", n.ids("a")["c"], []int64{0, 5000, 9000}[r.IntN(3)])
		case 5:
			n.cri.Fail("UpdateContainerResources", status.Error(codes.Internal, "no"))
		case 6:
			n.groups.fail(nil, errors.New("busy"))
		case 7:
			if len(n.ids("a")) == 2 {
				n.exit(one("c", "sibling"))
			}
		case 8:
			n.stop()
			if r.IntN(2) == 0 {
				delete(n.allocation.actuated, "a")
			}
			n.begin()
			n.apply(p)
		}
		n.wait(time.Duration(r.IntN(12)) * time.Second)
		if r.IntN(2) == 0 {
			n.cri.Fail("UpdateContainerResources", nil)
			n.groups.fail(nil, nil)
		}
	}
	n.cri.Fail("UpdateContainerResources", nil)
	n.groups.fail(nil, nil)
	n.groups.use("a", n.ids("a")["c"], 0)
	n.wait(10 * time.Minute)
	n.want("the pod", n.groups.limits("a"), cgroupLimits(p))
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		want := n.node.ContainerResources(p, c)
		n.want(c.Name, n.has("a", c.Name), fmt.Sprintf("memory=%s cpu=%s shares=%d", amount(want.MemoryLimitInBytes),
			amount(want.CpuQuota/100), want.CpuShares))
	}
	n.allocation.mu.Lock()
	if n.allocation.progress["a"] {
		t.Error("the resize is still in progress")
	}
	n.allocation.mu.Unlock()
	if t.Failed() {
		t.Log(done)
	}
}

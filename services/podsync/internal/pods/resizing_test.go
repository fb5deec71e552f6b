package pods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// resizedNode is a node on which pods are resized. It outlives a podsync.
type resizedNode struct {
	t   *testing.T
	cri *fake.Runtime
	*node
	groups *groups
	stop   func()

	mu    sync.Mutex
	steps []string
	// after is called after each step.
	after func(n int)
}

// resizedRuntime notes the calls of a resize.
type resizedRuntime struct {
	Runtime
	n *resizedNode
}

func (r resizedRuntime) UpdateContainer(ctx context.Context, uid types.UID, id string,
	c *runtimeapi.LinuxContainerResources) error {
	err := r.Runtime.UpdateContainer(ctx, uid, id, c)
	if err == nil {
		r.n.step(fmt.Sprintf("container memory=%s cpu=%s shares=%d", amount(c.MemoryLimitInBytes), amount(c.CpuQuota/100),
			c.CpuShares))
	}
	return err
}

func (r resizedRuntime) UpdateSandbox(ctx context.Context, id string, c, o *runtimeapi.LinuxContainerResources) error {
	err := r.Runtime.UpdateSandbox(ctx, id, c, o)
	if err == nil {
		r.n.step(fmt.Sprintf("sandbox memory=%s cpu=%s shares=%d", amount(c.MemoryLimitInBytes), amount(c.CpuQuota),
			c.CpuShares))
	}
	return err
}

func newResizedNode(t *testing.T) *resizedNode {
	n := &resizedNode{t: t, cri: newRuntime(), groups: newGroups()}
	n.groups.did = n.step
	n.begin()
	t.Cleanup(func() { n.stop() })
	return n
}

// newRunningPod returns a node on which pod a runs, with a container c of these resources.
func newRunningPod(t *testing.T, containers ...v1.ResourceRequirements) (*resizedNode, *v1.Pod) {
	t.Helper()
	n, p := newResizedNode(t), resizedPod(testPod("a"), containers...)
	n.apply(p)
	n.reported()
	return n, p
}

// begin starts podsync. What was granted is known from before, and so is what was actuated.
func (n *resizedNode) begin() {
	before := n.node
	n.node = newNode(n.t, n.cri)
	n.node.groups = n.groups
	n.dispatcher.deps.Cgroups = n.groups
	n.dispatcher.deps.Runtime = resizedRuntime{n.dispatcher.deps.Runtime, n}
	if before != nil {
		n.allocation.granted, n.allocation.actuated = before.allocation.granted, before.allocation.actuated
		n.allocation.progress = before.allocation.progress
		n.statuses = before.statuses
	}
	n.stop = n.run()
}

func (n *resizedNode) step(what string) {
	n.mu.Lock()
	n.steps = append(n.steps, what)
	count, after := len(n.steps), n.after
	n.mu.Unlock()
	if after != nil {
		after(count)
	}
}

func (n *resizedNode) takeSteps() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	steps := n.steps
	n.steps = nil
	return steps
}

// resize has a version of a pod granted.
func (n *resizedNode) resize(p *v1.Pod) {
	n.allocation.decides = true
	n.apply(p)
	n.allocation.grant(p.UID)
	n.workers.Granted(p.UID)
	n.wait(10 * time.Millisecond)
}

// ids are those of the pod's containers that run.
func (n *resizedNode) ids(uid types.UID) map[string]string {
	n.t.Helper()
	ids := map[string]string{}
	state, err := n.dispatcher.deps.Runtime.State(n.t.Context(), uid)
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range state.Containers {
		if c := &state.Containers[i]; c.Running() {
			ids[c.Name] = c.ID
		}
	}
	return ids
}

// has is what the runtime has of the pod's container.
func (n *resizedNode) has(uid types.UID, name string) string {
	n.t.Helper()
	state, err := n.dispatcher.deps.Runtime.State(n.t.Context(), uid)
	if err != nil {
		n.t.Fatal(err)
	}
	r := state.Latest(name).Resources.GetLinux()
	return fmt.Sprintf("memory=%s cpu=%s shares=%d", amount(r.GetMemoryLimitInBytes()), amount(r.GetCpuQuota()/100),
		r.GetCpuShares())
}

func (n *resizedNode) reported() []string {
	n.allocation.mu.Lock()
	defer n.allocation.mu.Unlock()
	all := n.allocation.reported
	n.allocation.reported = nil
	return all
}

// sizes are amounts as "cpu request/limit memory request/limit", of which each may be empty.
func sizes(cpuRequest, cpuLimit, memoryRequest, memoryLimit string) v1.ResourceRequirements {
	list := func(cpu, memory string) v1.ResourceList {
		l := v1.ResourceList{}
		if cpu != "" {
			l[v1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[v1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	return v1.ResourceRequirements{Requests: list(cpuRequest, memoryRequest), Limits: list(cpuLimit, memoryLimit)}
}

// resizedPod returns a newer version of the pod with other resources of its containers, in their order.
func resizedPod(p *v1.Pod, r ...v1.ResourceRequirements) *v1.Pod {
	p = p.DeepCopy()
	p.Generation++
	for i := range r {
		p.Spec.Containers[i].Resources = r[i]
	}
	return p
}

func (n *resizedNode) want(what string, got, want any) {
	n.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("%s: %s", what, diff)
	}
}

// TestResize gives a container that runs more, less, and other limits, in order.
func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		small := resizedPod(testPod("a"), sizes("100m", "200m", "1000", "4Ki"))
		n.apply(small)
		ids := n.ids("a")
		n.want("calls for a pod that starts", n.takeSteps(), []string(nil))
		n.want("a pod that starts", n.reported(), []string{"completed a"})
		n.want("has", n.has("a", "c"), "memory=4096 cpu=200 shares=102")

		large := resizedPod(small, sizes("300m", "400m", "2000", "8Ki"))
		n.resize(large)
		n.want("growing", n.takeSteps(), []string{
			"sandbox memory=8192 cpu=200 shares=100", "pod memory=8192 cpu=200 shares=100",
			"sandbox memory=8192 cpu=400 shares=100", "pod memory=8192 cpu=400 shares=100",
			"sandbox memory=8192 cpu=400 shares=300", "pod memory=8192 cpu=400 shares=300",
			"container memory=8192 cpu=400 shares=307",
		})
		n.want("growing", n.reported(), []string{"actuating a", "completed a"})
		n.want("has", n.has("a", "c"), "memory=8192 cpu=400 shares=307")

		n.resize(resizedPod(large, small.Spec.Containers[0].Resources))
		n.want("shrinking", n.takeSteps(), []string{
			"container memory=4096 cpu=200 shares=102",
			"sandbox memory=4096 cpu=400 shares=300", "pod memory=4096 cpu=400 shares=300",
			"sandbox memory=4096 cpu=400 shares=100", "pod memory=4096 cpu=400 shares=100",
			"sandbox memory=4096 cpu=200 shares=100", "pod memory=4096 cpu=200 shares=100",
		})
		n.resize(resizedPod(large, sizes("100m", "", "1000", "")))
		n.want("removing limits", n.takeSteps(), []string{
			"sandbox memory=none cpu=200 shares=100", "pod memory=none cpu=200 shares=100",
			"sandbox memory=none cpu=none shares=100", "pod memory=none cpu=none shares=100",
			"container memory=none cpu=none shares=102",
		})
		n.want("has", n.has("a", "c"), "memory=none cpu=none shares=102")
		n.want("reported", n.reported(), []string{"actuating a", "completed a", "actuating a", "completed a"})
		n.want("containers", n.ids("a"), ids)
		reads := n.groups.readCount()
		n.workers.Wake("a", "test")
		n.wait(time.Hour)
		n.want("reads of the cgroup by syncs that resize nothing", n.groups.readCount()-reads, 0)
		n.want("calls of syncs that resize nothing", n.takeSteps(), []string(nil))
		recorded, _ := n.allocation.Actuated("a")
		n.want("recorded", recorded.Containers["c"], sizes("100m", "", "1000", ""))
		n.want("events", n.drain()[2:], []string{})
	})
}

// TestResizeAtOnce needs no time but that of its calls.
func TestResizeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		small := resizedPod(testPod("a"), sizes("100m", "", "", ""))
		n.apply(small)
		n.takeSteps()
		n.allocation.decides = true
		n.apply(resizedPod(small, sizes("200m", "", "", "")))
		n.allocation.grant("a")
		n.workers.Granted("a")
		synctest.Wait()
		n.want("steps", len(n.takeSteps()), 3)
		n.want("reported", n.reported(), []string{"completed a", "actuating a", "completed a"})
	})
}

// restarting has the container start again when one of its resources changes.
func restarting(p *v1.Pod, container int, name v1.ResourceName) *v1.Pod {
	c := &p.Spec.Containers[container]
	c.ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: name, RestartPolicy: v1.RestartContainer}}
	return p
}

func TestResizeWithARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		p := resizedPod(restarting(withSibling(), 0, v1.ResourceMemory),
			sizes("", "", "1000", "4Ki"), sizes("", "", "1000", "4Ki"))
		n.apply(p)
		ids := n.ids("a")
		n.drain()
		n.resize(resizedPod(p, sizes("", "", "1000", "8Ki"), sizes("", "", "1000", "8Ki")))
		n.want("steps", n.takeSteps(), []string{
			"sandbox memory=16384 cpu=none shares=0", "pod memory=16384 cpu=none shares=0",
			"container memory=8192 cpu=none shares=2",
		})
		now := n.ids("a")
		if now["c"] == ids["c"] || now["sibling"] != ids["sibling"] || len(now) != 2 {
			t.Errorf("containers were %v and are %v", ids, now)
		}
		n.want("c", n.has("a", "c"), "memory=8192 cpu=none shares=2")
		n.want("restart count", n.container("c").RestartCount, int32(1))
		n.want("reported", n.reported(), []string{"completed a", "actuating a", "completed a"})
		if events := strings.Join(n.drain(), "\n"); !strings.Contains(events, "Container c resize requires restart\n") {
			t.Errorf("events %s", events)
		}
		n.resize(resizedPod(p, sizes("100m", "", "1000", "8Ki"), sizes("", "", "1000", "8Ki")))
		n.want("containers after a change of CPU alone", n.ids("a"), now)
	})
}

// TestResizeThatIsRefused waits for memory to be free, and holds up nothing else.
func TestResizeThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		p := resizedPod(withSibling(), sizes("100m", "", "", "8Ki"), sizes("100m", "", "", "8Ki"))
		n.apply(p)
		n.reported()
		n.groups.use("a", n.ids("a")["c"], 5000)
		n.resize(resizedPod(p, sizes("200m", "", "", "4Ki"), sizes("100m", "", "", "8Ki")))
		n.want("steps", n.takeSteps(), []string{
			"sandbox memory=16384 cpu=none shares=300", "pod memory=16384 cpu=none shares=300",
			"container memory=8192 cpu=none shares=204",
		})
		refused := `failed a: cannot decrease memory limits: attempting to set container "c" memory limit (4096) below ` +
			`current usage (5000)`
		n.want("reported", n.reported(), []string{refused, "actuating a"})
		n.exit("sibling")
		n.wait(time.Second)
		if n.container("sibling").State.Running == nil {
			t.Error("the sibling waits for the resize")
		}
		n.wait(57 * time.Second)
		n.want("reported within a minute", n.reported(), []string(nil))
		n.wait(11 * time.Second)
		n.want("reported after a minute", n.reported(), []string{refused})
		n.groups.use("a", n.ids("a")["c"], 3000)
		n.wait(10 * time.Second)
		n.want("when there is room", n.takeSteps(), []string{
			"container memory=4096 cpu=none shares=204",
			"sandbox memory=12288 cpu=none shares=300", "pod memory=12288 cpu=none shares=300",
		})
		n.want("when there is room", n.reported(), []string{"actuating a", "completed a"})
		n.groups.use("a", n.ids("a")["c"], 5000)
		n.resize(resizedPod(p, sizes("200m", "", "", "2Ki"), sizes("100m", "", "", "8Ki")))
		if all := n.reported(); len(all) != 1 || !strings.HasPrefix(all[0], "failed a: cannot decrease memory limits: ") {
			t.Errorf("another one reported %q", all)
		}
		n.resize(p)
		n.want("reported", n.reported(), []string{"actuating a", "completed a"})
	})
}

// TestResizeThatFails shows why, and is tried again after 10 s.
func TestResizeThatFails(t *testing.T) {
	refused := status.Error(codes.Internal, "no more memory")
	notified := []string{"sandbox memory=8192 cpu=none shares=0", "sandbox memory=4096 cpu=none shares=0"}
	for name, test := range map[string]struct {
		breaks func(n *resizedNode, err error)
		err    error
		want   string
		steps  []string
	}{
		"a container": {
			func(n *resizedNode, err error) { n.cri.Fail("UpdateContainerResources", err) }, refused, "no more memory",
			[]string{"sandbox memory=8192 cpu=none shares=0", "pod memory=8192 cpu=none shares=0"},
		},
		"the runtime refuses": {
			func(n *resizedNode, err error) { n.cri.Fail("UpdatePodSandboxResources", err) }, refused,
			"failed to notify runtime for UpdatePodSandboxResources (resource=memory); resize rejected: ", nil,
		},
		"the cgroup": {
			func(n *resizedNode, err error) { n.groups.fail(nil, err) }, errors.New("device busy"), "device busy", notified,
		},
		"the cgroup cannot be read": {
			func(n *resizedNode, err error) { n.groups.fail(err, nil) }, errors.New("input/output error"),
			"input/output error", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newResizedNode(t)
				p := resizedPod(testPod("a"), sizes("", "", "", "4Ki"))
				n.apply(p)
				n.reported()
				test.breaks(n, test.err)
				n.resize(resizedPod(p, sizes("", "", "", "8Ki")))
				n.want("steps", n.takeSteps(), test.steps)
				all := n.reported()
				last := all[len(all)-1]
				if !strings.HasPrefix(last, "failed a: ") || !strings.Contains(last, test.want) {
					t.Errorf("reported %q", all)
				}
				n.wait(8 * time.Second)
				n.want("reported within 8 s", n.reported(), []string(nil))
				test.breaks(n, nil)
				n.wait(8 * time.Second)
				n.want("reported", n.reported(), []string{"actuating a", "completed a"})
				n.want("has", n.has("a", "c")+" "+amount(n.groups.limits("a").MemoryLimit), "memory=8192 cpu=none shares=2 8192")
			})
		})
	}
}

// TestResizeWithoutARuntime is no failure of the resize.
func TestResizeWithoutARuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newRunningPod(t, sizes("100m", "", "", ""))
		n.cri.Fail("UpdateContainerResources", status.Error(codes.Unavailable, "gone"))
		n.resize(resizedPod(p, sizes("200m", "", "", "")))
		n.want("reported", n.reported(), []string{"actuating a"})
		n.cri.Fail("UpdateContainerResources", nil)
		n.wait(2 * time.Second)
		n.want("reported", n.reported(), []string{"actuating a", "completed a"})
	})
}

// TestAContainerThatEndsWhileItIsResized starts with what was granted.
func TestAContainerThatEndsWhileItIsResized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newRunningPod(t, sizes("100m", "", "", ""))
		n.cri.Fail("UpdateContainerResources", status.Error(codes.Unknown, "cannot update a stopped container"))
		n.after = func(int) {
			n.after = nil
			n.exit("c")
		}
		n.resize(resizedPod(p, sizes("200m", "", "", "")))
		n.wait(time.Second)
		n.want("reported", n.reported(), []string{"actuating a", "completed a"})
		n.want("has", n.has("a", "c"), "memory=none cpu=none shares=204")
	})
}

// TestAPodThatIsResizedWhileItIsDown has room for its containers before they start.
func TestAPodThatIsResizedWhileItIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		p := resizedPod(testPod("a"), sizes("100m", "100m", "", "4Ki"))
		n.apply(p)
		state, err := n.dispatcher.deps.Runtime.State(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		n.breaks("Container", "a", errors.New("no space left on device"))
		if err := n.cri.StopSandbox(state.Sandboxes[0].ID); err != nil {
			t.Fatal(err)
		}
		n.resize(resizedPod(p, sizes("200m", "200m", "", "8Ki")))
		n.want("steps", n.takeSteps(), []string{
			"pod memory=8192 cpu=100 shares=100", "pod memory=8192 cpu=200 shares=100", "pod memory=8192 cpu=200 shares=200",
		})
		n.breaks("Container", "a", nil)
		n.wait(time.Minute)
		n.want("has", n.has("a", "c"), "memory=8192 cpu=200 shares=204")
		recorded, _ := n.allocation.Actuated("a")
		n.want("recorded", recorded.Containers["c"], sizes("200m", "200m", "", "8Ki"))
	})
}

// TestResizeBesideAPull does not wait for the image of another container, whose pull goes on.
func TestResizeBesideAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		n.node.mu.Lock()
		n.slowImage = "large"
		n.node.mu.Unlock()
		n.cri.AddImage("large")
		p := resizedPod(withSibling(), sizes("100m", "", "", ""), sizes("100m", "", "", ""))
		p.Spec.Containers[1].Image = "large"
		n.apply(p)
		n.want("running", len(n.ids("a")), 1)
		pulls := n.ensured.Load()
		n.resize(resizedPod(p, sizes("200m", "", "", ""), sizes("100m", "", "", "")))
		n.want("has", n.has("a", "c"), "memory=none cpu=none shares=204")
		n.want("reported", n.reported(), []string{"completed a", "actuating a", "completed a"})
		n.want("pulls that begin", n.ensured.Load()-pulls, int32(0))
		n.wait(slowPull)
		n.want("running", len(n.ids("a")), 2)
		for _, e := range n.drain() {
			if strings.Contains(e, "Warning") {
				t.Errorf("event %s", e)
			}
		}
	})
}

// TestAPodWithPodLevelResources has its limits in its containers too.
func TestAPodWithPodLevelResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		p := testPod("a")
		p.Spec.Resources = new(sizes("100m", "200m", "1000", "4Ki"))
		n.apply(p)
		n.reported()
		ids := n.ids("a")
		larger := resizedPod(p)
		larger.Spec.Resources = new(sizes("100m", "300m", "2000", "8Ki"))
		n.resize(larger)
		n.want("steps", n.takeSteps(), []string{
			"sandbox memory=8192 cpu=200 shares=100", "pod memory=8192 cpu=200 shares=100",
			"sandbox memory=8192 cpu=300 shares=100", "pod memory=8192 cpu=300 shares=100",
			"container memory=8192 cpu=300 shares=307",
		})
		n.want("containers", n.ids("a"), ids)
		recorded, _ := n.allocation.Actuated("a")
		n.want("recorded", recorded, pod.Resources{
			Pod: larger.Spec.Resources, Containers: map[string]v1.ResourceRequirements{"c": {
				Limits: larger.Spec.Resources.Limits,
			}},
		})
	})
}

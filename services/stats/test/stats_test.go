// Package test runs stats alone against a real bus and a fake runtime.
package test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
	"github.com/microlet/microlet/services/stats"
)

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// What the processes of containers do. An idle one takes some milliseconds of a processor to start.
const (
	busy = "while :; do :; done"
	idle = "exec sleep 1000"
	// enough is what a busy one has taken when it is looked at, in nanoseconds.
	enough = 500_000_000
)

const podUID = "0d4e4c1e-7a51-4a5f-9c52-2f7f5d3f6a11"

// node is a real bus, a fake runtime behind the gateway's socket, podsync on the bus, real cgroups, and stats itself.
type node struct {
	*bustest.Node
	t       *testing.T
	runtime *fake.Runtime
	tree    *tree
	stats   statsv1.StatsServiceClient

	pods, statuses *bus.Writer
	taken          *bus.View[*statsv1.SummaryTaken]
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: bustest.New(t), t: t, runtime: fake.NewRuntime(time.Now), tree: newTree(t)}
	cfg := stats.DefaultConfig()
	cfg.Service = n.Service()
	kubelet := kubeletconfig.Default()
	kubelet.CgroupRoot, kubelet.PodLogsDir = n.tree.name, t.TempDir()
	cfg.Kubelet = &kubeletconfig.Config{Kubelet: kubelet, Node: kubeletconfig.NodeFlags{
		RootDir: t.TempDir(), HousekeepingInterval: metav1.Duration{Duration: time.Second},
	}}
	stop, err := n.runtime.Serve(cfg.Service.CRISocket(role.Stats))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	n.Client(role.Podsync, func(c *bus.Client) { n.pods, n.statuses = c.Own(subject.Pods), c.Own(subject.PodStatus) })
	n.Client(role.NodeAPI, func(c *bus.Client) {
		n.taken = bus.Watch[statsv1.SummaryTaken](c, subject.Stats, subject.StatsSummary, nil)
	})
	n.Run(func(ctx context.Context) error { return stats.Run(ctx, cfg) })
	conn, err := unixgrpc.Dial(cfg.Service.Socket(role.Stats),
		unixgrpc.DialOptions{Server: role.Stats, Self: role.NodeAPI, Peers: cfg.Service.Peers()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n.stats = statsv1.NewStatsServiceClient(conn)
	return n
}

// putPod puts a pod of one container as podsync does; no container is one that has ended.
func (n *node) putPod(sandbox, container string) {
	n.t.Helper()
	object := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: types.UID(podUID)}}
	text, err := object.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	api, err := (&v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "main", Image: "busybox:1"}}}).Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	n.pods.Put(subject.PodKey(podUID), &podsyncv1.Pod{Pod: text})
	n.statuses.Put(subject.PodKey(podUID), &podsyncv1.PodStatus{
		SandboxId: sandbox, Status: api, Containers: []*podsyncv1.Container{
			{Name: "main", Id: container, State: podsyncv1.ContainerState_CONTAINER_STATE_RUNNING},
		},
	})
	n.pods.Complete()
	n.statuses.Complete()
}

func (n *node) summary(only bool) (*statsapi.Summary, *statsv1.SummaryResponse) {
	n.t.Helper()
	resp, err := n.stats.Summary(n.t.Context(), &statsv1.SummaryRequest{OnlyCpuAndMemory: only}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatal(err)
	}
	s := &statsapi.Summary{}
	if err := json.Unmarshal(resp.GetJson(), s); err != nil {
		n.t.Fatal(err)
	}
	return s, resp
}

func (n *node) page(p statsv1.MetricsPage) string {
	n.t.Helper()
	stream, err := n.stats.Page(n.t.Context(), &statsv1.PageRequest{Page: p}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatal(err)
	}
	var text strings.Builder
	for first := true; ; first = false {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			n.t.Fatal(err)
		}
		if (part.GetTaken() != nil) != first {
			n.t.Errorf("part after %d bytes has the time %v", text.Len(), part.GetTaken())
		}
		text.Write(part.GetText())
	}
}

// A container's figures are reported while it runs; its successor's start from zero, and nothing of the dead one is
// reported.
func TestAContainersLife(t *testing.T) {
	n := newNode(t)
	sandbox, first, second := strings.Repeat("5", 64), strings.Repeat("a", 64), strings.Repeat("b", 64)
	n.tree.make("kubepods/burstable/pod"+podUID+"/"+sandbox, idle)
	burn := n.tree.make("kubepods/burstable/pod"+podUID+"/"+first, busy)
	n.putPod(sandbox, first)

	var pod statsapi.PodStats
	proctest.Await(t, patience, "the pod's figures with a rate", func() bool {
		s, _ := n.summary(false)
		if len(s.Pods) != 1 || len(s.Pods[0].Containers) != 1 {
			return false
		}
		pod = s.Pods[0]
		return pod.CPU != nil && pod.CPU.UsageNanoCores != nil && *pod.CPU.UsageCoreNanoSeconds > enough
	})
	c := pod.Containers[0]
	if pod.PodRef.Name != "web" || c.Name != "main" || *c.CPU.UsageCoreNanoSeconds == 0 ||
		c.Memory.WorkingSetBytes == nil ||
		pod.Network == nil || *pod.ProcessStats.ProcessCount == 0 {
		t.Errorf("the pod is %+v", pod)
	}
	resource, cadvisor := n.page(statsv1.MetricsPage_METRICS_PAGE_RESOURCE),
		n.page(statsv1.MetricsPage_METRICS_PAGE_CADVISOR)
	for page, want := range map[string][]string{
		resource: {`container_cpu_usage_seconds_total{container="main",namespace="default",pod="web"}`,
			"node_memory_working_set_bytes ", "resource_scrape_error 0"},
		cadvisor: {`image="busybox:1",name="` + first + `"`, "machine_cpu_cores{", `pod="web",interface=`},
	} {
		for _, w := range want {
			if !strings.Contains(page, w) {
				t.Errorf("a page of %d bytes lacks %s", len(page), w)
			}
		}
	}
	if taken, ok := n.taken.Get(subject.StatsSummary); !ok || taken.GetGeneration() == 0 || taken.GetError() != "" {
		t.Errorf("STATS/summary is %v", taken)
	}

	burn.end()
	n.tree.make("kubepods/burstable/pod"+podUID+"/"+second, idle)
	n.putPod(sandbox, second)
	proctest.Await(t, patience, "the figures of the successor", func() bool {
		return strings.Contains(n.page(statsv1.MetricsPage_METRICS_PAGE_CADVISOR), second)
	})
	if strings.Contains(n.page(statsv1.MetricsPage_METRICS_PAGE_CADVISOR), first) {
		t.Error("there are figures of a dead container")
	}
	s, _ := n.summary(true)
	if got := *s.Pods[0].Containers[0].CPU.UsageCoreNanoSeconds; got > enough/2 {
		t.Errorf("the successor begins with %d ns, where the first ended with %d", got, *c.CPU.UsageCoreNanoSeconds)
	}
}

// Without the runtime and without the bus there are figures still, and what is missing is said.
func TestWhatIsAway(t *testing.T) {
	n := newNode(t)
	s, resp := n.summary(false)
	if s.Node.NodeName != bustest.NodeName || s.Node.CPU == nil || s.Node.Fs == nil || s.Node.Rlimit == nil ||
		s.Node.Runtime == nil || resp.GetProblem() != "" || resp.GetTaken() == nil {
		t.Errorf("the summary is %+v, %q", s.Node, resp.GetProblem())
	}
	n.runtime.Fail("ImageFsInfo", errors.New("the disk is on fire"))
	proctest.Await(t, patience, "the runtime's failure in the answer", func() bool {
		s, resp := n.summary(false)
		return strings.Contains(resp.GetProblem(), "the disk is on fire") && s.Node.CPU != nil && s.Node.Runtime != nil
	})
	n.runtime.Fail("ImageFsInfo", nil)
	n.StopBus()
	proctest.Await(t, patience, "an answer without a problem and without the bus", func() bool {
		s, resp := n.summary(false)
		return resp.GetProblem() == "" && s.Node.Runtime != nil
	})
}

func TestAPageThatIsNone(t *testing.T) {
	n := newNode(t)
	stream, err := n.stats.Page(t.Context(), &statsv1.PageRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no page is %v", err)
	}
}

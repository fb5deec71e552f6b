package pods

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/cleanup"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/images"
	"github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	"github.com/microlet/microlet/services/podsync/internal/pods/internal/hook"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// node is a dispatcher over a fake runtime, with a machine and an apiserver around it.
type node struct {
	t          *testing.T
	cri        *fake.Runtime
	workers    *Workers
	dispatcher *Dispatcher
	events     *record.FakeRecorder

	mu       sync.Mutex
	statuses map[types.UID]v1.PodStatus
	history  map[types.UID][]v1.PodPhase
	reports  map[types.UID]int
	final    map[types.UID]bool
	hung     map[types.UID]bool // pods whose volumes hang
	reported atomic.Bool
	ensured  atomic.Int32 // images asked for
	// ensuredVolumes are the images of volumes asked for.
	ensuredVolumes atomic.Int32

	refreshed map[types.UID]int

	published *published
	admission *admissions
	groups    *groups
	// allocation has the resources that pods were granted.
	allocation *allocations
	judge      judge
	slow       map[types.UID]bool // pods whose pulls never end
	breakage   map[string]error   // by method and pod
	slowImage  string             // an image that takes slowPull
	released   map[types.UID]bool
	mounted    map[types.UID]bool
	// registered are the pods whose Secrets and ConfigMaps are watched.
	registered map[types.UID]bool
	// wanted are the static pods that are mirrored.
	wanted map[types.UID]bool
	// forgotten are the pods whose last status the manager of statuses no longer has.
	forgotten map[types.UID]bool
	// ends are the pods that a shutdown ends as soon as they have a worker.
	ends   map[types.UID]*status.Override
	logged int32 // the restart count that the logs leave free
	// users are the first IDs of pods with users of their own, and joined the sandboxes that they were asked for.
	users  map[types.UID]uint32
	joined map[types.UID][]string
	// grants hand out devices, and grantedTo is what containers were configured with.
	grants    *granting
	grantedTo map[types.UID]*resourcesv1.ContainerResources
}

// given is what the last container of a pod was configured with.
func (n *node) given(uid types.UID) *resourcesv1.ContainerResources {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.grantedTo[uid]
}

func newNode(t *testing.T, cri *fake.Runtime) *node {
	n := &node{
		t:         t,
		cri:       cri,
		events:    record.NewFakeRecorder(1000),
		published: &published{pods: map[types.UID]string{}, last: map[types.UID]*v1.Pod{}, desired: map[types.UID]*v1.Pod{}},
		admission: &admissions{
			reject: map[types.UID]admission.Result{},
			asked:  map[types.UID]int{},
			ended:  map[types.UID]bool{},
		},
		allocation: newAllocations(),
		groups:     newGroups(),
		statuses:   map[types.UID]v1.PodStatus{},
		history:    map[types.UID][]v1.PodPhase{},
		reports:    map[types.UID]int{},
		final:      map[types.UID]bool{},
		hung:       map[types.UID]bool{},
		slow:       map[types.UID]bool{},
		released:   map[types.UID]bool{},
		mounted:    map[types.UID]bool{},
		refreshed:  map[types.UID]int{},
		registered: map[types.UID]bool{},
		wanted:     map[types.UID]bool{},
		forgotten:  map[types.UID]bool{},
		ends:       map[types.UID]*status.Override{},
		users:      map[types.UID]uint32{},
		joined:     map[types.UID][]string{},
		grants:     newGranting(),
		grantedTo:  map[types.UID]*resourcesv1.ContainerResources{},
	}
	rt, err := runtime.New(cri.Conn(), cri.Conn(), runtime.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := hook.New(hook.Options{Exec: rt, Events: n.events, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	n.workers = NewWorkers(NewMetrics(prometheus.NewRegistry()))
	n.dispatcher = NewDispatcher(n.workers, Deps{
		RuntimeDeps: RuntimeDeps{
			Runtime: rt, Remover: cleanup.NewRemover(rt), RuntimeState: runtimeState(func() string { return "" }),
			RuntimeClasses: defaultClass{}, Predecessors: predecessors(func(*v1.Pod) error { return nil }),
		},
		Resources: Resources{
			Images: n, Volumes: n, Cgroups: n.groups, Config: n, Objects: n, Logs: n, Hooks: hooks, Users: n,
		},
		Admissions: Admissions{
			Admission: n.admission, ContainerAdmission: &n.judge, Allocation: n.allocation, Grants: n.grants,
			Ends:   func(p *v1.Pod) *status.Override { return n.ends[p.UID] },
			Update: func(_, newer *v1.Pod) string { return newer.Annotations["lacks"] },
		},
		Reporting: Reporting{
			Statuses: n,
			Reporter: n.published,
			Events:   n.events,
			Probes:   unprobed{},
			HostIPs:  hostIPs{"192.0.2.1"},
		},
		Log: slog.New(slog.DiscardHandler),
	}, []podsyncv1.PodSource{api},
		Progress{Turn: func() {}, Synced: func() {}, Reported: func() { n.reported.Store(true) }})
	return n
}

const slowPull = time.Minute

// breaks makes a method fail for one pod; nil ends that.
func (n *node) breaks(method string, uid types.UID, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.breakage == nil {
		n.breakage = map[string]error{}
	}
	n.breakage[method+" "+string(uid)] = err
}

func (n *node) broken(method string, uid types.UID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.breakage[method+" "+string(uid)]
}

func (n *node) Prepare(p *v1.Pod) error { return n.broken("Prepare", p.UID) }

// run runs the node until the returned function is called.
func (n *node) run() (stop func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.dispatcher.Run(ctx); err != nil {
			n.t.Error(err)
		}
	}()
	return func() { cancel(); <-done }
}

// startNode returns a node that runs until the test ends.
func startNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, newRuntime())
	t.Cleanup(n.run())
	return n
}

// apply gives the node a version of a pod, as the API server does, and a second to act on it.
func (n *node) apply(p *v1.Pod) {
	n.dispatcher.SetPod(p, api)
	n.wait(time.Second)
}

func (n *node) Ensure(ctx context.Context, p *v1.Pod, c *v1.Container) (*images.Image, error) {
	n.ensured.Add(1)
	n.mu.Lock()
	slow, slowImage := n.slow[p.UID], n.slowImage
	n.mu.Unlock()
	if c.Image == slowImage {
		time.Sleep(slowPull)
	}
	if slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &images.Image{Ref: c.Image}, nil
}

// EnsureVolume counts. It fails for the reference "absent", and never ends for "slow".
func (n *node) EnsureVolume(ctx context.Context, _ *v1.Pod, v *v1.ImageVolumeSource) (*runtimeapi.ImageSpec, error) {
	n.ensuredVolumes.Add(1)
	switch v.Reference {
	case "absent":
		return nil, &images.Error{Reason: images.ReasonPull, Message: "not found"}
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &runtimeapi.ImageSpec{Image: "id of " + v.Reference}, nil
}

func (n *node) Check(context.Context, *v1.Pod) error { return nil }

func (n *node) Existing(p *v1.Pod) (map[string]volumes.Mounted, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return nil, n.mounted[p.UID]
}

func (n *node) Refresh(ctx context.Context, p *v1.Pod) error {
	n.mu.Lock()
	n.refreshed[p.UID]++
	n.mu.Unlock()
	if err := n.broken("Refresh", p.UID); err != nil {
		return err
	}
	_, err := n.Mount(ctx, p)
	return err
}

func (n *node) Mount(ctx context.Context, p *v1.Pod) (map[string]volumes.Mounted, error) {
	n.mu.Lock()
	hung := n.hung[p.UID]
	n.mu.Unlock()
	if hung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := n.broken("Mount", p.UID); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mounted[p.UID] = true
	return nil, nil
}

func (n *node) Hold(context.Context, *v1.Pod, *v1.Container) (func(), error) { return func() {}, nil }

func (n *node) Unmount(_ context.Context, uid types.UID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.released[uid] = true
	return nil
}

var builder = &criconfig.Builder{Node: criconfig.Node{CPUCFSQuota: true}}

func (n *node) ContainerResources(p *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	return builder.ContainerResources(p, c)
}

func (n *node) ContainerUpdate(p *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	return builder.ContainerUpdate(p, c)
}

func (n *node) SandboxUpdate(p *v1.Pod,
	l pod.CgroupLimits) (resources, overhead *runtimeapi.LinuxContainerResources) {
	return builder.SandboxUpdate(p, l)
}

func (n *node) LinkLogs(*v1.Pod, *v1.Container, int32, string) error { return nil }

func (n *node) Remove(p logs.Pod) error { return n.broken("Remove", p.UID) }

func (n *node) Register(p *v1.Pod) { n.registers(p.UID, true) }

func (n *node) Unregister(uid types.UID) { n.registers(uid, false) }

func (n *node) registers(uid types.UID, yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.registered[uid] = yes
}

func podLabels(p *v1.Pod) map[string]string {
	return map[string]string{
		"io.kubernetes.pod.name":      p.Name,
		"io.kubernetes.pod.namespace": p.Namespace,
		"io.kubernetes.pod.uid":       string(p.UID),
	}
}

func (n *node) Sandbox(p *v1.Pod, in criconfig.SandboxInput) (*runtimeapi.PodSandboxConfig, error) {
	network := runtimeapi.NamespaceMode_POD
	if p.Spec.HostNetwork {
		network = runtimeapi.NamespaceMode_NODE
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      p.Name,
			Namespace: p.Namespace,
			Uid:       string(p.UID),
			Attempt:   in.Attempt,
		},
		Labels: podLabels(p), Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: in.CgroupParent,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: network, UsernsOptions: in.UserNamespace},
			},
		},
	}, nil
}

// Of gives the pod the IDs of users.
func (n *node) Of(_ context.Context, uid types.UID, sandbox *pod.Sandbox) (*runtimeapi.UserNamespace, error) {
	if err := n.broken("Of", uid); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	joined := "new"
	if sandbox != nil {
		joined = sandbox.ID
	}
	n.joined[uid] = append(n.joined[uid], joined)
	return userNamespace(n.users[uid]), nil
}

func userNamespace(first uint32) *runtimeapi.UserNamespace {
	ids := []*runtimeapi.IDMapping{{HostId: first, Length: 65536}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
}

func imageMounts(images map[string]*runtimeapi.ImageSpec) (mounts []*runtimeapi.Mount) {
	for _, image := range images {
		mounts = append(mounts, &runtimeapi.Mount{Image: image})
	}
	return mounts
}

func (n *node) Container(_ context.Context, p *v1.Pod, c *v1.Container,
	in criconfig.ContainerInput) (*runtimeapi.ContainerConfig, error) {
	if err := n.broken("Container", p.UID); err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.grantedTo[p.UID] = in.Granted
	n.mu.Unlock()
	labels := podLabels(p)
	labels["io.kubernetes.container.name"] = c.Name
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(in.RestartCount)},
		Image:    &runtimeapi.ImageSpec{Image: in.ImageRef}, Labels: labels, Mounts: imageMounts(in.ImageVolumes),
		Annotations: map[string]string{
			"io.kubernetes.container.hash":         fmt.Sprintf("%x", criconfig.ContainerHash(c)),
			"io.kubernetes.container.restartCount": fmt.Sprint(in.RestartCount),
		},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: builder.ContainerResources(p, c),
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: in.UserNamespace},
			},
		},
	}, nil
}

func (n *node) Set(p *v1.Pod, s v1.PodStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if (s.Phase == v1.PodSucceeded || s.Phase == v1.PodFailed) && s.Reason == "" && !n.admission.hasEnded(p.UID) {
		n.t.Errorf("pod %s was reported to have ended before its place was free", p.UID)
	}
	n.statuses[p.UID], n.forgotten[p.UID] = s, false
	n.reports[p.UID]++
	if h := n.history[p.UID]; len(h) == 0 || h[len(h)-1] != s.Phase {
		n.history[p.UID] = append(h, s.Phase)
	}
}

func (n *node) Terminated(p *v1.Pod, s v1.PodStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.released[p.UID] {
		n.t.Errorf("pod %s was given up before its volumes were gone", p.UID)
	}
	n.statuses[p.UID], n.final[p.UID] = s, true
}

func (n *node) UpdateFromAPI(*v1.Pod) {}

func (n *node) Last(uid types.UID) (v1.PodStatus, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.statuses[uid]
	return s, ok && !n.forgotten[uid]
}

func (n *node) Want(p *v1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wanted[p.UID] = true
}

func (n *node) Forget(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.wanted, uid)
	n.forgotten[uid] = true
}

// sets is how often the pod was reported.
func (n *node) sets(uid types.UID) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reports[uid]
}

// status is the pod's last one.
func (n *node) status(uid types.UID) v1.PodStatus {
	s, _ := n.Last(uid)
	return s
}

// published holds the newest version of each pod that was reported, as its labels' "v".
type published struct {
	mu   sync.Mutex
	pods map[types.UID]string
	last map[types.UID]*v1.Pod
	// desired has the resources that the last version asks for.
	desired map[types.UID]*v1.Pod
}

func (n *published) Pod(p, desired *v1.Pod, _ podsyncv1.PodSource, terminating bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods[p.UID], n.last[p.UID], n.desired[p.UID] = p.Labels["v"], p, desired
	if terminating {
		n.pods[p.UID] += " ends"
	}
}

func (n *published) Status(types.UID, *pod.State, *v1.PodStatus) {}

func (n *published) Forget(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pods, uid)
}

func (n *published) said(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	said, ok := n.pods[uid]
	if !ok {
		return "nothing"
	}
	return said
}

func (n *node) RemoveContainer(string) error { return nil }
func (n *node) NextRestartCount(logs.Pod, string) int32 {
	return n.logged
}

const api = podsyncv1.PodSource_POD_SOURCE_API

func testPod(uid types.UID) *v1.Pod {
	grace := int64(30)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + string(uid), UID: uid, Generation: 1},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			Containers: []v1.Container{{Name: "c", Image: "busybox"}},
		},
	}
}

func deleted(p *v1.Pod, grace int64) *v1.Pod {
	p = p.DeepCopy()
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	p.Generation++
	return p
}

// changes are the calls that change what runs.
func changes(cri *fake.Runtime) []string {
	var all []string
	for _, c := range cri.Calls() {
		if m := c.Method; strings.HasPrefix(m, "Run") && m != "RuntimeConfig" || strings.HasPrefix(m, "Create") ||
			strings.HasPrefix(m, "Start") || strings.HasPrefix(m, "Stop") || strings.HasPrefix(m, "Remove") {
			all = append(all, m)
		}
	}
	return all
}

func (n *node) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (n *node) running(uid types.UID) bool {
	s, _ := n.Last(uid)
	return s.Phase == v1.PodRunning && len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].State.Running != nil
}

// defaultClass is a cluster without runtime classes.
type defaultClass struct{}

func (defaultClass) Handler(context.Context, *string) (string, error) { return "", nil }

func newRuntime() *fake.Runtime {
	cri := fake.NewRuntime(nil)
	cri.AddImage("busybox")
	return cri
}

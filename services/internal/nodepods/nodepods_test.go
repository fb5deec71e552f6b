package nodepods

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// fakeBucket has values that were decoded.
type fakeBucket[M any] struct {
	values map[string]M
	synced bool
	marked bool
}

func (b *fakeBucket[M]) Get(key string) (M, bool)      { m, ok := b.values[key]; return m, ok }
func (b *fakeBucket[M]) Synced() bool                  { return b.synced }
func (b *fakeBucket[M]) Complete() bool                { return b.marked }
func (b *fakeBucket[M]) Traceparent(key string) string { return "trace of " + key }

// node is a View with its buckets, and what it called for and logged.
type node struct {
	*View
	t        *testing.T
	pods     *fakeBucket[*entry]
	statuses *fakeBucket[*report]
	changes  []string
	logged   strings.Builder
}

func newNode(t *testing.T) *node {
	n := &node{
		t: t, pods: &fakeBucket[*entry]{values: map[string]*entry{}},
		statuses: &fakeBucket[*report]{values: map[string]*report{}},
	}
	n.View = &View{
		pods: n.pods, statuses: n.statuses, joined: map[string]*Pod{},
		changed: func(uid string) { n.changes = append(n.changes, uid) },
		log:     slog.New(slog.NewTextHandler(&n.logged, nil)),
	}
	return n
}

func (n *node) put(uid string, m *podsyncv1.Pod) {
	n.t.Helper()
	n.pods.values[uid] = decoded(n.t, decodePod, uid, m)
	n.change(uid)
}

func (n *node) report(uid string, m *podsyncv1.PodStatus) {
	n.t.Helper()
	n.statuses.values[uid] = decoded(n.t, decodeStatus, uid, m)
	n.change(uid)
}

func decoded[M any](t *testing.T, decode func(string, []byte) (M, error), uid string, m proto.Message) M {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	value, err := decode(uid, raw)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func bytesOf(t *testing.T, m interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	raw, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func object(name string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "u"}}
	p.Status.Phase = v1.PodPending
	return p
}

func TestAPodIsJoinedWithItsStatus(t *testing.T) {
	n := newNode(t)
	started := time.Unix(1_700_000_000, 0).UTC()
	n.report("u", &podsyncv1.PodStatus{ // it comes first, as it may after a restart
		SandboxId: "sandbox", PodIps: []string{"10.0.0.1"},
		Status: bytesOf(t, &v1.PodStatus{
			Phase:                      v1.PodRunning,
			InitContainerStatuses:      []v1.ContainerStatus{{Name: "init", Image: "init:1"}},
			ContainerStatuses:          []v1.ContainerStatus{{Name: "main", Image: "main:1"}},
			EphemeralContainerStatuses: []v1.ContainerStatus{{Name: "debug", Image: "debug:1"}},
		}),
		Containers: []*podsyncv1.Container{
			{Name: "main", Id: "1", State: Running, Started: timestamppb.New(started)},
			{Name: "init", Id: "2", State: Exited}, {Name: "debug", Id: "3", State: Unknown}, {Name: "new", State: Created},
		},
	})
	if _, ok := n.Get("u"); ok || len(n.All()) > 0 {
		t.Fatal("a status without a pod is a pod")
	}
	n.put("u", &podsyncv1.Pod{Pod: bytesOf(t, object("p")), Terminating: true})
	p, ok := n.Get("u")
	if !ok || p.Err != nil || p.Name != "p" || p.Status.Phase != v1.PodRunning || !p.Reported || !p.Terminating ||
		p.SandboxID != "sandbox" || !slices.Equal(p.IPs, []string{"10.0.0.1"}) {
		t.Fatalf("the pod is %+v", p)
	}
	if want := []Container{
		{"main", "1", "main:1", Running, started}, {"init", "2", "init:1", Exited, time.Time{}},
		{"debug", "3", "debug:1", Unknown, time.Time{}}, {"new", "", "", Created, time.Time{}},
	}; !slices.Equal(p.Containers, want) || !p.Containers[0].IsRunning() || p.Containers[2].IsRunning() {
		t.Errorf("its containers are %v, want %v", p.Containers, want)
	}
	if n.Traceparent("u") != "trace of u" {
		t.Error("the trace of its status is not known")
	}
	if n.logged.Len() > 0 {
		t.Errorf("logged:\n%s", &n.logged)
	}
}

// TestWhatAPodAsksFor: while the node has granted other resources than a pod asks for, a reader finds both.
func TestWhatAPodAsksFor(t *testing.T) {
	n := newNode(t)
	cpu := func(amount string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(amount)}}
	}
	granted := object("p")
	granted.Spec.InitContainers = []v1.Container{{Name: "init", Image: "init:1", Resources: cpu("1")}}
	granted.Spec.Containers = []v1.Container{
		{Name: "main", Image: "main:1", Resources: cpu("1")}, {Name: "other", Image: "other:1", Resources: cpu("1")}}
	asks := &v1.PodSpec{
		Resources:      new(cpu("9")),
		InitContainers: []v1.Container{{Name: "init", Resources: cpu("2")}},
		Containers:     []v1.Container{{Name: "nosuch", Resources: cpu("7")}, {Name: "main", Resources: cpu("3")}},
	}
	n.put("u", &podsyncv1.Pod{Pod: bytesOf(t, granted), Desired: bytesOf(t, asks)})
	n.report("u", &podsyncv1.PodStatus{Status: bytesOf(t, &v1.PodStatus{Phase: v1.PodRunning})})
	p, _ := n.Get("u")
	want := granted.DeepCopy()
	want.Status = v1.PodStatus{Phase: v1.PodRunning}
	if !equality.Semantic.DeepEqual(want, p.Pod) {
		t.Errorf("granted is %+v", p.Pod)
	}
	want.Spec.Resources = asks.Resources
	want.Spec.InitContainers[0].Resources, want.Spec.Containers[0].Resources = cpu("2"), cpu("3")
	if !equality.Semantic.DeepEqual(want, p.Desired) {
		t.Errorf("it asks for %+v", p.Desired)
	}
	n.put("u", &podsyncv1.Pod{Pod: bytesOf(t, granted)})
	if p, _ := n.Get("u"); p.Desired != p.Pod {
		t.Errorf("what was granted is not what it asks for: %+v", p.Desired)
	}
}

func TestAPodWithoutAReportHasItsOwnStatus(t *testing.T) {
	n := newNode(t)
	n.put("u", &podsyncv1.Pod{Pod: bytesOf(t, object("p"))})
	if p, _ := n.Get("u"); p.Reported || p.Status.Phase != v1.PodPending || len(p.Containers) > 0 {
		t.Errorf("the pod is %+v", p)
	}
	n.View.statuses = nil // as WatchWithoutStatus
	n.put("u", &podsyncv1.Pod{Pod: bytesOf(t, object("q"))})
	if p, _ := n.Get("u"); p.Reported || p.Name != "q" || n.Traceparent("u") != "" {
		t.Errorf("without POD_STATUS, the pod is %+v", p)
	}
	if n.pods.synced = true; !n.Synced() {
		t.Error("without POD_STATUS, the view is never complete")
	}
}

// TestAnOldPodStaysAsItWas: a reader may use it while a new one comes.
func TestAnOldPodStaysAsItWas(t *testing.T) {
	n := newNode(t)
	n.put("u", &podsyncv1.Pod{Pod: bytesOf(t, object("p"))})
	before, _ := n.Get("u")
	all := n.All()
	n.report("u", &podsyncv1.PodStatus{Status: bytesOf(t, &v1.PodStatus{Phase: v1.PodRunning})})
	running, _ := n.Get("u")
	n.report("u", &podsyncv1.PodStatus{Status: bytesOf(t, &v1.PodStatus{Phase: v1.PodFailed})})
	failed, _ := n.Get("u")
	if before.Status.Phase != v1.PodPending || running.Status.Phase != v1.PodRunning ||
		failed.Status.Phase != v1.PodFailed || all["u"] != before {
		t.Errorf("phases %s, %s, %s", before.Status.Phase, running.Status.Phase, failed.Status.Phase)
	}
	if !slices.Equal(n.changes, []string{"u", "u", "u"}) {
		t.Errorf("changes %q", n.changes)
	}
}

func TestAPodThatIsDeletedGoes(t *testing.T) {
	n := newNode(t)
	n.put("u", &podsyncv1.Pod{Pod: bytesOf(t, object("p"))})
	n.report("u", &podsyncv1.PodStatus{SandboxId: "sandbox"})
	all := n.All()
	delete(n.pods.values, "u")
	n.change("u")
	if _, ok := n.Get("u"); ok || len(n.All()) > 0 || len(all) != 1 {
		t.Errorf("there are %v", slices.Collect(maps.Keys(n.All())))
	}
	n.put("u", &podsyncv1.Pod{Pod: bytesOf(t, object("p"))}) // and comes back
	if p, _ := n.Get("u"); p.SandboxID != "sandbox" {
		t.Errorf("the pod is %+v", p)
	}
}

func TestBothBucketsMakeTheViewComplete(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct{ pods, statuses bool }{{}, {true, false}, {false, true}, {true, true}} {
		if n.pods.marked, n.statuses.marked = c.pods, c.statuses; n.Complete() != (c.pods && c.statuses) {
			t.Errorf("complete is %v with %+v", n.Complete(), c)
		}
		if n.pods.synced, n.statuses.synced = c.pods, c.statuses; n.Synced() != (c.pods && c.statuses) {
			t.Errorf("%+v: complete is %t", c, n.Synced())
		}
	}
}

// TestAPodThatCannotBeRead has its error, and what is known of its containers: one of them may run.
func TestAPodThatCannotBeRead(t *testing.T) {
	bad := []byte{0xff}
	status := &podsyncv1.PodStatus{
		SandboxId: "sandbox", Containers: []*podsyncv1.Container{{Name: "c", State: Running}},
	}
	for name, c := range map[string]struct {
		pod     []byte
		desired []byte
		status  []byte
		object  string
	}{
		"the pod":          {bad, nil, nil, ""},
		"what it asks for": {bytesOf(t, object("p")), bad, nil, ""},
		"the status":       {bytesOf(t, object("p")), nil, bad, "p"},
		"both":             {bad, nil, bad, ""},
	} {
		n := newNode(t)
		n.put("u", &podsyncv1.Pod{Pod: c.pod, Desired: c.desired})
		status.Status = c.status
		n.report("u", status)
		p, ok := n.Get("u")
		if !ok || p.Err == nil || !strings.Contains(p.Err.Error(), "pod u ") || p.UID != "u" || p.Name != c.object ||
			p.Reported || len(p.Containers) != 1 || !p.Containers[0].IsRunning() || len(n.All()) != 1 {
			t.Errorf("%s: %+v", name, p)
		}
		if !strings.Contains(n.logged.String(), `podUID=u err=`) {
			t.Errorf("%s: logged:\n%s", name, &n.logged)
		}
		n.put("u", &podsyncv1.Pod{Pod: bytesOf(t, object("mended"))})
		status.Status = nil
		n.report("u", status)
		if p, _ := n.Get("u"); p.Err != nil || p.Name != "mended" {
			t.Errorf("%s: after it is mended: %+v", name, p)
		}
	}
}

// TestWhatIsNoMessageIsRejected: the bus then keeps the value before.
func TestWhatIsNoMessageIsRejected(t *testing.T) {
	if e, err := decodePod("u", []byte{0xff}); err == nil {
		t.Errorf("it is the pod %v", e)
	}
	if r, err := decodeStatus("u", []byte{0xff}); err == nil {
		t.Errorf("it is the status %v", r)
	}
}

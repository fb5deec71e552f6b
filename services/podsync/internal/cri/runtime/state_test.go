package runtime

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const testImage = "registry.example/app:1"

// bench is a Runtime on a fake one.
type bench struct {
	*testing.T
	fake *fake.Runtime
	rt   *Runtime
}

func newBench(t *testing.T, opts Options) *bench {
	t.Helper()
	f := fake.NewRuntime(nil)
	f.AddImage(testImage)
	rt, err := New(f.Conn(), f.Conn(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{T: t, fake: f, rt: rt}
}

func labelsOf(uid, container string) map[string]string {
	l := map[string]string{
		kubelettypes.KubernetesPodUIDLabel: uid, kubelettypes.KubernetesPodNameLabel: "pod-" + uid,
		kubelettypes.KubernetesPodNamespaceLabel: "default",
	}
	if container != "" {
		l[kubelettypes.KubernetesContainerNameLabel] = container
	}
	return l
}

func (b *bench) sandboxConfig(uid string, attempt uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      "pod-" + uid,
			Namespace: "default",
			Uid:       uid,
			Attempt:   attempt,
		},
		Labels:       labelsOf(uid, ""),
		LogDirectory: "/",
	}
}

func (b *bench) sandbox(uid string, attempt uint32) string {
	b.Helper()
	id, err := b.rt.RunSandbox(b.Context(), b.sandboxConfig(uid, attempt), "", false)
	if err != nil {
		b.Fatal(err)
	}
	return id
}

func (b *bench) container(uid, sandboxID, name string, attempt uint32, more func(*runtimeapi.ContainerConfig)) string {
	b.Helper()
	cfg := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
		Image:       &runtimeapi.ImageSpec{Image: testImage},
		Labels:      labelsOf(uid, name),
		Annotations: map[string]string{pod.AnnotationHash: "cafe", pod.AnnotationRestartCount: "3"},
	}
	if more != nil {
		more(cfg)
	}
	id, err := b.rt.StartContainer(b.Context(), sandboxID, cfg, b.sandboxConfig(uid, 0), false, nil)
	if err != nil {
		b.Fatal(err)
	}
	return id
}

func (b *bench) state(uid string) *pod.State {
	b.Helper()
	s, err := b.rt.State(b.Context(), types.UID(uid))
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// What is out of range is not the largest number either.
func TestBrokenAnnotations(t *testing.T) {
	for _, value := range []string{"", "no number", "-1ffffffffffffffff", "1ffffffffffffffff", "99999999999999999999"} {
		c := &pod.Container{Annotations: map[string]string{
			pod.AnnotationHash: value, pod.AnnotationRestartCount: value,
		}}
		newBench(t, Options{}).rt.annotate(c)
		if c.Hash != 0 || c.RestartCount != 0 {
			t.Errorf("%q: hash %x, %d restarts; want none", value, c.Hash, c.RestartCount)
		}
	}
}

func TestStateIsNewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		old := b.sandbox("u1", 0)
		time.Sleep(time.Second)
		if err := b.fake.StopSandbox(old); err != nil {
			t.Fatal(err)
		}
		current := b.sandbox("u1", 1)
		first := b.container("u1", current, "app", 0, nil)
		time.Sleep(time.Second)
		if err := b.fake.ExitContainer(first, 9); err != nil {
			t.Fatal(err)
		}
		second := b.container("u1", current, "app", 1, nil)
		b.container("u2", b.sandbox("u2", 0), "other", 0, nil)

		s := b.state("u1")
		if len(s.Sandboxes) != 2 || s.Sandboxes[0].ID != current || !s.Sandboxes[0].Ready || s.Sandboxes[1].Ready ||
			s.Sandboxes[0].Attempt != 1 {
			t.Fatalf("sandboxes: %+v", s.Sandboxes)
		}
		if len(s.Sandboxes[0].IPs) != 1 || len(s.Sandboxes[1].IPs) != 0 {
			t.Fatalf("addresses: %v and %v", s.Sandboxes[0].IPs, s.Sandboxes[1].IPs)
		}
		if len(s.Containers) != 2 || s.Latest("app").ID != second || !s.Latest("app").Running() {
			t.Fatalf("containers: %+v", s.Containers)
		}
		ended := s.Containers[1]
		if ended.ID != first || ended.ExitCode != 9 || ended.Reason != "Error" ||
			ended.Finished.Sub(ended.Started) != time.Second {
			t.Fatalf("the ended one: %+v", ended)
		}
		if ended.Hash != 0xcafe || ended.RestartCount != 3 || ended.SandboxID != current || ended.Image != testImage {
			t.Fatalf("the ended one: %+v", ended)
		}
		if s.Name != "pod-u1" || s.Namespace != "default" {
			t.Fatalf("the pod is %s/%s", s.Namespace, s.Name)
		}
	})
}

func TestStateOfNothing(t *testing.T) {
	b := newBench(t, Options{})
	if s := b.state("unknown"); len(s.Sandboxes)+len(s.Containers) != 0 || s.UID != "unknown" || s.Read.IsZero() {
		t.Fatalf("got %+v", s)
	}
}

func TestStateTolerantOfWhatVanishes(t *testing.T) {
	b := newBench(t, Options{})
	b.container("u1", b.sandbox("u1", 0), "app", 0, nil)
	b.fake.Fail("ContainerStatus", status.Error(codes.NotFound, "gone"))
	if s := b.state("u1"); len(s.Sandboxes) != 1 || len(s.Containers) != 0 {
		t.Fatalf("got %+v", s)
	}
	b.fake.Fail("ContainerStatus", status.Error(codes.Unavailable, "restarting"))
	if _, err := b.rt.State(t.Context(), "u1"); !IsUnavailable(err) {
		t.Fatalf("got %v, want Unavailable", err)
	}
}

func TestWhatCannotHaveChangedIsReadOnce(t *testing.T) {
	b := newBench(t, Options{})
	sb := b.sandbox("u1", 0)
	dead := b.container("u1", sb, "dead", 0, nil)
	alive := b.container("u1", sb, "alive", 0, nil)
	if err := b.fake.ExitContainer(dead, 1); err != nil {
		t.Fatal(err)
	}
	before := b.state("u1")
	b.fake.ForgetCalls()
	after := b.state("u1")
	if n := len(b.fake.Calls("ContainerStatus")); n != 0 {
		t.Errorf("%d container statuses of what is known", n)
	}
	if n := len(b.fake.Calls("PodSandboxStatus")); n != 0 {
		t.Errorf("%d sandbox statuses of what is known", n)
	}
	if !slices.Equal(before.Sandboxes[0].IPs, after.Sandboxes[0].IPs) || after.Latest("dead").ExitCode != 1 {
		t.Errorf("got %+v", after)
	}
	// A container that ends is a change, and is read again.
	if err := b.fake.ExitContainer(alive, 7); err != nil {
		t.Fatal(err)
	}
	if c := b.state("u1").Latest("alive"); c.Running() || c.ExitCode != 7 {
		t.Errorf("got %+v", c)
	}
	// A sandbox that stops is a change, and is read again.
	if err := b.fake.StopSandbox(sb); err != nil {
		t.Fatal(err)
	}
	if s := b.state("u1"); s.Sandboxes[0].Ready || s.AnyRunning() {
		t.Errorf("got %+v", s)
	}
	// What is gone is forgotten.
	if err := b.rt.RemoveSandbox(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	b.state("u1")
	if len(b.rt.known.pods) != 0 {
		t.Errorf("remembers %v", b.rt.known.pods)
	}
}

func TestListTellsOfAllPodsInTwoCalls(t *testing.T) {
	b := newBench(t, Options{})
	for _, uid := range []string{"u1", "u2", "u3"} {
		b.container(uid, b.sandbox(uid, 0), "app", 0, nil)
	}
	foreign := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "crictl", Namespace: "default", Uid: "x"},
	}
	if _, err := b.rt.RunSandbox(t.Context(), foreign, "", false); err != nil {
		t.Fatal(err)
	}
	b.fake.ForgetCalls()
	states, err := b.rt.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(states) != 3 || len(states["u2"].Containers) != 1 {
		t.Fatalf("got %v", states)
	}
	whole := b.state("u2")
	listed, read := states["u2"].Containers[0], whole.Containers[0]
	if listed.ID != read.ID || listed.Name != "app" || listed.Hash != read.Hash ||
		!listed.Created.Equal(read.Created) ||
		listed.SandboxID != read.SandboxID || !listed.Running() || states["u2"].Digest() != whole.Digest() {
		t.Errorf("listed %+v, read %+v", listed, read)
	}
	b.fake.ForgetCalls()
	if _, err := b.rt.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(b.fake.Calls()); n != 2 {
		t.Fatalf("%d calls, want 2", n)
	}
}

func TestStatusCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{ReadConcurrency: 3})
		sb := b.sandbox("u1", 0)
		for _, name := range strings.Split("abcdefghij", "") {
			b.container("u1", sb, name, 0, nil)
		}
		b.fake.SetLatency("ContainerStatus", time.Second)
		b.fake.ForgetCalls()
		b.state("u1")
		if peak := b.fake.Peak("ContainerStatus"); peak != 3 {
			t.Fatalf("%d status calls at once, want 3", peak)
		}
	})
}

// TestTheNewestAfterTheClockWasSetBack is the last instance, although one before was created later by the clock. Else
// the pod would seem to have no sandbox and its container to have ended, until the clock has made up for it.
func TestTheNewestAfterTheClockWasSetBack(t *testing.T) {
	early, late := time.Unix(1_000_000, 0), time.Unix(2_000_000, 0)
	s := &pod.State{
		Sandboxes: []pod.Sandbox{{ID: "a", Created: late, Attempt: 0}, {ID: "b", Created: early, Attempt: 1, Ready: true}},
		Containers: []pod.Container{
			{ID: "1", Name: "app", Created: late, RestartCount: 4, State: runtimeapi.ContainerState_CONTAINER_EXITED},
			{ID: "2", Name: "app", Created: early, RestartCount: 5, State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	}
	newestFirst(s)
	if ready := s.ReadySandbox(); ready == nil || ready.ID != "b" {
		t.Errorf("the sandbox is %v", ready)
	}
	if newest := s.Latest("app"); newest.ID != "2" {
		t.Errorf("the container is %s", newest.ID)
	}
}

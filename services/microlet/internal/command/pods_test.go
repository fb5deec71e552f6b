package command

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
)

// podsync stands in for the service: it runs what it is given, and the pod goes through the states.
type podsync struct {
	podsyncv1.UnimplementedLocalPodServiceServer
	mu       sync.Mutex
	manifest string
	states   []*v1.PodStatus
	removed  string
	explain  explainServer
}

var local = &podsyncv1.LocalPod{Namespace: "default", Name: "web-n", Uid: "1"}

func (p *podsync) RunPod(_ context.Context, r *podsyncv1.RunPodRequest) (*podsyncv1.RunPodResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.manifest = string(r.GetManifest()); p.manifest == "bad" {
		return nil, status.Error(codes.InvalidArgument, "invalid manifest: spec.containers: Required value")
	}
	return &podsyncv1.RunPodResponse{Pod: local, Outcome: podsyncv1.RunPodResponse_OUTCOME_CREATED}, nil
}

func (p *podsync) RemovePod(_ context.Context, r *podsyncv1.RemovePodRequest) (*podsyncv1.RemovePodResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removed = r.GetNamespace() + "/" + r.GetName(); r.GetName() != "web" {
		return nil, status.Error(codes.NotFound, "not found: no pod of this name")
	}
	return &podsyncv1.RemovePodResponse{Pod: local}, nil
}

func (p *podsync) GetLocalPod(context.Context, *podsyncv1.GetLocalPodRequest) (*podsyncv1.GetLocalPodResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.states) == 0 {
		return nil, status.Error(codes.NotFound, "gone")
	}
	s := p.states[0]
	p.states = p.states[1:]
	body, err := s.Marshal()
	return &podsyncv1.GetLocalPodResponse{Pod: local, Status: body}, err
}

func (p *podsync) ListLocalPods(context.Context,
	*podsyncv1.ListLocalPodsRequest) (*podsyncv1.ListLocalPodsResponse, error) {
	return &podsyncv1.ListLocalPodsResponse{Pods: []*podsyncv1.LocalPod{local}}, nil
}

// serve listens as podsync does in a runtime folder.
func (p *podsync) serve(t *testing.T) (dir string) {
	t.Helper()
	return serveAs(t, role.Podsync, func(s *grpc.Server) {
		podsyncv1.RegisterLocalPodServiceServer(s, p)
		podsyncv1.RegisterExplainServiceServer(s, &p.explain)
	})
}

func TestRunPod(t *testing.T) {
	waiting := &v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{{
		Name:  "c",
		State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}},
	}}}
	ready := &v1.PodStatus{
		Phase:      v1.PodRunning,
		Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
	}
	p := &podsync{states: []*v1.PodStatus{{}, waiting, waiting, ready}}
	dir := p.serve(t)
	file := filepath.Join(dir, "pod.yaml")
	if err := os.WriteFile(file, []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := execute(t, "run-pod", file, "--runtime-dir="+dir, "--wait")
	want := "pod default/web-n created, uid 1\npod default/web-n: waiting\npod default/web-n: waiting, container c: " +
		"ErrImagePull: no such image\npod default/web-n: ready\n"
	if err != nil || out != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
	p.states = []*v1.PodStatus{{Phase: v1.PodFailed, Reason: "Evicted", Message: "too much"}}
	if out, err := execute(t, "run-pod", file, "--runtime-dir="+dir, "--wait"); err == nil ||
		!strings.Contains(out, "failed: Evicted too much") {
		t.Errorf("%v\n%s", err, out)
	}
	p.states = []*v1.PodStatus{waiting, waiting, waiting, waiting, waiting, waiting}
	if _, err := execute(t, "run-pod", file, "--runtime-dir="+dir, "--wait", "--timeout=1s"); err == nil ||
		!strings.Contains(err.Error(), "no such image") {
		t.Errorf("a pod that does not become ready: %v", err)
	}
}

// olderPodsync has the methods of LocalPodService in PodsyncService.
type olderPodsync struct {
	podsyncv1.UnimplementedPodsyncServiceServer
	manifest string
}

func (p *olderPodsync) RunPod(_ context.Context, r *podsyncv1.RunPodRequest) (*podsyncv1.RunPodResponse, error) {
	p.manifest = string(r.GetManifest())
	return &podsyncv1.RunPodResponse{Pod: local, Outcome: podsyncv1.RunPodResponse_OUTCOME_UNCHANGED}, nil
}

func TestAnOlderPodsyncRunsAPod(t *testing.T) {
	p := &olderPodsync{}
	dir := serveAs(t, role.Podsync, func(s *grpc.Server) { podsyncv1.RegisterPodsyncServiceServer(s, p) })
	file := filepath.Join(dir, "pod.yaml")
	if err := os.WriteFile(file, []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := execute(t, "run-pod", file, "--runtime-dir="+dir)
	if err != nil || out != "pod default/web-n unchanged, uid 1\n" || p.manifest != "good" {
		t.Errorf("%v, %q, manifest %q", err, out, p.manifest)
	}
}

func TestRunPodReadsStandardInput(t *testing.T) {
	p := &podsync{}
	dir := p.serve(t)
	cmd := New()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetIn(strings.NewReader("from stdin"))
	cmd.SetArgs([]string{"run-pod", "-", "--runtime-dir=" + dir})
	if err := cmd.ExecuteContext(t.Context()); err != nil || p.manifest != "from stdin" {
		t.Errorf("%v, %q", err, p.manifest)
	}
}

func TestRunPodSaysWhatIsWrong(t *testing.T) {
	p := &podsync{}
	dir := p.serve(t)
	bad, empty, long := filepath.Join(dir, "bad"), filepath.Join(dir, "empty"), filepath.Join(dir, "long")
	for path, size := range map[string]int64{empty: 0, long: maxManifest + 1} {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if err := os.WriteFile(bad, []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"run-pod", bad, "--runtime-dir=" + dir}, "invalid manifest: spec.containers: Required value"},
		{[]string{"run-pod", empty, "--runtime-dir=" + dir}, "it is empty: give one of a Pod"},
		{[]string{"run-pod", long, "--runtime-dir=" + dir}, "longer than 10485760 bytes"},
		{[]string{"run-pod", filepath.Join(dir, "none"), "--runtime-dir=" + dir}, "it does not exist"},
		{[]string{"run-pod", bad, "--runtime-dir=" + t.TempDir()}, "podsync is not running"},
		{[]string{"run-pod"}, "name the manifest's file"},
		{[]string{"rm-pod", "other", "--runtime-dir=" + dir}, "no pod of this name"},
	} {
		if _, err := execute(t, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v", test.args, err)
		}
	}
}

func TestRemovePod(t *testing.T) {
	p := &podsync{states: []*v1.PodStatus{{Phase: v1.PodRunning}}}
	dir := p.serve(t)
	out, err := execute(t, "rm-pod", "web", "-n", "apps", "--wait", "--runtime-dir="+dir)
	if err != nil || out != "pod default/web-n is ending\npod default/web-n is gone\n" || p.removed != "apps/web" {
		t.Errorf("%v, %q\n%s", err, p.removed, out)
	}
	if out, err := execute(t, "__complete", "rm-pod", "--runtime-dir="+dir, ""); err != nil ||
		!strings.HasPrefix(out, "web-n\n") {
		t.Errorf("completes %q, %v", out, err)
	}
}

package allocation

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// onFiles returns an Allocation of a root folder, and the Events that its start records.
func onFiles(t *testing.T, dir string) (*Allocation, *record.FakeRecorder, *strings.Builder) {
	t.Helper()
	events, log := record.NewFakeRecorder(10), &strings.Builder{}
	return New(Options{
		RootDir: dir, Synced: make(chan struct{}), Node: eventref.Node("n"), Events: events,
		Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: prometheus.NewRegistry(),
	}), events, log
}

// TestFilesOfARootFolder: what was noted is there after a restart.
func TestFilesOfARootFolder(t *testing.T) {
	dir := t.TempDir()
	a, events, _ := onFiles(t, dir)
	p := testPod("a", "1")
	p.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}
	a.Apply(p)
	a.Admitted(p)
	a.SetActuatedContainer("a", "c", p.Spec.Containers[0].Resources)
	a.SetActuatedPod("a", p.Spec.Resources)
	for _, name := range []string{"b", "c"} {
		a.Apply(testPod(name, "1"))
		a.Admitted(testPod(name, "1"))
		a.Forget(testPod(name, "1").UID)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Run(ctx); err != nil { // it writes before it ends
		t.Fatal(err)
	}
	next, _, _ := onFiles(t, dir)
	if got := next.Apply(asking(p, "2")); !pod.ResourcesOf(got).Equal(pod.ResourcesOf(p)) {
		t.Errorf("after a restart the pod has %+v", got.Spec)
	}
	if got, ok := next.Actuated("a"); !ok || !got.Equal(pod.ResourcesOf(p)) {
		t.Errorf("after a restart it was given %+v, %v", got, ok)
	}
	if got := next.granted.records.UIDs(); len(got) != 1 {
		t.Errorf("the file has %v", got)
	}
	if len(events.Events) > 0 {
		t.Errorf("event %s", <-events.Events)
	}
}

// TestASpoiledFileStopsNoStart: the pods keep what their status shows, and the operator learns of it.
func TestASpoiledFileStopsNoStart(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{grantedFile, actuatedFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(`{"data":"{`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, events, log := onFiles(t, dir)
	p := asking(testPod("a", "1"), "2")
	p.Status.ContainerStatuses = []v1.ContainerStatus{{
		Name: "c", ContainerID: "x://1",
		AllocatedResources: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")},
	}}
	if got := cpuOf(pod.ResourcesOf(a.Apply(p))); got != "1" {
		t.Errorf("the pod has %s", got)
	}
	for _, name := range []string{grantedFile, actuatedFile} {
		want := "Warning PodResourcesFileUnusable Resources of pods cannot be read: " + filepath.Join(dir, name)
		if got := <-events.Events; !strings.HasPrefix(got, want) {
			t.Errorf("event %q, want %q", got, want)
		}
		if !strings.Contains(log.String(), name) {
			t.Errorf("no line of the log names %s", name)
		}
		if _, err := os.Stat(filepath.Join(dir, name+".bad")); err != nil {
			t.Error(err)
		}
	}
}

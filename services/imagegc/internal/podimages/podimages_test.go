package podimages

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/nodepods"
)

type fakeView struct {
	synced bool
	pods   map[string]*nodepods.Pod
}

func (f fakeView) Synced() bool                  { return f.synced }
func (f fakeView) All() map[string]*nodepods.Pod { return f.pods }

func pod(spec v1.PodSpec, terminating bool) *nodepods.Pod {
	return &nodepods.Pod{Pod: &v1.Pod{Spec: spec}, Terminating: terminating}
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestNamed(t *testing.T) {
	container := func(image string) []v1.Container { return []v1.Container{{Image: image}} }
	p := New(fakeView{true, map[string]*nodepods.Pod{
		"a": pod(v1.PodSpec{
			InitContainers: container("init"), Containers: container("registry.example:5000/app:1"),
			EphemeralContainers: []v1.EphemeralContainer{{
				EphemeralContainerCommon: v1.EphemeralContainerCommon{Image: "debug@" + digest},
			}},
			Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "quay.io/data:2"}}}},
		}, false),
		"b": pod(v1.PodSpec{
			Containers: container("ends"),
			Volumes:    []v1.Volume{{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "mounted"}}}},
		}, true),
	}})
	names, err := p.Named()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"docker.io/library/init:latest", "init", "registry.example:5000/app:1", "docker.io/library/debug@" + digest,
		"quay.io/data:2",
	} {
		if !names.Has(want) {
			t.Errorf("%s is not named: %v", want, names)
		}
	}
	if names.Has("ends") || !names.Has("mounted") || len(names) != 5 {
		t.Errorf("named: %v", names)
	}
	mounted, err := p.Mounted()
	if err != nil || !mounted.Has("quay.io/data:2") || !mounted.Has("mounted") || len(mounted) != 2 {
		t.Errorf("mounted: %v, %v", mounted, err)
	}
}

// What is not known must not pass for "no pod".
func TestPodsThatAreNotKnown(t *testing.T) {
	if _, err := New(fakeView{}).Named(); !errors.Is(err, ErrUnknown) {
		t.Errorf("without the bus: %v", err)
	}
	bad := fakeView{true, map[string]*nodepods.Pod{"a": {Pod: &v1.Pod{}, Err: errors.New("this is no pod")}}}
	if names, err := New(bad).Named(); err == nil {
		t.Errorf("a pod that cannot be read names %v", names)
	}
}

package criconfig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// The runtime returns the annotations of a container with each list, so that a pod must not make them long.
func TestLongAnnotationsAreKeptInAFile(t *testing.T) {
	b := builder(t)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	c := v1.Container{Name: "c", Image: "i", TerminationMessagePath: "/" + strings.Repeat("m", 10<<10)}
	hook := v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"true", strings.Repeat("x", 1<<20)}}}
	c.Lifecycle = &v1.Lifecycle{PreStop: &hook}
	for i := range 1000 {
		c.Ports = append(c.Ports, v1.ContainerPort{ContainerPort: int32(i + 1)})
	}
	p.Spec.Containers = []v1.Container{c}
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	config, err := b.Container(t.Context(), p, &p.Spec.Containers[0], ContainerInput{})
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for key, value := range config.Annotations {
		size += len(key) + len(value)
	}
	if size > 4<<10 {
		t.Errorf("the annotations of the container have %d bytes", size)
	}
	all, err := RestoreAnnotations(filepath.Dir(b.Node.PodDir("u")), "u", "c", config.Annotations)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(hook)
	if err != nil {
		t.Fatal(err)
	}
	if all[pod.AnnotationPreStopHandler] != string(want) || !strings.HasSuffix(all[pod.AnnotationPorts], `000}]`) ||
		all[pod.AnnotationTerminationMessagePath] != c.TerminationMessagePath {
		t.Errorf("the annotations are restored with %d bytes of the hook and %d of the ports",
			len(all[pod.AnnotationPreStopHandler]), len(all[pod.AnnotationPorts]))
	}
	if folder, err := os.ReadDir(filepath.Join(b.Node.PodDir("u"), "containers", "c")); err != nil || len(folder) != 2 {
		t.Errorf("the folder of the container has %v, %v", folder, err)
	}
}

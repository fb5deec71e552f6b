package message

import (
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

const mi = 1 << 20

func containers(list ...statsapi.ContainerStats) *statsapi.PodStats {
	return &statsapi.PodStats{Memory: &statsapi.MemoryStats{WorkingSetBytes: new(uint64(9 * mi))}, Containers: list}
}

func memoryOf(name string, bytes uint64) statsapi.ContainerStats {
	return statsapi.ContainerStats{Name: name, Memory: &statsapi.MemoryStats{WorkingSetBytes: &bytes}}
}

func requesting(name, memory string) v1.Container {
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)},
	}}
}

func TestTheWordsAreTheKubelets(t *testing.T) {
	hard := []threshold.Threshold{{Signal: signal.MemoryAvailable,
		Value: threshold.Value{Quantity: new(resource.MustParse("100Mi"))}}}
	seen := threshold.Observations{
		signal.MemoryAvailable: {Available: 50 * mi, Capacity: 1000 * mi},
		signal.PIDAvailable:    {Available: 7, Capacity: 100},
	}
	pids := []threshold.Threshold{{Signal: signal.PIDAvailable, Value: threshold.Value{Percentage: .25}}}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{
		Containers: []v1.Container{requesting("a", "1Mi"), {Name: "b"}, requesting("c", "1Gi")},
	}}
	whole := p.DeepCopy()
	whole.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse(
		"2Mi")}}
	for _, test := range []struct {
		name        string
		starved     v1.ResourceName
		pod         *v1.Pod
		figures     *statsapi.PodStats
		met         []threshold.Threshold
		want        string
		annotations map[string]string
	}{
		{"memory", v1.ResourceMemory, p,
			containers(memoryOf("a", 5*mi), memoryOf("b", 3*mi), memoryOf("c", mi), memoryOf("gone", mi)), hard,
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. " +
				"Container a was using 5Mi, request is 1Mi, has larger consumption of memory. " +
				"Container b was using 3Mi, request is 0, has larger consumption of memory. ",
			map[string]string{"offending_containers": "a,b", "offending_containers_usage": "5Mi,3Mi",
				"starved_resource": "memory"}},
		{"no figures", v1.ResourceMemory, p, nil, hard,
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ", map[string]string{}},
		{"a request of the pod", v1.ResourceMemory, whole, containers(), hard,
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. " +
				"Pod p was using 9Mi, request is 2Mi, has larger consumption of memory. ",
			map[string]string{"offending_pod": "p", "offending_pod_usage": "9Mi", "offending_containers": "",
				"offending_containers_usage": "", "starved_resource": "memory"}},
		{"process IDs", signal.PIDs, p, containers(memoryOf("a", 5*mi)), pids,
			"The node was low on resource: pids. Threshold quantity: 25, available: 7. ",
			map[string]string{"offending_containers": "", "offending_containers_usage": "", "starved_resource": "pids"}},
	} {
		text, annotations := Of(test.starved, test.pod, test.figures, test.met, seen)
		if text != test.want || !maps.Equal(annotations, test.annotations) {
			t.Errorf("%s: %q\n%v", test.name, text, annotations)
		}
	}
}

func TestDiskIsLayerAndLogs(t *testing.T) {
	disk := func(n uint64) *statsapi.FsStats { return &statsapi.FsStats{UsedBytes: &n} }
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a"}, {Name: "b"}}}}
	text, annotations := Of(v1.ResourceEphemeralStorage, p, &statsapi.PodStats{Containers: []statsapi.ContainerStats{
		{Name: "a", Rootfs: disk(mi), Logs: disk(2 * mi)}, {Name: "b", Rootfs: disk(mi)},
	}}, nil, nil)
	want := "The node was low on resource: ephemeral-storage. " +
		"Container a was using 3Mi, request is 0, has larger consumption of ephemeral-storage. "
	if text != want || annotations["starved_resource"] != "ephemeral-storage" {
		t.Errorf("%q, %v", text, annotations)
	}
}

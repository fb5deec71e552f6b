package localstorage

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const mi = 1 << 20

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// takes is a figure of now.
func takes(bytes uint64) *statsapi.FsStats {
	return &statsapi.FsStats{Time: metav1.NewTime(now), UsedBytes: &bytes}
}

func limit(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

func storage(text string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(text)}}
}

// full is a pod with each kind of limit, and figures below all of them.
func full() (*v1.Pod, *statsapi.PodStats) {
	always := v1.ContainerRestartPolicyAlways
	p := &v1.Pod{Spec: v1.PodSpec{
		Volumes: []v1.Volume{
			{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}},
			{Name: "disk", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: limit("1Mi")}}},
			{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{
				Medium: v1.StorageMediumMemory, SizeLimit: limit("1Mi")}}},
			{Name: "free", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{Name: "zero", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: limit("0")}}},
		},
		InitContainers: []v1.Container{
			{Name: "once", Resources: storage("1Mi")},
			{Name: "sidecar", Resources: storage("2Mi"), RestartPolicy: &always},
		},
		Containers: []v1.Container{{Name: "main", Resources: storage("4Mi")}, {Name: "unlimited"}},
	}}
	figures := &statsapi.PodStats{
		EphemeralStorage: takes(6 * mi),
		Containers: []statsapi.ContainerStats{
			{Name: "main", Rootfs: takes(3 * mi), Logs: takes(1 * mi)},
			{Name: "unlimited", Rootfs: takes(30 * mi), Logs: takes(1 * mi)},
			{Name: "sidecar", Rootfs: takes(2 * mi)},
			{Name: "once", Rootfs: takes(2 * mi)},
		},
	}
	for _, name := range []string{"config", "disk", "memory", "free", "zero"} {
		figures.VolumeStats = append(figures.VolumeStats, statsapi.VolumeStats{Name: name, FsStats: *takes(1 * mi)})
	}
	return p, figures
}

func TestCheck(t *testing.T) {
	disk := Excess{
		Signal: SignalEmptyDir, Message: "Usage of EmptyDir volume \"disk\" exceeds the limit \"1Mi\". ", EmptyDir: "disk",
		UsedBytes: mi + 1,
	}
	memory := disk
	memory.EmptyDir, memory.Message = "memory", "Usage of EmptyDir volume \"memory\" exceeds the limit \"1Mi\". "
	pod := Excess{
		Signal: SignalPod, UsedBytes: 6*mi + 1,
		Message: "Pod ephemeral local storage usage exceeds the total limit of containers 6Mi. ",
	}
	main := Excess{
		Signal: SignalContainer, Container: "main", UsedBytes: 4*mi + 1,
		Message: "Container main exceeded its local ephemeral storage limit \"4Mi\". ",
	}
	sidecar := Excess{
		Signal: SignalContainer, Container: "sidecar", UsedBytes: 2*mi + 1,
		Message: "Container sidecar exceeded its local ephemeral storage limit \"2Mi\". ",
	}
	for _, test := range []struct {
		name   string
		change func(p *v1.Pod, figures *statsapi.PodStats, r *Rules)
		want   Excess
	}{
		{"at every limit", func(*v1.Pod, *statsapi.PodStats, *Rules) {}, Excess{}},
		{"volume", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) { *f.VolumeStats[1].UsedBytes++ },
			disk},
		{"volume in memory", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) { *f.VolumeStats[2].UsedBytes++ },
			memory},
		{"volumes without a limit", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) {
			f.VolumeStats[0].UsedBytes, f.VolumeStats[3].UsedBytes = takes(1<<40).UsedBytes, takes(1<<40).UsedBytes
		}, Excess{}},
		{"volume of unknown size", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) { f.VolumeStats[1].UsedBytes = nil },
			Excess{}},
		{"volume with an old figure", func(_ *v1.Pod, f *statsapi.PodStats, r *Rules) {
			*f.VolumeStats[1].UsedBytes++
			f.VolumeStats[1].Time = metav1.NewTime(now.Add(-time.Minute))
			r.Oldest = now.Add(-59 * time.Second)
		}, Excess{}},
		{"pod", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) { *f.EphemeralStorage.UsedBytes++ },
			pod},
		{"pod whose sum lacks a part", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) { f.EphemeralStorage.UsedBytes = nil },
			Excess{}},
		{"pod without figures", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) { *f = statsapi.PodStats{} }, Excess{}},
		{"volume before pod before container", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) {
			*f.VolumeStats[1].UsedBytes++
			*f.EphemeralStorage.UsedBytes++
			*f.Containers[0].Logs.UsedBytes++
		}, disk},
		{"pod before container", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) {
			*f.EphemeralStorage.UsedBytes++
			*f.Containers[0].Logs.UsedBytes++
		}, pod},
		{"logs of a container", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) { *f.Containers[0].Logs.UsedBytes++ },
			main},
		{"layer of a sidecar", func(_ *v1.Pod, f *statsapi.PodStats, _ *Rules) { *f.Containers[2].Rootfs.UsedBytes++ },
			sidecar},
		{"layers on another file system", func(_ *v1.Pod, f *statsapi.PodStats, r *Rules) {
			*f.Containers[0].Rootfs.UsedBytes++
			r.DedicatedImageFs = true
		}, Excess{}},
		{"logs while layers are elsewhere", func(_ *v1.Pod, f *statsapi.PodStats, r *Rules) {
			*f.Containers[0].Logs.UsedBytes = 4*mi + 1
			r.DedicatedImageFs = true
		}, main},
		{"container with an old layer", func(_ *v1.Pod, f *statsapi.PodStats, r *Rules) {
			*f.Containers[0].Rootfs.UsedBytes = 1 << 40
			f.Containers[0].Rootfs.Time = metav1.NewTime(now.Add(-time.Hour))
			r.Oldest = now
		}, Excess{}},
		{"no limits", func(p *v1.Pod, f *statsapi.PodStats, _ *Rules) {
			p.Spec = v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}
			*f.EphemeralStorage.UsedBytes = 1 << 50
		}, Excess{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, figures := full()
			r := Rules{}
			test.change(p, figures, &r)
			if got, found := r.Check(p, figures); got != test.want || found != (test.want != Excess{}) {
				t.Errorf("%+v, %t, want %+v", got, found, test.want)
			}
		})
	}
}

func TestLimited(t *testing.T) {
	volume := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{
		EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: limit("1Mi")}}}}}}
	always := v1.ContainerRestartPolicyAlways
	for name, test := range map[string]struct {
		pod  *v1.Pod
		want bool
	}{
		"none":      {&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{}}, Volumes: []v1.Volume{{}}}}, false},
		"volume":    {volume, true},
		"container": {&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: storage("1Mi")}}}}, true},
		"sidecar": {&v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{
			{Resources: storage("1Mi"), RestartPolicy: &always}}}}, true},
	} {
		if got := Limited(test.pod); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

package main

import (
	"fmt"
	"math/rand/v2"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const mebibyte = 1 << 20

// randomMix has pods of all QoS classes with few priorities, with uses above and below their requests. One of them has
// no figures: the kubelet does not say which of two such pods goes first.
func randomMix(r *rand.Rand, pods int) *mix {
	m := &mix{Figures: map[string]statsapi.PodStats{}}
	for i := range pods {
		p := randomPod(r, fmt.Sprintf("pod-%d", i))
		m.Pods = append(m.Pods, p)
		if i != pods/2 {
			m.Figures[p.Name] = randomFigures(r, p)
		}
	}
	return m
}

// priorities are few, so that pods share them, and none, which is 0.
var priorities = []*int32{nil, new(int32(0)), new(int32(-10)), new(int32(1000)), new(int32(1000000))}

func randomPod(r *rand.Rand, name string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Priority = priorities[r.IntN(len(priorities))]
	qos := r.IntN(3)
	for i := range 1 + r.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers,
			v1.Container{Name: fmt.Sprint("c", i), Resources: randomResources(r, qos)})
	}
	if r.IntN(3) == 0 {
		c := v1.Container{Name: "init", Resources: randomResources(r, qos)}
		if r.IntN(2) == 0 {
			c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = []v1.Container{c}
	}
	if r.IntN(3) == 0 {
		p.Spec.Overhead = v1.ResourceList{v1.ResourceMemory: quantity(r, 600)}
	}
	if r.IntN(5) == 0 {
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: quantity(r, 1500)}}
	}
	for i, source := range []v1.VolumeSource{
		{EmptyDir: &v1.EmptyDirVolumeSource{}},
		{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}},
		{HostPath: &v1.HostPathVolumeSource{Path: "/some"}},
		{ConfigMap: &v1.ConfigMapVolumeSource{}},
		{Secret: &v1.SecretVolumeSource{SecretName: "some"}},
	} {
		if r.IntN(2) == 0 {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: fmt.Sprint("v", i), VolumeSource: source})
		}
	}
	return p
}

// randomResources are those of a container in a pod that is BestEffort (0), Burstable (1) or Guaranteed (2).
func randomResources(r *rand.Rand, qos int) (resources v1.ResourceRequirements) {
	if qos == 0 {
		return resources
	}
	resources.Requests = v1.ResourceList{}
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		if q := quantity(r, 600); qos == 2 || q.Value()%2 == 0 {
			resources.Requests[name] = q
		}
	}
	if qos == 2 {
		resources.Requests[v1.ResourceCPU] = resource.MustParse("100m")
		resources.Limits = resources.Requests
	}
	return resources
}

// quantity is up to some MiB, to the byte, so that hardly two are the same.
func quantity(r *rand.Rand, most int64) resource.Quantity {
	return *resource.NewQuantity(r.Int64N(most*mebibyte), resource.BinarySI)
}

func randomFigures(r *rand.Rand, p *v1.Pod) statsapi.PodStats {
	fs := func(most int64) *statsapi.FsStats {
		return &statsapi.FsStats{UsedBytes: new(uint64(r.Int64N(most * mebibyte))), InodesUsed: new(uint64(r.Int64N(1e6)))}
	}
	f := statsapi.PodStats{
		PodRef:       statsapi.PodReference{Name: p.Name},
		Memory:       &statsapi.MemoryStats{WorkingSetBytes: new(uint64(r.Int64N(1000 * mebibyte)))},
		ProcessStats: &statsapi.ProcessStats{ProcessCount: new(uint64(r.Int64N(1e6)))},
	}
	for _, c := range p.Spec.Containers {
		f.Containers = append(f.Containers, statsapi.ContainerStats{Name: c.Name, Rootfs: fs(500), Logs: fs(200)})
	}
	for _, v := range p.Spec.Volumes {
		f.VolumeStats = append(f.VolumeStats, statsapi.VolumeStats{Name: v.Name, FsStats: *fs(700)})
	}
	return f
}

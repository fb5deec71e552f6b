package twins

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/kubernetes/pkg/kubelet/eviction"

	"github.com/microlet/microlet/services/evictor/twins"
)

// pressure is what a node is low on, and its pods.
type pressure struct {
	Signal         string
	ImageFs, Split bool
	Pods           []*v1.Pod
	// Stats are those of the pods of which something is known.
	Stats []statsapi.PodStats
}

var rankedSignals = []string{
	"memory.available", "allocatableMemory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available",
	"imagefs.inodesFree", "containerfs.available", "containerfs.inodesFree", "pid.available",
}

var _ = register(Pair[pressure, []string]{
	Name:     "ranking",
	Generate: drawPressure,
	Upstream: func(in pressure) []string {
		pods := slices.Clone(in.Pods)
		eviction.TwinRank(in.Signal, in.ImageFs, in.Split, pods, in.Stats)
		return podNames(pods)
	},
	Ours: func(in pressure) []string {
		pods := slices.Clone(in.Pods)
		known := map[types.UID]*statsapi.PodStats{}
		for i := range in.Stats {
			known[types.UID(in.Stats[i].PodRef.UID)] = &in.Stats[i]
		}
		evictor.Rank(in.Signal, in.ImageFs, in.Split, pods,
			func(p *v1.Pod) *statsapi.PodStats { return known[p.UID] })
		return podNames(pods)
	},
	Branches: rankingBranches,
	Wanted: append(slices.Collect(func(yield func(string) bool) {
		for _, s := range rankedSignals {
			for _, fs := range []string{"one filesystem", "images apart", "images and layers apart"} {
				if !yield(s + ", " + fs) {
					return
				}
			}
		}
	}), "changes the order", "leaves the order", "puts a higher priority first", "puts one without figures first"),
	Break: func(_ pressure, out *[]string) {
		if n := len(*out); n > 1 {
			(*out)[n-1], (*out)[n-2] = (*out)[n-2], (*out)[n-1]
		}
	},
})

func podNames(pods []*v1.Pod) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}

func rankingBranches(in pressure, out []string) []string {
	layout := "one filesystem"
	switch {
	case in.ImageFs && in.Split:
		layout = "images and layers apart"
	case in.ImageFs:
		layout = "images apart"
	}
	did := []string{in.Signal + ", " + layout}
	if slices.Equal(out, podNames(in.Pods)) {
		did = append(did, "leaves the order")
	} else {
		did = append(did, "changes the order")
	}
	byName := map[string]*v1.Pod{}
	for _, p := range in.Pods {
		byName[p.Name] = p
	}
	known := func(p *v1.Pod) bool {
		return slices.ContainsFunc(in.Stats, func(s statsapi.PodStats) bool { return s.PodRef.UID == string(p.UID) })
	}
	priority, first := false, false
	for i := 1; i < len(out); i++ {
		a, b := byName[out[i-1]], byName[out[i]]
		switch {
		case known(a) && known(b):
			priority = priority || priorityOf(a) > priorityOf(b)
		case known(b):
			first = true
		}
	}
	if priority {
		did = append(did, "puts a higher priority first")
	}
	if first {
		did = append(did, "puts one without figures first")
	}
	return did
}

func priorityOf(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// drawPressure draws at most eleven pods: the kubelet's sort leaves so many in their order if they are alike.
func drawPressure(s *Source) pressure {
	in := pressure{Signal: OneOf(s, rankedSignals...), ImageFs: s.Percent(60)}
	in.Split = s.Percent(50)
	for i := range min(s.Intn(12), s.Intn(12)) {
		p := drawRankedPod(s, i)
		in.Pods = append(in.Pods, p)
		if !s.Percent(12) {
			in.Stats = append(in.Stats, drawStats(s, p))
		}
	}
	return in
}

func drawRankedPod(s *Source, i int) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))}}
	if s.Percent(70) {
		p.Spec.Priority = new(OneOf(s, int32(0), 1, -1, 1000, 2_000_000_000))
	}
	for range OneOf(s, 0, 0, 0, 1, 2) {
		c := v1.Container{Resources: drawRankedRequests(s)}
		if s.Percent(40) {
			c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for range OneOf(s, 1, 1, 2, 3) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Resources: drawRankedRequests(s)})
	}
	if s.Percent(15) {
		r := drawRankedRequests(s)
		delete(r.Requests, v1.ResourceEphemeralStorage)
		if s.Percent(30) {
			r.Requests, r.Limits = r.Limits, r.Requests
		}
		p.Spec.Resources = &r
	}
	if s.Percent(25) {
		p.Spec.Overhead = drawRankedRequests(s).Requests
	}
	for i := range OneOf(s, 0, 1, 2, 3) {
		p.Spec.Volumes = append(p.Spec.Volumes, drawRankedVolume(s, i))
	}
	return p
}

var rankedAmounts = []resource.Quantity{
	resource.MustParse("0"), resource.MustParse("100"), resource.MustParse("200"), resource.MustParse("50"),
	resource.MustParse("1Ki"), resource.MustParse("300"), resource.MustParse("1"), resource.MustParse("500m"),
}

func drawRankedRequests(s *Source) v1.ResourceRequirements {
	list := v1.ResourceList{}
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceEphemeralStorage, v1.ResourceCPU} {
		if s.Percent(50) {
			list[name] = OneOf(s, rankedAmounts...)
		}
	}
	return v1.ResourceRequirements{Requests: list}
}

func drawRankedVolume(s *Source, i int) v1.Volume {
	v := v1.Volume{Name: fmt.Sprint("v", i)}
	switch OneOf(s, "emptyDir", "emptyDir", "memory", "huge pages", "hostPath", "configMap", "gitRepo", "secret", "claim",
		"projected", "downwardAPI", "image", "ephemeral") {
	case "emptyDir":
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	case "memory":
		v.EmptyDir = &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}
	case "huge pages":
		v.EmptyDir = &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumHugePages}
	case "hostPath":
		v.HostPath = &v1.HostPathVolumeSource{}
	case "configMap":
		v.ConfigMap = &v1.ConfigMapVolumeSource{}
	case "gitRepo":
		v.GitRepo = &v1.GitRepoVolumeSource{}
	case "secret":
		v.Secret = &v1.SecretVolumeSource{}
	case "claim":
		v.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{}
	case "projected":
		v.Projected = &v1.ProjectedVolumeSource{}
	case "downwardAPI":
		v.DownwardAPI = &v1.DownwardAPIVolumeSource{}
	case "image":
		v.Image = &v1.ImageVolumeSource{}
	case "ephemeral":
		v.Ephemeral = &v1.EphemeralVolumeSource{}
	}
	return v
}

// drawStats draws what a pod uses. Any of it may be missing, and a volume may be there twice.
func drawStats(s *Source, p *v1.Pod) statsapi.PodStats {
	amount := func() *uint64 {
		if s.Percent(10) {
			return nil
		}
		return new(OneOf(s, uint64(0), 1, 50, 100, 101, 150, 200, 300, 1024, 5000))
	}
	disk := func() *statsapi.FsStats {
		if s.Percent(10) {
			return nil
		}
		return &statsapi.FsStats{UsedBytes: amount(), InodesUsed: amount()}
	}
	stats := statsapi.PodStats{PodRef: statsapi.PodReference{Name: p.Name, UID: string(p.UID)}}
	if !s.Percent(10) {
		stats.Memory = &statsapi.MemoryStats{WorkingSetBytes: amount(), UsageBytes: amount()}
	}
	if !s.Percent(10) {
		stats.ProcessStats = &statsapi.ProcessStats{ProcessCount: amount()}
	}
	for range OneOf(s, 1, 0, 2) {
		stats.Containers = append(stats.Containers, statsapi.ContainerStats{Rootfs: disk(), Logs: disk()})
	}
	for range OneOf(s, 0, 1, 2, 3, 4) {
		v := statsapi.VolumeStats{Name: fmt.Sprint("v", s.Intn(4))}
		if d := disk(); d != nil {
			v.FsStats = *d
		}
		stats.VolumeStats = append(stats.VolumeStats, v)
	}
	return stats
}

// Package summary builds the kubelet's Summary API from what was measured.
//
// Which fields a summary has, and what each means, is the kubelet's (pkg/kubelet/stats, with the figures of containers
// from cgroups and those of their writable layers from CRI). Two things differ: usageNanoCores is absent where there is
// no earlier sample, and not 0; and figures that the runtime does not give are absent and fail nothing else.
package summary

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/internal/fsusage"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
	"github.com/microlet/microlet/services/stats/internal/cri"
)

// Volume is what a volume of a pod takes.
type Volume struct {
	statsapi.VolumeStats

	// Ephemeral says that it counts as the pod's ephemeral storage.
	Ephemeral bool
	// Late says that its figure is old only because walks take long; see diskusage.Measurement.
	Late bool
}

// Folder is what a folder takes.
type Folder struct {
	Time          time.Time
	Bytes, Inodes uint64
	// Late: see Volume.
	Late bool
}

// Folders report what the folders of pods take. What was not measured yet is absent.
type Folders interface {
	// Volumes are those of a pod, in any order.
	Volumes(podUID string) []Volume
	// Logs are those of a container of a pod.
	Logs(podUID, container string) (Folder, bool)
	// Own is what else is the pod's: its log folder's own files and its /etc/hosts.
	Own(podUID string) (Folder, bool)
}

// Input is what a summary is built from.
type Input struct {
	NodeName string
	// Began is when the node agent began.
	Began    time.Time
	Snapshot *cgroupstats.Snapshot
	// Pods are those that podsync has published, by their UID. Only Runtime needs them.
	Pods map[string]*nodepods.Pod
	// Runtime are the runtime's own figures of pods; nil if they are taken from the cgroups.
	Runtime *cri.PodStats
	// Created may lack what the runtime has not reported.
	Created cri.Created
	// HugePages takes what is set aside as huge pages off the available memory of the node.
	HugePages bool
	// CPUAndMemory leaves out all else, and what follows.
	CPUAndMemory bool
	// Usage is nil if the runtime has not reported.
	Usage *cri.Usage
	// RootFs is the file system of the kubelet's root folder; nil if it does not answer.
	RootFs *fsusage.Usage
	// Filesystems are those that layers and images lie on, by their mount points.
	Filesystems map[string]fsusage.Usage
	// Folders is nil if none are measured.
	Folders Folders
}

// Build returns the summary.
func Build(in Input) *statsapi.Summary {
	b := builder{Input: in, known: map[string]*nodepods.Pod{}}
	root := in.Snapshot.Root()
	node := statsapi.NodeStats{
		NodeName: in.NodeName, StartTime: metav1.NewTime(root.Spec.CreationTime),
		CPU: cpu(root), Memory: memory(root), Swap: swap(root), SystemContainers: b.system(),
	}
	if in.HugePages {
		keepHugePages(node.Memory, in.Snapshot.Machine)
	}
	if !in.CPUAndMemory {
		node.StartTime = metav1.NewTime(in.Snapshot.Boot)
		node.IO, node.Network = io(root), network(root)
		node.Fs, node.Runtime, node.Rlimit = b.rootFs(), b.runtime(), rlimit(in.Snapshot.Tasks)
	}
	return &statsapi.Summary{Node: node, Pods: b.pods()}
}

type builder struct {
	Input
	// known are the pods that have figures, by their UID.
	known map[string]*nodepods.Pod
}

// system are the cgroups of the system's parts, by name.
func (b *builder) system() []statsapi.ContainerStats {
	var all []statsapi.ContainerStats
	for name, c := range b.Snapshot.System {
		s := statsapi.ContainerStats{
			Name: name, StartTime: metav1.NewTime(c.Spec.CreationTime), CPU: cpu(c), Memory: memory(c), Swap: swap(c),
		}
		if name == statsapi.SystemContainerKubelet {
			s.StartTime = metav1.NewTime(b.Began)
		}
		if !b.CPUAndMemory {
			s.IO = io(c)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b statsapi.ContainerStats) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// pods are those with a container that runs, by namespace and name.
func (b *builder) pods() []statsapi.PodStats {
	byUID := b.podsByUID()
	all := make([]statsapi.PodStats, 0, len(byUID))
	for uid, p := range byUID {
		slices.SortFunc(p.Containers, func(a, b statsapi.ContainerStats) int { return strings.Compare(a.Name, b.Name) })
		if !b.CPUAndMemory {
			b.storage(uid, p)
		}
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b statsapi.PodStats) int {
		return strings.Compare(a.PodRef.Namespace+"/"+a.PodRef.Name+"/"+a.PodRef.UID,
			b.PodRef.Namespace+"/"+b.PodRef.Name+"/"+b.PodRef.UID)
	})
	return all
}

func (b *builder) podsByUID() map[string]*statsapi.PodStats {
	if b.Runtime != nil {
		return b.runtimePods()
	}
	byUID := map[string]*statsapi.PodStats{}
	for _, c := range b.Snapshot.Cgroups {
		if c.Kind != cgroupstats.Container || c.Pod == nil || c.Container == nil || !c.Container.IsRunning() {
			continue
		}
		p := byUID[c.PodUID]
		if p == nil {
			p = b.pod(c)
			byUID[c.PodUID], b.known[c.PodUID] = p, c.Pod
		}
		p.Containers = append(p.Containers, b.container(c))
		if !b.CPUAndMemory {
			addProcesses(p, c)
		}
	}
	for _, c := range b.Snapshot.Cgroups {
		p := byUID[c.PodUID]
		switch {
		case p == nil:
		case c.Kind == cgroupstats.PodKind:
			p.CPU, p.Memory, p.Swap = cpu(c), memory(c), swap(c)
			if !b.CPUAndMemory {
				p.IO = io(c)
			}
		case c.IsSandbox() && !b.CPUAndMemory:
			p.Network = network(c)
		}
	}
	return byUID
}

func (b *builder) pod(c *cgroupstats.Cgroup) *statsapi.PodStats {
	p := &statsapi.PodStats{
		PodRef: statsapi.PodReference{Name: c.Pod.Name, Namespace: c.Pod.Namespace, UID: c.PodUID},
	}
	p.StartTime = metav1.NewTime(b.created(c.Pod.SandboxID, c.Spec.CreationTime))
	return p
}

// created is when the runtime created something, or else its cgroup's time.
func (b *builder) created(id string, otherwise time.Time) time.Time {
	if at, ok := b.Created[id]; ok {
		return at
	}
	return otherwise
}

func (b *builder) container(c *cgroupstats.Cgroup) statsapi.ContainerStats {
	s := statsapi.ContainerStats{
		Name: c.Container.Name, StartTime: metav1.NewTime(b.created(c.ID, c.Spec.CreationTime)),
		CPU: cpu(c), Memory: memory(c), Swap: swap(c),
	}
	if !b.CPUAndMemory {
		s.IO, s.Rootfs, s.Logs = io(c), b.layer(c.ID), b.logs(c.PodUID, c.Container.Name)
	}
	return s
}

func addProcesses(p *statsapi.PodStats, c *cgroupstats.Cgroup) {
	if p.ProcessStats == nil {
		p.ProcessStats = &statsapi.ProcessStats{ProcessCount: new(uint64)}
	}
	*p.ProcessStats.ProcessCount += c.Stats.Processes.ProcessCount
}

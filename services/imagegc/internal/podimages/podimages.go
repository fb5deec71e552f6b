// Package podimages finds the images that the node's pods name.
//
// A pod that podsync has admitted may be pulling an image, or may be about to start a container from it. The kubelet
// knows containers only, and so has removed images that were being pulled (kubernetes/kubernetes#121312 and others).
package podimages

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/imagegc/internal/imagenames"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podutil"
)

// ErrUnknown is that the pods of the node are not known, because the bus is away.
var ErrUnknown = errors.New("the node's pods are not known: the bus is away")

// Source has the pods; see nodepods.View.
type Source interface {
	Synced() bool
	All() map[string]*nodepods.Pod
}

// Pods are the node's pods. It is safe for concurrent use.
type Pods struct{ source Source }

// New returns the pods of a source.
func New(s Source) *Pods { return &Pods{s} }

// Named returns the images that pods name which may still start a container, and those of Mounted.
func (p *Pods) Named() (imagenames.Set, error) {
	return p.names(func(names imagenames.Set, pod *nodepods.Pod) {
		if !pod.Terminating { // of one that is, nothing may start; what runs is the runtime's to report
			for c := range podutil.AllContainers(&pod.Spec) {
				names.Add(c.Image)
			}
		}
		addVolumes(names, pod.Pod)
	})
}

// Mounted returns the images of image volumes, of pods that end too: the runtime's list of containers does not have
// them.
func (p *Pods) Mounted() (imagenames.Set, error) {
	return p.names(func(names imagenames.Set, pod *nodepods.Pod) { addVolumes(names, pod.Pod) })
}

func (p *Pods) names(add func(names imagenames.Set, pod *nodepods.Pod)) (imagenames.Set, error) {
	if !p.source.Synced() {
		return nil, ErrUnknown
	}
	names := imagenames.Set{}
	for _, pod := range p.source.All() {
		if pod.Err != nil { // it may name any image
			return nil, pod.Err
		}
		add(names, pod)
	}
	return names, nil
}

func addVolumes(names imagenames.Set, pod *v1.Pod) {
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			names.Add(image.Reference)
		}
	}
}

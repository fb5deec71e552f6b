// Package podimages finds the images that the node's pods name.
//
// A pod that podsync has admitted may be pulling an image, or may be about to start a container from it. The kubelet
// knows containers only, and so has removed images that were being pulled (kubernetes/kubernetes#121312 and others).
package podimages

import (
	"errors"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/imageref"
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

// Names are image names, as Normal makes them.
type Names map[string]bool

// Has reports whether a name, in any spelling, is among them.
func (n Names) Has(name string) bool { return n[Normal(name)] }

// Named returns the images that pods name which may still start a container, and those of Mounted.
func (p *Pods) Named() (Names, error) {
	return p.names(func(names Names, pod *nodepods.Pod) {
		if !pod.Terminating { // of one that is, nothing may start; what runs is the runtime's to report
			for c := range podutil.AllContainers(&pod.Spec) {
				names[Normal(c.Image)] = true
			}
		}
		names.addVolumes(pod.Pod)
	})
}

// Mounted returns the images of image volumes, of pods that end too: the runtime's list of containers does not have
// them.
func (p *Pods) Mounted() (Names, error) {
	return p.names(func(names Names, pod *nodepods.Pod) { names.addVolumes(pod.Pod) })
}

func (p *Pods) names(add func(names Names, pod *nodepods.Pod)) (Names, error) {
	if !p.source.Synced() {
		return nil, ErrUnknown
	}
	names := Names{}
	for _, pod := range p.source.All() {
		if pod.Err != nil { // it may name any image
			return nil, pod.Err
		}
		add(names, pod)
	}
	return names, nil
}

func (n Names) addVolumes(pod *v1.Pod) {
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			n[Normal(image.Reference)] = true
		}
	}
}

// Normal is the full spelling of an image's name, as the runtime has it: with the registry, and with a tag or digest.
// What is no name, such as an image's ID, stays as it is. Of a name with both, the digest counts, as with the runtime.
func Normal(name string) string {
	name = strings.TrimSpace(name)
	if id, ok := imageref.ID(name); ok {
		return id
	}
	named, err := imageref.ParseNormalized(name)
	if err != nil {
		return name
	}
	return named.Resolved().String()
}

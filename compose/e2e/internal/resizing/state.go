package resizing

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Names of the state files below the agent's --root-dir.
const (
	AllocatedFile = "allocated_pods_state"
	ActuatedFile  = "actuated_pods_state"
)

// Resources are what a state file has of one pod.
type Resources struct {
	ContainerResources map[string]corev1.ResourceRequirements
	PodLevelResources  *corev1.ResourceRequirements
}

// State is the content of a state file.
type State map[types.UID]Resources

// ParseState reads the content of a state file. Its checksum is for the tests of the agents.
func ParseState(text []byte) (State, error) {
	var file struct{ Data string }
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("read a state file: %w", err)
	}
	var data struct{ Entries State }
	if err := json.Unmarshal([]byte(file.Data), &data); err != nil {
		return nil, fmt.Errorf("read the data of a state file: %w", err)
	}
	return data.Entries, nil
}

// Of returns the pod with these resources in its spec.
func (r Resources) Of(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.Spec.Resources = r.PodLevelResources.DeepCopy()
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			has := r.ContainerResources[list[i].Name]
			list[i].Resources = *has.DeepCopy()
		}
	}
	return p
}

// Differences names each container of p, and the pod itself, of which the spec asks for other resources.
func (r Resources) Differences(p *corev1.Pod) []string {
	var all []string
	has := r.Of(p)
	if !same(p.Spec.Resources, has.Spec.Resources) {
		all = append(all, fmt.Sprintf("the pod: %s instead of %s", Text(has.Spec.Resources), Text(p.Spec.Resources)))
	}
	theirs := slices.Concat(has.Spec.InitContainers, has.Spec.Containers)
	for i, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if h := theirs[i].Resources; !same(&c.Resources, &h) {
			all = append(all, fmt.Sprintf("%s: %s instead of %s", c.Name, Text(&h), Text(&c.Resources)))
		}
	}
	return all
}

// same reports whether both have the same amounts. Nothing is the same as an empty list.
func same(a, b *corev1.ResourceRequirements) bool {
	if a == nil {
		a = &corev1.ResourceRequirements{}
	}
	if b == nil {
		b = &corev1.ResourceRequirements{}
	}
	return equality.Semantic.DeepEqual(a.Requests, b.Requests) && equality.Semantic.DeepEqual(a.Limits, b.Limits)
}

// Text is short for messages.
func Text(r *corev1.ResourceRequirements) string {
	if r == nil {
		return "nothing"
	}
	out, err := json.Marshal(corev1.ResourceRequirements{Requests: r.Requests, Limits: r.Limits})
	if err != nil {
		return err.Error()
	}
	return string(out)
}

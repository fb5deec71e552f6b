package allocation

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/eventref"
)

// Reasons of Events, which are the kubelet's.
const (
	reasonResizeStarted    = "ResizeStarted"
	reasonResizeCompleted  = "ResizeCompleted"
	reasonResizeDeferred   = "ResizeDeferred"
	reasonResizeInfeasible = "ResizeInfeasible"
	reasonResizeError      = "ResizeError"
)

func reference(p *v1.Pod) *v1.ObjectReference { return eventref.Pod(p) }

// summary is what the message of an Event says of a resize.
type summary struct {
	InitContainers []containerSummary `json:"initContainers,omitempty"`
	Containers     []containerSummary `json:"containers,omitempty"`
	Generation     int64              `json:"generation"`
	Error          string             `json:"error,omitempty"`
}

type containerSummary struct {
	Name      string                  `json:"name"`
	Resources v1.ResourceRequirements `json:"resources"`
}

// message is that of an Event about a resize to the resources of p.
func message(what string, p *v1.Pod, generation int64, problem string) string {
	s := summary{
		InitContainers: summaries(p.Spec.InitContainers), Containers: summaries(p.Spec.Containers),
		Generation: generation, Error: problem,
	}
	text := "Pod resize " + what
	if encoded, err := json.Marshal(s); err == nil {
		text += ": " + string(encoded)
	}
	return text
}

func summaries(containers []v1.Container) []containerSummary {
	all := make([]containerSummary, 0, len(containers))
	for i := range containers {
		all = append(all, containerSummary{containers[i].Name, containers[i].Resources})
	}
	return all
}

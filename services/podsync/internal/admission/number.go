package admission

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// ReasonTooManyContainers is the reason of a pod with more than MaxContainers.
const ReasonTooManyContainers = "TooManyContainers"

// MaxContainers is how many containers of all kinds a pod may have. The runtime has up to 2 KiB of each in its list,
// beside what their definitions bring, and two instances while one is replaced: the list of one sandbox stays a message
// of 16 MiB. A status of more does not fit into the API server's object.
const MaxContainers = 2000

// ContainerNumber rejects pods with more containers than the runtime can list.
type ContainerNumber struct{}

// Admit implements Handler.
func (ContainerNumber) Admit(_ context.Context, a *Attributes) Result {
	s := &a.Pod.Spec
	return number(len(s.InitContainers) + len(s.Containers) + len(s.EphemeralContainers))
}

// AdmitEphemeral judges the ephemeral container of an index, which comes to a pod that was admitted without it.
func (ContainerNumber) AdmitEphemeral(p *v1.Pod, index int) Result {
	return number(len(p.Spec.InitContainers) + len(p.Spec.Containers) + index + 1)
}

func number(n int) Result {
	if n <= MaxContainers {
		return Result{}
	}
	return Result{
		Reason: ReasonTooManyContainers,
		Message: fmt.Sprintf("spec.initContainers, spec.containers and spec.ephemeralContainers have %d containers "+
			"together, and a pod may have %d on this node", n, MaxContainers),
	}
}

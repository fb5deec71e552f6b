package pods

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/images"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// runtimeState is a runtime with a problem of its network, or none.
type runtimeState func() string

func (s runtimeState) NetworkProblem() string       { return s() }
func (runtimeState) RecursiveReadOnly(*v1.Pod) bool { return false }

func (runtimeState) UserNamespaces(context.Context, string) error { return nil }

// noUsers is a runtime whose handlers give no pod users of its own.
type noUsers struct{ runtimeState }

func (noUsers) UserNamespaces(context.Context, string) error { return errors.New("the handler cannot") }

// predecessors answers who asks for the end of a pod's earlier versions.
type predecessors func(p *v1.Pod) error

func (e predecessors) End(_ context.Context, p *v1.Pod) error { return e(p) }

// judge admits the containers that its fields do not judge.
type judge struct {
	ephemeral, image func(c *v1.Container) admission.Result
	created          func(c *v1.Container) runtime.Check
}

func (j *judge) AdmitEphemeral(_ *v1.Pod, c *v1.Container) (v admission.Result) {
	if j.ephemeral != nil {
		v = j.ephemeral(c)
	}
	return v
}

func (j *judge) AdmitImage(_ *v1.Pod, c *v1.Container, _ *images.Image) (v admission.Result) {
	if j.image != nil {
		v = j.image(c)
	}
	return v
}

func (j *judge) CheckCreated(_ *v1.Pod, c *v1.Container, _ *images.Image) runtime.Check {
	if j.created != nil {
		return j.created(c)
	}
	return nil
}

// unprobed are pods of which the prober said nothing.
type unprobed struct{}

func (unprobed) Of(types.UID) decide.Results {
	return decide.Results{
		Readiness: map[string]decide.Result{},
		Liveness:  map[string]decide.Result{},
		Startup:   map[string]decide.Result{},
	}
}

// hostIPs are the node's addresses, which are known.
type hostIPs []string

func (h hostIPs) Known() []string   { return h }
func (h hostIPs) Assumed() []string { return h }
func (hostIPs) Awaited() bool       { return false }

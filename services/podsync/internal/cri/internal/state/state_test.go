package state

import (
	"context"
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// runtime has one handler, "strict", that mounts read-only all the way down.
type runtime struct {
	asked int
	err   error
}

func (r *runtime) Status(context.Context) (*runtimeapi.StatusResponse, error) {
	r.asked++
	return &runtimeapi.StatusResponse{RuntimeHandlers: []*runtimeapi.RuntimeHandler{
		{Name: ""}, {Name: "strict", Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: true, UserNamespaces: true,
		}},
	}}, r.err
}

// classes name their handlers.
type classes struct{}

func (classes) Known(class *string) string {
	if class == nil {
		return ""
	}
	return *class
}

func podOf(class string, mode v1.RecursiveReadOnlyMode) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{RuntimeClassName: &class, Containers: []v1.Container{{
		VolumeMounts: []v1.VolumeMount{{RecursiveReadOnly: &mode}},
	}}}}
}

// The errors are those of the kubelet.
func TestUserNamespaces(t *testing.T) {
	const none = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
	handlers := []*podsyncv1.Runtime_Handler{{Name: ""}, {Name: "old"}, {Name: "new", UserNamespaces: true}}
	for _, test := range []struct {
		handlers []*podsyncv1.Runtime_Handler
		handler  string
		want     string
	}{
		{handlers, "new", ""},
		{handlers, "", none},
		{handlers, "old", "can't set `spec.hostUsers: false`, RuntimeClass handler \"old\" does not support user namespaces"},
		{handlers, "none", "can't set `spec.hostUsers: false`, RuntimeClass handler \"none\" does not support user " +
			"namespaces: the handler \"none\" is not known"},
		{nil, "", none},
	} {
		r := &runtime{}
		s := New(r, classes{})
		s.Learn(&podsyncv1.Runtime{Handlers: test.handlers})
		err := s.UserNamespaces(t.Context(), test.handler)
		if text := fmt.Sprint(err); err == nil && test.want != "" || err != nil && text != test.want || r.asked != 0 {
			t.Errorf("handler %q of %v: %v, want %q", test.handler, test.handlers, err, test.want)
		}
	}
}

// A pod that starts before the runtime was heard waits for its answer.
func TestUserNamespacesOfARuntimeThatWasNotHeard(t *testing.T) {
	r := &runtime{}
	s := New(r, classes{})
	if err := s.UserNamespaces(t.Context(), "strict"); err != nil || r.asked != 1 {
		t.Errorf("asked %d times: %v", r.asked, err)
	}
	if err := s.UserNamespaces(t.Context(), ""); err == nil {
		t.Error("the default handler gives users")
	}
	r.err = errors.New("away")
	if err := s.UserNamespaces(t.Context(), "strict"); !errors.Is(err, r.err) {
		t.Errorf("no answer: %v", err)
	}
}

func TestNetworkProblem(t *testing.T) {
	s := New(&runtime{}, classes{})
	if got := s.NetworkProblem(); got != "" {
		t.Errorf("before the first answer: %q", got)
	}
	s.Learn(&podsyncv1.Runtime{NetworkReady: &podsyncv1.Runtime_Condition{Reason: "NoCNI", Message: "no plugin"}})
	const want = "container runtime network not ready: NetworkReady=false reason:NoCNI message:no plugin"
	if got := s.NetworkProblem(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s.Learn(&podsyncv1.Runtime{Error: "away"})
	if got := s.NetworkProblem(); got != want {
		t.Errorf("after an answer that failed: %q", got)
	}
	s.Learn(&podsyncv1.Runtime{NetworkReady: &podsyncv1.Runtime_Condition{Status: true}})
	if got := s.NetworkProblem(); got != "" {
		t.Errorf("with a network: %q", got)
	}
}

func TestAnAnswerThatFailedChangesNothing(t *testing.T) {
	s := New(&runtime{}, classes{})
	if s.SupplementalGroupsPolicy() {
		t.Error("supported before the runtime was heard")
	}
	s.Learn(&podsyncv1.Runtime{
		SupplementalGroupsPolicy: true,
		Handlers:                 []*podsyncv1.Runtime_Handler{{Name: "strict", RecursiveReadOnlyMounts: true}},
	})
	s.Learn(&podsyncv1.Runtime{Error: "away"})
	if !s.SupplementalGroupsPolicy() || !s.RecursiveReadOnly(podOf("strict", v1.RecursiveReadOnlyEnabled)) {
		t.Error("what the runtime said before is forgotten")
	}
}

func TestRecursiveReadOnlyIsAskedForWhereAPodNeedsIt(t *testing.T) {
	r := &runtime{}
	s := New(r, classes{})
	if s.RecursiveReadOnly(podOf("strict", v1.RecursiveReadOnlyDisabled)) || r.asked != 0 {
		t.Errorf("a pod that does not need it had the runtime asked %d times", r.asked)
	}
	if !s.RecursiveReadOnly(podOf("strict", v1.RecursiveReadOnlyIfPossible)) || r.asked != 1 {
		t.Errorf("asked %d times", r.asked)
	}
	if s.RecursiveReadOnly(podOf("", v1.RecursiveReadOnlyIfPossible)) {
		t.Error("the default handler is taken for the other")
	}
	r.err = errors.New("away")
	if s.RecursiveReadOnly(podOf("strict", v1.RecursiveReadOnlyEnabled)) {
		t.Error("supported though the runtime does not answer")
	}
	s.Learn(&podsyncv1.Runtime{})
	asked := r.asked
	if s.RecursiveReadOnly(podOf("strict", v1.RecursiveReadOnlyEnabled)) || r.asked != asked {
		t.Error("a runtime that was heard is asked again")
	}
}

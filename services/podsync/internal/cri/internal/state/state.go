// Package state keeps the last reported state of the container runtime.
//
// It gets the monitor's results, and asks the runtime itself where a pod cannot wait for the next one. It says
// whether pods have a network and what the runtime supports. A failed query changes nothing. What the runtime never
// reported counts as neither broken nor supported.
package state

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
)

// timeout of a question that a pod's start waits for.
const timeout = 2 * time.Second

// Runtime answers for the container runtime.
type Runtime interface {
	Status(ctx context.Context) (*runtimeapi.StatusResponse, error)
}

// Classes finds the handlers of runtime classes.
type Classes interface {
	// Known is the handler of a class as far as it is known without asking; "" is the default handler.
	Known(class *string) string
}

// State is the runtime's. Its methods may be called from any goroutine.
type State struct {
	runtime Runtime
	classes Classes

	network atomic.Pointer[podsyncv1.Runtime_Condition]
	// answer is the newest one that did not fail; nil: the runtime has not answered yet.
	answer atomic.Pointer[answer]
}

type answer struct {
	groupsPolicy bool
	handlers     map[string]abilities
}

// abilities are a handler's: it mounts read-only all the way down, or gives pods users of their own.
type abilities struct{ readOnly, users bool }

// New returns the state of a runtime that was not heard yet.
func New(runtime Runtime, classes Classes) *State { return &State{runtime: runtime, classes: classes} }

// Learn implements monitor.Listener.
func (s *State) Learn(r *podsyncv1.Runtime) {
	if c := r.GetNetworkReady(); c != nil {
		s.network.Store(c)
	}
	if r.GetError() != "" {
		return
	}
	a := &answer{groupsPolicy: r.GetSupplementalGroupsPolicy(), handlers: map[string]abilities{}}
	for _, handler := range r.GetHandlers() {
		a.handlers[handler.GetName()] = abilities{handler.GetRecursiveReadOnlyMounts(), handler.GetUserNamespaces()}
	}
	s.answer.Store(a)
}

// NetworkProblem is empty when there is a network, or nothing is known: then the runtime itself refuses what it
// cannot do.
func (s *State) NetworkProblem() string {
	c := s.network.Load()
	if c == nil || c.GetStatus() {
		return ""
	}
	return fmt.Sprintf("container runtime network not ready: NetworkReady=false reason:%s message:%s", c.GetReason(),
		c.GetMessage())
}

// SupplementalGroupsPolicy reports whether the runtime supports that field of pods.
func (s *State) SupplementalGroupsPolicy() bool {
	a := s.answer.Load()
	return a != nil && a.groupsPolicy
}

// RecursiveReadOnly reports whether the pod's handler can mount read-only all the way down. A pod that starts
// before the runtime was heard waits for its answer: a mount that may be recursive would else silently not be.
func (s *State) RecursiveReadOnly(p *v1.Pod) bool {
	var known map[string]abilities
	if a := s.answer.Load(); a != nil {
		known = a.handlers
	} else if wantsRecursiveReadOnly(p) {
		known, _ = s.ask(context.Background()) // without an answer, none can
	}
	return known[s.classes.Known(p.Spec.RuntimeClassName)].readOnly
}

// UserNamespaces returns nil if the handler gives pods users of their own. Its errors are the kubelet's.
func (s *State) UserNamespaces(ctx context.Context, handler string) error {
	var known map[string]abilities
	if a := s.answer.Load(); a != nil {
		known = a.handlers
	} else {
		var err error
		if known, err = s.ask(ctx); err != nil {
			return fmt.Errorf("ask the runtime whether it supports user namespaces: %w", err)
		}
	}
	can, there := known[handler]
	if can.users {
		return nil
	}
	problem := "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
	if handler != "" {
		problem = fmt.Sprintf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces",
			handler)
	}
	if !there && len(known) > 0 { // a runtime that lists none is too old to
		return fmt.Errorf("%s: the handler %q is not known", problem, handler)
	}
	return errors.New(problem)
}

func (s *State) ask(ctx context.Context) (map[string]abilities, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	status, err := s.runtime.Status(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]abilities{}
	for _, handler := range status.GetRuntimeHandlers() {
		features := handler.GetFeatures()
		known[handler.GetName()] = abilities{features.GetRecursiveReadOnlyMounts(), features.GetUserNamespaces()}
	}
	return known, nil
}

func wantsRecursiveReadOnly(p *v1.Pod) bool {
	for c := range podutil.Containers(&p.Spec) {
		for _, m := range c.VolumeMounts {
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != v1.RecursiveReadOnlyDisabled {
				return true
			}
		}
	}
	return false
}

// Package explanation finds out from the state of a pod why it is not running.
//
// It makes a tree of what a pod needs, in the order in which podsync goes through it: source, admission, fields,
// volumes, sandbox, containers. What keeps the pod now is a cause.
package explanation

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// State is how a part of a pod is.
type State string

// The states.
const (
	OK State = "ok"
	// Waiting is a part that something else has to come before, or that is under way.
	Waiting State = "waiting"
	// Failed is a part that will not come by waiting alone.
	Failed State = "failed"
)

// Node is one part of a pod, with what it consists of.
type Node struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Reason and Message are those of the API where the API has one for this; see docs of kubectl describe.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Remedy says what to do; empty if there is nothing but to wait.
	Remedy   string  `json:"remedy,omitempty"`
	Children []*Node `json:"children,omitempty"`
}

// Cause is a part that keeps the pod from running.
type Cause struct {
	// Part is where in the tree it is, as "containers/web".
	Part    string `json:"part"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

// Explanation is what "microlet explain -o json" prints.
type Explanation struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Source    string `json:"source"`
	// Verdict is "running", "waiting", "failed", "succeeded" or "terminating".
	Verdict string `json:"verdict"`
	// Causes are why the pod does not run, the first to be dealt with first; none if it does.
	Causes []Cause `json:"causes"`
	Parts  []*Node `json:"parts"`
}

// Of explains a pod.
func Of(e *podsyncv1.PodExplanation) (*Explanation, error) {
	s := &v1.PodStatus{}
	if err := s.Unmarshal(e.GetStatus()); err != nil {
		return nil, fmt.Errorf("decode the status of pod %s/%s: %w", e.GetNamespace(), e.GetName(), err)
	}
	x := &Explanation{
		Namespace: e.GetNamespace(), Name: e.GetName(), UID: e.GetUid(), Source: SourceName(e.GetSource()),
		Causes: []Cause{},
	}
	p := &subject{e: e, status: s, now: e.GetNow().AsTime()}
	x.Parts = p.parts()
	x.Verdict = p.verdict(x.Parts)
	if x.Verdict != "running" && x.Verdict != "succeeded" {
		x.Causes = causes("", x.Parts, Failed)
		if len(x.Causes) == 0 {
			x.Causes = causes("", x.Parts, Waiting)
		}
	}
	if n := p.resize(); n != nil { // it keeps no pod from running
		x.Parts = append(x.Parts, n)
	}
	return x, nil
}

// causes are the parts in that state that have a reason and no part of their own with one.
func causes(path string, parts []*Node, state State) []Cause {
	all := []Cause{}
	for _, n := range parts {
		inner := causes(path+n.Name+"/", n.Children, state)
		if len(inner) == 0 && n.State == state && n.Reason != "" {
			inner = []Cause{{Part: path + n.Name, Reason: n.Reason, Message: n.Message, Remedy: n.Remedy}}
		}
		all = append(all, inner...)
	}
	return all
}

// subject is the pod that is explained.
type subject struct {
	e      *podsyncv1.PodExplanation
	status *v1.PodStatus
	now    time.Time
}

func (p *subject) verdict(parts []*Node) string {
	switch {
	case p.status.Phase == v1.PodSucceeded:
		return "succeeded"
	case p.status.Phase == v1.PodFailed, p.e.GetAdmission().GetState() == podsyncv1.Admission_STATE_REJECTED:
		return "failed"
	case strings.HasPrefix(p.e.GetPhase(), "termina"):
		return "terminating"
	}
	for _, n := range parts {
		if n.State != OK {
			return "waiting"
		}
	}
	return "running"
}

// parts are what a pod needs, up to the part without which the next ones have no sense.
func (p *subject) parts() []*Node {
	parts := []*Node{p.source()}
	admission := p.admission()
	parts = append(parts, admission)
	if parts[0].State != OK || admission.State != OK {
		return parts
	}
	if ended := p.ended(); ended != nil {
		parts = append(parts, ended)
	}
	if fields := p.fields(); fields != nil {
		return append(parts, fields)
	}
	if n := p.sync(); n != nil {
		parts = append(parts, n)
	}
	if len(p.e.GetVolumes()) > 0 {
		parts = append(parts, p.volumes())
	}
	parts = append(parts, p.sandbox(), p.containers())
	if n := p.gates(); n != nil {
		parts = append(parts, n)
	}
	return parts
}

// SourceName is what a source is called here.
func SourceName(s podsyncv1.PodSource) string {
	switch s {
	case podsyncv1.PodSource_POD_SOURCE_API:
		return "API"
	case podsyncv1.PodSource_POD_SOURCE_FILE:
		return "file"
	case podsyncv1.PodSource_POD_SOURCE_HTTP:
		return "http"
	case podsyncv1.PodSource_POD_SOURCE_LOCAL:
		return "run-pod"
	case podsyncv1.PodSource_POD_SOURCE_UNSPECIFIED:
	}
	return "unknown"
}

// group is a part that is as its children are: the worst of them.
func group(name string, children []*Node) *Node {
	n := &Node{Name: name, State: OK, Children: children}
	for _, c := range children {
		if c.State == Failed || c.State == Waiting && n.State == OK {
			n.State = c.State
		}
	}
	return n
}

// in is how long it is until then, as a person reads it.
func (p *subject) in(t time.Time) string {
	d := t.Sub(p.now).Round(time.Second)
	if d <= 0 {
		return "now"
	}
	return "in " + d.String()
}

func (p *subject) since(t time.Time) string { return max(0, p.now.Sub(t)).Round(time.Second).String() }

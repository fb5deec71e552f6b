package explanation

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
)

func (p *subject) source() *Node {
	n := &Node{Name: "source", State: OK, Message: SourceName(p.e.GetSource())}
	if p.e.GetPhase() == "held" {
		n.State, n.Reason = Waiting, "NameInUse"
		n.Message = "another static pod of this name has not ended yet"
	}
	return n
}

func (p *subject) admission() *Node {
	a := p.e.GetAdmission()
	n := &Node{Name: "admission", State: OK}
	switch {
	case a.GetState() == podsyncv1.Admission_STATE_REJECTED:
		n.State, n.Reason, n.Message, n.Remedy = Failed, a.GetReason(), a.GetMessage(), remedy(a.GetReason())
	case a.GetState() == podsyncv1.Admission_STATE_ADMITTED:
	case p.e.GetPhase() == "held":
		n.State = Waiting
	case a.GetMessage() != "":
		n.State, n.Reason, n.Message, n.Remedy = Waiting, a.GetReason(), a.GetMessage(), remedy(a.GetReason())
	default:
		n.State, n.Reason = Waiting, "NotAdmittedYet"
		n.Message = "podsync has not decided yet: it waits for the pod's source, for the Node, or for a pod that is preempted"
		if why := p.e.GetSync().GetError(); why != "" {
			n.Message = why
		}
		n.Remedy = `see "microlet status" and the log of podsync`
	}
	return n
}

// ended is why a pod was ended before its containers had; nil if it was not.
func (p *subject) ended() *Node {
	if p.status.Reason != "" {
		return &Node{
			Name: "end", State: Failed, Reason: p.status.Reason, Message: p.status.Message,
			Remedy: remedy(p.status.Reason),
		}
	}
	if strings.HasPrefix(p.e.GetPhase(), "termina") && p.status.Phase != v1.PodSucceeded {
		n := &Node{Name: "end", State: Waiting, Reason: "Terminating", Message: "the pod is being stopped"}
		if c := podutil.Condition(p.status.Conditions, v1.DisruptionTarget); c != nil {
			n.Message += ": " + c.Message
		}
		return n
	}
	return nil
}

// fields are those that are refused; nil if there are none.
func (p *subject) fields() *Node {
	if len(p.e.GetRefusedFields()) == 0 {
		return nil
	}
	var refused []*Node
	for _, f := range p.e.GetRefusedFields() {
		refused = append(refused, &Node{
			Name: f, State: Failed, Reason: "UnsupportedField", Message: "this node agent does not support it yet",
			Remedy: FieldRemedy(f),
		})
	}
	return group("fields", refused)
}

// stepsElsewhere are the steps whose failures other parts show, each with the part.
var stepsElsewhere = map[string]string{
	"mount volumes": "volumes", "create the sandbox": "sandbox", "find the runtime class": "sandbox",
	"generate the sandbox's config": "sandbox",
}

// sync is what podsync fails to do for the pod, unless it belongs to another part; nil if nothing does.
func (p *subject) sync() *Node {
	s := p.e.GetSync()
	_, elsewhere := stepsElsewhere[s.GetFailedStep()]
	if s.GetFailedStep() == "" || elsewhere || strings.Contains(s.GetFailedStep(), " container ") {
		return nil
	}
	n := &Node{Name: "sync", State: Failed, Reason: "FailedSync", Message: s.GetFailedStep() + ": " + s.GetError()}
	switch {
	case strings.HasPrefix(s.GetError(), "network is not ready"):
		n.Reason = "NetworkNotReady"
	case strings.Contains(s.GetFailedStep(), "cgroup"):
		n.Reason = "FailedToCreatePodContainer"
	}
	n.Remedy = remedy(n.Reason)
	p.tryAgain(n, s.GetNext().AsTime())
	return n
}

// tryAgain says when podsync does.
func (p *subject) tryAgain(n *Node, next time.Time) {
	if next.Unix() > 0 {
		n.Message += "; next try " + p.in(next)
	}
}

func (p *subject) volumes() *Node {
	var all []*Node
	for _, v := range p.e.GetVolumes() {
		n := &Node{Name: v.GetName(), State: OK, Message: v.GetKind()}
		switch v.GetState() {
		case podsyncv1.VolumeState_STATE_FAILED:
			n.State, n.Reason, n.Message = Failed, "FailedMount", v.GetKind()+": "+v.GetMessage()
			n.Remedy = remedy("FailedMount")
			p.tryAgain(n, p.e.GetSync().GetNext().AsTime())
		case podsyncv1.VolumeState_STATE_MOUNTING:
			n.State, n.Reason = Waiting, "Mounting"
			n.Message = fmt.Sprintf("%s: being mounted for %s", v.GetKind(), p.since(v.GetBegan().AsTime()))
		case podsyncv1.VolumeState_STATE_PENDING:
			n.State = Waiting
		case podsyncv1.VolumeState_STATE_MOUNTED, podsyncv1.VolumeState_STATE_UNSPECIFIED:
		}
		all = append(all, n)
	}
	return group("volumes", all)
}

func (p *subject) sandbox() *Node {
	b, s := p.e.GetSandbox(), p.e.GetSync()
	n := &Node{Name: "sandbox", State: OK}
	switch {
	case stepsElsewhere[s.GetFailedStep()] == "sandbox":
		n.State, n.Reason = Failed, "FailedCreatePodSandBox"
		n.Message, n.Remedy = s.GetFailedStep()+": "+s.GetError(), remedy(n.Reason)
		p.tryAgain(n, s.GetNext().AsTime())
	case podutil.IsTerminal(p.status.Phase):
		n.Message = "stopped"
	case b == nil:
		n.State, n.Message = Waiting, "not created yet"
	case !b.GetReady():
		n.State, n.Reason = Waiting, "SandboxNotReady"
		n.Message = fmt.Sprintf("sandbox %.13s is not ready, attempt %d", b.GetId(), b.GetAttempt())
	default:
		n.Message = fmt.Sprintf("%.13s, attempt %d, %s", b.GetId(), b.GetAttempt(), addresses(b.GetIps()))
	}
	return n
}

func addresses(ips []string) string {
	if len(ips) == 0 {
		return "no address of its own"
	}
	return strings.Join(ips, ", ")
}

// gates are the pod's readiness gates; nil if they are met or if there are none.
func (p *subject) gates() *Node {
	c := podutil.Condition(p.status.Conditions, v1.PodReady)
	if c == nil || c.Status == v1.ConditionTrue || c.Reason != "ReadinessGatesNotReady" {
		return nil
	}
	return &Node{
		Name: "readiness gates", State: Waiting, Reason: c.Reason, Message: c.Message,
		Remedy: "the controller that owns the gate sets its condition: see that controller's log",
	}
}

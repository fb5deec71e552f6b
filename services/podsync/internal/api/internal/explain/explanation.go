package explain

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pods"
)

// explain puts together all that is known of a pod.
func (s *Server) explain(w *pods.Standing) (*podsyncv1.PodExplanation, error) {
	p := w.Pod
	e := &podsyncv1.PodExplanation{
		Namespace: p.Namespace, Name: p.Name, Uid: string(p.UID), Source: w.Source, Phase: w.Phase,
		Admission: admissionOf(w), RefusedFields: w.Refused, Volumes: volumes(w), Now: timestamppb.Now(),
		Sync: &podsyncv1.PodSync{
			Began: timestamp(w.Began), Next: timestamp(w.Next), FailedStep: w.FailedStep, Error: w.Error,
			Failures: int32(w.Failures),
		},
		Resize: s.resize(w),
	}
	if last, ok := s.d.Statuses.Last(p.UID); ok {
		var err error
		if e.Status, err = last.Marshal(); err != nil {
			return nil, status.Errorf(codes.Internal, "encode the status of pod %s/%s: %v", p.Namespace, p.Name, err)
		}
	}
	if w.State != nil && len(w.State.Sandboxes) > 0 {
		b := &w.State.Sandboxes[0]
		e.Sandbox = &podsyncv1.Sandbox{
			Id: b.ID, Ready: b.Ready, Attempt: b.Attempt, Created: timestamp(b.Created), Ips: b.IPs,
		}
	}
	for i := range p.Spec.InitContainers {
		kind := podsyncv1.ContainerExplanation_TYPE_INIT
		if podutil.IsSidecar(&p.Spec.InitContainers[i]) {
			kind = podsyncv1.ContainerExplanation_TYPE_SIDECAR
		}
		e.Containers = append(e.Containers, s.container(w, &p.Spec.InitContainers[i], kind))
	}
	for i := range p.Spec.Containers {
		e.Containers = append(e.Containers,
			s.container(w, &p.Spec.Containers[i], podsyncv1.ContainerExplanation_TYPE_CONTAINER))
	}
	for i := range p.Spec.EphemeralContainers {
		c := v1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		e.Containers = append(e.Containers, s.container(w, &c, podsyncv1.ContainerExplanation_TYPE_EPHEMERAL))
	}
	return e, nil
}

func admissionOf(w *pods.Standing) *podsyncv1.Admission {
	switch {
	case w.Rejection != nil:
		return rejection(*w.Rejection)
	case w.Admitted, podutil.IsTerminal(w.Pod.Status.Phase), w.Pod.DeletionTimestamp != nil:
		return &podsyncv1.Admission{State: podsyncv1.Admission_STATE_ADMITTED}
	}
	pending := &podsyncv1.Admission{State: podsyncv1.Admission_STATE_PENDING, Message: w.Awaits}
	if w.Awaits != "" {
		pending.Reason = pods.ReasonResourcesNotReady
	}
	return pending
}

func rejection(r admission.Result) *podsyncv1.Admission {
	return &podsyncv1.Admission{State: podsyncv1.Admission_STATE_REJECTED, Reason: r.Reason, Message: r.Message}
}

// volumes are all mounted as soon as a container was created.
func volumes(w *pods.Standing) []*podsyncv1.VolumeState {
	var all []*podsyncv1.VolumeState
	for i := range w.Pod.Spec.Volumes {
		v := &podsyncv1.VolumeState{
			Name: w.Pod.Spec.Volumes[i].Name, Kind: kindOf(&w.Pod.Spec.Volumes[i].VolumeSource),
		}
		failed, why := w.NotMounted[v.Name]
		switch {
		case why:
			v.State, v.Message = podsyncv1.VolumeState_STATE_FAILED, failed
		case w.Mounted, w.State != nil && len(w.State.Containers) > 0:
			v.State = podsyncv1.VolumeState_STATE_MOUNTED
		case !w.Mounting.IsZero():
			v.State, v.Began = podsyncv1.VolumeState_STATE_MOUNTING, timestamp(w.Mounting)
		default:
			v.State = podsyncv1.VolumeState_STATE_PENDING
		}
		all = append(all, v)
	}
	return all
}

// container says what the status of a container does not.
func (s *Server) container(w *pods.Standing, c *v1.Container,
	kind podsyncv1.ContainerExplanation_Type) *podsyncv1.ContainerExplanation {
	e := &podsyncv1.ContainerExplanation{Name: c.Name, Type: kind, Image: c.Image, Probes: s.probes(w, c)}
	if p, pulling := w.Pulling[c.Name]; pulling {
		e.PullBegan, e.PullImage = timestamp(p.Began), p.Image
	}
	if until, why, ok := s.d.Pulls.BackOff(w.Pod.UID, c.Image); ok {
		e.NextPull, e.PullError = timestamp(until), why
	}
	for _, wait := range w.Waits {
		if wait.Name == c.Name {
			e.RestartAt = timestamp(wait.Until)
		}
	}
	return e
}

// probes are those of a container, with their results for the instance that is the newest.
func (s *Server) probes(w *pods.Standing, c *v1.Container) []*podsyncv1.ProbeState {
	id := ""
	if w.State != nil {
		if newest := w.State.Latest(c.Name); newest != nil {
			id = newest.ID
		}
	}
	found := s.d.Probes.Of(w.Pod.UID)
	var all []*podsyncv1.ProbeState
	for _, one := range []struct {
		kind    string
		probe   *v1.Probe
		results map[string]decide.Result
	}{
		{"startup", c.StartupProbe, found.Startup}, {"readiness", c.ReadinessProbe, found.Readiness},
		{"liveness", c.LivenessProbe, found.Liveness},
	} {
		if one.probe == nil {
			continue
		}
		state := &podsyncv1.ProbeState{Kind: one.kind, Target: target(one.probe)}
		state.Result = podsyncv1.ProbeState_RESULT_UNKNOWN
		switch one.results[id] {
		case decide.Success:
			state.Result = podsyncv1.ProbeState_RESULT_SUCCESS
		case decide.Failure:
			state.Result = podsyncv1.ProbeState_RESULT_FAILURE
		case decide.Unknown:
		}
		all = append(all, state)
	}
	return all
}

// target says what a probe asks. The command of an exec probe and the query of a path are left out, as they may hold a
// secret.
func target(p *v1.Probe) string {
	switch {
	case p.Exec != nil:
		return "exec"
	case p.HTTPGet != nil:
		path, _, _ := strings.Cut(p.HTTPGet.Path, "?")
		return strings.ToLower(string(p.HTTPGet.Scheme)) + "Get " + p.HTTPGet.Host + ":" + p.HTTPGet.Port.String() + path
	case p.TCPSocket != nil:
		return "tcpSocket " + p.TCPSocket.Host + ":" + p.TCPSocket.Port.String()
	case p.GRPC != nil:
		return "grpc :" + itoa(p.GRPC.Port)
	}
	return ""
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

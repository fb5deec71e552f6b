package explain

import (
	"reflect"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/pods"
)

// summary is the row of a pod.
func (s *Server) summary(w *pods.Standing) *podsyncv1.PodSummary {
	p := w.Pod
	row := &podsyncv1.PodSummary{
		Namespace: p.Namespace, Name: p.Name, Uid: string(p.UID), Source: w.Source, Status: string(v1.PodPending),
		Containers: int32(len(p.Spec.Containers)),
	}
	last, reported := s.d.Statuses.Last(p.UID)
	if reported {
		row.Status, row.PodIp = shownStatus(&last), last.PodIP
		if last.StartTime != nil {
			row.Started = timestamp(last.StartTime.Time)
		}
		for i := range last.ContainerStatuses {
			c := &last.ContainerStatuses[i]
			row.Restarts += c.RestartCount
			if c.Ready {
				row.ReadyContainers++
			}
		}
	}
	switch {
	case w.Phase == pods.Held:
		row.Status = "Held"
	case p.DeletionTimestamp != nil || w.Phase == "terminating":
		row.Status = "Terminating"
	}
	return row
}

// shownStatus is what kubectl shows in the column STATUS: what keeps a container, or else the pod's reason or phase.
func shownStatus(s *v1.PodStatus) string {
	for i := range s.InitContainerStatuses {
		c := &s.InitContainerStatuses[i]
		if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
			return "Init:" + w.Reason
		}
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return "Init:" + t.Reason
		}
	}
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			return w.Reason
		}
		if t := c.State.Terminated; t != nil && t.Reason != "" {
			return t.Reason
		}
	}
	if s.Reason != "" {
		return s.Reason
	}
	return string(s.Phase)
}

// kindOf is the name of the field of a volume that is set.
func kindOf(v *v1.VolumeSource) string {
	value := reflect.ValueOf(v).Elem()
	for i := range value.NumField() {
		if f := value.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

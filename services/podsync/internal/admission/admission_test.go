package admission

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

func TestHandlersAreInTheKubeletsOrder(t *testing.T) {
	list, err := handlers(&kubeletconfig.Config{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range list {
		got = append(got, fmt.Sprintf("%T", h))
	}
	want := []string{
		"admission.Pressure", "*admission.Sysctls", "admission.NodeFit", "admission.AppArmor",
		"admission.PodLevelResources",
		"*admission.DeclaredFeatures",
	}
	if !slices.Equal(got, want) {
		t.Errorf("asked are %q, want %q", got, want)
	}
}

func TestAPatternThatNoSysctlHasRefusesTheStart(t *testing.T) {
	k := &kubeletconfig.Config{}
	k.Kubelet.AllowedUnsafeSysctls = []string{"no such thing"}
	if _, err := handlers(k, nil, nil); err == nil {
		t.Error("taken")
	}
}

func TestHelpersGuardTheRuntimeFolder(t *testing.T) {
	dir := t.TempDir()
	p := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{
		Name: "agent", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir}},
	}}}}
	if v := NewHelpers("", dir).Admit(context.Background(),
		&Attributes{Pod: p}); v.Reason != ReasonHelperForbidden {
		t.Errorf("a pod that mounts the agent's folder: %+v", v)
	}
}

// idle is a runtime of which nothing is asked.
type idle struct{ Runtime }

// TestTheNodeAgentsOwnReasons: what a kubelet admits is rejected for them.
func TestTheNodeAgentsOwnReasons(t *testing.T) {
	dir := t.TempDir()
	a, err := New(Options{
		Kubelet: &kubeletconfig.Config{}, Helpers: NewHelpers("", dir), Nodes: newMachine(t), Runtime: idle{},
		Pressure: func() []v1.NodeConditionType { return nil }, Log: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*v1.Pod){
		"": func(*v1.Pod) {},
		ReasonHelperForbidden: func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir}}}}
		},
		ReasonTooManyContainers: func(p *v1.Pod) { p.Spec.InitContainers = make([]v1.Container, MaxContainers) },
	} {
		if v := a.Judge(t.Context(), changed(requesting("p"), change)); v.Reason != want {
			t.Errorf("%+v, want the reason %q", v, want)
		}
	}
}

package admission

import (
	"context"
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

func TestHandlersAreInTheKubeletsOrder(t *testing.T) {
	list, err := handlers(&kubeletconfig.Config{}, nil)
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
	if _, err := handlers(k, nil); err == nil {
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

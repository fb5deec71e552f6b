package criconfig

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestAnEphemeralContainerSeesItsTargetsProcesses, unless the pod's share them anyway.
func TestAnEphemeralContainerSeesItsTargetsProcesses(t *testing.T) {
	for name, test := range map[string]struct {
		target string
		change func(*v1.Pod)
		want   runtimeapi.NamespaceMode
	}{
		"target":    {"other", func(*v1.Pod) {}, runtimeapi.NamespaceMode_TARGET},
		"no target": {"", func(*v1.Pod) {}, runtimeapi.NamespaceMode_CONTAINER},
		"shared":    {"other", func(p *v1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, runtimeapi.NamespaceMode_POD},
		"host":      {"other", func(p *v1.Pod) { p.Spec.HostPID = true }, runtimeapi.NamespaceMode_NODE},
	} {
		b, p := builder(t), plainPod()
		test.change(p)
		p.Spec.Containers[0].VolumeMounts = nil
		if err := b.Prepare(p); err != nil {
			t.Fatal(err)
		}
		config, err := b.Container(t.Context(), p, &p.Spec.Containers[0],
			ContainerInput{ImageRef: "i", TargetID: test.target})
		if err != nil {
			t.Fatal(err)
		}
		got := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
		if got.GetPid() != test.want ||
			(got.GetTargetId() == "other") != (test.want == runtimeapi.NamespaceMode_TARGET) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

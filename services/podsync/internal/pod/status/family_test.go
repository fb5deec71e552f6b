package status

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestFamilyMismatch(t *testing.T) {
	const message = "Kubelet detected an IPv4 node IP (10.0.0.1), but the cloud provider selected an IPv6 node IP " +
		"(fd00::1); pass an explicit `--node-ip` to kubelet to fix this."
	for _, test := range []struct {
		pod, old, now, want string
	}{
		{pod: "10.0.0.1", now: "10.0.0.2"},
		{now: "fd00::1"},
		{pod: "10.0.0.1"},
		{pod: "10.0.0.1", now: "fd00::1", want: message},
		{pod: "10.0.0.1", old: "fd00::2", now: "fd00::1"},
		{pod: "fd00::2", old: "10.0.0.1", now: "fd00::1", want: message},
	} {
		in := Inputs{}
		if test.old != "" {
			in.Old = &v1.PodStatus{HostIP: test.old}
		}
		p := &v1.Pod{Status: v1.PodStatus{HostIP: test.pod}}
		if got := FamilyMismatch(p, in, &v1.PodStatus{HostIP: test.now}); got != test.want {
			t.Errorf("%+v: %q", test, got)
		}
	}
}

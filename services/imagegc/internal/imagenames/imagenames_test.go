package imagenames

import "testing"

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestNormal(t *testing.T) {
	for name, want := range map[string]string{
		"busybox":                  "docker.io/library/busybox:latest",
		"busybox:1":                "docker.io/library/busybox:1",
		"user/app":                 "docker.io/user/app:latest",
		"busybox:1@" + digest:      "docker.io/library/busybox@" + digest,
		"registry.k8s.io/pause:3":  "registry.k8s.io/pause:3",
		digest:                     digest,
		"NoName":                   "NoName",
		"localhost:5000/a/b:dev_1": "localhost:5000/a/b:dev_1",
	} {
		if got := Normal(name); got != want {
			t.Errorf("Normal(%q) = %q, want %q", name, got, want)
		}
	}
}

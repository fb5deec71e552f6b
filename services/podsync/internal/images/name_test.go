package images

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestParseName(t *testing.T) {
	for image, want := range map[string]name{
		"busybox":        {"busybox:latest", "docker.io/library/busybox", v1.PullAlways},
		"busybox:latest": {"busybox:latest", "docker.io/library/busybox", v1.PullAlways},
		"busybox:1":      {"busybox:1", "docker.io/library/busybox", v1.PullIfNotPresent},
		"user/app":       {"user/app:latest", "docker.io/user/app", v1.PullAlways},
		"registry.example:5000/app": {"registry.example:5000/app:latest", "registry.example:5000/app",
			v1.PullAlways},
		"registry.example/a/b" + digest:      {"registry.example/a/b" + digest, "registry.example/a/b", v1.PullIfNotPresent},
		"registry.example/a:1" + digest:      {"registry.example/a:1" + digest, "registry.example/a", v1.PullIfNotPresent},
		"registry.example/a:latest" + digest: {"registry.example/a:latest" + digest, "registry.example/a", v1.PullAlways},
	} {
		if got, err := parseName(image); err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", image, got, err, want)
		}
	}
	for _, image := range []string{"", "UPPER", "a b", "registry.example/", "app:", "app@sha256:12",
		strings.Repeat("x", 300)} {
		if got, err := parseName(image); err == nil {
			t.Errorf("%q was taken as %+v", image, got)
		}
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("busybox")
	f.Add("registry.example:5000/a/b:1" + digest)
	f.Fuzz(func(t *testing.T, image string) {
		n, err := parseName(image)
		if err != nil {
			return
		}
		// What the runtime is asked for is a name too, and of the same repository.
		again, err := parseName(n.pull)
		if err != nil || again.pull != n.pull || again.repository != n.repository {
			t.Fatalf("%q gave %+v, and that %+v, %v", image, n, again, err)
		}
	})
}

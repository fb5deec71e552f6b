package twins

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/microlet/microlet/services/podsync/internal/criconfig"
)

var _ = register(Pair[v1.Container, uint64]{
	Name: "hash",
	Generate: func(s *Source) v1.Container {
		c := v1.Container{Name: OneOf(s, "c", "c0", "a-b"), Command: []string{OneOf(s, "a", "b")}}
		for range OneOf(s, 1, 0, 2, 5) {
			c.Image += OneOf(s, "image", ":", "1", "/", "@sha256:", "<", "&", "\"", "\\", "é", "\u2028", "\xff", "%v", "\n")
		}
		return c
	},
	Upstream: func(c v1.Container) uint64 { return kubecontainer.HashContainer(&c) },
	Ours:     func(c v1.Container) uint64 { return criconfig.ContainerHash(&c) },
	Branches: func(c v1.Container, _ uint64) []string {
		if strings.ContainsAny(c.Image, "<&\"\\\u2028\xff\n") {
			return []string{"is escaped"}
		}
		return []string{"is plain"}
	},
	Wanted: []string{"is escaped", "is plain"},
	Break: func(c v1.Container, out *uint64) {
		if strings.Contains(c.Image, "<") {
			*out++
		}
	},
})

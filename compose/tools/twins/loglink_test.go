package twins

import (
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"

	"github.com/microlet/microlet/services/podsync/internal/criconfig"
)

// logged is a container with a log.
type logged struct{ Namespace, Pod, UID, Container, ID string }

var _ = register(Pair[logged, []string]{
	Name: "loglink",
	Generate: func(s *Source) logged {
		name := func(most int) string {
			return OneOf(s, "a", "a-b", "a.b", "a_b", "x") + strings.Repeat("n", OneOf(s, 0, 0, 5, most-40, most-3))
		}
		return logged{
			Namespace: name(63), Pod: name(253), UID: OneOf(s, "u1", "0b5c9cb8-16f1-4cc5-8f4f-4ed8a2d5a8a1"),
			Container: name(63), ID: strings.Repeat("0f", OneOf(s, 3, 32, 20)),
		}
	},
	Upstream: func(in logged) []string {
		return []string{
			kuberuntime.TwinLogLink(in.ID, in.Container, in.Pod, in.Namespace),
			kuberuntime.BuildContainerLogsDirectory("/logs", in.Namespace, in.Pod, types.UID(in.UID), in.Container),
		}
	},
	Ours: func(in logged) []string {
		return []string{
			criconfig.LogLink("/var/log/containers", in.Namespace, in.Pod, in.Container, in.ID),
			filepath.Join(criconfig.PodLogDir("/logs", in.Namespace, in.Pod, types.UID(in.UID)), in.Container),
		}
	},
	Branches: func(_ logged, out []string) []string {
		if len(filepath.Base(out[0])) == 255 {
			return []string{"is cut"}
		}
		return []string{"is whole"}
	},
	Wanted: []string{"is cut", "is whole"},
	Break:  func(_ logged, out *[]string) { (*out)[0] = (*out)[0][:min(len((*out)[0]), 260)] },
})

package twins

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/microlet/microlet/services/internal/expansion"
)

// probing is the command of a probe, with the variables of its container.
type probing struct {
	Command []string
	Env     []v1.EnvVar
}

var _ = register(Pair[probing, []string]{
	Name: "command",
	Generate: func(s *Source) probing {
		in := probing{}
		for range OneOf(s, 1, 0, 2, 3) {
			in.Command = append(in.Command, drawText(s, 0))
		}
		for range OneOf(s, 0, 1, 2, 3) {
			v := v1.EnvVar{Name: OneOf(s, variableNames...), Value: drawText(s, 0)}
			if s.Percent(20) {
				v.Value, v.ValueFrom = "", &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}
			}
			in.Env = append(in.Env, v)
		}
		return in
	},
	Upstream: func(in probing) []string { return kubecontainer.ExpandContainerCommandOnlyStatic(in.Command, in.Env) },
	Ours: func(in probing) []string {
		words, err := expansion.Command(in.Command, in.Env)
		must(err) // none is too long
		return words
	},
	Branches: func(in probing, out []string) []string {
		before, after := strings.Join(in.Command, " "), strings.Join(out, " ")
		switch {
		case slices.Equal(in.Command, out):
			return []string{"stays"}
		case strings.Contains(after, "$("):
			return []string{"a reference stays"}
		case strings.Contains(before, "$("):
			return []string{"references are replaced"}
		}
		return []string{"loses a dollar"}
	},
	Wanted: []string{"stays", "a reference stays", "references are replaced", "loses a dollar"},
	Break: func(_ probing, out *[]string) {
		*out = slices.Clone(*out)
		for i, word := range *out {
			(*out)[i] = strings.ReplaceAll(word, "$$", "$")
		}
	},
})

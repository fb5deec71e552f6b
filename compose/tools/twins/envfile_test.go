package twins

import (
	"os"
	"path/filepath"
	"strings"

	kubeenv "k8s.io/kubernetes/pkg/kubelet/util/env"

	"github.com/microlet/microlet/services/podsync/internal/criconfig"
)

// variableFile is a file of variables, and the one that is read. Its lines have less than 64 KiB, which the kubelet
// takes at most.
type variableFile struct{ Text, Name string }

type variable struct {
	Value string
	Error bool
}

var _ = register(Pair[variableFile, variable]{
	Name: "envfile",
	Generate: func(s *Source) variableFile {
		var b strings.Builder
		for range OneOf(s, 1, 0, 2, 3, 5, 8) {
			drawAssignment(s, &b)
		}
		return variableFile{b.String(), OneOf(s, "A", "B", "")}
	},
	Upstream: func(in variableFile) variable {
		at := takeScratch()
		defer at.giveBack()
		path := filepath.Join(at.root, "file")
		must(os.WriteFile(path, []byte(in.Text), 0o600))
		value, err := kubeenv.ParseEnv(path, in.Name)
		return variable{value, err != nil}
	},
	Ours: func(in variableFile) variable {
		value, err := criconfig.TwinEnvFile(in.Text, in.Name)
		return variable{value, err != nil}
	},
	Branches: func(_ variableFile, out variable) []string {
		switch {
		case out.Error:
			return []string{"is an error"}
		case strings.Contains(out.Value, "\n"):
			return []string{"a value of several lines"}
		case out.Value != "":
			return []string{"a value"}
		}
		return []string{"no value"}
	},
	Wanted: []string{"is an error", "a value of several lines", "a value", "no value"},
	Break: func(_ variableFile, out *variable) {
		out.Value = strings.TrimRight(out.Value, "\n")
	},
})

// drawAssignment draws a line or more, most of which are right.
func drawAssignment(s *Source, b *strings.Builder) {
	odd := func(usual string, others ...string) string {
		if s.Percent(93) {
			return usual
		}
		return OneOf(s, others...)
	}
	b.WriteString(odd("", " ", "\t", "\r", "#", "\n", "\r\n"))
	b.WriteString(odd(OneOf(s, "A", "B", "AB"), "", "export A", "A ", "é", "A'"))
	b.WriteString(odd("=", "", "= ", "==", "=\r"))
	b.WriteString(odd("'", "", "\"", " '", "\r'"))
	for range OneOf(s, 0, 1, 2, 4) {
		b.WriteString(OneOf(s, "x", " ", "\n", "\r\n", "\r", "=", "#", "\\", "$A", "é", "\x00", "\n\n", "A="))
	}
	b.WriteString(odd("'", "", "''") + odd("", " ", "#", " # it's", "x", "\t", "\r", "\r\r"))
	b.WriteString(odd("\n", "\r\n", "", "\r"))
}

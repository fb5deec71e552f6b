package kubeversion

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The libraries of Kubernetes 1.x are numbered 0.x.
func TestVersionIsWhatIsRequired(t *testing.T) {
	for file, want := range map[string]string{
		"../../go.mod": "k8s.io/api v0." + strings.TrimPrefix(MajorMinor, "1.") + ".",
		"../../../compose/tools/kubeletfacts/go.mod": "k8s.io/kubernetes v" + Version + "\n",
	} {
		mod, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(mod), want) {
			t.Errorf("%s requires no %q", file, want)
		}
	}
}

func TestPreviousIsTheMinorBefore(t *testing.T) {
	var minor, before int
	for text, n := range map[string]*int{MajorMinor: &minor, Previous: &before} {
		if _, err := fmt.Sscanf(text, "1.%d", n); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	if before != minor-1 {
		t.Errorf("before %s is %s", MajorMinor, Previous)
	}
}

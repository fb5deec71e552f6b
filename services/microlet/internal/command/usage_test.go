package command

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/telemetry"
)

// An operator finds the few flags of microlet before the many of the kubelet, and none that only programs set.
func TestHelpHasMicroletsFlagsFirst(t *testing.T) {
	for _, name := range []string{"up", "prepare", "check"} {
		out, err := execute(t, name, "--help")
		if err != nil {
			t.Fatal(err)
		}
		at := -1
		for _, want := range []string{
			"\nFlags:\n", "--external strings", "--placement string", "--runtime-dir string",
			"\nFlags of the services:\n", "--probe-execs int", "--runtime-calls int",
			"\nFlags of the kubelet:\n", "--config string", "--kubeconfig string",
			"\nFlags of the kubelet that are deprecated:\n", "--max-pods int32",
		} {
			next := strings.Index(out, want)
			if next <= at {
				t.Errorf("%s: %q is not after what comes before it", name, want)
			}
			at = max(at, next)
		}
		for _, hidden := range []string{"--api-credentials", "--replica "} {
			if strings.Contains(out, hidden) {
				t.Errorf("%s shows %s", name, hidden)
			}
		}
		flags := regexp.MustCompile(`(?m)^ {2,6}(?:-\w, )?(--[\w-]+)`).FindAllString(out, -1)
		shown := len(flags)
		slices.Sort(flags)
		if n := len(slices.Compact(flags)); n != shown || n < 150 {
			t.Errorf("%s shows %d flags, %d of them for the first time; want 150 and more, each once", name, shown, n)
		}
	}
}

func TestVersion(t *testing.T) {
	release := "v" + kubeversion.Version
	for _, args := range [][]string{{"version"}, {"--version"}, {"up", "--version=raw"}} {
		if out, err := execute(t, args...); err != nil || !strings.HasPrefix(out, "microlet v") ||
			!strings.Contains(out, " for Kubernetes "+release+" (go") {
			t.Errorf("%q: %q, %v", args, out, err)
		}
	}
	out, err := execute(t, "version", "-o", "json")
	v := Version{}
	if err != nil || json.Unmarshal([]byte(out), &v) != nil || v != thisVersion() || v.Kubernetes != release {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := execute(t, "version", "--short"); err != nil || out != telemetry.Version+"\n" {
		t.Errorf("version --short: %q, %v", out, err)
	}
	if out, err := execute(t, "up", "--version"); err != nil || out != "Kubernetes "+release+"\n" {
		t.Errorf("up --version: %q, %v", out, err)
	}
	if _, err := execute(t, "version", "-o", "xml"); err == nil {
		t.Error("-o xml was accepted")
	}
}

package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/kubeversion"
)

func TestArguments(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"/usr/bin/microlet", ""},
		{"/usr/bin/microlet up --v=2", "up --v=2"},
		{"microlet --version", "--version"},
		{"/usr/bin/kubelet", "up"},
		{"kubelet --version", "up --version"},
		{"/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --v=2", "up --config=/var/lib/kubelet/config.yaml --v=2"},
		{"/usr/bin/kubelet podsync --runtime-dir=/run/microlet", "podsync --runtime-dir=/run/microlet"},
		{"/usr/bin/kubelet.old --version", "--version"},
		{"/opt/kubelet/microlet status", "status"},
	} {
		if got := strings.Join(Arguments(strings.Fields(c.line)), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
	}
	if got := Arguments(nil); got != nil {
		t.Errorf("of nothing: %q", got)
	}
	line := []string{"kubelet", "-v=2"}
	_ = append(Arguments(line), "more")
	if !slices.Equal(line, []string{"kubelet", "-v=2"}) {
		t.Errorf("the command line has become %q", line)
	}
}

// TestVersionOfTheKubelet: what kubeadm's regular expression takes, and nothing beside it.
func TestVersionOfTheKubelet(t *testing.T) {
	args := Arguments([]string{"/usr/bin/kubelet", "--version"})
	var out strings.Builder
	cmd := Of(args)
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := "Kubernetes v" + kubeversion.Version + "\n"; out.String() != want {
		t.Errorf("kubelet --version writes %q, want %q", out.String(), want)
	}
}

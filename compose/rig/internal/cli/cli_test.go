package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestErrorsSayWhatToDo(t *testing.T) {
	for _, tc := range []struct {
		args, want string
	}{
		{"up --agent cubelet", "use microlet, kubelet or none"},
		{"up --name UPPER", "lower-case letters"},
		{"down no-such-instance", "rig up --name no-such-instance"},
		{"down --name a b", "two names given"},
		{"env no-such-instance", "there is no instance"},
		{"kubectl --name no-such-instance get nodes", "there is no instance"},
		{"build --with kublet", "there are kubelet and conformance"},
		{"up --with flowers", "there are kubelet and conformance"},
		{"conformance --agent cubelet", "use kubelet, microlet or both"},
		{"conformance --focus (", "missing closing"},
		{"conformance --procs 0", "use 1 or more"},
		{"conformance --record --focus x", "default selection"},
		{"clean ../etc", "instance name"},
		{"frobnicate", "unknown command"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var out, progress bytes.Buffer
			status := Main(strings.Fields(tc.args), &out, &progress)
			if status != 1 || !strings.Contains(progress.String(), tc.want) {
				t.Errorf("status %d, said %q: want 1 and %q", status, progress.String(), tc.want)
			}
		})
	}
}

func TestHelpNamesEveryCommand(t *testing.T) {
	var out bytes.Buffer
	if status := Main([]string{"--help"}, &out, &out); status != 0 {
		t.Fatalf("status %d: %s", status, out.String())
	}
	for _, command := range []string{"build", "up", "run", "down", "status", "clean", "env", "kubectl", "conformance"} {
		if !strings.Contains(out.String(), "\n  "+command+" ") {
			t.Errorf("help does not name %s:\n%s", command, out.String())
		}
	}
}

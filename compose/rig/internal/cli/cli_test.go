package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

func TestErrorsSayWhatToDo(t *testing.T) {
	for _, tc := range []struct {
		args, want string
	}{
		{"up --agent cubelet", "use microlet, kubelet or none"},
		{"up --name UPPER", "lower-case letters"},
		{"run --demo --standalone --agent kubelet", "needs --agent microlet"},
		{"run --standalone --agent none", "without an agent"},
		{"down no-such-instance", "rig up --name no-such-instance"},
		{"down --name a b", "two names given"},
		{"env no-such-instance", "there is no instance"},
		{"kubectl --name no-such-instance get nodes", "there is no instance"},
		{"build --with kublet", "there are kubelet and conformance"},
		{"up --with flowers", "there are kubelet and conformance"},
		{"conformance --agent cubelet", "use kubelet, microlet or both"},
		{"conformance --family volumes", "use one of:\n  devices  "},
		{"conformance --family ../conformance", "use one of:\n  devices  "},
		{"conformance --family node-open --machine=false", "need the suite node on a machine"},
		{"conformance --family storage --machine", "needs the suite e2e, on this machine"},
		{"conformance --focus (", "missing closing"},
		{"conformance --procs 0", "use 1 or more"},
		{"conformance --record --focus x", "all of the family e2e or node"},
		{"conformance --record --family storage", "all of the family e2e or node"},
		{"conformance --record --machine", "leave out --machine"},
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

func TestKubectlArguments(t *testing.T) {
	for _, tc := range []struct{ args, name, rest string }{
		{"get pods", "default", "get pods"},
		{"--name a get pods", "a", "get pods"},
		{"--name=a exec p -- ls", "a", "exec p -- ls"},
		{"-- get pods", "default", "get pods"},
		{"--name a -- exec p -- ls", "a", "exec p -- ls"},
		{"", "default", ""},
	} {
		name, rest := kubectlArgs(strings.Fields(tc.args))
		if got := strings.Join(rest, " "); name != tc.name || got != tc.rest {
			t.Errorf("%q: instance %q, arguments %q; want %q and %q", tc.args, name, got, tc.name, tc.rest)
		}
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

// What is proposed works beside the demo: its Deployment has another name, and a kill meets one process of this
// instance.
func TestHints(t *testing.T) {
	if hint := createHint("kubectl"); strings.Contains(hint, "deployment "+demoName+" ") {
		t.Errorf("%q collides with the demo's own deployment", hint)
	}
	hint := killHint("pleg", "/run/rig.1/microlet")
	pattern, ok := strings.CutPrefix(hint, "pkill -KILL -f '")
	if !ok {
		t.Fatalf("the hint is %q", hint)
	}
	match := regexp.MustCompile(strings.TrimSuffix(pattern, "'"))
	for line, want := range map[string]bool{
		"/opt/microlet pleg --runtime-dir=/run/rig.1/microlet --node-name=n":    true,
		"/opt/microlet pleg --runtime-dir=/run/rig21/microlet --node-name=n":    false,
		"/opt/microlet pleg --runtime-dir=/run/rig.1/microlet2 --node-name=n":   false,
		"/opt/microlet podsync --runtime-dir=/run/rig.1/microlet --node-name=n": false,
		"sudo " + hint: false,
		"/opt/microlet up --runtime-dir=/run/rig.1/microlet --node-name=n": false,
	} {
		if match.MatchString(line) != want {
			t.Errorf("%q meets %q: %t, want %t", hint, line, !want, want)
		}
	}
}

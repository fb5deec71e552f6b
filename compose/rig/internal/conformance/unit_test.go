package conformance

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/compose/rig"
)

type fakeAgent struct {
	mu    sync.Mutex
	calls []string
	fails bool
}

// take returns the calls since the last take.
func (a *fakeAgent) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := a.calls
	a.calls = nil
	return calls
}

func (a *fakeAgent) fail() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails = true
}

func (a *fakeAgent) StopAgent(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, "stop")
	return nil
}

func (a *fakeAgent) StartAgent(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, "start")
	if a.fails {
		return errors.New("no such\nprogram")
	}
	return nil
}

// The calls are those of upstream's suite.
func TestSystemctl(t *testing.T) {
	a := &fakeAgent{}
	path := t.TempDir()
	end, err := serveUnit(t.Context(), a, path)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	call := func(args ...string) (string, error) {
		out, err := exec.Command(filepath.Join(path, "sudo"),
			append([]string{filepath.Join(path, "systemctl")}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	const listed = "kubelet-rig.service loaded active running the agent of the rig"
	for _, step := range []struct {
		args string
		out  string
		want []string
	}{
		{"list-units *kubelet* --state=running", listed, nil},
		{"reset-failed kubelet-rig", "", nil},
		{"restart kubelet-rig", "", []string{"stop", "start"}},
		{"kill kubelet-rig", "", []string{"stop"}},
		{"list-units *kubelet* --state=running", "", nil},
		{"list-units *kubelet*", listed, nil},
		{"stop kubelet-rig", "", nil},
		{"restart kubelet-rig", "", []string{"start"}},
		{"start kubelet-rig", "", nil},
	} {
		out, err := call(strings.Fields(step.args)...)
		if err != nil || out != step.out {
			t.Errorf("systemctl %s: %q, %v, want %q", step.args, out, err, step.out)
		}
		if d := cmp.Diff(step.want, a.take()); d != "" {
			t.Errorf("systemctl %s: calls -want +got\n%s", step.args, d)
		}
	}
	if out, err := call("mask", "--now", "locksmithd"); err == nil ||
		!strings.Contains(out, "mask --now locksmithd is not known here") {
		t.Errorf("an unknown call: %q, %v", out, err)
	}
	a.fail()
	if out, err := call("restart", rig.SuiteUnit); err == nil || out != "no such; program" {
		t.Errorf("an agent that does not start: %q, %v", out, err)
	}
}

func TestConfigFileIsWhatTheAgentSays(t *testing.T) {
	got, err := configFile([]byte(`{"kubeletconfig":{"maxPods":7,"enableServer":true}}`))
	want := `{
  "apiVersion": "kubelet.config.k8s.io/v1beta1",
  "enableServer": true,
  "kind": "KubeletConfiguration",
  "maxPods": 7
}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	for _, bad := range []string{"", "{}", `{"kubeletconfig":7}`} {
		if got, err := configFile([]byte(bad)); err == nil {
			t.Errorf("%q became %s", bad, got)
		}
	}
}

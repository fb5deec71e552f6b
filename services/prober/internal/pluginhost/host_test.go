package pluginhost

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	probepluginv1 "github.com/microlet/microlet/proto/microlet/probeplugin/v1"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/prober/internal/probe"
	"github.com/microlet/microlet/services/prober/plugin"
)

// stdout and stderr are those of the process. While a plugin serves, os has others.
var stdout, stderr = os.Stdout, os.Stderr

// TestMain makes the test's binary a plugin when it is run by a plugin's name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "plugin-under-test" {
		plugin.Serve(func(ctx context.Context, r *probepluginv1.ProbeRequest) (bool, string, error) {
			switch r.GetContainer() {
			case "ill":
				return false, "not well", nil
			case "unknown":
				return false, "", errors.New("cannot say")
			case "crash":
				os.Exit(3)
			case "hang":
				select {} // deaf to its timeout, too
			case "large":
				return true, strings.Repeat("x", 1<<20), nil
			case "leaves a process", "leaves a session":
				sleep := exec.Command("/bin/sleep", "300")
				sleep.Stdout, sleep.Stderr = stdout, stderr
				sleep.SysProcAttr = &syscall.SysProcAttr{Setsid: r.GetContainer() == "leaves a session"}
				if err := sleep.Start(); err != nil {
					return false, "", err
				}
				return true, strconv.Itoa(sleep.Process.Pid), nil
			}
			if os.Getenv("HOME") != "" || os.Geteuid() != os.Getuid() {
				return false, "it has the prober's environment", nil
			}
			return r.GetHost() == "10.0.0.7" && r.GetPort() == 6379, "well", nil
		})
		return
	}
	os.Exit(m.Run())
}

func install(t *testing.T) *Host {
	t.Helper()
	t.Setenv("HOME", "/root")
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"plugin-under-test": 0o755, "writable": 0o777, "no-program": 0o644} {
		proctest.Install(t, filepath.Join(dir, name), mode)
	}
	h := New(dir, "/tmp", slog.New(slog.DiscardHandler))
	t.Cleanup(h.Close)
	return h
}

func target(container string) probe.Target {
	return probe.Target{
		Plugin: "plugin-under-test", Kind: "readiness", PodIP: "10.0.0.7", Pod: &v1.Pod{},
		Container: &v1.Container{Name: container, Ports: []v1.ContainerPort{{Name: "redis", ContainerPort: 6379}}},
		Probe: &v1.Probe{TimeoutSeconds: 1, ProbeHandler: v1.ProbeHandler{
			TCPSocket: &v1.TCPSocketAction{Port: intstr.FromString("redis")},
		}},
	}
}

func TestPlugin(t *testing.T) {
	h := install(t)
	well := func(when string) {
		t.Helper()
		if got, err := h.Probe(t.Context(), target("c")); err != nil ||
			got != (probe.Result{Outcome: probe.Success, Output: "well"}) {
			t.Errorf("%s: %+v, %v", when, got, err)
		}
	}
	well("at first")
	if got, err := h.Probe(t.Context(), target("ill")); err != nil ||
		got != (probe.Result{Outcome: probe.Failure, Output: "not well"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for container, want := range map[string]string{
		"unknown": "cannot say", "crash": "crashed", "hang": "was ended", "large": "larger than max",
	} {
		began := time.Now()
		if got, err := h.Probe(t.Context(), target(container)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", container, got, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: took %v", container, took)
		}
		well("after " + container)
	}
}

// TestWhatAPluginLeavesBehind holds up neither the next start of the plugin nor the end of the host.
func TestWhatAPluginLeavesBehind(t *testing.T) {
	for _, end := range []string{"crash", "hang", "close"} {
		for container, ends := range map[string]bool{"leaves a process": true, "leaves a session": false} {
			t.Run(container+", "+end, func(t *testing.T) {
				h := install(t)
				got, err := h.Probe(t.Context(), target(container))
				if err != nil {
					t.Fatal(err)
				}
				pid, err := strconv.Atoi(got.Output)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }() // it may have ended
				began := time.Now()
				if end == "close" {
					h.Close()
				} else if _, err := h.Probe(t.Context(), target(end)); err == nil {
					t.Error("no error")
				}
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("the end of the plugin took %v, as long as what it has left behind", took)
				}
				if ends {
					proctest.Await(t, 30*time.Second, "its end", func() bool { return !proctest.Alive(pid) })
				} else if !proctest.Alive(pid) {
					t.Error("it has ended, so this test shows nothing")
				}
				if _, err := h.Probe(t.Context(), target("c")); err != nil {
					t.Errorf("the next probe: %v", err)
				}
			})
		}
	}
}

func TestWhatIsNotRun(t *testing.T) {
	h := install(t)
	for name, want := range map[string]string{
		"absent":               `probe plugin "absent" is not installed on this node`,
		"../plugin-under-test": "a plugin's name is of",
		"/bin/true":            "a plugin's name is of",
		"writable":             "must be a program of root's",
		"no-program":           "must be a program of root's",
	} {
		g := target("c")
		g.Plugin = name
		if got, err := h.Probe(t.Context(), g); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

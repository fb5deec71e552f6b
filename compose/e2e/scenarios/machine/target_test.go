//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig/machine"
	"github.com/microlet/microlet/proto/role"
)

// installTarget installs the users and the units of the package, and has microlet.target run the node in place of
// microlet.service until the test ends.
func installTarget(t *testing.T, s *scene.Scene) {
	t.Helper()
	m, err := s.Machine()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../../../deploy/systemd/microlet*")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no units: %v", err)
	}
	for _, from := range files {
		if filepath.Base(from) != "microlet.service" { // the rig has installed it
			put(t, m, from, "/etc/systemd/system/"+filepath.Base(from))
		}
	}
	put(t, m, "../../../../deploy/sysusers.d/microlet.conf", "/etc/sysusers.d/microlet.conf")
	must(t, s, "systemd-sysusers", "microlet.conf")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := s.RunOnMachine(ctx, "sh", "-c",
			"systemctl stop microlet.target; systemctl start microlet.service"); err != nil {
			t.Errorf("give the node back to microlet.service: %v", err)
		}
		scene.Await(t, scene.Patience, "all services ready", func() error { return s.Healthy(ctx) })
	})
	must(t, s, "sh", "-c", "systemctl daemon-reload && systemctl stop microlet.service")
	startTarget(t, s)
}

// startTarget waits until all services of the target do their work.
func startTarget(t *testing.T, s *scene.Scene) {
	t.Helper()
	must(t, s, "systemctl", "start", "--no-block", "microlet.target")
	t.Cleanup(func() {
		if t.Failed() {
			out, err := s.RunOnMachine(context.WithoutCancel(t.Context()), "journalctl", "--no-pager", "-o", "cat", "-n", "80",
				"-u", "microlet-*")
			t.Logf("the units' log: %s, %v", out, err)
		}
	})
	for _, r := range scene.Services {
		awaitHealth(t, s, r)
	}
}

// awaitHealth waits until a service says that it does its work.
func awaitHealth(t *testing.T, s *scene.Scene, r role.Role) {
	t.Helper()
	scene.Await(t, scene.Patience, string(r)+" healthy", func() error {
		_, err := s.RunOnMachine(t.Context(), "microlet", "health", string(r),
			"--peer-cgroups=/system.slice/system-microlet.slice/*")
		return err
	})
}

func put(t *testing.T, m machine.Machine, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = m.Write(t.Context(), to, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, s *scene.Scene, args ...string) string {
	t.Helper()
	out, err := s.RunOnMachine(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// TestTarget runs the node by a unit for each service. Each is killed, comes back in its own cgroup, and no container
// notices.
func TestTarget(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	installTarget(t, s)
	for _, r := range scene.Services {
		unit := "microlet-" + string(r) + ".service"
		before := must(t, s, "systemctl", "show", "-p", "MainPID", "--value", unit)
		must(t, s, "systemctl", "kill", "--kill-whom=main", "-s", "KILL", unit)
		began := time.Now()
		scene.Await(t, scene.Patience, unit+" again", func() error {
			out, err := s.RunOnMachine(t.Context(), "systemctl", "show", "-p", "MainPID,ActiveState", "--value", unit)
			if f := strings.Fields(out); err != nil || len(f) != 2 || f[0] == before || f[1] != "active" {
				return errors.Join(fmt.Errorf("it is %v, and was pid %s", f, before), err)
			}
			return nil
		})
		t.Logf("%s is active again after %s", unit, scene.Milliseconds(time.Since(began)))
		must(t, s, "test", "-d", "/sys/fs/cgroup/system.slice/system-microlet.slice/"+unit)
		awaitHealth(t, s, r)
	}
	s.CreatePods(scene.PausePod("after"))
	s.WaitReady(scene.Patience, "after")
	statusOfUnits(t, s)
	stopTarget(t, s)
	for _, p := range w.Pods {
		if err := s.RunsAttempt(p.Name, 0); err != nil {
			t.Errorf("after the stop of the target: %v", err)
		}
	}
	startTarget(t, s)
	s.CreatePods(scene.PausePod("again"))
	s.WaitReady(scene.Patience, "again")
	w.Untouched()
}

// statusOfUnits judges that "microlet status" accounts for services that no supervisor has started, and says where
// their logs are.
func statusOfUnits(t *testing.T, s *scene.Scene) {
	t.Helper()
	scene.Await(t, scene.Patience, "heartbeats of all services", func() error {
		_, err := s.RunOnMachine(t.Context(), "microlet", "status", "--exit-code")
		return err
	})
	all, err := s.ProcessStatuses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range scene.Services {
		unit := "microlet-" + string(r) + ".service"
		pid := must(t, s, "systemctl", "show", "-p", "MainPID", "--value", unit)
		if a := all[r]; a.State != "external" || fmt.Sprint(a.PID) != pid {
			t.Errorf("microlet status shows %s as %+v, and its unit has pid %s", r, a, pid)
		}
	}
	for _, args := range [][]string{{"microlet", "logs"}, {"microlet", "restart", "pleg"}} {
		if _, err := s.RunOnMachine(t.Context(), args...); err == nil || !strings.Contains(err.Error(), "ctl ") {
			t.Errorf("%v does not say how units do it: %v", args, err)
		}
	}
}

// stopTarget stops all units. No process of the node agent is left.
func stopTarget(t *testing.T, s *scene.Scene) {
	t.Helper()
	must(t, s, "systemctl", "stop", "microlet.target")
	scene.Await(t, scene.Patience, "the end of all units", func() error {
		left, err := s.LinesOnMachine("sh", "-c",
			"cat /sys/fs/cgroup/system.slice/system-microlet.slice/*/cgroup.procs 2>/dev/null || true")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("processes %v are left", left)
		}
		return err
	})
}

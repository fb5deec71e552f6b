//go:build machine

package machine

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestUnitRestart restarts the unit. No container notices, and all services have what they need again.
func TestUnitRestart(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	before := s.MustPID(t, role.Up)
	if _, err := s.RunOnMachine(t.Context(), "systemctl", "restart", "microlet.service"); err != nil {
		t.Fatal(err)
	}
	s.WaitHealthy(t, scene.Patience)
	if s.MustPID(t, role.Up) == before {
		t.Error("the unit was not restarted")
	}
	s.CreatePods(scene.PausePod("after"))
	s.WaitReady(scene.Patience, "after")
	w.Untouched()
	w.NodeReady()
}

// TestUnitStop stops the unit: pods run on, and what is in its own cgroup has ended. Its journal reports the stop.
func TestUnitStop(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	if _, err := s.RunOnMachine(t.Context(), "systemctl", "stop", "microlet.service"); err != nil {
		t.Fatal(err)
	}
	if left, err := s.LinesOnMachine("sh", "-c",
		"cat /sys/fs/cgroup/system.slice/microlet.service/cgroup.procs 2>/dev/null || true"); err != nil || len(left) > 0 {
		t.Errorf("processes %v of the stopped unit are left, %v", left, err)
	}
	for _, p := range w.Pods {
		if err := s.RunsAttempt(p.Name, 0); err != nil {
			t.Errorf("after the unit's stop: %v", err)
		}
	}
	result, err := s.RunOnMachine(t.Context(), "systemctl", "show", "-p", "Result,ActiveState", "--value",
		"microlet.service")
	if err != nil ||
		strings.TrimSpace(result) != "success\ninactive" && strings.TrimSpace(result) != "inactive\nsuccess" {
		t.Errorf("the unit's state after a stop is %q, %v", result, err)
	}
	journal, err := s.RunOnMachine(t.Context(), "journalctl", "--no-pager", "-o", "cat", "-u", "microlet.service", "-n",
		"200")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"level=INFO", "service=podsync", "service=up", "Stopped microlet.service"} {
		if !strings.Contains(journal, want) {
			t.Errorf("the unit's journal says nothing of %q; its end:\n%s", want, journal[max(0, len(journal)-2000):])
		}
	}
	if _, err := s.RunOnMachine(t.Context(), "systemctl", "start", "microlet.service"); err != nil {
		t.Fatal(err)
	}
	s.WaitHealthy(t, scene.Patience)
	s.CreatePods(scene.PausePod("after"))
	s.WaitReady(scene.Patience, "after")
	w.Untouched()
}

// TestUnitWatchdog stops the supervisor by a signal that it can't catch: systemd takes it for hung, kills it and starts
// it again. No container notices.
func TestUnitWatchdog(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	before := s.MustPID(t, role.Up)
	if err := s.SignalPIDs(syscall.SIGSTOP, before); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	scene.Await(t, scene.Patience, "another supervisor", func() error {
		status, err := s.AgentStatus()
		if err != nil {
			return err
		}
		if status.PID == before || !status.Ready {
			return errors.New("the unit has pid " + fmt.Sprint(status.PID))
		}
		return nil
	})
	t.Logf("the supervisor was taken for hung and is ready again after %s", scene.Milliseconds(time.Since(begin)))
	s.WaitHealthy(t, scene.Patience)
	if _, err := s.RunOnMachine(t.Context(), "sh", "-c",
		"journalctl --no-pager -o cat -u microlet.service | grep 'Watchdog timeout'"); err != nil {
		t.Errorf("the journal does not name a watchdog: %v", err)
	}
	s.CreatePods(scene.PausePod("after"))
	s.WaitReady(scene.Patience, "after")
	w.Untouched()
}

// TestUnitAccounts: all that the agent is lives below its unit's cgroup, for systemd to account and to stop. Each
// service but podsync has a cgroup of its own there, with its limits.
func TestUnitAccounts(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	const unit = "/system.slice/microlet.service/"
	for _, r := range append([]role.Role{role.Up}, scene.Services...) {
		line, err := s.RunOnMachine(t.Context(), "cat", fmt.Sprintf("/proc/%d/cgroup", s.MustPID(t, r)))
		cgroup := strings.TrimPrefix(strings.TrimSpace(line), "0::")
		own, wantMemory, wantTasks := "microlet-limited-", "536870912", "512"
		switch r {
		case role.Up, role.Podsync:
			own, wantMemory, wantTasks = "microlet-agent-", "max", "max"
		case role.Stats:
			wantMemory = "805306368"
		case role.Bus:
			wantMemory = "2147483648"
		case role.NodeAPI, role.Prober, role.ImageGC, role.Evictor:
			wantMemory = "1073741824"
		}
		if err != nil || !strings.HasPrefix(cgroup, unit+own) {
			t.Errorf("%s is in %q, %v: want one below the unit's", r, cgroup, err)
			continue
		}
		for file, want := range map[string]string{"memory.max": wantMemory, "pids.max": wantTasks} {
			limit, err := s.RunOnMachine(t.Context(), "cat", "/sys/fs/cgroup"+cgroup+"/"+file)
			if err != nil || strings.TrimSpace(limit) != want {
				t.Errorf("%s of %s is %q, %v: want %s", file, r, limit, err, want)
			}
		}
	}
}

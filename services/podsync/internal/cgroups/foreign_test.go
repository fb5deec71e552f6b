package cgroups

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	libcgroups "github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/testing/cgrouptest"
)

// foreignRoot names the variable that has the root of the pods for a test in a PID namespace of its own.
const foreignRoot = "MICROLET_TEST_FOREIGN_ROOT"

// TestRemovePodOfAForeignPIDNamespace: a process that podsync cannot see reads as 0, which as the target of
// a signal is podsync's own process group.
func TestRemovePodOfAForeignPIDNamespace(t *testing.T) {
	const uid types.UID = "foreign-1"
	if root := os.Getenv(foreignRoot); root != "" {
		m, err := New(Options{Root: root, PerQOS: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := m.RemovePod(ctx, uid); err != nil {
			t.Fatal(err)
		}
		return
	}
	cgrouptest.OnUnified(t, func(t *testing.T) {
		before := read(t, unifiedMount+"/cgroup.subtree_control")
		root, _ := ownRoot(t)
		t.Cleanup(func() { restoreControllers(t, before) })
		m, err := New(Options{Root: root, PerQOS: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.EnsureRoots(); err != nil {
			t.Fatal(err)
		}
		p := testPod(string(uid), v1.ResourceRequirements{})
		parent, err := m.EnsurePod(p)
		if err != nil {
			t.Fatal(err)
		}
		left := exec.Command("sleep", "1000")
		if err := left.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- left.Wait() }()
		t.Cleanup(func() { _ = left.Process.Kill() })
		if err := libcgroups.WriteCgroupProc(filepath.Join(unifiedMount, parent), left.Process.Pid); err != nil {
			t.Fatal(err)
		}
		there := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		there.Env = append(os.Environ(), foreignRoot+"="+root)
		// A process group of its own, so that a signal to the group hits no other process.
		there.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID,
			Setpgid:    true,
			Pdeathsig:  syscall.SIGKILL,
		}
		out, err := there.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("in another PID namespace: %v\n%s", err, out)
		}
		if err := <-done; err == nil || err.Error() != "signal: killed" {
			t.Errorf("the process that was left ended with %v", err)
		}
		if m.anywhere(parent) {
			t.Errorf("%s is still there", parent)
		}
	})
}

// TestKillWithoutTheKernelsHelp: an older kernel has no cgroup.kill.
func TestKillWithoutTheKernelsHelp(t *testing.T) {
	mine := exec.Command("sleep", "1000")
	if err := mine.Start(); err != nil {
		t.Fatal(err)
	}
	m := &Manager{unified: true, mounts: map[string]string{"": t.TempDir()}}
	err := m.kill("/pod", []int{0, mine.Process.Pid})
	if err == nil || !strings.Contains(err.Error(), "/pod") || !strings.Contains(err.Error(), "PID namespace") {
		t.Errorf("%v", err)
	}
	if err := mine.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process that can be seen ended with %v", err)
	}
}

package machine

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPin(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	if err := Pin(cmd.Process.Pid, 0); err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(cmd.Process.Pid, &set); err != nil {
		t.Fatal(err)
	}
	if set.Count() != 1 || !set.IsSet(0) {
		t.Errorf("it may run on %d processors, want the first only", set.Count())
	}
	if own, err := Processors(); err != nil || len(own) == 0 || own[0] < 0 {
		t.Errorf("this process may run on %v: %v", own, err)
	}
	if err := Pin(cmd.Process.Pid); err == nil {
		t.Error("a process was pinned to no processor")
	}
	if err := Pin(1<<30, 0); err == nil {
		t.Error("a process that there is not was pinned")
	}
}

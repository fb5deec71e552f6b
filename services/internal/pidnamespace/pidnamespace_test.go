package pidnamespace

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

func TestSame(t *testing.T) {
	if own, err := IsOwn(); own || err != nil {
		t.Errorf("IsOwn() = %v, %v, want false", own, err)
	}
}

func TestContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it makes a PID namespace")
	}
	if proctest.IsAgain() {
		if own, err := IsOwn(); !own || err != nil {
			t.Errorf("IsOwn() = %v, %v, want true", own, err)
		}
		return
	}
	again := exec.Command("/proc/self/exe")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	proctest.Again(t, again)
}

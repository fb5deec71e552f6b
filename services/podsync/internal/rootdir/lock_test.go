package rootdir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhoHoldsTheLockIsTold(t *testing.T) {
	root := Dir(t.TempDir())
	unlock, err := root.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := root.Lock(); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("another podsync works there (pid %d)", os.Getpid())) {
		t.Errorf("the second one gets %v", err)
	}

	// One that was killed, and of which the kernel holds a thread.
	file, err := os.Open(root.state())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	proc := t.TempDir()
	locks := fmt.Sprintf("1: POSIX  ADVISORY  READ 5 %[1]s 0 EOF\n2: FLOCK  ADVISORY  WRITE 6 fd:01:1 0 EOF\n3: FLOCK "+
		" ADVISORY  WRITE 7 %[1]s 0 EOF\n",
		fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
	for name, text := range map[string]string{"locks": locks, "7/stat": "7 (micro) let) Z 1"} {
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, dead := holder(proc, file); !dead || !strings.HasPrefix(got, " (pid 7, which was killed and does not end") {
		t.Errorf("a dead one is reported as %q", got)
	}
	if got, dead := holder(t.TempDir(), file); got != "" || dead {
		t.Errorf("without /proc it is %q, dead: %v", got, dead)
	}

	// It has one successor, and a second one only when that has gone too.
	successor, err := root.lock(proc)
	if err != nil {
		t.Fatalf("the successor of a dead one: %v", err)
	}
	for what, proc := range map[string]string{"beside both": proc, "without /proc": t.TempDir()} {
		if _, err := root.lock(proc); err == nil {
			t.Errorf("a second successor, %s", what)
		}
	}
	unlock() // the dead one has ended
	if _, err := root.Lock(); err == nil {
		t.Error("one beside the successor")
	}
	successor()
	again, err := root.Lock()
	if err != nil {
		t.Fatalf("after the end of all: %v", err)
	}
	again()
}

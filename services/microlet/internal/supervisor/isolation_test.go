package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// TestNetworkOfAProcess: one that speaks over unix sockets alone shares its network with no other process.
func TestNetworkOfAProcess(t *testing.T) {
	network := func(pid int) string {
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	before := network(os.Getpid())
	var seen []string
	for _, spec := range []Spec{
		{Name: "open"}, {Name: "closed", PrivateNetwork: true},
		{Name: "bound", PrivateNetwork: true, UID: 47102, GID: 47100, NoNewPrivileges: true},
	} {
		s, _, _ := supervise(t, spec, "good", Options{})
		until(t, "ready", func() bool { return state(s).State == Ready })
		got := network(state(s).PID)
		if spec.PrivateNetwork == (got == before) || spec.PrivateNetwork && slices.Contains(seen, got) {
			t.Errorf("the network of %s is %s, that of the supervisor %s, and those of the others are %v", spec.Name, got,
				before, seen)
		}
		seen = append(seen, got)
		devices, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", state(s).PID))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(devices), ":"); spec.PrivateNetwork && n != 1 {
			t.Errorf("%s has %d network devices:\n%s", spec.Name, n, devices)
		}
	}
	if now := network(os.Getpid()); now != before {
		t.Errorf("the supervisor's own network went from %s to %s", before, now)
	}
}

// terminalOf returns the session of a process, and the number of its controlling terminal, 0 for none.
func terminalOf(t *testing.T, pid int) (session, terminal string) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest) // from the state, which is the third
	return fields[3], fields[4]
}

// TestProcessesHaveNoTerminal although the supervisor was started from one: what is typed there is for root's shell.
func TestProcessesHaveNoTerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	number, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	shell, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), behaviourEnv+"=supervisor", "NOTIFY_DIR="+notifyDir(t))
	cmd.Stdin = shell
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal("no ready child: ", err)
	}
	if _, has := terminalOf(t, cmd.Process.Pid); has == "0" {
		t.Fatal("the supervisor has no terminal: the test proves nothing")
	}
	session, has := terminalOf(t, child)
	if session != strconv.Itoa(child) || has != "0" {
		t.Errorf("process %d is of session %s with the terminal %s, want a session of its own with none", child, session, has)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	until(t, "the child's end", func() bool { return !proctest.Alive(child) })
}

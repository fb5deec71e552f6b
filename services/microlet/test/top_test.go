package test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// terminal is a pseudo-terminal. What a program writes to its far end is kept.
type terminal struct {
	near, far *os.File

	mu    sync.Mutex
	shown strings.Builder
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	if err := unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	far, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	if err := unix.IoctlSetWinsize(int(far.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 120}); err != nil {
		t.Fatal(err)
	}
	term := &terminal{near: near, far: far}
	go func() { // it ends when the test closes near
		buffer := make([]byte, 4096)
		for {
			n, err := near.Read(buffer)
			term.mu.Lock()
			term.shown.Write(buffer[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return term
}

func (t *terminal) has(all ...string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range all {
		if !strings.Contains(t.shown.String(), s) {
			return false
		}
	}
	return true
}

// An operator sees the services on a terminal with their load, and q gives the terminal back.
func TestTop(t *testing.T) {
	a := newAgent(t)
	a.start()
	a.await("all ready", ready)
	term := newTerminal(t)
	cmd := proctest.Command(t.Context(), "top", "--runtime-dir="+a.runtimeDir())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.far, term.far, term.far
	cmd.Env = append(cmd.Env, "TERM=xterm")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A percentage needs two looks.
	proctest.Await(t, patience, "the screen", func() bool {
		return term.has("SERVICE", "nodestatus", "relists", "runtime calls that wait", "NAMESPACE", "%")
	})
	if _, err := term.near.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("q does not end it")
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-ended
	}
	if !term.has("\x1b[?1049h", "\x1b[?1049l") {
		t.Error("the terminal's own screen does not come back")
	}
	if out, err := a.command("top"); err == nil || !strings.Contains(out, "top needs a terminal") {
		t.Errorf("without a terminal: %v\n%s", err, out)
	}
	a.stop()
}

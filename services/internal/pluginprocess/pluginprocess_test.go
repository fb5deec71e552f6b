package pluginprocess

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// asEnv says to the test's binary what to be.
const asEnv = "MICROLET_TEST_AS"

const (
	leaves         = "plugin that leaves a process behind"
	leavesSession  = "plugin that leaves a process behind, in a session of its own"
	leavesAndStays = "plugin that starts a process and stays"
	stays          = "plugin that stays"
	service        = "service with a plugin that stays"
)

// limit bounds a wait on a real process, on a machine that may be busy.
const limit = time.Minute

// The main thread is the only one that does not end with a goroutine, so no test gets it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	switch os.Getenv(asEnv) {
	case "":
		os.Exit(m.Run())
	case leaves:
		leave(false)
	case leavesSession:
		leave(true)
	case leavesAndStays:
		leave(false)
		_ = syscall.Pause()
	case stays:
		_ = syscall.Pause()
	case service:
		p := New("/proc/self/exe").With(as(stays))
		if err := p.Start(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(p.ID())
		_ = syscall.Pause()
	}
}

// leave starts a process that has this one's output, and writes its number.
func leave(setsid bool) {
	sleep := exec.Command("/bin/sleep", "1000")
	sleep.Stdout, sleep.Stderr = os.Stdout, os.Stderr
	sleep.SysProcAttr = &syscall.SysProcAttr{Setsid: setsid}
	if err := sleep.Start(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sleep.Process.Pid)
}

func as(what string) *exec.Cmd { return &exec.Cmd{Env: []string{asEnv + "=" + what}} }

func start(t *testing.T, what string) *Process {
	t.Helper()
	p := New("/proc/self/exe").With(as(what))
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.end(t) })
	return p
}

// end kills it and reads its output, as go-plugin does.
func (p *Process) end(t *testing.T) (stdout string, err error) {
	t.Helper()
	if ended(p) {
		return "", nil
	}
	return p.rest(t, func() { _ = p.Kill(t.Context()) })
}

func ended(p *Process) bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *Process) rest(t *testing.T, end func()) (stdout string, err error) {
	t.Helper()
	end()
	data, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Errorf("its output: %v", err)
	}
	if _, err := io.ReadAll(p.Stderr()); err != nil {
		t.Errorf("its standard error: %v", err)
	}
	err = p.Wait(t.Context())
	if !ended(p) || p.Lingers() {
		t.Error("it has not ended")
	}
	return string(data), err
}

func number(t *testing.T, line string) int {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) }) // it may have ended
	return pid
}

func gone(t *testing.T, pid int) {
	t.Helper()
	proctest.Await(t, limit, "the end of what was left behind", func() bool { return !proctest.Alive(pid) })
}

func TestWhatAPluginLeavesBehindEndsWithIt(t *testing.T) {
	t.Parallel()
	p := start(t, leaves)
	out, err := p.rest(t, func() {})
	if err != nil {
		t.Errorf("it ended with %v", err)
	}
	gone(t, number(t, out))
}

// TestASessionOfItsOwn is out of reach, but blocks nothing.
func TestASessionOfItsOwn(t *testing.T) {
	t.Parallel()
	p := start(t, leavesSession)
	out, err := p.rest(t, func() {})
	if err != nil {
		t.Errorf("it ended with %v", err)
	}
	if pid := number(t, out); !proctest.Alive(pid) {
		t.Error("what was left behind has ended, so this test shows nothing")
	}
}

func TestAPluginThatStaysIsKilled(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Process){
		"killed":     func(p *Process) { _ = p.Kill(t.Context()) },
		"not asked":  func(p *Process) { p.End(func() { <-p.ended }) },
		"twice over": func(p *Process) { _, _ = p.Kill(t.Context()), p.Kill(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, leavesAndStays)
			line, err := bufio.NewReader(p.Stdout()).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if ended(p) {
				t.Fatal("it has not stayed")
			}
			if _, err := p.rest(t, func() { end(p) }); err == nil || err.Error() != "signal: killed" {
				t.Errorf("it ended with %v", err)
			}
			gone(t, number(t, line))
		})
	}
}

// TestAPluginOutlivesTheThreadThatAskedForIt, but not its service.
func TestAPluginOutlivesTheThreadThatAskedForIt(t *testing.T) {
	t.Parallel()
	p := New("/proc/self/exe").With(as(stays))
	threads := make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := p.Start(t.Context()); err != nil {
			t.Error(err)
		}
		threads <- unix.Gettid()
	}()
	thread := <-threads
	defer func() { _, _ = p.end(t) }()
	proctest.Await(t, limit, "the thread's end", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread))
		return err != nil
	})
	// The kernel sends the signal while the thread ends, so it is there by now or never comes.
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	const none = "0000000000000000"
	if text := string(status); strings.Contains(text, "\nState:\tZ") || !strings.Contains(text, "\nSigPnd:\t"+none) ||
		!strings.Contains(text, "\nShdPnd:\t"+none) {
		t.Errorf("it ends with the thread: %s", text)
	}
}

func TestAPluginEndsWithItsService(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env, cmd.Stderr = as(service).Env, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	gone(t, number(t, line))
}

// TestOneThatTheKernelKeeps uses a process that has ended and that its parent has not waited for.
func TestOneThatTheKernelKeeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		p := New("/nonexistent")
		p.stdout, p.stderr = output{r}, output{r}
		close(p.killed)
		if err := p.Wait(t.Context()); err == nil || !p.Lingers() {
			t.Errorf("after %v: %v, lingers %t", endTime, err, p.Lingers())
		}
		if p.reaped = true; p.Lingers() {
			t.Error("it lingers after its end")
		}
	})
}

func TestAProgramThatDoesNotStart(t *testing.T) {
	t.Parallel()
	p := New("/nonexistent").With(as(""))
	if err := p.Start(t.Context()); err == nil {
		t.Fatal("it has started")
	}
	if err := p.Kill(t.Context()); err != nil || p.Lingers() || p.ID() != "" {
		t.Errorf("%v, lingers %t, ID %q", err, p.Lingers(), p.ID())
	}
}

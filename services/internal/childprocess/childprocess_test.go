package childprocess

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// echo is a child that answers each line.
var echo = &Program{Name: "microlet-test-child", Env: []string{"ONLY=this"}, Main: answer}

func TestMain(m *testing.M) {
	if echo.Run() {
		return
	}
	if os.Getenv(asService) != "" {
		os.Exit(serve())
	}
	os.Exit(m.Run())
}

// asService has the test's binary be a service with a child that has started a program, and prints the program's PID.
const asService = "MICROLET_TEST_SERVICE"

func serve() int {
	c, err := echo.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := io.WriteString(c.Conn, "start\n"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = io.Copy(os.Stdout, c.Conn)
	return 0
}

func answer(socket *os.File) error {
	for lines := bufio.NewScanner(socket); lines.Scan(); {
		switch lines.Text() {
		case "descriptors":
			entries, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				return err
			}
			var there []string
			for _, e := range entries {
				target, err := os.Readlink("/proc/self/fd/" + e.Name())
				if err == nil {
					there = append(there, e.Name()+"="+target)
				}
			}
			_, _ = fmt.Fprintln(socket, strings.Join(there, " "))
		case "environment":
			_, _ = fmt.Fprintln(socket, strings.Join(os.Environ(), " "))
		case "start":
			sleep := exec.Command("/bin/sleep", "1000")
			if err := sleep.Start(); err != nil {
				return err
			}
			_, _ = fmt.Fprintln(socket, sleep.Process.Pid)
		case "sleep":
			time.Sleep(time.Hour)
		}
	}
	return nil
}

func start(t *testing.T) *Process {
	t.Helper()
	c, err := echo.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Kill()
		_ = c.Conn.Close()
		ends(t, c)
	})
	return c
}

func ends(t *testing.T, c *Process) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("the child has not ended")
	}
}

func ask(t *testing.T, c *Process, what string) string {
	t.Helper()
	if _, err := fmt.Fprintln(c.Conn, what); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c.Conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func TestAChildInheritsNothing(t *testing.T) {
	left, err := os.CreateTemp(t.TempDir(), "inherited")
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	// A descriptor that some library has forgotten to close on exec.
	if _, err := unix.FcntlInt(left.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("cat", "/proc/self/fd/"+strconv.Itoa(int(left.Fd())))
	if err := sleep.Run(); err != nil {
		t.Fatalf("the descriptor is not inheritable, so this test shows nothing: %v", err)
	}
	c := start(t)
	if got := ask(t, c, "descriptors"); strings.Contains(got, left.Name()) || !strings.Contains(got, "0=socket:") {
		t.Errorf("the child has %s", got)
	}
	if got := ask(t, c, "environment"); got != "ONLY=this" {
		t.Errorf("the child's environment is %q", got)
	}
}

func TestAChildEndsWithItsSocket(t *testing.T) {
	c := start(t)
	_ = c.Conn.Close()
	ends(t, c)
}

func TestAChildIsKilled(t *testing.T) {
	c := start(t)
	if _, err := io.WriteString(c.Conn, "sleep\n"); err != nil {
		t.Fatal(err)
	}
	c.Kill()
	ends(t, c)
}

// TestWhatAChildHasStartedIsKilledWithIt: a mount(8) that waits for a server must not mount later.
func TestWhatAChildHasStartedIsKilledWithIt(t *testing.T) {
	c := start(t)
	pid, err := strconv.Atoi(ask(t, c, "start"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Fatalf("what the child has started does not run: %v", err)
	}
	c.Kill()
	ends(t, c)
	proctest.Await(t, time.Minute, "its end", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// TestWhatAChildHasStartedEndsWithTheService: the service is killed, and cannot end any process itself.
func TestWhatAChildHasStartedEndsWithTheService(t *testing.T) {
	service := exec.CommandContext(t.Context(), "/proc/self/exe")
	service.Env = append(os.Environ(), asService+"=yes")
	service.Stderr = os.Stderr
	out, err := service.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := service.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = service.Wait() // it was killed
	proctest.Await(t, time.Minute, "the end of what its child has started", func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(line) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func TestNoChildOfAProgramThatDoesNotRunIt(t *testing.T) {
	other := &Program{Name: "other"}
	if c, err := other.Start(); err == nil {
		c.Kill()
		t.Fatal("the program was started a second time, as itself")
	}
}

// Package logindtest plays systemd-logind on a private D-Bus for the tests of what speaks to it.
//
// The bus is a real dbus-daemon. The manager does with delay inhibitors what logind does: a shutdown goes on when the
// last one is closed, and none is given while one is under way.
package logindtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

const (
	path      = dbus.ObjectPath("/org/freedesktop/login1")
	manager   = "org.freedesktop.login1.Manager"
	initPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	initUnits = "org.freedesktop.systemd1.Manager"
)

// DefaultDelay is logind's InhibitDelayMaxSec by default.
const DefaultDelay = 5 * time.Second

// Logind is the fake. Its methods may be called from any goroutine.
type Logind struct {
	// Conf is the drop-in that a reload reads InhibitDelayMaxSec from.
	Conf string

	address    string
	bus        *dbus.Conn
	properties *prop.Properties

	mu         sync.Mutex
	inhibitors int
	taken      int
	preparing  bool
}

// Start starts a bus with logind on it, sets DBUS_SYSTEM_BUS_ADDRESS for this process, and ends both with the test. The
// policies are files with rules of the bus.
func Start(t testing.TB, policies ...string) *Logind {
	t.Helper()
	dir := t.TempDir()
	// Other users reach the socket too.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	l := &Logind{Conf: filepath.Join(dir, "logind.conf.d", "99-kubelet.conf"), address: daemon(t, dir, policies)}
	if tt, ok := t.(*testing.T); ok {
		tt.Setenv("DBUS_SYSTEM_BUS_ADDRESS", l.address)
	}
	bus, err := dbus.Connect(l.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close() })
	l.bus = bus
	l.properties, err = prop.Export(bus, path, prop.Map{manager: {
		"PreparingForShutdown": {Value: false, Emit: prop.EmitFalse},
		"InhibitDelayMaxUSec":  {Value: uint64(DefaultDelay.Microseconds()), Emit: prop.EmitFalse},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, export := range []error{
		bus.ExportMethodTable(map[string]any{"Inhibit": l.inhibit}, path, manager),
		bus.ExportMethodTable(map[string]any{"KillUnit": l.killUnit}, initPath, initUnits),
	} {
		if export != nil {
			t.Fatal(export)
		}
	}
	for _, name := range []string{"org.freedesktop.login1", "org.freedesktop.systemd1"} {
		reply, err := bus.RequestName(name, dbus.NameFlagDoNotQueue)
		if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
			t.Fatalf("name %s: %v, %v", name, reply, err)
		}
	}
	return l
}

// Address of the bus.
func (l *Logind) Address() string { return l.address }

const configuration = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path=%s</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
    <allow send_type="signal"/>
  </policy>
  %s
</busconfig>
`

// daemon starts a dbus-daemon with a socket that any user may reach.
func daemon(t testing.TB, dir string, policies []string) string {
	t.Helper()
	var includes strings.Builder
	for _, policy := range policies {
		file, err := filepath.Abs(policy)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(&includes, "<include>%s</include>", file)
	}
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Fatal("dbus-daemon is not installed: apt-get install dbus-daemon")
	}
	config := filepath.Join(dir, "bus.conf")
	text := fmt.Sprintf(configuration, filepath.Join(dir, "bus"), &includes)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config-file="+config, "--nofork", "--nopidfile", "--print-address=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the address of the bus: %v", err)
	}
	return strings.TrimSpace(address)
}

// Begin begins a shutdown, and sends the signal to all listeners. It returns at once.
func (l *Logind) Begin(t testing.TB) { l.prepare(t, true) }

// Cancel ends a shutdown that did not happen.
func (l *Logind) Cancel(t testing.TB) { l.prepare(t, false) }

func (l *Logind) prepare(t testing.TB, begins bool) {
	t.Helper()
	l.mu.Lock()
	l.preparing = begins
	l.mu.Unlock()
	l.properties.SetMust(manager, "PreparingForShutdown", begins)
	if err := l.bus.Emit(path, manager+".PrepareForShutdown", begins); err != nil {
		t.Fatal(err)
	}
}

// Inhibitors is how many are held.
func (l *Logind) Inhibitors() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inhibitors
}

// Taken is how many inhibitors were ever taken.
func (l *Logind) Taken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken
}

// Delay is InhibitDelayMaxSec.
func (l *Logind) Delay() time.Duration {
	µs, _ := l.properties.GetMust(manager, "InhibitDelayMaxUSec").(uint64)
	return time.Duration(µs) * time.Microsecond
}

// SetDelay sets InhibitDelayMaxSec.
func (l *Logind) SetDelay(d time.Duration) {
	l.properties.SetMust(manager, "InhibitDelayMaxUSec", uint64(d.Microseconds()))
}

func (l *Logind) inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{what + " " + mode})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.preparing {
		return 0, dbus.NewError("org.freedesktop.login1.OperationInProgress",
			[]any{"The operation inhibition has been requested for is already running"})
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.inhibitors++
	l.taken++
	go func() { // ends when the last copy of the other end is closed
		_, _ = ours.Read(make([]byte, 1))
		_ = ours.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.inhibitors--
	}()
	// The answer carries a copy; it is sent a little later.
	fd := dbus.UnixFD(theirs.Fd())
	time.AfterFunc(200*time.Millisecond, func() { _ = theirs.Close() })
	return fd, nil
}

// killUnit is systemd's: a SIGHUP has logind read its configuration.
func (l *Logind) killUnit(unit, who string, signal int32) *dbus.Error {
	if unit != "systemd-logind.service" || who != "all" || signal != 1 {
		return dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{unit, who, signal})
	}
	text, err := os.ReadFile(l.Conf)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "InhibitDelayMaxSec="); ok {
			if d, err := time.ParseDuration(value + "s"); err == nil {
				l.SetDelay(d)
			}
		}
	}
	return nil
}

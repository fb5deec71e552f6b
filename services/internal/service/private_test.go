package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

func TestMain(m *testing.M) {
	proctest.Program(func() {
		peertest.Ready()
		switch os.Args[1] {
		case "service":
			d := Definition{
				Role: role.PLEG,
				Run: func(context.Context, Config, *kubeletconfig.Config) error {
					_, err := os.ReadDir("/proc/self/fd") // what the service itself needs
					fmt.Println("runs", err)
					select {}
				},
			}
			cmd := d.Command()
			cmd.SetArgs([]string{})
			fmt.Println(cmd.Execute())
		case "starter":
			passOn()
		case "look":
			for _, name := range []string{"root", "cwd", "fd", "environ", "mem"} {
				f, err := os.Open(filepath.Join("/proc", os.Args[2], name))
				if err == nil {
					_, err = f.Read(make([]byte, 1))
					if err == nil || !errors.Is(err, fs.ErrPermission) {
						fmt.Print(name, " ")
					}
				}
			}
			fmt.Println("end")
		case "failing start":
			failingStart()
		case "replica":
			logAsReplica(os.Args[2], os.Args[3])
		case "wait":
			fmt.Println("waits")
			select {}
		}
	})
	os.Exit(m.Run())
}

// passOn is a service that was started with a descriptor which it would pass on. It starts a program, and prints what
// that program has of it.
func passOn() {
	file, err := os.CreateTemp("", "of-the-starter")
	if err == nil {
		_, err = unix.FcntlInt(file.Fd(), unix.F_SETFD, 0)
	}
	if err == nil {
		err = os.Remove(file.Name())
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	has := func() string {
		out, _ := exec.Command("readlink", fmt.Sprintf("/proc/self/fd/%d", file.Fd())).Output()
		if strings.Contains(string(out), "of-the-starter") {
			return "passed on"
		}
		return "kept"
	}
	d := Definition{Role: role.PLEG, Run: func(context.Context, Config, *kubeletconfig.Config) error {
		fmt.Println(has())
		return nil
	}}
	fmt.Println(has())
	cmd := d.Command()
	cmd.SetArgs([]string{})
	if err := cmd.Execute(); err != nil {
		fmt.Println(err)
	}
}

// TestDescriptorsOfTheStarterArePassedToNoChild: what a shell, or a program of root's, has left open when it started a
// service is not for the programs that the service starts.
func TestDescriptorsOfTheStarterArePassedToNoChild(t *testing.T) {
	service := peertest.Start(t, peertest.Options{}, "starter")
	if line := service.Line(t); line != "passed on" {
		t.Fatalf("before the service has begun, the descriptor is %s: the test proves nothing", line)
	}
	if line := service.Line(t); line != "kept" {
		t.Errorf("the descriptor is %s", line)
	}
}

// Another process of a service's user gets nothing of the service's through /proc; root does.
func TestServicesArePrivate(t *testing.T) {
	pleg, err := role.Get(role.PLEG)
	if err != nil {
		t.Fatal(err)
	}
	service := peertest.Start(t, peertest.Options{UID: pleg.UID}, "service")
	if line := service.Line(t); line != "runs <nil>" {
		t.Fatal(line)
	}
	look := func(uid int, pid int) string {
		return peertest.Start(t, peertest.Options{UID: uid}, "look", strconv.Itoa(pid)).Line(t)
	}
	if got := look(pleg.UID, service.PID); got != "end" {
		t.Errorf("its own user opens of the service: %s", got)
	}
	if got := look(0, service.PID); got == "end" {
		t.Error("root opens nothing of the service")
	}
	// The positive control: of an ordinary process of the same user much can be opened.
	other := peertest.Start(t, peertest.Options{UID: pleg.UID}, "wait")
	other.Line(t)
	if got := look(pleg.UID, other.PID); got == "end" {
		t.Error("nothing can be opened of any process: the test proves nothing")
	}
}

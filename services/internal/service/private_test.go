package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

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

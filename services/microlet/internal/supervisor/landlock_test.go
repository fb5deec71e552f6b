package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// changes are what a process can do in a folder that it may write to. Each works once.
var changes = map[string]func(dir string) error{
	"file":     func(dir string) error { return os.WriteFile(filepath.Join(dir, "new"), []byte("x"), 0o600) },
	"existing": func(dir string) error { return os.WriteFile(filepath.Join(dir, "old"), []byte("x"), 0) },
	"folder":   func(dir string) error { return os.Mkdir(filepath.Join(dir, "folder"), 0o700) },
	"link":     func(dir string) error { return os.Symlink("old", filepath.Join(dir, "link")) },
	"fifo":     func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600) },
	"removal":  func(dir string) error { return os.Remove(filepath.Join(dir, "garbage")) },
	"move": func(dir string) error {
		return os.Rename(filepath.Join(dir, "a", "moved"), filepath.Join(dir, "b", "moved"))
	},
	"socket": func(dir string) error {
		l, err := net.Listen("unix", filepath.Join(dir, "socket"))
		if err != nil {
			return err
		}
		return l.Close()
	},
}

// change says what a process can change in the folders of its environment.
func change(ctx context.Context, n *run.Notifier) error {
	var done []string
	for _, dir := range filepath.SplitList(os.Getenv("FOLDERS")) {
		for what, f := range changes {
			if err := f(dir); err == nil {
				done = append(done, filepath.Base(dir)+" "+what)
			} else if !errors.Is(err, os.ErrPermission) {
				return err
			}
		}
	}
	if err := os.WriteFile("/dev/null", []byte("x"), 0); err != nil {
		return err
	}
	if err := n.Notify(run.NotifyReady, run.NotifyStatus+strings.Join(done, ", ")); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// TestWhereAProcessWrites: of the folders that all users may write to, a process writes to its own folders.
func TestWhereAProcessWrites(t *testing.T) {
	for _, confined := range []bool{true, false} {
		t.Run(fmt.Sprintf("confined %v", confined), func(t *testing.T) {
			var folders []string
			for _, name := range []string{"own", "other"} {
				dir := filepath.Join(proctest.TempDir(t, 0o755), name)
				for _, made := range []string{"", "a", "b"} {
					if err := errors.Join(os.Mkdir(filepath.Join(dir, made), 0o777),
						os.Chmod(filepath.Join(dir, made), 0o777)); err != nil {
						t.Fatal(err)
					}
				}
				for _, made := range []string{"old", "garbage", "a/moved"} {
					if err := errors.Join(os.WriteFile(filepath.Join(dir, made), nil, 0o666),
						os.Chmod(filepath.Join(dir, made), 0o666)); err != nil {
						t.Fatal(err)
					}
				}
				folders = append(folders, dir)
			}
			spec := Spec{
				Name: "pleg", UID: 47102, GID: 47100, NoNewPrivileges: true,
				Env: []string{"FOLDERS=" + strings.Join(folders, ":")},
			}
			want := map[string]bool{"own": true, "other": true}
			if confined {
				spec.Writable, want["other"] = folders[:1], false
			}
			s, _, _ := supervise(t, spec, "change", Options{})
			until(t, "ready", func() bool { return state(s).State == Ready })
			got := state(s).Status
			for folder, may := range want {
				for what := range changes {
					if strings.Contains(got, folder+" "+what) != may {
						t.Errorf("%s in the folder %s: want %v of %q", what, folder, may, got)
					}
				}
			}
		})
	}
}

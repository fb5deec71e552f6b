package scene

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// beforeVariable names the executable of another build of microlet.
const beforeVariable = "MICROLET_BEFORE"

// ExecutableBefore is another build of microlet, such as that of an earlier commit, which this one is compared with or
// comes after: make <target> BEFORE=<path>.
func ExecutableBefore(t *testing.T) string {
	t.Helper()
	path := os.Getenv(beforeVariable)
	if path == "" {
		t.Fatalf("%s is empty: set it to the executable of another build of microlet", beforeVariable)
	}
	return path
}

// Installation is the file that the node agent is started from. It is replaced under the processes that run.
type Installation struct {
	node *Node
	path string
}

// Install has the node run a copy of an executable of microlet, until the test ends.
func (n *Node) Install(t *testing.T, executable string) *Installation {
	t.Helper()
	dir, err := os.MkdirTemp("", "microlet-installed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // services of other users run from there
		t.Fatal(err)
	}
	i := &Installation{n, filepath.Join(dir, "microlet")}
	i.Replace(t, executable)
	use := func(ctx context.Context, path string) {
		t.Helper()
		if err := n.SwitchAgent(ctx, rig.AgentMicrolet, path, Current.Args...); err != nil {
			t.Fatal(err)
		}
		if err := n.WaitNodeReady(ctx); err != nil {
			t.Fatal(err)
		}
		Await(t, Patience, "all services ready", func() error { return n.Healthy(ctx) })
	}
	use(t.Context(), i.path)
	t.Cleanup(func() { use(context.Background(), n.Executable) })
	return i
}

// Replace puts a copy of an executable in the place of the file, as a package manager does.
func (i *Installation) Replace(t *testing.T, executable string) {
	t.Helper()
	from, err := os.Open(executable)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	next, err := os.OpenFile(i.path+".next", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(next, from)
	if err := errors.Join(err, next.Close(), os.Rename(next.Name(), i.path)); err != nil {
		t.Fatal(err)
	}
}

// Runs judges that a service runs the newest file.
func (i *Installation) Runs(t *testing.T, r role.Role) {
	t.Helper()
	is, err := os.Stat(fmt.Sprintf("/proc/%d/exe", i.node.MustPID(t, r)))
	if err != nil {
		t.Fatal(err)
	}
	newest, err := os.Stat(i.path)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(is, newest) {
		t.Errorf("%s runs a binary that was replaced", r)
	}
}

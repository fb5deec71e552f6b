package up

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

func TestPrepare(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: up gives folders to other users")
	}
	dir := openDir(t)
	release, err := prepare(t.Context(), dir, Processes)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		mode     fs.FileMode
		uid, gid uint32
	}{
		"":                       {0o750, 0, role.GroupNode},
		"sock":                   {0o750, 0, role.GroupNode},
		"sock/up":                {0o750, 0, role.GroupNode},
		"sock/podsync":           {0o750, 0, role.GroupNode},
		"sock/bus":               {0o750, 47101, role.GroupNode},
		"sock/pleg":              {0o750, 47102, role.GroupNode},
		"sock/stats":             {0o750, 47106, role.GroupNode},
		"config":                 {0o750, 0, role.GroupNode},
		"notify":                 {0o750, 0, role.GroupNode},
		"bus":                    {0o700, 47101, role.GroupNode},
		"credentials":            {0o750, 0, role.GroupNode},
		"credentials/nodestatus": {0o750, 0, role.GroupNode},
		"credentials/nodeapi":    {0o750, 0, role.GroupNode},
		"nkeys/pleg.seed":        {0o600, 47102, role.GroupNode},
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if got := info.Mode() & (fs.ModePerm | fs.ModeSticky); !ok || got != want.mode || st.Uid != want.uid ||
			st.Gid != want.gid {
			t.Errorf("%q is %v %d:%d, want %v %d:%d", name, got, st.Uid, st.Gid, want.mode, want.uid, want.gid)
		}
	}
	seed, err := os.ReadFile(filepath.Join(dir, "nkeys/pleg.seed"))
	if err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	// One of two replicas has died, without removing its socket.
	dead, living := filepath.Join(dir, "sock/prober/metrics.1.sock"), filepath.Join(dir, "sock/prober/metrics.2.sock")
	for _, path := range []string{dead, living} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if path == dead {
			l.SetUnlinkOnClose(false)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil { // whatever it was, it is closed at the next start
		t.Fatal(err)
	}
	release, err = prepare(t.Context(), dir, Processes)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = release() }()
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the folder is %v, %v", info.Mode(), err)
	}
	if _, err := os.Lstat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dead replica's socket is left: %v", err)
	}
	if _, err := os.Lstat(living); err != nil {
		t.Errorf("the living replica's socket is gone: %v", err)
	}
	if again, err := os.ReadFile(filepath.Join(dir, "nkeys/pleg.seed")); err != nil || string(again) != string(seed) {
		t.Errorf("the key changed at the second start: %v", err)
	}
}

// preparedDir prepares a runtime folder as a start of up does, and then lets it go.
func preparedDir(t *testing.T, dir, placement string) {
	t.Helper()
	release, err := prepare(t.Context(), dir, placement)
	if err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
}

// openDir is a folder that all users can reach.
func openDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(proctest.TempDir(t, 0o755), "run")
}

// asUser runs a shell's command as a user of the node's group.
func asUser(t *testing.T, uid int, script string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: role.GroupNode}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestNoServiceTakesAnothersName plays a service that puts something in the way of others' sockets.
func TestNoServiceTakesAnothersName(t *testing.T) {
	dir := openDir(t)
	preparedDir(t, dir, Processes)
	cfg := service.Config{RuntimeDir: dir}
	for _, r := range role.All() {
		for _, path := range []string{cfg.Socket(r), cfg.MetricsSocket(r), service.ReplicaSocket(cfg.Socket(r), "1"),
			cfg.SocketDir(r) + "x"} {
			err := asUser(t, 47104, ": > "+path)
			own := r == role.Prober && filepath.Dir(path) == cfg.SocketDir(r)
			if (err == nil) != own {
				t.Errorf("the prober creates %s: %v", path, err)
			}
		}
	}
}

// TestOlderRuntimeFolder starts from what an older version left, where services shared folders and one of them was
// not well-behaved.
func TestOlderRuntimeFolder(t *testing.T) {
	dir := openDir(t)
	for _, sub := range []string{"sock", "metrics"} {
		path := filepath.Join(dir, sub)
		if err := errors.Join(os.MkdirAll(path, 0o750), os.Chown(path, 0, role.GroupNode),
			os.Chmod(path, 0o770|fs.ModeSticky), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	precious := filepath.Join(filepath.Dir(dir), "precious")
	if err := os.WriteFile(precious, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"a dead service's socket":        "touch sock/pleg.sock metrics/pleg.sock metrics/prober.1.sock",
		"a file in the way of a folder":  "touch sock/pleg",
		"another's folder":               "mkdir -m 0777 sock/bus && touch sock/bus/grpc.sock",
		"a link out":                     "ln -s " + filepath.Dir(dir) + " sock/nodeapi",
		"a link in place of a socket":    "ln -s " + precious + " sock/up.sock",
		"a FIFO in place of a socket":    "mkfifo metrics/up.sock",
		"a folder in place of a socket":  "mkdir -p metrics/nodestatus.sock/below",
		"a link in place of its metrics": "ln -s " + precious + " metrics/bus.sock",
	} {
		if err := asUser(t, 47104, "cd "+dir+" && "+script); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	preparedDir(t, dir, Processes)
	for _, sub := range []string{"metrics", "sock/pleg.sock", "sock/up.sock", "sock/bus/grpc.sock"} {
		if _, err := os.Lstat(filepath.Join(dir, sub)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", sub, err)
		}
	}
	for r, uid := range map[string]uint32{"pleg": 47102, "bus": 47101, "nodeapi": 47108} {
		info, err := os.Lstat(filepath.Join(dir, "sock", r))
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || info.Mode() != fs.ModeDir|0o750 || st.Uid != uid {
			t.Errorf("folder of %s is %v of uid %d", r, info.Mode(), st.Uid)
		}
	}
	if data, err := os.ReadFile(precious); err != nil || string(data) != "kept" {
		t.Errorf("what a link led to is %q, %v", data, err)
	}
}

// TestServiceClogsItsOwnFolder: nothing that a service leaves there keeps root or its successor from starting.
func TestServiceClogsItsOwnFolder(t *testing.T) {
	dir := openDir(t)
	preparedDir(t, dir, Processes)
	if err := asUser(t, 47104, "cd "+dir+"/sock/prober && mkfifo grpc.sock && mkdir -p metrics.sock/below && ln -s / "+
		"grpc.1.sock && touch metrics.3.sock"); err != nil {
		t.Fatal(err)
	}
	preparedDir(t, dir, Processes)
	left, err := os.ReadDir(filepath.Join(dir, "sock/prober"))
	if err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestSocketsOfADeadProcess: it was killed, does not end and listens; its successor finds their names free.
func TestSocketsOfADeadProcess(t *testing.T) {
	dir := openDir(t)
	preparedDir(t, dir, Processes)
	cfg := service.Config{RuntimeDir: dir}
	var paths []string
	for _, replica := range []string{"0", "1", "11"} {
		for _, first := range []string{cfg.Socket(role.Prober), cfg.MetricsSocket(role.Prober)} {
			path := service.ReplicaSocket(first, replica)
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			paths = append(paths, path)
		}
	}
	for i, left := range [][]string{slices.Clone(paths[2:]), slices.Clone(paths[4:])} {
		if err := removeSockets(dir, role.Prober, i); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(cfg.SocketDir(role.Prober))
		if err != nil {
			t.Fatal(err)
		}
		var there []string
		for _, e := range entries {
			there = append(there, filepath.Join(cfg.SocketDir(role.Prober), e.Name()))
		}
		slices.Sort(left)
		if !slices.Equal(there, left) {
			t.Errorf("after those of replica %d there are %q, want %q", i, there, left)
		}
	}
}

// TestPlacementChanges: what one placement made serves the other.
func TestPlacementChanges(t *testing.T) {
	dir := openDir(t)
	for placement, uid := range map[string]int{Processes: 47101, Single: 0} {
		preparedDir(t, dir, placement)
		store := filepath.Join(dir, "bus", "jetstream")
		if err := asUser(t, uid, "mkdir -p "+store+" && touch "+store+"/state"); err != nil {
			t.Fatalf("%s: %v", placement, err)
		}
		preparedDir(t, dir, placement)
		if _, err := os.Lstat(store + "/state"); err != nil {
			t.Errorf("%s: the store is not kept: %v", placement, err)
		}
	}
}

func TestUnreachableRuntimeFolder(t *testing.T) {
	parent := t.TempDir()
	if err := os.Chmod(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "run")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	err := checkReachable(dir)
	if err == nil || !strings.Contains(err.Error(), parent+" (mode 0700)") {
		t.Errorf("error is %v, want one that names %s", err, parent)
	}
}

// TestClogThatAnOlderVersionLeft: where services owned the folders of their copies, one could keep the node from
// starting.
func TestClogThatAnOlderVersionLeft(t *testing.T) {
	dir := openDir(t)
	preparedDir(t, dir, Processes)
	own := filepath.Join(dir, "credentials/nodestatus")
	if err := errors.Join(os.Chown(own, 47103, role.GroupNode), os.Chmod(own, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := asUser(t, 47103, "cd "+own+" && mkfifo kubeconfig && mkdir client.crt && ln -s /etc token"); err != nil {
		t.Fatal(err)
	}
	preparedDir(t, dir, Processes)
	if left, err := os.ReadDir(own); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := asUser(t, 47103, "touch "+own+"/kubeconfig"); err == nil {
		t.Error("nodestatus can still put something in the way of its copies")
	}
}

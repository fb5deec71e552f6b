package up

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/microlet/internal/placement"
)

// nest makes folders of a user in one another.
func nest(t *testing.T, dir string, depth, uid int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := errors.Join(unix.Mkdirat(fd, "d", 0o700), unix.Fchownat(fd, "d", uid, role.GroupNode, 0)); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
}

// fewFiles lets the process have few files open until the test ends.
func fewFiles(t *testing.T) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 200, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
}

// isEmpty demands that nothing is in the folders.
func isEmpty(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 0 {
			t.Errorf("in %s there are %d files, %v", dir, len(left), err)
		}
	}
}

// TestDeepFolders: a service nests folders in its own, or fills it, and root starts all the same, with none of it left.
func TestDeepFolders(t *testing.T) {
	for name, clog := range map[string]func(t *testing.T, dir string) string{
		"sockets": func(t *testing.T, dir string) string {
			nest(t, filepath.Join(dir, "sock/prober"), 400, 47104)
			return filepath.Join(dir, "sock/prober")
		},
		"another's": func(t *testing.T, dir string) string {
			own := filepath.Join(dir, "sock/prober")
			nest(t, own, 400, 47104)
			if err := os.Chown(own, 47102, role.GroupNode); err != nil { // as where another version gave users
				t.Fatal(err)
			}
			return own
		},
		"the bus' store": func(t *testing.T, dir string) string {
			nest(t, filepath.Join(dir, "bus"), 5000, 47101)
			return filepath.Join(dir, "bus")
		},
		"an older version's": func(t *testing.T, dir string) string {
			metrics := filepath.Join(dir, "metrics")
			if err := errors.Join(os.Mkdir(metrics, 0o750), os.Chown(metrics, 0, role.GroupNode)); err != nil {
				t.Fatal(err)
			}
			nest(t, metrics, 400, 47104)
			return ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := openDir(t)
			preparedDir(t, dir, Processes)
			own := clog(t, dir)
			fewFiles(t)
			began := time.Now()
			preparedDir(t, dir, Processes)
			if took := time.Since(began); took > removalTime {
				t.Errorf("a start takes %s", took)
			}
			dirs := []string{filepath.Join(dir, "removed")}
			if own != "" {
				dirs = append(dirs, own)
			}
			isEmpty(t, dirs...)
			if _, err := os.Lstat(filepath.Join(dir, "metrics")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an older version's folder is left: %v", err)
			}
		})
	}
}

// TestManySockets: the start asks no more of them than replicas can have.
func TestManySockets(t *testing.T) {
	dir := openDir(t)
	preparedDir(t, dir, Processes)
	own := filepath.Join(dir, "sock/prober")
	if err := asUser(t, 47104, fmt.Sprintf("cd %s && seq %d | xargs touch", own, maxSockets+1)); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(own)
	if err != nil {
		t.Fatal(err)
	}
	preparedDir(t, dir, Processes)
	isEmpty(t, own, filepath.Join(dir, "removed"))
	if after, err := os.Stat(own); err != nil || os.SameFile(before, after) {
		t.Errorf("each of the sockets was asked: %v", err)
	}
}

// TestStoreOfTheBusIsKept as long as it is of the size of one.
func TestStoreOfTheBusIsKept(t *testing.T) {
	dir := openDir(t)
	preparedDir(t, dir, Processes)
	block := filepath.Join(dir, "bus/jetstream/pleg/streams/KV_RUNTIME/msgs")
	if err := asUser(t, 47101, "mkdir -p "+block+" && touch "+block+"/1.blk"); err != nil {
		t.Fatal(err)
	}
	preparedDir(t, dir, Processes)
	if _, err := os.Stat(block + "/1.blk"); err != nil {
		t.Error(err)
	}
	// A start that finds more than its time allows for goes on, and the next one with what is left.
	nest(t, filepath.Join(dir, "bus"), maxDepth+2, 47101)
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := makeFolders(t.Context(), root, placement.Partition{}); err != nil {
		t.Fatal(err)
	}
	isEmpty(t, filepath.Join(dir, "bus"))
	if left, err := os.ReadDir(filepath.Join(dir, "removed")); err != nil || len(left) != 1 {
		t.Errorf("aside are %v, %v", left, err)
	}
	preparedDir(t, dir, Processes)
	isEmpty(t, filepath.Join(dir, "removed"))
}

// TestFoldersInPlaceOfADeadProcessSockets: its successor starts, however deep they are.
func TestFoldersInPlaceOfADeadProcessSockets(t *testing.T) {
	dir := openDir(t)
	preparedDir(t, dir, Processes)
	own := filepath.Join(dir, "sock/prober")
	if err := asUser(t, 47104, "mkdir "+own+"/grpc.sock"); err != nil {
		t.Fatal(err)
	}
	nest(t, filepath.Join(own, "grpc.sock"), 400, 47104)
	fewFiles(t)
	if err := removeSockets(dir, role.Prober, 0); err != nil {
		t.Error("too deep for its successor:", err.Error()[max(0, len(err.Error())-60):])
	}
	isEmpty(t, own)
}

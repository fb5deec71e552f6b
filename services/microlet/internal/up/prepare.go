package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// lockWait is how long a predecessor that was killed may take to be gone.
	lockWait  = 5 * time.Second
	lockRetry = 20 * time.Millisecond
)

// folder is one folder of the runtime folder.
type folder struct {
	name     string
	mode     fs.FileMode
	uid, gid int
	// deep also gives what is in it to the owner.
	deep bool
}

// folders returns those that up makes. Sockets are in folders that the whole group may write to,
// but in which each may only remove its own.
func folders() ([]folder, error) {
	busID, err := role.Get(role.Bus)
	if err != nil {
		return nil, err
	}
	statusID, err := role.Get(role.NodeStatus)
	if err != nil {
		return nil, err
	}
	apiID, err := role.Get(role.NodeAPI)
	if err != nil {
		return nil, err
	}
	return []folder{
		{name: "sock", mode: 0o770 | fs.ModeSticky, gid: role.GroupNode},
		{name: "metrics", mode: 0o770 | fs.ModeSticky, gid: role.GroupNode},
		{name: "cri", mode: 0o750, gid: role.GroupNode},
		{name: "notify", mode: 0o750, gid: role.GroupNode},
		{name: "config", mode: 0o750, gid: role.GroupNode},
		{name: "bus", mode: 0o700, uid: busID.UID, gid: busID.GID, deep: true},
		{name: "credentials", mode: 0o750, gid: role.GroupNode},
		{name: filepath.Join("credentials", string(role.NodeStatus)), mode: 0o700, uid: statusID.UID, gid: statusID.GID},
		{name: filepath.Join("credentials", string(role.NodeAPI)), mode: 0o700, uid: apiID.UID, gid: apiID.GID},
	}, nil
}

// prepare makes the runtime folder what the services need, and keeps it to this process until
// release is called or the process ends.
func prepare(ctx context.Context, dir string, placement string) (release func() error, err error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("microlet up runs as uid %d: run it as root, it gives each service its own identity", os.Geteuid())
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("runtime folder: %w", err)
	}
	if err := setFolder(dir, folder{mode: 0o750, gid: role.GroupNode}); err != nil {
		return nil, fmt.Errorf("runtime folder: %w", err)
	}
	if placement == Processes {
		if err := checkReachable(dir); err != nil {
			return nil, err
		}
	}
	lock, err := lockFolder(ctx, filepath.Join(dir, "up.lock"))
	if err != nil {
		return nil, err
	}
	if err := fill(dir); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock.Close, nil
}

// fill makes the folders and the services' keys. The bus itself empties its store after a boot.
func fill(dir string) error {
	list, err := folders()
	if err != nil {
		return err
	}
	for _, f := range list {
		path := filepath.Join(dir, f.name)
		if err := os.Mkdir(path, f.mode.Perm()); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("runtime folder: %w", err)
		}
		if err := setFolder(path, f); err != nil {
			return fmt.Errorf("runtime folder: %w", err)
		}
	}
	if err := removeReplicas(dir); err != nil {
		return err
	}
	var identities []role.Identity
	for _, r := range role.All() {
		id, err := role.Get(r)
		if err != nil {
			return err
		}
		identities = append(identities, id)
	}
	if err := bus.GenerateNKeys(filepath.Join(dir, "nkeys"), identities); err != nil {
		return fmt.Errorf("keys for the bus: %w", err)
	}
	return nil
}

// removeReplicas removes the sockets that dead replicas have left: there may be fewer of them from now
// on, and who looks for replicas finds them by their sockets.
func removeReplicas(dir string) error {
	cfg := service.Config{RuntimeDir: dir}
	for _, r := range role.All() {
		for _, path := range []string{cfg.Socket(r), cfg.MetricsSocket(r)} {
			replicas, err := service.Replicas(path)
			if err != nil {
				return fmt.Errorf("runtime folder: %w", err)
			}
			for _, replica := range replicas {
				if replica == service.DefaultReplica {
					continue // it is always there, and replaces its own
				}
				if err := unixgrpc.RemoveStale(service.ReplicaSocket(path, replica)); err != nil && !errors.Is(err, unixgrpc.ErrInUse) {
					return fmt.Errorf("runtime folder: %w", err)
				}
			}
		}
	}
	return nil
}

func setFolder(path string, f folder) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder: move it", path)
	}
	if err := os.Lchown(path, f.uid, f.gid); err != nil {
		return err
	}
	if err := os.Chmod(path, f.mode); err != nil {
		return err
	}
	if !f.deep {
		return nil
	}
	return filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, f.uid, f.gid)
	})
}

// checkReachable finds a folder on the way to dir that the services' users cannot enter: they would
// all fail, each with an error that says less.
func checkReachable(dir string) error {
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil {
			return fmt.Errorf("runtime folder: %w", err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			owner, ok := info.Sys().(*syscall.Stat_t)
			if !ok || owner.Gid != role.GroupNode || info.Mode().Perm()&0o010 == 0 {
				return fmt.Errorf("runtime-dir is %s: the services' users cannot enter %s (mode %04o); chmod o+x it, choose another folder, or use --placement=single", dir, parent, info.Mode().Perm())
			}
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

// lockFolder takes the lock that says which process supervises the folder. It ends with the process.
func lockFolder(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the runtime folder: %w", err)
	}
	deadline := time.Now().Add(lockWait)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil || !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("another microlet up supervises %s: stop it, or choose another --runtime-dir: %w", filepath.Dir(path), err), f.Close())
		}
		select {
		case <-ctx.Done():
		case <-time.After(lockRetry):
		}
	}
}

// writeFile writes a file that appears at once and whole.
func writeFile(path string, data []byte, mode fs.FileMode, uid, gid int) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), f.Close(), os.Remove(f.Name()))
		}
	}()
	if err := f.Chown(uid, gid); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return f.Close()
}

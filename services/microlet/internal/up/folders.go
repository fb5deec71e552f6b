package up

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/removal"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/placement"
)

const (
	// removed is the folder where what a start replaces waits for its removal, which may take longer than a start may.
	removed = "removed"
	// removalTime bounds how long a start removes; the next one goes on with what is left.
	removalTime = 10 * time.Second
	// releaseTime bounds how long a dead process's successor waits for the same.
	releaseTime = time.Second
	// maxDepth and maxFiles bound what a service may have in a folder of its own that outlives it: several times
	// what the bus' store has.
	maxDepth = 16
	maxFiles = 1 << 16
	// maxSockets bounds what a service may have in its folder of sockets, which has two a replica.
	maxSockets = 1024
)

// folder is one folder of the runtime folder.
type folder struct {
	name     string
	mode     fs.FileMode
	uid, gid int
	// private: its contents are of use only to its owner, so the folder is created again if it had another owner.
	private bool
	// deep: all that is in it belongs to the owner too.
	deep bool
}

// folders returns those that up makes, each before those below it.
func folders(p placement.Partition) ([]folder, error) {
	list := []folder{
		{name: removed, mode: 0o700},
		{name: "sock", mode: 0o750, gid: role.GroupNode},
		{name: "cri", mode: 0o750, gid: role.GroupNode},
		{name: "notify", mode: 0o750, gid: role.GroupNode},
		{name: "config", mode: 0o750, gid: role.GroupNode},
		{name: "credentials", mode: 0o750, gid: role.GroupNode},
	}
	var cfg service.Config
	for _, r := range role.All() {
		id, err := p.Identity(r)
		if err != nil {
			return nil, err
		}
		uid := id.UID
		list = append(list, folder{name: cfg.SocketDir(r), mode: 0o750, uid: uid, gid: role.GroupNode, private: true})
		switch r {
		case role.Bus:
			list = append(list,
				folder{name: "bus", mode: 0o700, uid: uid, gid: role.GroupNode, private: true, deep: true})
		case role.NodeStatus, role.NodeAPI:
			// Root's, since root copies files to it; the files are the service's.
			list = append(list,
				folder{name: filepath.Join("credentials", string(r)), mode: 0o750, gid: role.GroupNode, private: true})
		}
	}
	return list, nil
}

// writable are the folders that a service may write to: its own, and those of root's that it has to. Root's may write
// everywhere.
func (c *Config) writable(s service.Definition, id role.Identity) []string {
	if id.UID == 0 {
		return nil
	}
	own := []string{c.Service.SocketDir(s.Role)}
	if s.Role == role.Bus {
		own = append(own, filepath.Join(c.Service.RuntimeDir, "bus"))
	}
	if s.StateDir != nil {
		own = append(own, s.StateDir())
	}
	if s.Folders != nil {
		own = append(own, s.Folders(c.Kubelet)...)
	}
	return own
}

// make makes the folder what it should be. Only root can change what is beside it.
func (f folder) make(ctx context.Context, root *os.Root) error {
	info, err := root.Lstat(f.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = root.Mkdir(f.name, 0o700)
	case err != nil:
	case f.private && !f.fits(root, info):
		if err = discard(ctx, root, f.name); err == nil {
			err = root.Mkdir(f.name, 0o700)
		} else if info.IsDir() { // it is a mount point: it stays, and what is in it goes
			empty(ctx, root, f.name)
			err = nil
		}
	case !info.IsDir():
		err = fmt.Errorf("%s is no folder: move it", filepath.Join(root.Name(), f.name))
	}
	if err != nil {
		return err
	}
	return errors.Join(root.Lchown(f.name, f.uid, f.gid), root.Chmod(f.name, f.mode))
}

// fits reports whether what is there is the owner's and no more than a service has use for: another placement, another
// version of microlet or, in folders that other versions shared, another service may have made it, and its owner may
// have put there what it likes.
func (f folder) fits(root *os.Root, info fs.FileInfo) bool {
	if !info.IsDir() || !isOwner(info, f.uid) {
		return false
	}
	dir, err := root.Open(f.name)
	if err != nil {
		return false
	}
	defer dir.Close()
	if f.deep {
		files := maxFiles
		return owned(dir, f.uid, maxDepth, &files) == nil
	}
	names, err := dir.Readdirnames(maxSockets + 1)
	return (err == nil || errors.Is(err, io.EOF)) && len(names) <= maxSockets
}

// owned fails unless all that is in the open folder is the user's, no deeper than depth and not more than the number
// of files, which it counts down. It follows no link, and has as many folders open as it is deep.
func owned(dir *os.File, uid, depth int, files *int) error {
	for {
		names, err := dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if *files -= len(names); *files < 0 {
			return errors.New("there are too many files")
		}
		for _, name := range names {
			var st unix.Stat_t
			if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			if int(st.Uid) != uid {
				return fmt.Errorf("%s is not uid %d's", name, uid)
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			if depth == 0 {
				return errors.New("the folders are too deep")
			}
			fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC,
				0)
			if err != nil {
				return err
			}
			below := os.NewFile(uintptr(fd), name)
			err = owned(below, uid, depth-1, files)
			if err = errors.Join(err, below.Close()); err != nil {
				return err
			}
		}
	}
}

// discard makes the name free. A folder with something in it is moved aside, since there is no bound on what a service
// puts there; where that cannot be, as from another file system, it is removed before ctx ends.
func discard(ctx context.Context, root *os.Root, name string) error {
	err := root.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err = root.Rename(name, filepath.Join(removed, rand.Text()))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return removal.Tree(ctx, filepath.Join(root.Name(), name))
}

// empty removes what is in a folder, as far as it can be before ctx ends. What is left harms its owner at most, so no
// start fails because of it.
func empty(ctx context.Context, root *os.Root, name string) {
	err := func() error {
		dir, err := root.Open(name)
		if err != nil {
			return err
		}
		defer dir.Close()
		var failed error
		for {
			names, err := dir.Readdirnames(1024)
			if errors.Is(err, io.EOF) {
				return failed
			}
			if err != nil {
				return errors.Join(failed, err)
			}
			for _, below := range names {
				err := removal.Tree(ctx, filepath.Join(root.Name(), name, below))
				if ctx.Err() != nil {
					return err
				}
				if err != nil {
					failed = err // of many the last one is reported
				}
			}
		}
	}()
	if err != nil {
		slog.Warn("a folder cannot be emptied; the next start tries again",
			logkey.Path, filepath.Join(root.Name(), name),
			logkey.Err, err)
	}
}

func isOwner(info fs.FileInfo, uid int) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == uid
}

// makeFolders makes the folders below the runtime folder and removes what they replace.
func makeFolders(ctx context.Context, root *os.Root, p placement.Partition) error {
	list, err := folders(p)
	if err != nil {
		return err
	}
	for _, f := range list {
		if err := f.make(ctx, root); err != nil {
			return fmt.Errorf("runtime folder: %w", err)
		}
	}
	if err := removeSharedSockets(ctx, root); err != nil {
		return fmt.Errorf("runtime folder: %w", err)
	}
	return nil
}

// removeSharedSockets removes what older versions made where all services shared two folders of sockets.
func removeSharedSockets(ctx context.Context, root *os.Root) error {
	info, err := root.Lstat("metrics")
	if err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Gid == role.GroupNode { // else it is not a service's
			err = discard(ctx, root, "metrics")
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := fs.ReadDir(root.FS(), "sock")
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, isSocket := strings.CutSuffix(e.Name(), ".sock")
		name, _, _ = strings.Cut(name, ".")
		if !isSocket || !slices.Contains(role.All(), role.Role(name)) {
			continue
		}
		if err := discard(ctx, root, filepath.Join("sock", e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// removeDeadSockets empties the folders of sockets of whatever no living server answers on. There may be fewer
// replicas from now on, and who looks for replicas finds them by their sockets. To ask a service that runs on demand
// would start it: its gRPC socket stays until it is opened again.
func removeDeadSockets(ctx context.Context, root *os.Root, onDemand []role.Role) error {
	var cfg service.Config
	for _, r := range role.All() {
		var kept []string
		if slices.Contains(onDemand, r) {
			kept = append(kept, filepath.Base(cfg.Socket(r)))
		}
		if err := removeDead(ctx, root, cfg.SocketDir(r), kept...); err != nil {
			return fmt.Errorf("runtime folder: sockets of %s: %w", r, err)
		}
	}
	return nil
}

// removeSockets removes the sockets of one process of a service, which is dead and still listens: a successor would not
// replace a socket that answers. Those with the names in kept stay.
func removeSockets(dir string, r role.Role, replica int, kept ...string) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("sockets of %s: %w", r, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	var cfg service.Config
	folder := cfg.SocketDir(r)
	entries, err := fs.ReadDir(root.FS(), folder)
	if err != nil {
		return fmt.Errorf("sockets of %s: %w", r, err)
	}
	for _, e := range entries {
		name, isSocket := strings.CutSuffix(e.Name(), ".sock")
		_, own, several := strings.Cut(name, ".") // as service.ReplicaSocket names them
		if !several {
			own = service.DefaultReplica
		}
		if !isSocket || own != strconv.Itoa(replica) || slices.Contains(kept, e.Name()) {
			continue
		}
		if err := discard(ctx, root, filepath.Join(folder, e.Name())); err != nil {
			return fmt.Errorf("sockets of %s: %w", r, err)
		}
	}
	return nil
}

// removeDead does it in one folder, but for the names in kept. The folder is a service's, which may put there what it
// likes.
func removeDead(ctx context.Context, root *os.Root, dir string, kept ...string) (err error) {
	list, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, list.Close()) }()
	names, err := list.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if slices.Contains(kept, name) || answers(list, name) {
			continue
		}
		if err := discard(ctx, root, filepath.Join(dir, name)); err != nil {
			slog.Warn("a dead socket cannot be removed; the next start tries again",
				logkey.Path, filepath.Join(dir, name),
				logkey.Err, err)
		}
	}
	return nil
}

// answers reports whether a server listens on the socket of this name in the folder. It follows no link and opens
// nothing that could block.
func answers(folder *os.File, name string) bool {
	fd, err := unix.Openat(int(folder.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	socket := os.NewFile(uintptr(fd), name)
	defer socket.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// The descriptor's own name leads to what was opened, whatever has the socket's name now.
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil {
		_ = conn.Close() // there is nothing in it
		return true
	}
	// What is no socket refuses too. A full backlog (EAGAIN) is a server that lives.
	return !errors.Is(err, syscall.ECONNREFUSED)
}

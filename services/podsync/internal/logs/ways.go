package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Make makes the folders of all pods' logs and of the links to them, with the kubelet's modes and
// for the group. Those that are there stay as they are until Adopt.
func (f Folders) Make() error {
	if f.Links != "" {
		if err := makeFolders(f.Links, 0o755, 0); err != nil {
			return err
		}
	}
	if f.Group == 0 {
		return makeFolders(f.Pods, 0o755, 0)
	}
	return makeFolders(f.Pods, 0o750, f.Group)
}

// makeFolders makes a folder and those above it that are missing, whatever the umask.
func makeFolders(dir string, mode fs.FileMode, group int) error {
	dir = filepath.Clean(dir)
	err := os.Mkdir(dir, mode)
	switch {
	case errors.Is(err, fs.ErrExist):
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("log folder %s: a file is there that is no folder", dir)
		}
		return err
	case errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir:
		if err := makeFolders(filepath.Dir(dir), mode, group); err != nil {
			return err
		}
		err = os.Mkdir(dir, mode)
	}
	if err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	if group != 0 {
		if err := os.Lchown(dir, -1, group); err != nil {
			return fmt.Errorf("log folder: %w", err)
		}
	}
	return chmod(dir, mode)
}

func chmod(dir string, mode fs.FileMode) error {
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	return nil
}

// openWays lets the group pass the folder of all pods' logs, that of the links, and the folders above
// them. What is open for all stays as it is, and so does what belongs to another user: such a folder is an error, since
// no member of the group can read a log below it.
func (f Folders) openWays() error {
	var errs []error
	for _, dir := range []string{f.Pods, f.Links} {
		if dir == "" {
			continue
		}
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil {
			errs = append(errs, gone(err))
			continue
		}
		errs = append(errs, f.openWay(dir, true))
		for above := filepath.Dir(dir); above != filepath.Dir(above); above = filepath.Dir(above) {
			errs = append(errs, f.openWay(above, agentsOwn(above)))
		}
	}
	return errors.Join(errs...)
}

// openWay lets the group list and pass one folder.
func (f Folders) openWay(dir string, ours bool) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return gone(err)
	}
	stat, mode := info.Sys().(*syscall.Stat_t), info.Mode()
	groupPasses := mode&0o010 != 0
	if mode&0o001 != 0 || groupPasses && int(stat.Gid) == f.Group {
		return nil
	}
	if !ours && groupPasses && stat.Gid != 0 {
		return nil // a group of the host, such as adm, of which a reader of logs may be a member
	}
	if !ours || stat.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("log folder %s: the group that reads logs cannot pass it (owner %d:%d, mode %04o), "+
			"so that kubectl logs fails: give others the right to pass it (chmod o+x %s), or choose another podLogsDir",
			dir, stat.Uid, stat.Gid, mode.Perm(), dir)
	}
	if err := os.Lchown(dir, -1, f.Group); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	return chmod(dir, mode&(fs.ModePerm|fs.ModeSetgid|fs.ModeSticky)|0o050)
}

// agentsOwn reports whether an agent may have made the folder above podLogsDir: one that root alone has with
// the mode that it gives, below the folders that a system brings along.
func agentsOwn(dir string) bool {
	parts := strings.Split(strings.Trim(dir, "/"), "/")
	if len(parts) < 2 || parts[0] == "var" && len(parts) < 3 {
		return false
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return false
	}
	stat := info.Sys().(*syscall.Stat_t)
	return stat.Gid == 0 && info.Mode().Perm() == 0o750
}

package peer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/regularfile"
)

// LabelRole is the label of a helper pod. Its value is the role of the pod's processes.
const LabelRole = "microlet.dev/role"

const (
	helpersDirMode  = 0o750
	helperFileMode  = 0o640
	maxHelperRecord = 64

	unfinishedPrefix = ".new-"
)

// MayHelp reports whether processes of a pod may have the role: those of the host's own, which are root or hold what
// all others need, may not.
func MayHelp(r role.Role) bool {
	switch r {
	case role.Prober, role.ImageGC, role.Stats, role.Evictor, role.NodeAPI:
		return true
	}
	return false
}

// HelperRole is the role of the helper pod; empty if the pod is none. The folder is read at each call: it is
// root's, so that what a file in it says is what podsync admitted.
func HelperRole(dir, uid string) (role.Role, error) {
	if dir == "" || subject.ValidToken(uid) != nil {
		return "", nil
	}
	data, err := readRecord(filepath.Join(dir, uid))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("helper pod %s: %w", uid, err)
	}
	if r := role.Role(data); MayHelp(r) {
		return r, nil
	}
	return "", fmt.Errorf("helper pod %s: %q is not the role of a helper", uid, data)
}

func readRecord(path string) (string, error) {
	f, err := regularfile.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	buf := make([]byte, maxHelperRecord)
	n, err := f.Read(buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// Helpers is the folder in which podsync records the helper pods that it has admitted: a file for each, by the pod's
// UID, that holds its role. Every service reads it, without asking podsync. Its methods are for podsync alone, which is
// root, and may be called for one pod by one goroutine at a time.
type Helpers struct {
	// Dir is the folder; it is made when it is absent.
	Dir string
}

// Record says that the pod is a helper for the role, from now on and for every service.
func (h Helpers) Record(uid string, r role.Role) (err error) {
	if err := subject.ValidToken(uid); err != nil {
		return fmt.Errorf("record the helper pod: %w", err)
	}
	if !MayHelp(r) {
		return fmt.Errorf("record the helper pod %s: %q is not the role of a helper", uid, r)
	}
	if now, err := HelperRole(h.Dir, uid); err == nil && now == r {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("record the helper pod %s: %w", uid, err)
		}
	}()
	if err := h.make(); err != nil {
		return err
	}
	f, err := os.OpenFile(h.unfinished(uid), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(string(r))
	err = errors.Join(err, own(f, helperFileMode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(h.Dir, uid))
	}
	return err
}

// unfinished is a record before it is there: no pod's UID begins with a dot.
func (h Helpers) unfinished(uid string) string { return filepath.Join(h.Dir, unfinishedPrefix+uid) }

// Forget says that the pod is no helper any more; it may never have been one.
func (h Helpers) Forget(uid string) error {
	if subject.ValidToken(uid) != nil {
		return nil
	}
	for _, path := range []string{h.unfinished(uid), filepath.Join(h.Dir, uid)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget the helper pod %s: %w", uid, err)
		}
	}
	return nil
}

// List returns the UIDs of the pods of which there is a record, or what is left of one that was not finished.
func (h Helpers) List() ([]string, error) {
	entries, err := os.ReadDir(h.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the helper pods: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, strings.TrimPrefix(e.Name(), unfinishedPrefix))
	}
	return names, nil
}

// make makes the folder root's and readable by the node's group.
func (h Helpers) make() error {
	if err := os.Mkdir(h.Dir, helpersDirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.OpenFile(h.Dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(own(f, helpersDirMode), f.Close())
}

// own gives the file to root and to the node's group.
func own(f *os.File, mode fs.FileMode) error {
	if os.Geteuid() == 0 { // a developer's own process can give nothing away
		if err := f.Chown(0, role.GroupNode); err != nil {
			return err
		}
	}
	return f.Chmod(mode)
}

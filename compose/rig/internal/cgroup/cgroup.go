package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"context"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// Tree is where the cgroups of the machine are mounted.
type Tree struct {
	unified string            // the mount point of v2; empty on a v1 machine
	v1      map[string]string // the mount point of each v1 hierarchy, by its controllers
}

// Controllers without which a node agent refuses a v2 cgroup as its root, and
// those that it uses when the machine has them.
var (
	needed   = []string{"cpu", "cpuset", "memory", "pids"}
	optional = []string{"io", "hugetlb"}
)

// Detect looks at the machine's mounts. A machine whose v2 mount has no
// controllers (the hybrid layout) counts as v1.
func Detect() (Tree, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2", false
	})
	if err != nil {
		return Tree{}, fmt.Errorf("detect cgroups: %w", err)
	}
	t := Tree{v1: map[string]string{}}
	for _, m := range mounts {
		// A container may see a part of a hierarchy mounted elsewhere.
		if m.Mountpoint != "/sys/fs/cgroup" && filepath.Dir(m.Mountpoint) != "/sys/fs/cgroup" {
			continue
		}
		if m.FSType == "cgroup2" {
			if m.Mountpoint == "/sys/fs/cgroup" {
				t.unified = m.Mountpoint
			}
			continue
		}
		t.v1[filepath.Base(m.Mountpoint)] = m.Mountpoint
	}
	if t.unified == "" && t.v1["memory"] == "" {
		return Tree{},
			errors.New("detect cgroups: neither a v2 hierarchy at /sys/fs/cgroup nor a v1 hierarchy at /sys/fs/cgroup/memory: " +
				"mount one of them")
	}
	return t, nil
}

// Version is 2 where the unified hierarchy has the controllers, else 1.
func (t Tree) Version() int {
	if t.unified != "" {
		return 2
	}
	return 1
}

func (t Tree) roots() []string {
	if t.unified != "" {
		return []string{t.unified}
	}
	roots := make([]string, 0, len(t.v1))
	for _, root := range t.v1 {
		roots = append(roots, root)
	}
	slices.Sort(roots)
	return slices.Compact(roots)
}

// Create makes the cgroup and its parents. A cgroup that has children of its
// own (parent true) gets the controllers enabled for them.
func (t Tree) Create(path string, parent bool) error {
	if !filepath.IsAbs(path) || path == "/" {
		return fmt.Errorf("create cgroup %q: the path must be absolute and below the root", path)
	}
	if t.unified != "" {
		return t.createUnified(path, parent)
	}
	for _, root := range t.roots() {
		at := root
		for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			above := at
			at = filepath.Join(at, part)
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("create cgroup: %w", err)
			}
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inherit(above, at, file); err != nil {
					return fmt.Errorf("create cgroup %s: %w", at, err)
				}
			}
		}
	}
	return nil
}

func (t Tree) createUnified(path string, parent bool) error {
	at := t.unified
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts {
		if err := enable(at); err != nil {
			return err
		}
		at = filepath.Join(at, part)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("create cgroup: %w", err)
		}
		if i == len(parts)-1 && parent {
			return enable(at)
		}
	}
	return nil
}

// enable gives the controllers to a v2 cgroup's children.
func enable(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("enable controllers: %w", err)
	}
	have := strings.Fields(string(available))
	for _, c := range slices.Concat(needed, optional) {
		if !slices.Contains(have, c) {
			if slices.Contains(optional, c) {
				continue
			}
			return fmt.Errorf("enable controllers in %s: %s is not available there: give this machine's root cgroup that "+
				"controller (in a container: run it with its own cgroup namespace and a delegated cgroup)", dir, c)
		}
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("enable controller %s in %s: processes are directly in that cgroup: move them to a child "+
				"cgroup first: %w", c, dir, err)
		}
		if err != nil && !slices.Contains(optional, c) {
			return fmt.Errorf("enable controller %s in %s: %w", c, dir, err)
		}
	}
	return nil
}

// inherit copies a cpuset file from the parent when the child's is empty.
func inherit(parent, child, file string) error {
	now, err := os.ReadFile(filepath.Join(child, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another controller's hierarchy
	}
	if err != nil || strings.TrimSpace(string(now)) != "" {
		return err
	}
	value, err := os.ReadFile(filepath.Join(parent, file))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(child, file), value, 0)
}

// ProcsFiles returns the files into which a process writes its pid to enter
// the cgroup.
func (t Tree) ProcsFiles(path string) []string {
	files := make([]string, 0, len(t.v1)+1)
	for _, root := range t.roots() {
		files = append(files, filepath.Join(root, path, "cgroup.procs"))
	}
	return files
}

// Existing returns the folders of the cgroup that exist, one a hierarchy.
func (t Tree) Existing(path string) []string {
	var found []string
	for _, root := range t.everyRoot() {
		dir := filepath.Join(root, path)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			found = append(found, dir)
		}
	}
	return found
}

// everyRoot also names the hierarchies that Create does not use: a container
// runtime may have used them.
func (t Tree) everyRoot() []string {
	roots := t.roots()
	if dir := "/sys/fs/cgroup/unified"; t.unified == "" && t.v1["unified"] == "" {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			roots = append(roots, dir)
		}
	}
	return roots
}

// Children returns the names of the cgroups directly below the path.
func (t Tree) Children(path string) []string {
	var names []string
	for _, dir := range t.Existing(path) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Kill sends SIGKILL to every process in the cgroup and below it until none is
// left, or the context is done.
func Kill(ctx context.Context, path string) error {
	const pause = 20 * time.Millisecond
	for {
		left, err := process.InCgroup(path)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		for _, r := range left {
			if err := r.Signal(unix.SIGKILL); err != nil && !errors.Is(err, process.ErrGone) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill %d processes in cgroup %s: %w", len(left), path, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// Remove removes the cgroup and all below it, which must hold no process. The
// kernel lets go of a cgroup a moment after its last process has ended, so it
// tries until the context is done.
func (t Tree) Remove(ctx context.Context, path string) error {
	const pause = 20 * time.Millisecond
	for {
		var last error
		for _, dir := range t.Existing(path) {
			if err := removeAll(dir); err != nil {
				last = err
			}
		}
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w (%w)", path, last, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// removeAll removes folders only, deepest first: a cgroup's files can't be
// removed and go with it.
func removeAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// CgroupsBelow returns the folders of all hierarchies that are below the cgroup, relative to it and
// once each. Those for which skip is true are left out, with all that is below them.
func CgroupsBelow(path string, skip func(string) bool) ([]string, error) {
	roots := []string{"/sys/fs/cgroup"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		var globErr error
		if roots, globErr = filepath.Glob("/sys/fs/cgroup/*"); globErr != nil {
			return nil, globErr
		}
	}
	found := map[string]bool{}
	for _, root := range roots {
		top := filepath.Join(root, path)
		err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // no such hierarchy, or gone meanwhile
			}
			if err != nil {
				return err
			}
			relative := strings.TrimPrefix(strings.TrimPrefix(p, top), "/")
			if !d.IsDir() || relative == "" {
				return nil
			}
			if skip(relative) {
				return fs.SkipDir
			}
			found[relative] = true
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
	}
	all := make([]string, 0, len(found))
	for f := range found {
		all = append(all, f)
	}
	slices.Sort(all)
	return all, nil
}

// MountsBelow returns the mount points at or below a folder. One that has several mounts is there as often.
func MountsBelow(dir string) ([]string, error) {
	var found []string
	err := eachMount(dir, func(_ int, path string) { found = append(found, path) })
	return found, err
}

// MountNumbers returns the kernel's numbers of the mounts at or below a folder, by their mount points.
func MountNumbers(dir string) (map[string]int, error) {
	found := map[string]int{}
	err := eachMount(dir, func(number int, path string) { found[path] = number })
	return found, err
}

func eachMount(dir string, do func(number int, path string)) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) <= 4 || fields[4] != dir && !strings.HasPrefix(fields[4], dir+"/") {
			continue
		}
		number, err := strconv.Atoi(fields[0])
		if err != nil {
			return fmt.Errorf("list mounts: %w", err)
		}
		do(number, fields[4])
	}
	return nil
}

// Names returns what is in a folder; nothing if there is no such folder.
func Names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

package cgroup

import (
	"fmt"
	"path"
	"strings"

	"github.com/opencontainers/cgroups/systemd"
)

// name is a cgroup as its path of plain parts, e.g. {kubepods, burstable, pod<uid>}.
type name []string

func (n name) child(part string) name {
	return append(append(name{}, n...), part)
}

// cgroupfs is the path below the mount point as the cgroupfs driver has it.
func (n name) cgroupfs() string {
	return "/" + path.Join(n...)
}

// systemd is the path below the mount point as systemd has it, e.g.
// /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podX.slice. A dash in a part
// becomes an underscore, because systemd reads dashes as levels.
func (n name) systemd() (string, error) {
	if len(n) == 0 {
		return "/", nil
	}
	parts := make([]string, len(n))
	for i, part := range n {
		parts[i] = strings.ReplaceAll(part, "-", "_")
	}
	expanded, err := systemd.ExpandSlice(strings.Join(parts, "-") + ".slice")
	if err != nil {
		return "", fmt.Errorf("name the slice of cgroup %s: %w", n.cgroupfs(), err)
	}
	return expanded, nil
}

// parseRoot reads cgroupRoot, which may be spelled either way.
func parseRoot(root string, systemdDriver bool) name {
	root = strings.Trim(root, "/")
	if root == "" {
		return nil
	}
	if !systemdDriver {
		return strings.Split(root, "/")
	}
	base := strings.TrimSuffix(path.Base(root), ".slice")
	parts := strings.Split(base, "-")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], "_", "-")
	}
	return parts
}

// uidOf returns the pod of a directory below a QoS root, false if it is none.
func uidOf(dir string, systemdDriver bool) (string, bool) {
	if systemdDriver {
		base, ok := strings.CutSuffix(dir, ".slice")
		if !ok {
			return "", false
		}
		dir = strings.ReplaceAll(base[strings.LastIndex(base, "-")+1:], "_", "-")
	}
	uid, ok := strings.CutPrefix(dir, podPrefix)
	if !ok || uid == "" {
		return "", false
	}
	return uid, true
}

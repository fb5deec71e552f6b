// Package podcgroup names the cgroups of pods: the root "kubepods", the QoS classes "burstable" and "besteffort" below
// it, and "pod<uid>" for each pod, with the spelling of the driver cgroupfs or systemd. Names are the kubelet's.
package podcgroup

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Parts of the names.
const (
	// RootPart is the cgroup of all pods, below cgroupRoot. Guaranteed pods are directly in it.
	RootPart = "kubepods"
	// BurstablePart and BestEffortPart are the QoS classes below it.
	BurstablePart  = "burstable"
	BestEffortPart = "besteffort"
	// PodPrefix begins the name of a pod's cgroup; its UID follows.
	PodPrefix = "pod"

	sliceSuffix = ".slice"
)

// Name is a cgroup as its path of plain parts, e.g. {kubepods, burstable, pod<uid>}.
type Name []string

// Child is the cgroup of this part below n.
func (n Name) Child(part string) Name { return append(slices.Clone(n), part) }

// Path is the path below the mount point, as the driver has it.
func (n Name) Path(systemd bool) (string, error) {
	if systemd {
		return n.Systemd()
	}
	return n.Cgroupfs(), nil
}

// Cgroupfs is the path below the mount point as the cgroupfs driver has it.
func (n Name) Cgroupfs() string { return "/" + path.Join(n...) }

// Systemd is the path below the mount point as systemd has it, e.g.
// /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podX.slice. A dash in a part becomes an underscore,
// because systemd reads dashes as levels. The error names a part that no slice can have.
func (n Name) Systemd() (string, error) {
	at, slice := "/", ""
	for i, part := range n {
		if part == "" || strings.ContainsRune(part, '/') {
			return "", fmt.Errorf("name the slice of cgroup %s: %q is no part of a slice's name", n.Cgroupfs(), part)
		}
		if i > 0 {
			slice += "-"
		}
		slice += strings.ReplaceAll(part, "-", "_")
		at = path.Join(at, slice+sliceSuffix)
	}
	return at, nil
}

// ParseRoot reads cgroupRoot, which may be spelled either way; "" and "/" are the root of the hierarchy.
func ParseRoot(root string, systemd bool) Name {
	root = strings.Trim(root, "/")
	if root == "" {
		return nil
	}
	if !systemd {
		return strings.Split(root, "/")
	}
	parts := strings.Split(strings.TrimSuffix(path.Base(root), sliceSuffix), "-")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], "_", "-")
	}
	return parts
}

// Classes are the cgroups that pods may lie in, below the cgroup of all pods.
func Classes(root Name) []Name {
	return []Name{root, root.Child(BurstablePart), root.Child(BestEffortPart)}
}

// UIDOf returns the pod of a directory in one of the Classes, false if it is none.
func UIDOf(dir string, systemd bool) (string, bool) {
	if systemd {
		base, ok := strings.CutSuffix(dir, sliceSuffix)
		if !ok {
			return "", false
		}
		dir = strings.ReplaceAll(base[strings.LastIndex(base, "-")+1:], "_", "-")
	}
	uid, ok := strings.CutPrefix(dir, PodPrefix)
	if !ok || uid == "" {
		return "", false
	}
	return uid, true
}

package peer

import (
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// cgroups are those of a process: its path in each hierarchy, by the hierarchy's controllers as /proc spells
// them ("cpu,cpuacct", "name=systemd"). The only hierarchy of cgroup v2 has none: "".
type cgroups map[string]string

// readCgroups reads those of a process, by its name in /proc.
func readCgroups(process string) (cgroups, error) {
	data, err := os.ReadFile("/proc/" + process + "/cgroup")
	if err != nil {
		return nil, err
	}
	return parseCgroups(string(data))
}

// parseCgroups reads lines of "number:controllers:path". A path may hold anything but a line's end.
func parseCgroups(text string) (cgroups, error) {
	found := cgroups{}
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			return nil, fmt.Errorf("cgroup line %q is not number:controllers:path", line)
		}
		if _, twice := found[fields[1]]; twice {
			return nil, fmt.Errorf("cgroup line %q names a hierarchy twice", line)
		}
		found[fields[1]] = fields[2]
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the process is in no cgroup: /proc shows none")
	}
	return found, nil
}

// equal reports whether both are the same cgroup in every hierarchy.
func (c cgroups) equal(other cgroups) bool { return maps.Equal(c, other) }

// anyBelow ends the path of a unit that stands for each cgroup right below it.
const anyBelow = "/*"

// within reports whether these are the cgroups of a unit of this path: each hierarchy has the path or, where the
// unit has no cgroup of its own for those controllers, one above it, and one hierarchy at least has the path. A path
// that ends in anyBelow is that of every unit there.
func (c cgroups) within(unit string) bool {
	if parent, ok := strings.CutSuffix(unit, anyBelow); ok {
		return slices.ContainsFunc(c.below(parent), c.within)
	}
	unit = path.Clean("/" + unit)
	found := false
	for _, at := range c {
		// A process in a cgroup namespace of its own, such as a helper, sees what is outside from where it is.
		for strings.HasPrefix(at, "/../") {
			at = strings.TrimPrefix(at, "/..")
		}
		switch {
		case at == unit:
			found = true
		case at != "/" && at != "/.." && !strings.HasPrefix(unit, at+"/"):
			return false
		}
	}
	return found
}

// below are the paths of these cgroups that lie right below the parent.
func (c cgroups) below(parent string) []string {
	var found []string
	for _, at := range c {
		if path.Dir(at) == path.Clean("/"+parent) && path.Base(at) != path.Base(anyBelow) {
			found = append(found, at)
		}
	}
	return found
}

// podSlice is the cgroup of a pod as the systemd driver names it, below a cgroupRoot or not.
var podSlice = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:.+-)?kubepods(?:-burstable|-besteffort)?-pod([^-]+)\.slice$`)
})

// uidOfSlice is the UID of the pod with a cgroup of this name under the systemd driver; empty if it is no pod's.
func uidOfSlice(name string) string {
	if !strings.HasSuffix(name, ".slice") {
		return ""
	}
	m := podSlice().FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	return strings.ReplaceAll(m[1], "_", "-") // a dash would be a level of systemd's
}

// podOf is the UID of the outermost pod on a path that is not one of those around this process; empty if there
// is none. What is below a pod's cgroup the pod's own processes may have made and named.
func podOf(at string, around []string) string {
	parent := ""
	for part := range strings.SplitSeq(at, "/") {
		uid := uidOfSlice(part)
		if below, ok := strings.CutPrefix(part, "pod"); ok && uid == "" {
			switch parent {
			case "kubepods", "burstable", "besteffort", "..": // the last, in a cgroup namespace
				uid = below
			}
		}
		if uid != "" && !slices.Contains(around, uid) {
			return uid
		}
		parent = part
	}
	return ""
}

// pods are the UIDs of the pods on the paths that are not among those around this process, each once.
func (c cgroups) pods(around []string) []string {
	var uids []string
	for _, at := range c {
		if uid := podOf(at, around); uid != "" {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// around are the pods that hold this process itself, as on a node that is a pod of another cluster. They do not show
// which other processes live in them.
func (c cgroups) around() []string {
	var uids []string
	for {
		more := c.pods(uids)
		if len(more) == 0 {
			return uids
		}
		uids = append(uids, more...)
	}
}

// String is the path for messages: the one that all hierarchies have, or systemd's, or all of them.
func (c cgroups) String() string {
	for _, controllers := range []string{"name=systemd", ""} {
		if at, ok := c[controllers]; ok && at != "/" {
			return at
		}
	}
	paths := slices.Compact(slices.Sorted(maps.Values(c)))
	return strings.Join(paths, ", ")
}

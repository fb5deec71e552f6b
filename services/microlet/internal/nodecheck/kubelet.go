package nodecheck

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Kubelet is a kubelet that runs on the machine.
type Kubelet struct {
	PID int
	// Args are its command line without the program.
	Args []string
}

// FindKubelet looks for a kubelet; nil if none runs. A process of a pod may have any name, so it is none, and neither
// is one of these processes, which are those of microlet itself.
func FindKubelet(root string, own []int) *Kubelet {
	names, err := filepath.Glob(filepath.Join(root, "proc/[0-9]*/comm"))
	if err != nil {
		return nil
	}
	for _, name := range names {
		dir := filepath.Dir(name)
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || slices.Contains(own, pid) || firstLine(name) != "kubelet" || !isSystems(dir) {
			continue
		}
		// A link named kubelet may lead to microlet.
		if program, err := os.Readlink(filepath.Join(dir, "exe")); err == nil &&
			strings.HasPrefix(filepath.Base(program), "microlet") {
			continue
		}
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended
		}
		k := &Kubelet{PID: pid}
		for i, arg := range bytes.Split(bytes.TrimSuffix(line, []byte{0}), []byte{0}) {
			if i > 0 {
				k.Args = append(k.Args, string(arg))
			}
		}
		if len(k.Args) > 0 && !strings.HasPrefix(k.Args[0], "-") {
			continue // a copy of microlet that has the name, and runs a service
		}
		return k
	}
	return nil
}

func firstLine(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// isSystems reports whether a process is root's, and of no pod.
func isSystems(dir string) bool {
	groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil || bytes.Contains(groups, []byte("kubepods")) {
		return false
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Uid:" {
			return fields[1] == "0"
		}
	}
	return false
}

// kubelet looks for another agent of the node.
func (h Host) kubelet(r *report) {
	const stop = "systemctl disable --now kubelet"
	if h.Like != nil {
		r.warn("kubelet", fmt.Sprintf("a kubelet runs, pid %d: its command line is checked here as microlet's; both would "+
			"run the same pods", h.Like.PID), stop+" before microlet starts")
		return
	}
	if other := FindKubelet(h.Root, h.Own); other != nil {
		r.failed("kubelet", fmt.Sprintf("a kubelet runs, pid %d: both would run the same pods", other.PID), stop)
		return
	}
	r.ok("kubelet", "no kubelet runs here")
}

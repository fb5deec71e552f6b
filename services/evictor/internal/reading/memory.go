package reading

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// unlimited is above any limit that a cgroup can be given: what cgroup v1 shows for none is near 2^63.
const unlimited = 1 << 60

// Memory reads cgroups and /proc/meminfo.
type Memory struct {
	// Mount is where the memory controller is mounted, or cgroup v2.
	Mount string
	// V2 says which of the two.
	V2 bool
	// MemInfo is /proc/meminfo.
	MemInfo string
	// HugePages takes what is set aside as huge pages off what the node has (the feature gate HugepageAwareEviction).
	HugePages bool
}

// Find returns the memory controller of this machine.
func Find() Memory {
	const root = "/sys/fs/cgroup"
	m := Memory{Mount: filepath.Join(root, "memory"), MemInfo: "/proc/meminfo"}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		m.Mount, m.V2 = root, true
	}
	return m
}

// Node returns what is available on the node and of which capacity, as the kubelet's Summary has them.
//
// MemTotal has the huge pages, used or not, and the root cgroup does not count those that are used. So neither is a
// part of what is available, nor of the capacity of which a threshold may be a percentage.
func (m Memory) Node() (available, capacity int64, err error) {
	info, err := fields(m.MemInfo, ":", "MemTotal", "Hugetlb")
	if err != nil {
		return 0, 0, err
	}
	const kibibyte = 1 << 10
	total, huge := info[0]*kibibyte, info[1]*kibibyte
	if total <= 0 {
		return 0, 0, fmt.Errorf("%s has no MemTotal", m.MemInfo)
	}
	used, err := m.root()
	if err != nil {
		return 0, 0, err
	}
	available = total - used
	if m.HugePages && available > 0 {
		available -= min(huge, available)
	}
	return available, available + used, nil
}

// root is the working set of the root cgroup.
func (m Memory) root() (int64, error) {
	if !m.V2 {
		return m.WorkingSet("/")
	}
	// The root of cgroup v2 has no memory.current. runc's library, which the kubelet uses, adds these instead.
	stat, err := fields(filepath.Join(m.Mount, "memory.stat"), " ", "anon", "file", "inactive_file")
	if err != nil {
		return 0, err
	}
	return max(stat[0]+stat[1]-stat[2], 0), nil
}

// WorkingSet is what a cgroup uses without inactive file pages.
func (m Memory) WorkingSet(cgroup string) (int64, error) {
	usageFile, inactive := "memory.usage_in_bytes", "total_inactive_file"
	if m.V2 {
		usageFile, inactive = "memory.current", "inactive_file"
	}
	usage, err := number(filepath.Join(m.Mount, cgroup, usageFile))
	if err != nil {
		return 0, err
	}
	stat, err := fields(filepath.Join(m.Mount, cgroup, "memory.stat"), " ", inactive)
	if err != nil {
		return 0, err
	}
	return max(usage-stat[0], 0), nil
}

// Limit is the limit of a cgroup in bytes; 0 is none.
func (m Memory) Limit(cgroup string) (int64, error) {
	file := "memory.limit_in_bytes"
	if m.V2 {
		file = "memory.max"
	}
	text, err := os.ReadFile(filepath.Join(m.Mount, cgroup, file))
	if err != nil {
		return 0, err
	}
	if strings.TrimSpace(string(text)) == "max" {
		return 0, nil
	}
	limit, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", filepath.Join(m.Mount, cgroup, file), err)
	}
	if limit >= unlimited {
		return 0, nil
	}
	return int64(limit), nil
}

func number(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("read %s: %.40q is not a size", path, text)
	}
	return n, nil
}

// lineSize is room for the lines of a file; one that has longer lines takes more.
const lineSize = 512

// fields reads the wanted figures of a file of lines that have a name, a separator and a number; 0 is one that it does
// not have. It is an error if the file has no figures at all. It is called every 2 s, and keeps nothing else of the
// file, so that an idle node has little to clean up.
func fields(path, separator string, wanted ...string) ([]int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found, figures := false, make([]int64, len(wanted))
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, lineSize), bufio.MaxScanTokenSize)
	for lines.Scan() {
		name, rest, ok := bytes.Cut(lines.Bytes(), []byte(separator))
		value, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
		if !ok || len(value) == 0 {
			continue
		}
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || n < 0 {
			continue
		}
		found = true
		for i := range wanted {
			if string(name) == wanted[i] {
				figures[i] = n
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if !found {
		return nil, fmt.Errorf("read %s: %w", path, errors.Join(fs.ErrInvalid, errors.New("it has no figures")))
	}
	return figures, nil
}

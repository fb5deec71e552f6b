package cgroupstats

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cadvisor/lib/model"
	"golang.org/x/sys/unix"
)

// maxDescriptors bounds the processes of one cgroup for which descriptors are counted.
const maxDescriptors = 4096

// proc reads what the kernel shows of processes.
type proc struct {
	// at is /proc.
	at string
	// sized says that the size of /proc/<pid>/fd is the number of its entries, as it is since Linux 6.2.
	sized bool
}

func newProc(at string) *proc {
	info, err := os.Stat(filepath.Join(at, "self", "fd"))
	return &proc{at: at, sized: err == nil && info.Size() > 0}
}

// members reads the processes of a cgroup.
func members(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	return parseMembers(text)
}

// parseMembers reads cgroup.procs, in ascending order. A process of another PID namespace, which reads as 0, is left
// out.
func parseMembers(text []byte) ([]int, error) {
	var pids []int
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		pid, err := strconv.ParseInt(string(line), 10, 32)
		if err != nil || pid < 0 {
			return nil, fmt.Errorf("cgroup.procs: %.40q is no process", line)
		}
		if pid > 0 {
			pids = append(pids, int(pid))
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// count counts the processes and their descriptors. Of sockets nothing is known: to see which descriptor is one needs
// the right to trace the process, and with that its memory could be read.
func (p *proc) count(pids []int) *model.ProcessStats {
	s := &model.ProcessStats{ProcessCount: uint64(len(pids))}
	for _, pid := range pids[:min(len(pids), maxDescriptors)] {
		s.FdCount += p.descriptors(pid)
	}
	return s
}

// descriptors is how many a process has open; 0 for one that has ended.
func (p *proc) descriptors(pid int) uint64 {
	dir := p.at + "/" + strconv.Itoa(pid) + "/fd"
	if p.sized {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return 0
		}
		return uint64(max(st.Size, 0))
	}
	f, err := os.Open(dir)
	if err != nil {
		return 0
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return 0
	}
	return uint64(len(names))
}

// openFiles is the limit of a process on its open files, as cAdvisor reports it; none for a process that has ended.
func (p *proc) openFiles(pid int) []model.UlimitSpec {
	text, err := os.ReadFile(p.at + "/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return nil
	}
	limit, ok := parseOpenFiles(string(text))
	if !ok {
		return nil
	}
	return []model.UlimitSpec{limit}
}

func parseOpenFiles(text string) (model.UlimitSpec, bool) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Max open files")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) != 3 {
			return model.UlimitSpec{}, false
		}
		soft, okSoft := parseLimit(fields[0])
		hard, okHard := parseLimit(fields[1])
		return model.UlimitSpec{Name: "max_open_files", SoftLimit: soft, HardLimit: hard}, okSoft && okHard
	}
	return model.UlimitSpec{}, false
}

func parseLimit(s string) (int64, bool) {
	if s == "unlimited" {
		return -1, true
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0
}

// parseNumber reads a file that has one number; "max" is math.MaxUint64.
func parseNumber(file, text string) (uint64, error) {
	text = strings.TrimSpace(text)
	if text == "max" {
		return math.MaxUint64, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %.40q is no number", file, text)
	}
	return n, nil
}

// keyed reads one number of a file of lines "key number". A file or key that is not there is 0.
func keyed(dir, file, key string) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return parseKeyed(file, string(text), key)
}

func parseKeyed(file, text, key string) (uint64, error) {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, " ")
		if ok && name == key {
			return parseNumber(file, value)
		}
	}
	return 0, nil
}

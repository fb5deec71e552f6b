package nodeinfo

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Options of a capacity.
type Options struct {
	// RootDir is the kubelet's root folder. Its file system holds the pods' ephemeral storage.
	RootDir string
	// MaxPods is the most pods that the node takes (maxPods).
	MaxPods int32
	// PodsPerCore lowers MaxPods on small machines (podsPerCore); 0 does not.
	PodsPerCore int32
	// LocalStorageCapacityIsolation is the field of that name. Without it the node has no ephemeral-storage, so that
	// no pod can request any.
	LocalStorageCapacityIsolation bool
}

// Capacity returns cpu, memory, pods, ephemeral-storage and a hugepages-<size> for each page size
// that the kernel has. What cannot be read is left out and named in the error.
func (s Source) Capacity(o Options) (v1.ResourceList, error) {
	list := v1.ResourceList{}
	var errs []error
	cpus, err := s.onlineCPUs()
	if err != nil {
		errs = append(errs, err)
	} else {
		list[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(cpus)*1000, resource.DecimalSI)
	}
	pods := int64(o.MaxPods)
	if o.PodsPerCore > 0 && cpus > 0 {
		pods = min(pods, int64(cpus)*int64(o.PodsPerCore))
	}
	list[v1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)

	if total, err := s.meminfo("MemTotal"); err != nil {
		errs = append(errs, err)
	} else {
		list[v1.ResourceMemory] = *resource.NewQuantity(total, resource.BinarySI)
	}
	if err := s.addHugePages(list); err != nil {
		errs = append(errs, err)
	}
	if !o.LocalStorageCapacityIsolation {
		return list, errors.Join(errs...)
	}
	if size, err := s.fileSystemSize(o.RootDir); err != nil {
		errs = append(errs, err)
	} else {
		list[v1.ResourceEphemeralStorage] = *resource.NewQuantity(size, resource.DecimalSI)
	}
	return list, errors.Join(errs...)
}

// ProcessLimit returns how many processes and threads the kernel lets the node have: the smaller one of kernel.pid_max
// and kernel.threads-max.
func (s Source) ProcessLimit() (int64, error) {
	limit := int64(math.MaxInt64)
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		data, err := s.read(file)
		if err != nil {
			return 0, fmt.Errorf("read the limit of processes: %w", err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the limit of processes: %s holds %q, want a number", file,
				strings.TrimSpace(string(data)))
		}
		limit = min(limit, n)
	}
	return limit, nil
}

// onlineCPUs counts the logical CPUs that are on.
func (s Source) onlineCPUs() (int, error) {
	const file = "/sys/devices/system/cpu/online"
	data, err := s.read(file)
	if err != nil {
		return 0, fmt.Errorf("count cpus: %w", err)
	}
	n, err := countList(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("count cpus: %s: %w", file, err)
	}
	return n, nil
}

// countList counts the members of a kernel list such as "0-3,8".
func countList(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("%q is not a list of numbers", list)
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil || to < from {
			return 0, fmt.Errorf("%q is not a list of numbers", list)
		}
		n += int(to-from) + 1
	}
	return n, nil
}

// meminfo returns a field of /proc/meminfo in bytes.
func (s Source) meminfo(field string) (int64, error) {
	const file = "/proc/meminfo"
	data, err := s.read(file)
	if err != nil {
		return 0, fmt.Errorf("read memory size: %w", err)
	}
	return parseMeminfo(data, field)
}

func parseMeminfo(data []byte, field string) (int64, error) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		name, rest, found := strings.Cut(lines.Text(), ":")
		if !found || name != field {
			continue
		}
		number, isKiB := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		kib, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || !isKiB || kib < 0 || kib > (1<<63-1)/1024 {
			return 0, fmt.Errorf("read memory size: field %s of /proc/meminfo is %q, want a number of kB", field,
				strings.TrimSpace(rest))
		}
		return kib * 1024, nil
	}
	return 0, fmt.Errorf("read memory size: /proc/meminfo has no field %s", field)
}

// addHugePages adds the pre-allocated huge pages of each size; a kernel without them has no folder.
func (s Source) addHugePages(list v1.ResourceList) error {
	const folder = "/sys/kernel/mm/hugepages"
	entries, err := os.ReadDir(s.path(folder))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read huge pages: %w", err)
	}
	for _, entry := range entries {
		var kib int64
		if _, err := fmt.Sscanf(entry.Name(), "hugepages-%dkB", &kib); err != nil || kib <= 0 {
			continue
		}
		file := filepath.Join(folder, entry.Name(), "nr_hugepages")
		data, err := s.read(file)
		if err != nil {
			return fmt.Errorf("read huge pages: %w", err)
		}
		pages, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return fmt.Errorf("read huge pages: %s holds %q, want a number", file, strings.TrimSpace(string(data)))
		}
		size := resource.NewQuantity(kib*1024, resource.BinarySI)
		name := v1.ResourceName(v1.ResourceHugePagesPrefix + size.String())
		list[name] = *resource.NewQuantity(kib*1024*pages, resource.BinarySI)
	}
	return nil
}

// fileSystemSize returns the size of the file system that holds dir, or will once dir is made.
func (s Source) fileSystemSize(dir string) (int64, error) {
	if dir == "" {
		return 0, errors.New("read ephemeral storage: the root folder is not set")
	}
	var fs unix.Statfs_t
	for p := s.path(dir); ; p = filepath.Dir(p) {
		err := unix.Statfs(p, &fs)
		if err == nil {
			return int64(fs.Blocks) * fs.Frsize, nil
		}
		if !errors.Is(err, os.ErrNotExist) || p == filepath.Dir(p) {
			return 0, fmt.Errorf("read ephemeral storage: statfs %s: %w", p, err)
		}
	}
}

package reading

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
	"github.com/microlet/microlet/services/internal/fsusage"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const mi = 1 << 20

// newReader has a machine of 1000 MiB with cgroup v1.
func newReader(t *testing.T) (*Reader, string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"meminfo":                           "MemTotal:       1024000 kB\nMemFree: 1 kB\n",
		"cgroup/memory.usage_in_bytes":      "629145600\n", // 600 MiB
		"cgroup/memory.stat":                "cache 5\ntotal_inactive_file 104857600\n",
		"cgroup/pods/memory.limit_in_bytes": "524288000\n", // 500 MiB
		"cgroup/pods/memory.usage_in_bytes": "314572800\n", // 300 MiB
		"cgroup/pods/memory.stat":           "total_inactive_file 0\n",
		"proc/sys/kernel/threads-max":       "5000\n",
		"proc/sys/kernel/pid_max":           "4000\n",
		"proc/loadavg":                      "0.1 0.2 0.3 1/250 77\n",
		"v2/memory.stat":                    "anon 104857600\nfile 209715200\ninactive_file 52428800\n",
		"v2/pods/memory.max":                "max\n",
		"v2/pods/memory.current":            "10485760\n",
		"v2/pods/memory.stat":               "inactive_file 0\n",
	})
	return New(Options{
		Memory:     Memory{Mount: filepath.Join(dir, "cgroup"), MemInfo: filepath.Join(dir, "meminfo")},
		Processes:  Processes{Proc: filepath.Join(dir, "proc")},
		PodsCgroup: func() string { return "/pods" }, RootDir: dir,
		Filesystems: func(context.Context) (Filesystems, error) { return Filesystems{dir, dir}, nil },
	}), dir
}

func TestEverySignalIsRead(t *testing.T) {
	r, _ := newReader(t)
	out := r.All(t.Context())
	for s, want := range map[signal.Signal][2]int64{
		signal.MemoryAvailable:            {500 * mi, 1000 * mi},
		signal.AllocatableMemoryAvailable: {200 * mi, 500 * mi},
		signal.PIDAvailable:               {3750, 4000},
	} {
		if got := out.Seen[s]; got.Available != want[0] || got.Capacity != want[1] {
			t.Errorf("%s is %+v, want %v", s, got, want)
		}
	}
	for _, s := range []signal.Signal{signal.NodeFsAvailable, signal.ImageFsAvailable, signal.ContainerFsAvailable} {
		if got, ok := out.Seen[s]; !ok || got.Capacity == 0 {
			t.Errorf("%s is %+v, %v", s, got, out.Failed[s])
		}
	}
	if !out.LayoutKnown || out.Layout != (threshold.Layout{}) {
		t.Errorf("layout %+v", out.Layout)
	}
}

func TestCgroupV2(t *testing.T) {
	r, dir := newReader(t)
	r.o.Memory.Mount, r.o.Memory.V2 = filepath.Join(dir, "v2"), true
	out := r.Quick()
	if got := out.Seen[signal.MemoryAvailable]; got.Available != 750*mi {
		t.Errorf("memory is %+v, %v", got, out.Failed)
	}
	if err := out.Failed[signal.AllocatableMemoryAvailable]; !Harmless(err) {
		t.Errorf("a cgroup without a limit: %v", err)
	}
}

// TestHugePagesAreNotAvailable, and are no part of what a percentage is of.
func TestHugePagesAreNotAvailable(t *testing.T) {
	for name, test := range map[string]struct {
		v2, aware           bool
		huge                string
		available, capacity int64
	}{
		"v1": {aware: true, huge: "Hugetlb: 204800 kB", available: 300 * mi, capacity: 800 * mi},
		"v2": {
			v2: true, aware: true, huge: "Hugetlb: 204800 kB", available: 550 * mi, capacity: 800 * mi,
		},
		"v1 without the gate":        {huge: "Hugetlb: 204800 kB", available: 500 * mi, capacity: 1000 * mi},
		"v2 without the gate":        {v2: true, huge: "Hugetlb: 204800 kB", available: 750 * mi, capacity: 1000 * mi},
		"v1, none":                   {aware: true, huge: "Hugetlb: 0 kB", available: 500 * mi, capacity: 1000 * mi},
		"v1, a kernel without them":  {aware: true, huge: "HugePages_Total: 0", available: 500 * mi, capacity: 1000 * mi},
		"v1, more than is available": {aware: true, huge: "Hugetlb: 921600 kB", available: 0, capacity: 500 * mi},
	} {
		r, dir := newReader(t)
		r.o.Memory.HugePages = test.aware
		if test.v2 {
			r.o.Memory.Mount, r.o.Memory.V2 = filepath.Join(dir, "v2"), true
		}
		write(t, dir, map[string]string{"meminfo": "MemTotal: 1024000 kB\nHugePagesize: 2048 kB\n" + test.huge + "\n"})
		out := r.Quick()
		if got := out.Seen[signal.MemoryAvailable]; got.Available != test.available || got.Capacity != test.capacity {
			t.Errorf("%s: memory is %+v, %v; want %d of %d", name, got, out.Failed, test.available, test.capacity)
		}
	}
}

// What cannot be is no observation: nothing is evicted for it.
func TestNonsenseIsNoObservation(t *testing.T) {
	for name, test := range map[string]struct {
		file, text string
		signal     signal.Signal
		want       string
	}{
		"no memory":         {"meminfo", "MemTotal: 0 kB\n", signal.MemoryAvailable, "has no MemTotal"},
		"more than all":     {"cgroup/memory.usage_in_bytes", "9999999999999", signal.MemoryAvailable, "are available"},
		"no number":         {"cgroup/memory.usage_in_bytes", "many", signal.MemoryAvailable, "is not a size"},
		"negative":          {"cgroup/memory.usage_in_bytes", "-5", signal.MemoryAvailable, "is not a size"},
		"empty stat":        {"cgroup/memory.stat", "", signal.MemoryAvailable, "no figures"},
		"no PIDs":           {"proc/sys/kernel/pid_max", "0", signal.PIDAvailable, "capacity is 0"},
		"no load":           {"proc/loadavg", "", signal.PIDAvailable, "has no number"},
		"a limit of no use": {"cgroup/pods/memory.limit_in_bytes", "x", signal.AllocatableMemoryAvailable, "invalid syntax"},
	} {
		r, dir := newReader(t)
		write(t, dir, map[string]string{test.file: test.text})
		out := r.All(t.Context())
		if _, seen := out.Seen[test.signal]; seen || out.Failed[test.signal] == nil ||
			!strings.Contains(out.Failed[test.signal].Error(), test.want) {
			t.Errorf("%s: %v, want %s", name, out.Failed[test.signal], test.want)
		}
	}
}

// Threads may outnumber a limit that was lowered after they began: none is left, which is a shortage.
func TestMoreThreadsThanTheLimitAreAShortage(t *testing.T) {
	r, dir := newReader(t)
	write(t, dir, map[string]string{"proc/loadavg": "0 0 0 1/9000 7"})
	out := r.All(t.Context())
	if got, seen := out.Seen[signal.PIDAvailable]; !seen || got.Available != 0 {
		t.Errorf("PIDs are %+v, %v", got, out.Failed)
	}
}

func TestMemoryIsReadWithoutTheRuntime(t *testing.T) {
	r, _ := newReader(t)
	r.o.Filesystems = func(context.Context) (Filesystems, error) { return Filesystems{}, errors.New("no runtime") }
	out := r.All(t.Context())
	if _, ok := out.Seen[signal.MemoryAvailable]; !ok || out.LayoutKnown || out.Failed[signal.ImageFsAvailable] == nil {
		t.Errorf("seen %v, failed %v", out.Seen, out.Failed)
	}
	if _, ok := out.Seen[signal.NodeFsAvailable]; !ok {
		t.Errorf("failed %v", out.Failed)
	}
}

func TestTheLayoutIsOfDevices(t *testing.T) {
	devices := map[string]uint64{}
	r, dir := newReader(t)
	r.o.Filesystems = func(context.Context) (Filesystems, error) { return Filesystems{"/i", "/c"}, nil }
	r.usage = func(_ context.Context, path string) (fsusage.Usage, error) {
		return fsusage.Usage{DeviceID: devices[path], Capacity: 10, Available: 5}, nil
	}
	for want, of := range map[threshold.Layout][3]uint64{
		{}: {1, 1, 1}, {ImageFs: true}: {1, 2, 2}, {ImageFs: true, SplitContainerFs: true}: {1, 2, 1},
	} {
		devices[dir], devices["/i"], devices["/c"] = of[0], of[1], of[2]
		if got := r.All(t.Context()).Layout; got != want {
			t.Errorf("%v: %+v, want %+v", of, got, want)
		}
	}
	if _, ok := r.All(t.Context()).Seen[signal.NodeFsInodesFree]; ok {
		t.Error("inodes of a filesystem that has none")
	}
}

func TestAFilesystemThatHangsIsNoObservation(t *testing.T) {
	r, dir := newReader(t)
	r.o.Filesystems = func(context.Context) (Filesystems, error) { return Filesystems{"/i", "/c"}, nil }
	r.usage = func(_ context.Context, path string) (fsusage.Usage, error) {
		if path != dir {
			return fsusage.Usage{}, fsusage.ErrHangs
		}
		return fsusage.Usage{Capacity: 10, Available: 5}, nil
	}
	out := r.All(t.Context())
	for _, s := range []signal.Signal{signal.ImageFsAvailable, signal.ContainerFsAvailable} {
		if _, seen := out.Seen[s]; seen || !errors.Is(out.Failed[s], fsusage.ErrHangs) {
			t.Errorf("%s is seen: %v, failed: %v", s, seen, out.Failed[s])
		}
	}
	if _, seen := out.Seen[signal.NodeFsAvailable]; !seen || out.LayoutKnown {
		t.Errorf("the other filesystem is seen: %v, the layout is known: %v", seen, out.LayoutKnown)
	}
}

// TestMemoryLeavesLittleBehind, since it is read every 2 s.
func TestMemoryLeavesLittleBehind(t *testing.T) {
	r, dir := newReader(t)
	var info strings.Builder
	info.WriteString("MemTotal:       1024000 kB\n")
	for i := range 60 {
		fmt.Fprintf(&info, "Field%d:       %d kB\n", i, 1000*i)
	}
	write(t, dir, map[string]string{"meminfo": info.String()})
	read := func() {
		if available, capacity, err := r.o.Memory.Node(); err != nil || available != 500*mi || capacity != 1000*mi {
			t.Fatal(available, capacity, err)
		}
	}
	if n := testing.AllocsPerRun(20, read); n > 40 {
		t.Errorf("one reading allocates %v times", n)
	}
}

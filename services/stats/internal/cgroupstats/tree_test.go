package cgroupstats

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/cadvisor/lib/model"
	libcgroups "github.com/opencontainers/cgroups"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/fsusage"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/testing/cgrouptest"
	"github.com/microlet/microlet/services/internal/testing/golden"
	"github.com/microlet/microlet/services/stats/internal/readerrors"
)

// lay lays out below a folder the files of an archive: each begins with a line "== path".
func lay(t *testing.T, root, archive string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", archive))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split("\n"+string(text), "\n== ")[1:] {
		name, body, _ := strings.Cut(block, "\n")
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if body != "" {
			body += "\n"
		}
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// onTree returns a measurer of the captured tree, and what counts what it skips.
func onTree(t *testing.T, mounted map[string]string) (*Measurer, *prometheus.Registry) {
	t.Helper()
	libcgroups.TestMode = true
	t.Cleanup(func() { libcgroups.TestMode = false })
	registry := prometheus.NewRegistry()
	pod := &nodepods.Pod{Pod: &v1.Pod{}, SandboxID: id2,
		Containers: []nodepods.Container{{Name: "main", ID: id1, State: nodepods.Running}}}
	m := &Measurer{
		book: readerrors.NewRecorder(slog.New(slog.DiscardHandler), registry), prober: &fsusage.Prober{},
		proc: &proc{at: t.TempDir()}, mounted: mounted, tracked: map[string]*tracked{},
		machine: &model.MachineInfo{NumCores: 2, MemoryCapacity: 1 << 30}, machineAt: time.Now(),
		o: Options{Pods: func() map[string]*nodepods.Pod { return map[string]*nodepods.Pod{"u": pod} }},
	}
	m.o.Book = m.book
	return m, registry
}

func skipped(t *testing.T, r *prometheus.Registry, source string) float64 {
	t.Helper()
	found, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == source {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// readContainer reads the captured container, with what changes from run to run taken out.
func readContainer(t *testing.T, m *Measurer) *Cgroup {
	t.Helper()
	s := &Snapshot{System: map[string]*Cgroup{}}
	if err := m.readAll(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Cgroups {
		if c.ID == id1 {
			if c.Container == nil || c.Pod == nil {
				t.Errorf("the container has no name: %+v", c)
			}
			return c
		}
	}
	return nil
}

func compare(t *testing.T, c *Cgroup, file string) {
	t.Helper()
	if c == nil {
		t.Fatal("the container was not read")
	}
	c.Stats.Timestamp, c.Spec.CreationTime, c.Pod, c.Container = time.Time{}, time.Time{}, nil, nil
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, filepath.Join("testdata", file), string(text)+"\n")
}

// breakEach puts nonsense into each file of the container in turn: its figures are skipped or without that file, the
// whole goes on, and something is counted or nothing of the nonsense is reported.
func breakEach(t *testing.T, dir string, m *Measurer, registry *prometheus.Registry) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		sound, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, nonsense := range []string{"", "\x00\xff", "-1", "99999999999999999999999", "a b c\nd", "usage_usec x"} {
			if err := os.WriteFile(path, []byte(nonsense), 0o600); err != nil {
				t.Fatal(err)
			}
			clear(m.tracked)
			before := skipped(t, registry, readerrors.Cgroup)
			if c := readContainer(t, m); c == nil && skipped(t, registry, readerrors.Cgroup) == before {
				t.Errorf("%s as %q skips the container, and nothing counts it", f.Name(), nonsense)
			}
		}
		if err := os.WriteFile(path, sound, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	clear(m.tracked)
	if readContainer(t, m) == nil {
		t.Error("the container is not read when its files are sound again")
	}
}

// onV1 reads a tree of cgroup v1 below a folder.
func onV1(t *testing.T) (root string, m *Measurer, registry *prometheus.Registry) {
	t.Helper()
	if libcgroups.IsCgroup2UnifiedMode() {
		t.Skip("this machine has no cgroup v1")
	}
	root = t.TempDir()
	lay(t, root, "v1.txt")
	mounted := map[string]string{}
	for _, c := range []string{"cpu", "cpuacct", "memory", "blkio", "pids"} {
		mounted[c] = filepath.Join(root, c)
	}
	m, registry = onTree(t, mounted)
	return root, m, registry
}

func TestCgroupV1(t *testing.T) {
	root, m, registry := onV1(t)
	compare(t, readContainer(t, m), "v1.golden.json")
	breakEach(t, filepath.Join(root, "memory/kubepods/podu", id1), m, registry)
	breakEach(t, filepath.Join(root, "cpuacct/kubepods/podu", id1), m, registry)
}

func TestCgroupV2(t *testing.T) {
	cgrouptest.OnUnified(t, func(t *testing.T) {
		root := t.TempDir()
		lay(t, root, "v2.txt")
		m, registry := onTree(t, map[string]string{"": root})
		compare(t, readContainer(t, m), "v2.golden.json")
		scope := "kubepods.slice/kubepods-podu.slice/cri-containerd-" + id1 + ".scope"
		breakEach(t, filepath.Join(root, scope), m, registry)
	})
}

// A cgroup that is gone is forgotten, and its figures with it; a new one of the same name starts from zero.
func TestGoneCgroups(t *testing.T) {
	root, m, registry := onV1(t)
	if c := readContainer(t, m); c == nil || c.UsageNanoCores != nil {
		t.Errorf("the first sample is %+v", c)
	}
	if c := readContainer(t, m); c == nil || c.UsageNanoCores == nil || *c.UsageNanoCores != 0 {
		t.Errorf("the second sample of an idle container is %+v", c)
	}
	for _, at := range m.mounted {
		if err := os.RemoveAll(filepath.Join(at, "kubepods/podu", id1)); err != nil {
			t.Fatal(err)
		}
	}
	if c := readContainer(t, m); c != nil {
		t.Errorf("a container that is gone has %+v", c)
	}
	for name := range m.tracked {
		if strings.HasSuffix(name, id1) {
			t.Errorf("%s is remembered", name)
		}
	}
	if n := skipped(t, registry, readerrors.Cgroup); n != 0 {
		t.Errorf("%v figures were skipped of containers that have just ended", n)
	}
	lay(t, root, "v1.txt")
	if c := readContainer(t, m); c == nil || c.UsageNanoCores != nil {
		t.Errorf("the first sample of its successor is %+v", c)
	}
}

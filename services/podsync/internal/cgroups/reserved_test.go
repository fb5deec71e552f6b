package cgroups

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/services/internal/podcgroup"
	"github.com/microlet/microlet/services/internal/testing/cgrouptest"
)

// values are the files of a cgroup that hold limits, by the version of the hierarchy; those of a controller that the
// machine lacks are left out.
func (m *Manager) values(t *testing.T, path string) map[string]string {
	t.Helper()
	files := map[string]string{"cpu": "cpu.shares", "memory": "memory.limit_in_bytes", "pids": "pids.max"}
	if m.unified {
		files = map[string]string{"cpu": "cpu.weight", "memory": "memory.max", "pids": "pids.max"}
	}
	got := map[string]string{}
	for controller, file := range files {
		mount := m.mounts[controller]
		if m.unified {
			mount = unifiedMount
		}
		if text, err := os.ReadFile(filepath.Join(mount, path, file)); err == nil {
			got[controller] = strings.TrimSpace(string(text))
		}
	}
	return got
}

// The kubelet limits a reserved cgroup that is there and makes none.
func TestReserved(t *testing.T) { testReserved(t) }

func TestReservedOnUnified(t *testing.T) { cgrouptest.OnUnified(t, testReserved) }

func testReserved(t *testing.T) {
	root, _ := ownRoot(t)
	m, err := New(Options{Root: root, PerQOS: true})
	if err != nil {
		t.Fatal(err)
	}
	own := Reserved{Cgroup: root + "/system", Limits: list("cpu", "500m", "memory", "64Mi", "pid", "100",
		"ephemeral-storage", "1Gi")}
	if err := m.LimitReserved(own); err == nil || !strings.Contains(err.Error(), own.Cgroup+" does not have ") {
		t.Fatalf("a cgroup that is not there: %v", err)
	}
	if m.anywhere(own.Cgroup) {
		t.Fatal("the cgroup was made")
	}
	name := podcgroup.ParseRoot(own.Cgroup, false)
	if err := m.create(name, resources{}); err != nil {
		t.Fatal(err)
	}
	before := m.values(t, own.Cgroup)
	own.CompressibleOnly = true
	want := map[string]string{"cpu": "512", "memory": before["memory"], "pids": before["pids"]}
	if m.unified {
		want["cpu"] = "20"
	}
	for _, step := range []string{"compressible", "all"} {
		if step == "all" {
			own.CompressibleOnly, want["memory"], want["pids"] = false, "67108864", "100"
		}
		for controller := range want {
			if _, has := before[controller]; !has {
				delete(want, controller)
			}
		}
		if err := m.LimitReserved(own); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, m.values(t, own.Cgroup)); d != "" {
			t.Errorf("%s: -want +got\n%s", step, d)
		}
	}
}

func TestReservedRefusesTheRoot(t *testing.T) {
	for _, root := range []string{"", "/"} {
		m := &Manager{}
		if err := m.LimitReserved(Reserved{Cgroup: root}); err == nil ||
			!strings.Contains(err.Error(), "root of the hierarchy") {
			t.Errorf("%q: %v", root, err)
		}
	}
}

func TestReservedResources(t *testing.T) {
	r := Reserved{Limits: list("cpu", "1", "memory", "1Gi"), Protect: true}
	got := reservedResources(r)
	if *got.shares != 1024 || *got.memory != 1<<30 || got.pids != nil || got.hugePages == nil || !got.allCPUs ||
		got.unified["memory.min"] != "1073741824" {
		t.Errorf("protected: %+v", got)
	}
	r.CompressibleOnly = true
	if got = reservedResources(r); *got.shares != 1024 || got.memory != nil || got.unified != nil || got.hugePages == nil {
		t.Errorf("compressible: %+v", got)
	}
}

// A limit that pods exceed must not keep podsync from starting: the root of all pods keeps what it has until LimitPods.
func TestRootKeepsItsLimitsUntilTheyAreSet(t *testing.T) {
	root, _ := ownRoot(t)
	o := Options{Root: root, PerQOS: true, Capacity: list("cpu", "2", "memory", "4Gi", "pid", "5000")}
	for _, step := range []struct{ limit, before, after string }{{"5000", "5000", "5000"}, {"4000", "5000", "4000"}} {
		o.Capacity[ResourcePIDs] = list("pid", step.limit)["pid"]
		m, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.EnsureRoots(); err != nil {
			t.Fatal(err)
		}
		path := m.PodsRoot().Cgroupfs()
		if got := m.values(t, path)["pids"]; got != step.before {
			t.Errorf("pids.max = %s, want %s", got, step.before)
		}
		if err := m.LimitPods(); err != nil {
			t.Fatal(err)
		}
		if got := m.values(t, path)["pids"]; got != step.after {
			t.Errorf("pids.max = %s once it is set, want %s", got, step.after)
		}
	}
}

// Without a cgroup a class, a cgroupRoot gets the node's capacity, and the root of the hierarchy nothing.
func TestLimitPodsWithoutQOS(t *testing.T) {
	m, err := New(Options{Capacity: list("memory", "1Gi")})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.LimitPods(); err != nil || len(m.PodsRoot()) != 0 {
		t.Errorf("the root of the hierarchy: %v, %v", m.PodsRoot(), err)
	}
	root, _ := ownRoot(t)
	if m, err = New(Options{Root: root, Capacity: list("pid", "3000")}); err != nil {
		t.Fatal(err)
	}
	if err := m.LimitPods(); err != nil {
		t.Fatal(err)
	}
	if got := m.values(t, root)["pids"]; got != "3000" {
		t.Errorf("pids.max = %s, want 3000", got)
	}
}

package cgroups

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podcgroup"
	"github.com/microlet/microlet/services/internal/testing/cgrouptest"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// sizedPod is the burstable pod of these tests with other resources.
func sizedPod(r v1.ResourceRequirements) *v1.Pod { return testPod("aaaa-1", r) }

// shown are the files of a pod's cgroup that a resize changes, as far as this host has their controllers.
func shown(t *testing.T, m *Manager, parent string) map[string]string {
	t.Helper()
	all := map[string]string{}
	files := map[string][]string{
		"cpu": {"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"}, "memory": {"memory.limit_in_bytes"},
	}
	if m.unified {
		files = map[string][]string{"cpu": {"cpu.weight", "cpu.max"}, "memory": {"memory.max"}}
	}
	for controller, names := range files {
		if !slices.Contains(m.needed, controller) {
			continue
		}
		mount := m.mounts[controller]
		if m.unified {
			mount = m.mounts[""]
		}
		for _, name := range names {
			all[name] = read(t, filepath.Join(mount, parent, name))
		}
	}
	return all
}

// resizeTo gives the pod's cgroup what these resources make, in one step, and holds what it then has.
func resizeTo(t *testing.T, m *Manager, r v1.ResourceRequirements, parent string, want map[string]string) {
	t.Helper()
	p := sizedPod(r)
	c, err := m.ReadPod(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SetPod(p, c.Has, c.Wants); err != nil {
		t.Fatal(err)
	}
	got := shown(t, m, parent)
	for file := range got {
		if got[file] != want[file] {
			t.Errorf("with %v, %s = %s, want %s", r, file, got[file], want[file])
		}
	}
	if c, err = m.ReadPod(p, nil); err != nil || c.Has != c.Wants {
		t.Errorf("with %v the cgroup has %+v, wants %+v, %v", r, c.Has, c.Wants, err)
	}
}

// resizeAPod goes up, down, and takes limits away and puts them back.
func resizeAPod(t *testing.T, m *Manager) {
	t.Helper()
	small := v1.ResourceRequirements{Requests: list("cpu", "100m"), Limits: list("cpu", "200m", "memory", "64Mi")}
	parent, err := m.EnsurePod(sizedPod(small))
	if err != nil {
		t.Fatal(err)
	}
	const none = "9223372036854771712"
	largest := none
	if page := os.Getpagesize(); page != 4096 {
		largest = strconv.FormatInt(int64(pod.Unlimited/page*page), 10)
	}
	of := func(shares, weight, quota, limit string) map[string]string {
		memory := limit
		if limit == "max" {
			limit = largest
		}
		v1Quota := quota
		if quota == "max" {
			v1Quota = "-1"
		}
		return map[string]string{
			"cpu.shares": shares, "cpu.cfs_quota_us": v1Quota, "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": limit,
			"cpu.weight": weight, "cpu.max": quota + " 100000", "memory.max": memory,
		}
	}
	large := v1.ResourceRequirements{Requests: list("cpu", "500m"), Limits: list("cpu", "1", "memory", "128Mi")}
	unlimited := v1.ResourceRequirements{Requests: list("cpu", "500m")}
	odd := v1.ResourceRequirements{Requests: list("cpu", "501m"), Limits: list("cpu", "501m", "memory", "67108865")}
	resizeTo(t, m, small, parent, of("102", "4", "20000", "67108864"))
	resizeTo(t, m, large, parent, of("512", "20", "100000", "134217728"))
	resizeTo(t, m, small, parent, of("102", "4", "20000", "67108864"))
	resizeTo(t, m, unlimited, parent, of("512", "20", "max", "max"))
	resizeTo(t, m, small, parent, of("102", "4", "20000", "67108864"))
	// The kernel counts whole pages.
	resizeTo(t, m, odd, parent, of("513", "20", "50100", "67108864"))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := m.RemovePod(ctx, "aaaa-1"); err != nil {
		t.Error(err)
	}
	if c, err := m.ReadPod(sizedPod(small), nil); c != nil || err != nil {
		t.Errorf("the cgroup of a pod without one is %+v, %v", c, err)
	}
}

func resizable(t *testing.T) *Manager {
	t.Helper()
	root, _ := ownRoot(t)
	m, err := New(Options{Root: root, PerQOS: true, CPUCFSQuota: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.EnsureRoots(); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestResize(t *testing.T) { resizeAPod(t, resizable(t)) }

// TestResizeStepByStep changes one limit and nothing else.
func TestResizeStepByStep(t *testing.T) {
	m := resizable(t)
	p := sizedPod(v1.ResourceRequirements{Requests: list("cpu", "100m"), Limits: list("cpu", "200m", "memory", "64Mi")})
	parent, err := m.EnsurePod(p)
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.ReadPod(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []func(l *pod.CgroupLimits){
		func(l *pod.CgroupLimits) { l.CPUQuota = 40000 },
		func(l *pod.CgroupLimits) { l.CPUShares = 512 },
		func(l *pod.CgroupLimits) { l.MemoryLimit = 128 << 20 },
		func(l *pod.CgroupLimits) { l.CPUQuota = pod.Unlimited },
		func(l *pod.CgroupLimits) { l.MemoryLimit = pod.Unlimited },
		func(*pod.CgroupLimits) {},
	} {
		after := c.Has
		step(&after)
		if err := m.SetPod(p, c.Has, after); err != nil {
			t.Fatal(err)
		}
		if c, err = m.ReadPod(p, nil); err != nil {
			t.Fatal(err)
		}
		after.CPUShares = c.Has.CPUShares // cpu.weight is coarser
		if !m.unified && read(t, m.mounts["cpu"]+parent+"/cpu.shares") != strconv.Itoa(int(after.CPUShares)) {
			t.Errorf("step %d: shares %d", i, after.CPUShares)
		}
		if diff := cmp.Diff(after, c.Has); diff != "" && m.has("cpu") && m.has("memory") {
			t.Errorf("step %d: %s", i, diff)
		}
	}
}

// TestResizeBelowTheUsage is refused, and changes nothing.
func TestResizeBelowTheUsage(t *testing.T) {
	m := resizable(t)
	if !m.has("memory") {
		t.Log("this machine's cgroup v2 has no memory controller")
		return
	}
	p := sizedPod(v1.ResourceRequirements{Limits: list("memory", "64Mi")})
	parent, err := m.EnsurePod(p)
	if err != nil {
		t.Fatal(err)
	}
	const id = "0123456789abcdef"
	used(t, m, podcgroup.ParseRoot(parent+"/"+id, false), 20<<20)
	c, err := m.ReadPod(p, []string{id, "other"})
	if err != nil {
		t.Fatal(err)
	}
	if own := c.Containers[id]; own < 20<<20 || own > 30<<20 || c.Memory < own || len(c.Containers) != 1 {
		t.Errorf("the pod uses %d, its containers %v", c.Memory, c.Containers)
	}
	less := c.Has
	less.MemoryLimit = 10 << 20
	if err := m.SetPod(p, c.Has, less); err == nil || !strings.Contains(err.Error(), "pod n/p") {
		t.Errorf("a limit below the usage: %v", err)
	}
	if again, err := m.ReadPod(p, nil); err != nil || again.Has != c.Has {
		t.Errorf("the cgroup has %+v, %v", again.Has, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := m.RemovePod(ctx, p.UID); err != nil {
		t.Error(err)
	}
}

// used has a process in a cgroup use memory that cannot be reclaimed.
func used(t *testing.T, m *Manager, n podcgroup.Name, bytes int) {
	t.Helper()
	if err := m.create(n, resources{}); err != nil {
		t.Fatal(err)
	}
	made, err := m.manager(n, m.convert(resources{}))
	if err != nil {
		t.Fatal(err)
	}
	file := "/dev/shm/microlet-test-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() { _ = os.Remove(file) })
	const script = `read go; head -c "$1" /dev/zero > "$0"; echo done; read end`
	sh := exec.Command("sh", "-c", script, file, strconv.Itoa(bytes))
	in, err := sh.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := sh.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sh.Wait() })
	if err := made.Apply(sh.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "done\n" {
		t.Fatalf("said %q, %v", line, err)
	}
}

func TestResizeOnUnified(t *testing.T) {
	cgrouptest.OnUnified(t, func(t *testing.T) {
		before := read(t, unifiedMount+"/cgroup.subtree_control")
		m := resizable(t)
		t.Cleanup(func() { restoreControllers(t, before) })
		resizeAPod(t, m)
	})
}

// TestSmoothed holds what counts as equal although the kernel or systemd shows another number.
func TestSmoothed(t *testing.T) {
	limits := func(memory, quota, period int64) pod.CgroupLimits {
		return pod.CgroupLimits{
			MemoryLimit: memory, MemoryHigh: pod.Unlimited, CPUQuota: quota, CPUPeriod: period, CPUShares: 2,
		}
	}
	page := int64(os.Getpagesize())
	for name, test := range map[string]struct {
		systemd    bool
		has, wants pod.CgroupLimits
		memory     int64
		quota      int64
	}{
		"no limits of v1": {
			false, limits(pod.Unlimited/page*page, -1, 100000), limits(pod.Unlimited, pod.Unlimited, 100000),
			pod.Unlimited, pod.Unlimited,
		},
		"no limits of v2": {
			false, limits(pod.Unlimited, pod.Unlimited, 100000), limits(1<<20, 20000, 100000), pod.Unlimited, pod.Unlimited,
		},
		"a limit beyond what v1 counts": {
			false, limits(pod.Unlimited/page*page, -1, 100000), limits(pod.Unlimited-7, pod.Unlimited, 100000),
			pod.Unlimited - 7, pod.Unlimited,
		},
		"a limit beyond what v2 counts": {
			false, limits(pod.Unlimited, pod.Unlimited, 100000), limits(pod.Unlimited-7, pod.Unlimited, 100000),
			pod.Unlimited - 7, pod.Unlimited,
		},
		"a limit of almost all pages": {
			false, limits(unlimitedFrom+page, -1, 100000), limits(unlimitedFrom+page, pod.Unlimited, 100000),
			unlimitedFrom + page, pod.Unlimited,
		},
		"whole pages":    {false, limits(page, 20000, 100000), limits(page+1, 20000, 100000), page + 1, 20000},
		"another page":   {false, limits(page, 20000, 100000), limits(2*page, 20000, 100000), page, 20000},
		"another period": {false, limits(page, 20000, 100000), limits(page, 2000, 10000), page, 2000},
		"cgroupfs":       {false, limits(page, 51000, 100000), limits(page, 50100, 100000), page, 51000},
		"systemd":        {true, limits(page, 51000, 100000), limits(page, 50100, 100000), page, 50100},
		"systemd, other": {true, limits(page, 51000, 100000), limits(page, 51100, 100000), page, 51000},
	} {
		m := &Manager{systemd: test.systemd}
		c := &pod.Cgroup{Has: test.has, Wants: test.wants}
		m.smooth(c)
		if c.Has != limits(test.memory, test.quota, test.wants.CPUPeriod) {
			t.Errorf("%s: %+v, want memory %d and quota %d", name, c.Has, test.memory, test.quota)
		}
	}
	for _, weight := range []uint64{1, 4, 20, 39, 5000, 10000} {
		if got := sharesToWeight(weightToShares(weight)); got != weight && got != weight-1 {
			t.Errorf("weight %d comes back as %d", weight, got)
		}
	}
}

// TestUnifiedMemory holds memory.high and the protected memory, which a machine without the controller cannot show.
func TestUnifiedMemory(t *testing.T) {
	factor := 0.9
	m := &Manager{unified: true, needed: []string{"cpu", "memory"}, o: Options{
		CPUCFSQuota: true, CPUCFSQuotaPeriod: 100 * time.Millisecond, MemoryThrottlingFactor: &factor,
		MemoryReservation: true,
	}}
	p := testPod("u", v1.ResourceRequirements{})
	p.Spec.Resources = &v1.ResourceRequirements{
		Requests: list("cpu", "500m", "memory", "100Mi"), Limits: list("cpu", "1", "memory", "200Mi"),
	}
	want := pod.CgroupLimits{
		MemoryLimit: 200 << 20, MemoryHigh: 199229440, MemoryProtected: 100 << 20,
		CPUQuota: 100000, CPUPeriod: 100000, CPUShares: 512,
	}
	if diff := cmp.Diff(want, m.wantedLimits(p)); diff != "" {
		t.Error(diff)
	}
	p.Spec.Resources = nil
	want = pod.CgroupLimits{
		MemoryLimit: pod.Unlimited, MemoryHigh: pod.Unlimited, CPUQuota: pod.Unlimited, CPUPeriod: 100000, CPUShares: 2,
	}
	if diff := cmp.Diff(want, m.wantedLimits(p)); diff != "" {
		t.Error(diff)
	}

	mount := t.TempDir()
	m.mounts = map[string]string{"": mount}
	for file, text := range map[string]string{
		"memory.max": "max", "memory.high": "4096", "memory.low": "8192", "cpu.max": "max 100000", "cpu.weight": "39",
	} {
		if err := os.WriteFile(filepath.Join(mount, file), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p = testPod("u", v1.ResourceRequirements{Requests: list("cpu", "1")})
	c, err := m.readPod(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	has := want
	has.MemoryHigh, has.MemoryProtected, has.CPUShares = 4096, 8192, 1024
	if diff := cmp.Diff(has, c.Has); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(filepath.Join(mount, "memory.max"), []byte("many"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.readPod(nil, p); err == nil || !strings.Contains(err.Error(), "memory.max") {
		t.Errorf("err = %v", err)
	}
}

func TestFolderOfAContainer(t *testing.T) {
	for folder, want := range map[string]bool{
		"ab": true, "cri-containerd-ab.scope": true, "crio-ab.scope": true, "crio-conmon-ab.scope": false,
		"cab": false, "ab-c": false,
	} {
		if got := isOf(folder, "ab"); got != want {
			t.Errorf("%s is the folder of ab: %v", folder, got)
		}
	}
}

// TestCheckedLimit has cgroup v2 refuse what it would kill for.
func TestCheckedLimit(t *testing.T) {
	m := &Manager{unified: true, needed: []string{"memory"}}
	if r := m.convert(resources{checked: true, memory: new(int64(1))}); !r.MemoryCheckBeforeUpdate || r.Memory != 1 {
		t.Errorf("%+v", r)
	}
}

func TestSharesToMilliCPU(t *testing.T) {
	for milli, want := range map[int64]int64{0: 0, 2: 0, 3: 3, 100: 100, 501: 501, 1000: 1000, 1 << 30: 256000} {
		if got := SharesToMilliCPU(MilliCPUToShares(milli)); got != want {
			t.Errorf("%d becomes %d, want %d", milli, got, want)
		}
	}
}

// TestProtectedMemoryIsInPages: a request that is no whole number of pages is in force when the kernel has rounded it.
func TestProtectedMemoryIsInPages(t *testing.T) {
	page := int64(os.Getpagesize())
	for has, want := range map[int64]int64{page: page + 1, 2 * page: 2 * page, 0: 0} {
		c := &pod.Cgroup{Has: pod.CgroupLimits{MemoryProtected: has}, Wants: pod.CgroupLimits{MemoryProtected: page + 1}}
		(&Manager{}).smooth(c)
		if c.Has.MemoryProtected != want {
			t.Errorf("%d bytes of %d are taken as %d", has, page+1, c.Has.MemoryProtected)
		}
	}
}

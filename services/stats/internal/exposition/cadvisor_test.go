package exposition

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/cadvisor/lib/container"
	"github.com/google/cadvisor/lib/machine"
	"github.com/google/cadvisor/lib/metrics"
	"github.com/google/cadvisor/lib/model"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	commonmodel "github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
	"github.com/microlet/microlet/services/stats/internal/cri"
)

var now = time.UnixMilli(1_800_000_000_500)

const id = "9d8cea7da562881cf6c43a5f42c825538f9f015e50562fdddc7450f396d0d410"

// counting gives each figure a value of its own, so that none can be taken for another.
type counting uint64

func (c *counting) next() uint64 { *c++; return uint64(*c) }

// statsOf are figures of which none is like another.
func statsOf(c *counting) *model.ContainerStats {
	n := c.next
	disk := func() []model.PerDiskStats {
		return []model.PerDiskStats{
			{Device: "/dev/vda", Major: 254, Minor: 0, Stats: map[string]uint64{
				"Read": n(), "Write": n(), "Total": n(), "Count": n()}},
			{Device: "", Major: 7, Minor: 1, Stats: map[string]uint64{"Read": n(), "Total": n()}},
		}
	}
	psi := func() model.PSIStats {
		return model.PSIStats{Full: model.PSIData{Total: n()}, Some: model.PSIData{Total: n()}}
	}
	net := func(name string) model.InterfaceStats {
		return model.InterfaceStats{Name: name, RxBytes: n(), RxPackets: n(), RxErrors: n(), RxDropped: n(),
			TxBytes: n(), TxPackets: n(), TxErrors: n(), TxDropped: n()}
	}
	return &model.ContainerStats{
		Timestamp: now.Add(-time.Duration(n()) * time.Millisecond),
		Cpu: &model.CpuStats{
			Usage: model.CpuUsage{Total: n(), User: n(), System: n()},
			CFS:   model.CpuCFS{Periods: n(), ThrottledPeriods: n(), ThrottledTime: n(), BurstsPeriods: n(), BurstTime: n()},
			PSI:   psi(),
		},
		Memory: &model.MemoryStats{
			Usage: n(), MaxUsage: n(), Cache: n(), RSS: n(), Swap: n(), MappedFile: n(), WorkingSet: n(), Failcnt: n(),
			KernelUsage: n(), TotalActiveFile: n(), TotalInactiveFile: n(), FileDirty: n(), FileWriteback: n(),
			Pgscan: n(), Pgsteal: n(), WorkingsetRefaultFile: n(), WorkingsetRefaultAnon: n(),
			ContainerData:    model.MemoryStatsMemoryData{Pgfault: n(), Pgmajfault: n()},
			HierarchicalData: model.MemoryStatsMemoryData{Pgfault: n(), Pgmajfault: n()},
			Events:           model.MemoryEvents{High: n(), Max: n()}, PSI: psi(),
		},
		DiskIo: &model.DiskIoStats{
			IoServiceBytes: disk(), IoServiced: disk(), IoQueued: disk(), Sectors: disk(), IoServiceTime: disk(),
			IoWaitTime: disk(), IoMerged: disk(), IoTime: disk(), IoCostUsage: disk(), IoCostWait: disk(),
			IoCostIndebt: disk(), IoCostIndelay: disk(), PSI: psi(),
		},
		Network: &model.NetworkStats{Interfaces: []model.InterfaceStats{net("eth0"), net(`a"b\c`)}},
		Filesystem: []model.FsStats{{
			Device: "/dev/vda1", Limit: n(), Usage: n(), Available: n(), HasInodes: true, Inodes: n(), InodesFree: n(),
			ReadsCompleted: n(), ReadsMerged: n(), SectorsRead: n(), ReadTime: n(), WritesCompleted: n(),
			WritesMerged: n(), SectorsWritten: n(), WriteTime: n(), IoInProgress: n(), IoTime: n(), WeightedIoTime: n(),
		}},
		Processes: &model.ProcessStats{
			ProcessCount: n(), FdCount: n(), ThreadsCurrent: n(), ThreadsMax: n(),
			Ulimits: []model.UlimitSpec{{Name: "max_open_files", SoftLimit: -1, HardLimit: int64(n())}},
		},
		OOMEvents: n(),
	}
}

func specOf(c *counting, limit uint64) model.ContainerSpec {
	n := c.next
	return model.ContainerSpec{
		CreationTime: now.Add(-time.Duration(n()) * time.Hour), HasCpu: true, HasMemory: true, HasNetwork: true,
		HasDiskIo: true, HasFilesystem: true, HasProcesses: true,
		Cpu:    model.CpuSpec{Limit: n(), Period: n(), Quota: n()},
		Memory: model.MemorySpec{Limit: limit, SwapLimit: n(), Reservation: n()},
	}
}

func object(namespace, name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// node is a snapshot with a cgroup of each kind.
func node() (*cgroupstats.Snapshot, cri.Created) {
	var c counting
	pod := &nodepods.Pod{
		Pod: object("n\\ns", "p"), SandboxID: strings.Repeat("a", 64),
		Containers: []nodepods.Container{{
			Name: "main", ID: id, Image: "docker.io/library/busybox:1.37", State: nodepods.Running,
		}},
	}
	idle := specOf(&c, 1<<20)
	idle.Cpu.Quota, idle.HasMemory = 0, false
	list := []*cgroupstats.Cgroup{
		{Name: "/", Kind: cgroupstats.Root, Spec: specOf(&c, 1<<30)},
		{Name: "/kubepods", Kind: cgroupstats.Slice, Spec: idle},
		{Name: "/kubepods/podu", Kind: cgroupstats.PodKind, PodUID: "u", Pod: pod, Spec: specOf(&c, math.MaxUint64)},
		{Name: "/kubepods/podu/" + pod.SandboxID, Kind: cgroupstats.Container, PodUID: "u", ID: pod.SandboxID, Pod: pod,
			Spec: specOf(&c, 1<<30)},
		{Name: "/kubepods/podu/" + id, Kind: cgroupstats.Container, PodUID: "u", ID: id, Pod: pod,
			Container: &pod.Containers[0], Spec: specOf(&c, 1<<30)},
	}
	for _, one := range list {
		one.Stats = statsOf(&c)
	}
	list[1].Stats.Cpu.Usage.Total = 0
	made := &model.MachineInfo{
		Timestamp: now, NumCores: 4, NumPhysicalCores: 2, NumSockets: 1, MemoryCapacity: 1 << 34, SwapCapacity: 1 << 20,
		MachineID: "m", SystemUUID: "s", BootID: "b",
	}
	created := cri.Created{id: now.Add(-time.Minute), pod.SandboxID: now.Add(-2 * time.Minute)}
	return &cgroupstats.Snapshot{ReadAt: now, Machine: made, Cgroups: list, PSI: true}, created
}

// library is what cAdvisor's own collector asks.
type library struct {
	machineSource

	all map[string]*model.ContainerInfo
}

func (l library) GetVersionInfo() (*model.VersionInfo, error) {
	return &model.VersionInfo{KernelVersion: machine.KernelVersion(), ContainerOsVersion: machine.ContainerOsVersion()},
		nil
}

func (l library) GetRequestedContainersInfo(string, model.RequestOptions) (map[string]*model.ContainerInfo, error) {
	return l.all, nil
}

// kubelets is the page as the kubelet makes it: cAdvisor's collector, with the kubelet's metrics and labels.
func kubelets(t *testing.T, s *cgroupstats.Snapshot, created cri.Created) map[string]*dto.MetricFamily {
	t.Helper()
	l := library{machineSource{s.Machine}, map[string]*model.ContainerInfo{}}
	for _, c := range s.Cgroups {
		info := &model.ContainerInfo{
			ContainerReference: model.ContainerReference{Name: c.Name}, Spec: c.Spec, Stats: []*model.ContainerStats{c.Stats},
		}
		if c.Kind == cgroupstats.Container { // as the handler of containerd has it
			info.Aliases = []string{c.ID, c.Name}
			info.Spec.StartTime, info.Spec.CreationTime = c.Spec.CreationTime, created[c.ID]
		}
		if c.Container != nil {
			info.Spec.Image = c.Container.Image
		}
		l.all[c.Name] = info
	}
	set := container.MetricSet{
		container.CpuUsageMetrics: {}, container.MemoryUsageMetrics: {}, container.DiskIOMetrics: {},
		container.DiskUsageMetrics: {}, container.NetworkUsageMetrics: {}, container.AppMetrics: {},
		container.ProcessMetrics: {}, container.OOMMetrics: {}, container.PressureMetrics: {},
	}
	labels := func(info *model.ContainerInfo) map[string]string {
		all := map[string]string{"id": info.Name, "image": info.Spec.Image, "name": "", "pod": "", "namespace": "",
			"container": ""}
		for _, c := range s.Cgroups {
			if c.Name != info.Name {
				continue
			}
			if c.Kind == cgroupstats.Container {
				all["name"] = c.ID
			}
			if c.Pod != nil {
				all["pod"], all["namespace"] = c.Pod.Name, c.Pod.Namespace
			}
			if c.Container != nil {
				all["container"] = c.Container.Name
			}
		}
		return all
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewPrometheusMachineCollector(l, set),
		metrics.NewPrometheusCollector(l, labels, set, testingclock.NewFakeClock(now), model.RequestOptions{}))
	found, err := registry.Gather()
	if err != nil { // what it has twice is an error, and the first of two is reported, as the kubelet's page does
		t.Log("cAdvisor's collector:", err)
	}
	var text bytes.Buffer
	for _, f := range found {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	return parse(t, text.Bytes())
}

func parse(t *testing.T, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(commonmodel.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("the page cannot be read: %v", err)
	}
	return families
}

// lines are the metrics of a family, each as one text.
func lines(f *dto.MetricFamily) map[string]int {
	all := map[string]int{}
	for _, m := range f.GetMetric() {
		slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
		all[m.String()]++
	}
	return all
}

func TestCadvisorIsTheLibrarys(t *testing.T) {
	s, created := node()
	var text bytes.Buffer
	err := Cadvisor(s, created, now, func(part []byte) error { text.Write(part); return nil })
	if err != nil {
		t.Fatal(err)
	}
	got, want := parse(t, text.Bytes()), kubelets(t, s, created)
	delete(want, "container_sockets") // meant: see measure
	for name := range got {
		if want[name] == nil {
			t.Errorf("the page has %s, which the kubelet's has not", name)
		}
	}
	for name, w := range want {
		g := got[name]
		if g == nil {
			t.Errorf("the page lacks %s", name)
			continue
		}
		if g.GetHelp() != w.GetHelp() || g.GetType() != w.GetType() {
			t.Errorf("%s is %v %q, want %v %q", name, g.GetType(), g.GetHelp(), w.GetType(), w.GetHelp())
		}
		gotLines, wantLines := lines(g), lines(w)
		for line, n := range gotLines {
			if wantLines[line] != n {
				t.Errorf("%s has %d times %s, want %d", name, n, line, wantLines[line])
			}
		}
		for line := range wantLines {
			if gotLines[line] == 0 {
				t.Errorf("%s lacks %s", name, line)
			}
		}
	}
}

// TestTheMachineHasNoTime: what is measured once and reported for ever would be stale with the time of the measurement.
func TestTheMachineHasNoTime(t *testing.T) {
	s, created := node()
	var text bytes.Buffer
	if err := Cadvisor(s, created, now, func(part []byte) error { text.Write(part); return nil }); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for name, family := range parse(t, text.Bytes()) {
		for _, m := range family.GetMetric() {
			if strings.HasPrefix(name, "machine_") {
				seen++
				if m.TimestampMs != nil {
					t.Errorf("%s has the time %d", name, m.GetTimestampMs())
				}
			}
		}
	}
	if seen == 0 {
		t.Error("there are no metrics of the machine")
	}
}

// What podsync has not published has no figures, since it has no names, or is gone.
func TestCadvisorLeavesOutStrangers(t *testing.T) {
	s, created := node()
	s.PSI = false
	for _, c := range s.Cgroups[2:] {
		c.Pod, c.Container = nil, nil
	}
	s.Cgroups = append(s.Cgroups, &cgroupstats.Cgroup{
		Name: "/kubepods/podv/" + id, Kind: cgroupstats.Container, ID: id,
		Pod:   &nodepods.Pod{Pod: object("", "known"), SandboxID: "other"},
		Stats: s.Cgroups[0].Stats,
	})
	var text bytes.Buffer
	if err := Cadvisor(s, created, now, func(part []byte) error { text.Write(part); return nil }); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), "pod") && strings.Contains(text.String(), id) {
		t.Error("a container without a name has figures")
	}
	if strings.Contains(text.String(), "container_pressure") {
		t.Error("pressure is reported that the kernel does not measure")
	}
}

func TestCadvisorEndsWithItsReader(t *testing.T) {
	s, created := node()
	for i := range 2000 {
		one := *s.Cgroups[1]
		one.Name = fmt.Sprintf("/kubepods/%d", i)
		s.Cgroups = append(s.Cgroups, &one)
	}
	gone, parts := errors.New("the reader is gone"), 0
	err := Cadvisor(s, created, now, func(part []byte) error {
		if parts++; len(part) > 2*partSize {
			t.Errorf("a part has %d bytes", len(part))
		}
		if parts == 3 {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) || parts != 3 {
		t.Errorf("the page ends with %v after %d parts", err, parts)
	}
}

func BenchmarkCadvisor(b *testing.B) {
	s, created := node()
	for i := range 350 {
		one := *s.Cgroups[4]
		one.Name = fmt.Sprintf("%s%d", one.Name, i)
		s.Cgroups = append(s.Cgroups, &one)
	}
	b.ReportAllocs()
	for b.Loop() {
		size := 0
		if err := Cadvisor(s, created, now, func(part []byte) error { size += len(part); return nil }); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(size))
	}
}

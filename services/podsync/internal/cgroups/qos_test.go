package cgroups

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podcgroup"
	"github.com/microlet/microlet/services/internal/testing/cgrouptest"
)

func needs(requests, limits v1.ResourceList) *v1.Pod {
	return testPod("u", v1.ResourceRequirements{Requests: requests, Limits: limits})
}

func (r resources) String() string {
	text := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprint(*n)
	}
	return fmt.Sprintf("shares %d, memory %s, %v", *r.shares, text(r.memory), r.unified)
}

// The kubelet's numbers: what is left of the node's memory after the reserved share of what higher classes request.
func TestQOSResources(t *testing.T) {
	percent := func(n int64) *int64 { return &n }
	guaranteed := needs(list("cpu", "1", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi"))
	burstable := needs(list("cpu", "500m", "memory", "512Mi"), list("memory", "1Gi"))
	bestEffort := needs(nil, nil)
	pods := []*v1.Pod{guaranteed, burstable, bestEffort, burstable}
	for _, test := range []struct {
		name                          string
		o                             Options
		wantBurstable, wantBestEffort string
	}{
		{"none", Options{}, "shares 1024, memory -, map[]", "shares 2, memory -, map[]"},
		{"protected", Options{MemoryReservation: true},
			"shares 1024, memory -, map[memory.low:1073741824]", "shares 2, memory -, map[]"},
		{"half reserved", Options{QOSReserved: percent(50)},
			"shares 1024, memory 3758096384, map[]", "shares 2, memory 3221225472, map[]"},
		{"nothing reserved", Options{QOSReserved: percent(0)},
			"shares 1024, memory 4294967296, map[]", "shares 2, memory 4294967296, map[]"},
		{"more requested than there is", Options{QOSReserved: percent(100), Allocatable: list("memory", "1Gi")},
			"shares 1024, memory 4096, map[]", "shares 2, memory 4096, map[]"},
		{"unknown memory", Options{QOSReserved: percent(100), Allocatable: list("cpu", "1")},
			"shares 1024, memory -, map[]", "shares 2, memory -, map[]"},
	} {
		if test.o.Allocatable == nil {
			test.o.Allocatable = list("memory", "4Gi")
		}
		m := &Manager{o: test.o}
		b, e := m.qosResources(requestsOf(pods))
		if b.String() != test.wantBurstable || e.String() != test.wantBestEffort {
			t.Errorf("%s: %v and %v, want %s and %s", test.name, b, e, test.wantBurstable, test.wantBestEffort)
		}
	}
}

// A pod that requests more than there can be takes nothing from the share of its class.
func TestRequestsThatAreTooLarge(t *testing.T) {
	usual := needs(list("cpu", "500m"), nil)
	large := needs(list("cpu", "9e15", "memory", "8Ei"), nil)
	burstable, _ := (&Manager{}).qosResources(requestsOf([]*v1.Pod{usual, large, large}))
	if got, want := burstable.String(), "shares 262144, memory -, map[]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A pod's own cgroup is protected by its class, beside its throttle, and not without the setting.
func TestProtectionOfAPod(t *testing.T) {
	factor := 0.9
	podLevel := needs(nil, nil)
	podLevel.Spec.Resources = &v1.ResourceRequirements{Requests: list("memory", "100Mi"), Limits: list("memory", "200Mi")}
	for _, test := range []struct {
		pod  *v1.Pod
		want map[string]string
	}{
		{needs(list("cpu", "1", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi")),
			map[string]string{"memory.min": "1073741824"}},
		{needs(list("memory", "64Mi"), nil), map[string]string{"memory.low": "67108864"}},
		{needs(list("cpu", "1"), nil), nil},
		{needs(nil, nil), nil},
		{podLevel, map[string]string{"memory.low": "104857600", "memory.high": "199229440"}},
	} {
		m := &Manager{o: Options{MemoryReservation: true, MemoryThrottlingFactor: &factor}}
		if d := cmp.Diff(test.want, m.podResources(test.pod).unified); d != "" {
			t.Errorf("%v: -want +got\n%s", test.pod.Spec, d)
		}
		m.o.MemoryReservation, m.o.MemoryThrottlingFactor = false, nil
		if got := m.podResources(test.pod).unified; got != nil {
			t.Errorf("without the setting: %v", got)
		}
	}
}

// The protection of all pods lasts when their limits are set again, as every minute.
func TestRootKeepsItsProtection(t *testing.T) {
	for reserves, want := range map[bool]map[string]string{
		true: nil, false: {"memory.min": "0", "memory.low": "0"},
	} {
		m := &Manager{o: Options{MemoryReservation: reserves}}
		if d := cmp.Diff(want, m.nodeResources().unified); d != "" {
			t.Errorf("reserves %v: -want +got\n%s", reserves, d)
		}
	}
}

func TestQOSMemory(t *testing.T) { testQOSMemory(t) }

func TestQOSMemoryOnUnified(t *testing.T) { cgrouptest.OnUnified(t, testQOSMemory) }

// testQOSMemory sets the memory of the classes on this machine.
func testQOSMemory(t *testing.T) {
	root, _ := ownRoot(t)
	half := int64(50)
	o := Options{Root: root, PerQOS: true, Allocatable: list("memory", "4Gi"), QOSReserved: &half, MemoryReservation: true}
	metrics := prometheus.NewRegistry()
	o.Metrics = metrics
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.EnsureRoots(); err != nil {
		t.Fatal(err)
	}
	pods := []*v1.Pod{
		needs(list("cpu", "1", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi")),
		needs(list("memory", "512Mi"), nil),
	}
	if err := m.UpdateQOS(pods); err != nil {
		t.Fatal(err)
	}
	hard, soft := testutil.ToFloat64(m.protected.hard), testutil.ToFloat64(m.protected.soft)
	if families, err := metrics.Gather(); err != nil || len(families) != 2 ||
		m.unified && (hard != 1<<30 || soft != 512<<20) {
		t.Errorf("%d metrics, %v; protected are %v and %v", len(families), err, hard, soft)
	}
	if !slices.Contains(m.needed, "memory") { // the kernel has given all of it to the other version of cgroups
		return
	}
	at := func(class, file string) string {
		return read(t, filepath.Join(m.mounts[map[bool]string{true: "", false: "memory"}[m.unified]], root, "kubepods", class,
			file))
	}
	limit := map[bool]string{true: "memory.max", false: "memory.limit_in_bytes"}[m.unified]
	if b, e := at("burstable", limit), at("besteffort", limit); b != "3758096384" || e != "3489660928" {
		t.Errorf("limits are %s and %s", b, e)
	}
	if m.unified {
		got := strings.Join([]string{at("", "memory.min"), at("", "memory.low"), at("burstable", "memory.low")}, " ")
		if got != "1610612736 536870912 536870912" {
			t.Errorf("protected are %s", got)
		}
	}
}

// A class that uses more than it may keeps what it uses: none of its pods is killed for those of another class.
func TestAClassThatUsesTooMuch(t *testing.T) {
	root, _ := ownRoot(t)
	all := int64(100)
	m, err := New(Options{Root: root, PerQOS: true, Allocatable: list("memory", "1Mi"), QOSReserved: &all})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.EnsureRoots(); err != nil {
		t.Fatal(err)
	}
	class := m.root.Child(podcgroup.BestEffortPart)
	dir := filepath.Join(m.mounts["memory"], class.Cgroupfs())
	file := "memory.limit_in_bytes"
	if m.unified {
		dir, file = filepath.Join(m.mounts[""], class.Cgroupfs()), "memory.max"
	}
	const held = 30_000_000
	ctx, cancel := context.WithCancel(t.Context())
	user := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf(
		"echo $$ >%s/cgroup.procs; x=$(head -c %d /dev/zero | tr '\\0' x); echo holds; read y", dir, held))
	in, err := user.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := user.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(in.Close(), user.Wait()); err == nil {
			t.Error("the process ended by itself")
		}
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := m.UpdateQOS([]*v1.Pod{needs(list("memory", "1Mi"), nil)}); err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.ParseInt(read(t, filepath.Join(dir, file)), 10, 64)
	if err != nil || limit < held || limit > 2*held {
		t.Errorf("the limit is %d, %v, of a class that uses more than %d", limit, err, held)
	}
}

func TestMemoryUsage(t *testing.T) {
	dir := t.TempDir()
	n := podcgroup.Name{"kubepods", "burstable"}
	for unified, file := range map[bool]string{true: "memory.current", false: "memory.usage_in_bytes"} {
		m := &Manager{unified: unified, mounts: map[string]string{"": dir, "memory": dir}}
		path := filepath.Join(dir, n.Cgroupfs())
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]int64{"4096\n": 4096, "x": -1} {
			if err := os.WriteFile(filepath.Join(path, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := m.memoryUsage(n); (err != nil) != (want < 0) || want >= 0 && got != want {
				t.Errorf("%s with %q: %d, %v", file, text, got, err)
			}
		}
	}
}

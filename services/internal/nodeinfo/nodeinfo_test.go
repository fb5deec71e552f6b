package nodeinfo

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// tree writes files under a folder that stands for the host's root.
func tree(t *testing.T, files map[string]string) Source {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Source{Root: root}
}

var machineFiles = map[string]string{
	"/sys/devices/system/cpu/online": "0-2,5\n",
	"/proc/meminfo":                  "MemTotal:        8000000 kB\nMemFree:   1 kB\nSwapTotal:       1024 kB\n",
	"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":    "100\n",
	"/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
	"/var/lib/kubelet/x":              "",
	"/etc/machine-id":                 "abc\n",
	"/sys/class/dmi/id/product_uuid":  "UUID-1\n",
	"/proc/sys/kernel/random/boot_id": "boot\n",
	"/proc/self/uid_map":              "0 0 4294967295\n",
	"/proc/sys/kernel/osrelease":      "6.18.0\n",
	"/etc/os-release":                 "NAME=x\nPRETTY_NAME=\"Some Linux 12 (word)\"\n",
}

func text(list v1.ResourceList) map[string]string {
	out := quantities(list)
	delete(out, string(v1.ResourceEphemeralStorage)) // the test machine's own
	return out
}

func TestCapacity(t *testing.T) {
	s := tree(t, machineFiles)
	for _, c := range []struct {
		name        string
		podsPerCore int32
		pods        string
	}{{"max pods", 0, "110"}, {"pods per core", 10, "40"}, {"pods per core is no more than max pods", 100, "110"}} {
		t.Run(c.name, func(t *testing.T) {
			got, err := s.Capacity(Options{RootDir: "/var/lib/kubelet", MaxPods: 110, PodsPerCore: c.podsPerCore,
				LocalStorageCapacityIsolation: true})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{
				"cpu":           "4",
				"memory":        "8000000Ki",
				"pods":          c.pods,
				"hugepages-2Mi": "200Mi",
				"hugepages-1Gi": "0",
			}
			if d := cmp.Diff(want, text(got)); d != "" {
				t.Errorf("capacity (-want +got):\n%s", d)
			}
			if q := got[v1.ResourceEphemeralStorage]; q.Value() <= 0 {
				t.Errorf("ephemeral-storage = %s, want the size of a file system", q.String())
			}
		})
	}
}

func TestCapacityWithoutLocalStorage(t *testing.T) {
	got, err := tree(t, machineFiles).Capacity(Options{RootDir: "/var/lib/kubelet", MaxPods: 110})
	if err != nil {
		t.Fatal(err)
	}
	if q, has := got[v1.ResourceEphemeralStorage]; has {
		t.Errorf("ephemeral-storage = %s, want none", q.String())
	}
}

func TestCapacityOfThisMachine(t *testing.T) {
	got, err := Source{}.Capacity(Options{RootDir: "/var/lib/not/made/yet", MaxPods: 110})
	if err != nil {
		t.Fatal(err)
	}
	if q := got[v1.ResourceCPU]; q.Value() < int64(runtime.NumCPU()) {
		t.Errorf("cpu = %s, want at least %d", q.String(), runtime.NumCPU())
	}
	if q := got[v1.ResourceMemory]; q.Value() < 64<<20 {
		t.Errorf("memory = %s, want more than a test needs to run", q.String())
	}
}

func TestCapacityTellsWhatItCannotRead(t *testing.T) {
	s := tree(t, map[string]string{"/proc/meminfo": "MemTotal: lots\n", "/var/lib/kubelet/x": ""})
	got, err := s.Capacity(Options{RootDir: "/var/lib/kubelet", MaxPods: 110})
	if err == nil || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "MemTotal") {
		t.Errorf("error %v, want it to name the missing file and the bad field", err)
	}
	if _, has := got[v1.ResourceCPU]; has {
		t.Error("cpu was made up")
	}
	if q := got[v1.ResourcePods]; q.Value() != 110 {
		t.Errorf("pods = %s, want what can be known", q.String())
	}
}

func TestProcessLimitIsTheSmallerOne(t *testing.T) {
	for _, c := range []struct {
		pids, threads string
		want          int64
	}{{"4194304\n", "24142\n", 24142}, {"32768\n", "191000\n", 32768}} {
		got, err := tree(t, map[string]string{"/proc/sys/kernel/pid_max": c.pids,
			"/proc/sys/kernel/threads-max": c.threads}).ProcessLimit()
		if err != nil || got != c.want {
			t.Errorf("pid_max %q, threads-max %q: %d, %v, want %d", c.pids, c.threads, got, err, c.want)
		}
	}
	if _, err := tree(t, map[string]string{"/proc/sys/kernel/pid_max": "many\n"}).ProcessLimit(); err == nil ||
		!strings.Contains(err.Error(), "pid_max") {
		t.Errorf("error %v, want it to name the file", err)
	}
	if _, err := tree(t, nil).ProcessLimit(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want it to name the missing file", err)
	}
}

func TestEnforcedIsTheCapacityWithoutTheReservations(t *testing.T) {
	capacity := v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse("4"),
		v1.ResourceMemory: resource.MustParse("1Gi"),
		"hugepages-2Mi":   resource.MustParse("100Mi"),
		"pid":             resource.MustParse("24142"),
	}
	got, err := Enforced(capacity, Reservation{
		System: map[string]string{"pid": "100", "cpu": "500m"}, Kube: map[string]string{"pid": "42", "memory": "24Mi"},
		EvictionHard: map[string]string{"memory.available": "100Mi"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"cpu": "3500m", "memory": "1000Mi", "hugepages-2Mi": "100Mi", "pid": "24k"}
	if d := cmp.Diff(want, quantities(got)); d != "" {
		t.Errorf("enforced (-want +got):\n%s", d)
	}
	if _, err := Enforced(capacity, Reservation{Kube: map[string]string{"pid": "x"}}); err == nil ||
		!strings.Contains(err.Error(), "kubeReserved.pid=x") {
		t.Errorf("error %v, want it to name the field", err)
	}
}

func TestAllocatable(t *testing.T) {
	capacity := v1.ResourceList{
		v1.ResourceCPU:              resource.MustParse("4"),
		v1.ResourceMemory:           resource.MustParse("1Gi"),
		v1.ResourceEphemeralStorage: resource.MustParse("1000"),
		v1.ResourcePods:             resource.MustParse("110"),
		"hugepages-2Mi":             resource.MustParse("100Mi"),
	}
	cases := []struct {
		name string
		r    Reservation
		want map[string]string // what differs from the capacity
	}{
		{"huge pages are no plain memory", Reservation{}, map[string]string{"memory": "924Mi"}},
		{"kubelet's defaults", Reservation{EvictionHard: map[string]string{
			"memory.available":  "100Mi",
			"nodefs.available":  "10%",
			"nodefs.inodesFree": "5%",
			"imagefs.available": "15%",
		}}, map[string]string{"memory": "824Mi", "ephemeral-storage": "900"}},
		{"ignored eviction",
			Reservation{IgnoreEviction: true, EvictionHard: map[string]string{"memory.available": "100Mi"}},
			map[string]string{"memory": "924Mi"}},
		{"reserved",
			Reservation{
				System: map[string]string{"cpu": "500m"},
				Kube:   map[string]string{"cpu": "500m", "memory": "2Gi"},
			},
			map[string]string{"cpu": "3", "memory": "0"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Allocatable(capacity, c.r)
			if err != nil {
				t.Fatal(err)
			}
			for name, q := range capacity {
				want, differs := c.want[string(name)]
				if !differs {
					want = q.String()
				}
				if have := got[name]; have.Cmp(resource.MustParse(want)) != 0 {
					t.Errorf("%s = %s, want %s", name, have.String(), want)
				}
			}
		})
	}
}

func TestCheckNamesWhatIsReservedTwiceOver(t *testing.T) {
	capacity := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi")}
	for _, c := range []struct {
		name string
		r    Reservation
		want []string
	}{
		{"none", Reservation{}, nil},
		{"all of it", Reservation{System: map[string]string{"cpu": "1"}, Kube: map[string]string{"cpu": "1000m"}}, nil},
		{"more than there is", Reservation{System: map[string]string{"cpu": "1500m"}, Kube: map[string]string{"cpu": "1"}},
			[]string{"keep 2500m of cpu from pods, and the node has 2: reserve less"}},
		{"with eviction", Reservation{
			System:       map[string]string{"memory": "1000Mi", "cpu": "3"},
			EvictionHard: map[string]string{"memory.available": "10%"},
		}, []string{"keep 3 of cpu", "of memory from pods"}},
		{"without eviction", Reservation{
			System:         map[string]string{"memory": "1000Mi"},
			EvictionHard:   map[string]string{"memory.available": "10%"},
			IgnoreEviction: true,
		}, nil},
		{"what the node does not count", Reservation{Kube: map[string]string{"pid": "100", "ephemeral-storage": "1Gi"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Check(capacity, c.r)
			if (err == nil) != (len(c.want) == 0) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want it to say %q", err, want)
				}
			}
		})
	}
}

func TestAllocatableNamesTheBadValue(t *testing.T) {
	for field, r := range map[string]Reservation{
		"systemReserved.cpu=x":           {System: map[string]string{"cpu": "x"}},
		"kubeReserved.cpu=y":             {Kube: map[string]string{"cpu": "y"}},
		"evictionHard[memory.available]": {EvictionHard: map[string]string{"memory.available": "101%"}},
		"evictionHard[nodefs.available]": {EvictionHard: map[string]string{"nodefs.available": "NaN%"}},
	} {
		if _, err := Allocatable(v1.ResourceList{}, r); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v, want it to name %s", err, field)
		}
	}
}

func TestMachine(t *testing.T) {
	got, err := tree(t, machineFiles).Machine()
	want := Machine{
		MachineID:  "abc",
		SystemUUID: "UUID-1",
		BootID:     "boot",
		Kernel:     "6.18.0",
		OSImage:    "Some Linux 12 (word)",
		SwapBytes:  1 << 20,
	}
	if err != nil || got != want {
		t.Errorf("machine = %+v, %v, want %+v", got, err, want)
	}
}

// The kernel maps all users of the first namespace to themselves (user_namespaces(7)).
func TestUserNamespace(t *testing.T) {
	for users, want := range map[string]bool{
		"         0          0 4294967295\n":                                   false,
		"         0       1000          1\n         1     100000      65536\n": true,
		"         0          0      65536\n":                                   true,
		"         0          0 4294967294\n4294967294 4294967294          1\n": true,
	} {
		if got, _ := tree(t, map[string]string{"/proc/self/uid_map": users}).Machine(); got.UserNamespace != want {
			t.Errorf("with the users %q, in a user namespace: %v", users, got.UserNamespace)
		}
	}
}

func TestMachineWithoutFirmwareUsesTheMachineID(t *testing.T) {
	got, err := tree(t, map[string]string{"/var/lib/dbus/machine-id": "dbus", "/etc/machine-id": ""}).Machine()
	if got.MachineID != "dbus" || got.SystemUUID != "" {
		t.Errorf("machine = %+v, want the id of dbus and no system uuid", got)
	}
	if err == nil {
		t.Error("no error names what is missing")
	}
	got, _ = tree(t, map[string]string{"/etc/machine-id": "m"}).Machine()
	if got.SystemUUID != "m" {
		t.Errorf("system uuid = %q, want the machine id", got.SystemUUID)
	}
}

func TestUnreadableFirmwareIsNotReplacedByAnotherIdentity(t *testing.T) {
	s := tree(t, machineFiles)
	s.readFile = func(p string) ([]byte, error) { // root, as whom tests may run, is denied nothing
		if strings.HasSuffix(p, "product_uuid") {
			return nil, &os.PathError{Op: "open", Path: p, Err: os.ErrPermission}
		}
		return os.ReadFile(p)
	}
	got, err := s.Machine()
	if got.SystemUUID != "" || !errors.Is(err, os.ErrPermission) {
		t.Errorf("system uuid = %q, %v, want none and a denial", got.SystemUUID, err)
	}
}

func TestMessageRoundTrip(t *testing.T) {
	capacity := v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse("2"),
		v1.ResourceMemory: resource.MustParse("24589432Ki"),
	}
	c, a, err := FromMessage(Message(capacity, v1.ResourceList{}, ""))
	if err != nil || !cmp.Equal(quantities(c), quantities(capacity)) || len(a) != 0 {
		t.Errorf("got %v, %v, %v", c, a, err)
	}
	m := Message(capacity, nil, "u")
	m.Allocatable = map[string]string{"cpu": "?"}
	if _, _, err := FromMessage(m); err == nil || !strings.Contains(err.Error(), "allocatable.cpu=?") {
		t.Errorf("error %v, want it to name allocatable.cpu=?", err)
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("0-3,8", "MemTotal: 1 kB", `PRETTY_NAME="x"`, "10%")
	f.Fuzz(func(t *testing.T, list, mem, release, percentage string) {
		if n, err := countList(list); err == nil && n < 1 {
			t.Errorf("countList(%q) = %d", list, n)
		}
		if n, err := parseMeminfo([]byte(mem), "MemTotal"); err == nil && n < 0 {
			t.Errorf("parseMeminfo(%q) = %d", mem, n)
		}
		if prettyName([]byte(release)) == "" {
			t.Errorf("prettyName(%q) is empty", release)
		}
		q, err := threshold(percentage, resource.MustParse("1000"))
		if err == nil && strings.HasSuffix(percentage, "%") && (q.Sign() < 0 || q.Value() > 1000) {
			t.Errorf("threshold(%q) = %s", percentage, q.String())
		}
	})
}

package up

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/microlet/internal/catalog"
)

// unitOptions are the values of each option of a unit file, in the order of the file.
func unitOptions(t *testing.T, name string) map[string][]string {
	t.Helper()
	f, err := os.Open("../../../../deploy/systemd/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	options, err := unit.DeserializeOptions(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	all := map[string][]string{}
	for _, o := range options {
		all[o.Name] = append(all[o.Name], o.Value)
	}
	return all
}

// TestUnits: the unit of each service gives it what "microlet up" would: its user, its groups, its capabilities,
// its niceness, its limits and its network.
func TestUnits(t *testing.T) {
	target := strings.Join(unitOptions(t, "microlet.target")["Wants"], " ")
	for _, s := range catalog.Services() {
		name := "microlet-" + string(s.Role) + ".service"
		starts := []string{name}
		if s.OnDemand != nil {
			starts = []string{"microlet-" + string(s.Role) + ".socket", "microlet-" + string(s.Role) + ".path"}
		}
		for _, unit := range starts {
			if !slices.Contains(strings.Fields(target), unit) {
				t.Errorf("microlet.target does not want %s", unit)
			}
		}
		id, err := role.Get(s.Role)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"ExecStart":       "/usr/bin/microlet " + string(s.Role) + " $MICROLET_ARGS",
			"EnvironmentFile": "/run/microlet/config/" + string(s.Role) + ".env",
			"Slice":           "system-microlet.slice", "Restart": "always", "Type": "notify",
		}
		if id.UID != 0 {
			want["User"], want["Group"] = "microlet-"+string(s.Role), "microlet"
			want["CapabilityBoundingSet"] = strings.Join(id.Capabilities, " ")
			want["AmbientCapabilities"] = strings.Join(id.Capabilities, " ")
			want["NoNewPrivileges"] = "yes"
		}
		if s.KeptFiles != 0 {
			want["FileDescriptorStoreMax"] = strconv.Itoa(s.KeptFiles)
		}
		if s.Nice != 0 {
			want["Nice"] = strconv.Itoa(s.Nice)
		}
		if limit := s.Memory(); limit != 0 {
			want["MemoryMax"] = strings.NewReplacer("1024M", "1G", "2048M", "2G").Replace(strconv.FormatInt(limit>>20, 10) + "M")
			want["TasksMax"] = strconv.Itoa(tasks)
		}
		// systemd shares the processors among units that have a weight, however many threads each has.
		want["CPUWeight"] = strconv.Itoa(int(math.Round(100 / math.Pow(1.25, float64(s.Nice)))))
		if s.Role == role.Podsync {
			want["CPUWeight"] = "900"
		}
		want["OOMScoreAdjust"] = "-999"
		if s.OOMScoreAdj != 0 {
			want["OOMScoreAdjust"] = strconv.Itoa(s.OOMScoreAdj)
		}
		want["PrivateNetwork"] = ""
		if s.PrivateNetwork != nil && s.PrivateNetwork() {
			want["PrivateNetwork"] = "yes"
		}
		has := unitOptions(t, name)
		for option, value := range want {
			if got := strings.Join(has[option], " "); got != value {
				t.Errorf("%s has %s=%s, want %q", name, option, got, value)
			}
		}
	}
}

// TestSocketUnits: the socket unit of a service that runs on demand has the sockets that "microlet up" opens for it.
func TestSocketUnits(t *testing.T) {
	cfg := DefaultConfig()
	k := &kubeletconfig.Config{}
	k.Node.RootDir = "/var/lib/kubelet"
	for _, s := range cfg.Services {
		if s.OnDemand == nil {
			continue
		}
		want := []string{cfg.Service.Socket(s.Role)}
		for _, socket := range s.OnDemand.Sockets(k) {
			want = append(want, socket.Path)
		}
		if got := unitOptions(t, "microlet-"+string(s.Role)+".socket")["ListenStream"]; !slices.Equal(got, want) {
			t.Errorf("the socket unit of %s listens on %q, want %q", s.Role, got, want)
		}
	}
}

// TestUnitsOfServicesThatIgnoreModes: a service that may write where its user may not has in its unit what microlet up
// gives it. It could change the arguments of podsync, which is root, and the keys of others elsewhere.
func TestUnitsOfServicesThatIgnoreModes(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Kubelet = &kubeletconfig.Config{}
	cfg.Kubelet.Node.RootDir, cfg.Kubelet.Node.CertDir = "/var/lib/kubelet", "/var/lib/kubelet/pki"
	for _, s := range cfg.Services {
		id, err := role.Get(s.Role)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(id.Capabilities, "CAP_DAC_OVERRIDE") {
			continue
		}
		has := unitOptions(t, "microlet-"+string(s.Role)+".service")
		if got, want := pathsOf(has["ReadWritePaths"]), cfg.writable(s, id); !slices.Equal(got, want) {
			t.Errorf("the unit of %s writes to %q, and under microlet up it writes to %q", s.Role, got, want)
		}
		for _, path := range s.Hidden(cfg.Kubelet) {
			inUnit := path == "/home" || path == "/root" || path == "/run/systemd" // ProtectHome=, and what sd_notify(3) needs
			if !inUnit && !slices.Contains(pathsOf(has["InaccessiblePaths"]), path) {
				t.Errorf("the unit of %s shows it %s, which microlet up hides", s.Role, path)
			}
		}
	}
}

// pathsOf are the paths of an option of a unit, also those that may be missing.
func pathsOf(values []string) []string {
	paths := strings.Fields(strings.Join(values, " "))
	for i := range paths {
		paths[i] = strings.TrimPrefix(paths[i], "-")
	}
	return paths
}

// TestSocketsOfPluginsAreRootsAlone: the group of root is that of most containers whose user is another. The modes are
// those of "microlet up".
func TestSocketsOfPluginsAreRootsAlone(t *testing.T) {
	has := unitOptions(t, "microlet-resources.socket")
	cfg := DefaultConfig()
	own := cfg.Service.Socket(role.Resources)
	want := []string{"/usr/bin/chgrp microlet " + own, "/usr/bin/chmod 0660 " + own}
	if !slices.Equal(has["SocketMode"], []string{"0600"}) || !slices.Equal(has["ExecStartPost"], want) {
		t.Errorf("sockets have the mode %q, and then %q", has["SocketMode"], has["ExecStartPost"])
	}
}

// TestReadersOfPodsHaveRoomForThem: who may create pods decides how much the bus holds of them. A service that reads
// pods has them once as they come, and decodes them.
func TestReadersOfPodsHaveRoomForThem(t *testing.T) {
	var most int64
	for _, b := range subject.Buckets() {
		if b.Name == subject.Pods {
			most = b.MaxBytes
		}
	}
	for _, s := range catalog.Services() {
		switch s.Role {
		case role.Prober, role.ImageGC, role.Stats, role.Evictor, role.NodeAPI, role.Resources:
			if limit := s.Memory(); most == 0 || limit < 3*most {
				t.Errorf("%s may take %d bytes, and the bus may hold pods of %d", s.Role, limit, most)
			}
		}
	}
}

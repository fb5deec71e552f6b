package config

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKubeletConfigurationHoldsOnlyWhatIsSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	k := Kubelet{
		RuntimeEndpoint: "unix:///run/x.sock",
		CgroupDriver:    "cgroupfs",
		CgroupRoot:      "/rigs/a",
		PodLogs:         "/logs",
		NodeIP:          netip.MustParseAddr("10.210.0.1"),
		HealthPort:      20003,
		DNS:             netip.MustParseAddr("10.211.0.10"),
		ResolvConf:      "/resolv.conf",
		ClientCA:        "/ca.crt",
		PluginDir:       "/plugins",
		MaxPods:         250,
	}
	if err := k.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `address: 10.210.0.1
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  x509:
    clientCAFile: /ca.crt
cgroupDriver: cgroupfs
cgroupRoot: /rigs/a
clusterDNS:
- 10.211.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/x.sock
failCgroupV1: false
failSwapOn: false
healthzBindAddress: 127.0.0.1
healthzPort: 20003
kind: KubeletConfiguration
maxPods: 250
podLogsDir: /logs
resolvConf: /resolv.conf
volumePluginDir: /plugins
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestKubeletConfigurationWithStaticPodsAndReadOnlyPort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := (Kubelet{CgroupRoot: "/", StaticPods: "/manifests", ReadOnlyPort: 10255}).Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"cgroupRoot: /", "staticPodPath: /manifests", "readOnlyPort: 10255"} {
		if !strings.Contains("\n"+string(got), "\n"+line+"\n") {
			t.Errorf("no %q in:\n%s", line, got)
		}
	}
}

func TestKubeletConfigurationForUpstreamsSuite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := (Kubelet{ForSuite: true, NoReviews: true, Anonymous: true}).Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"volumeStatsAggPeriod: 10s", "fileCheckFrequency: 10s", "evictionPressureTransitionPeriod: 30s",
		"  memory.available: 250Mi", "  nodefs.available: 5%", "  mode: AlwaysAllow", "  anonymous:\n    enabled: true",
		"  webhook:\n    enabled: false",
	} {
		if !strings.Contains("\n"+string(got), "\n"+line+"\n") {
			t.Errorf("no %q in:\n%s", line, got)
		}
	}
	// The developer's disk is none that the thresholds are about, and frees nothing.
	if err := (Kubelet{ForSuite: true, ForeignNodeFs: true, ForeignImageFs: true}).Write(path); err != nil {
		t.Fatal(err)
	}
	if got, err = os.ReadFile(path); err != nil || strings.Contains(string(got), "evictionMinimumReclaim") ||
		!strings.Contains(string(got), "\n  nodefs.available: 0%\n") {
		t.Errorf("%v, on a foreign disk:\n%s", err, got)
	}
}

// A developer's disk that is nearly full makes no node that evicts every pod.
func TestKubeletConfigurationIgnoresForeignDisks(t *testing.T) {
	tests := []struct {
		name        string
		node, image bool
		want, not   []string
	}{
		{name: "both the node's own", not: []string{"evictionHard", "imageGCHighThresholdPercent"}},
		{
			name: "both foreign", node: true, image: true,
			want: []string{
				"  imagefs.available: 0%", "  imagefs.inodesFree: 0%", "  memory.available: 100Mi",
				"  nodefs.available: 0%", "  nodefs.inodesFree: 0%", "imageGCHighThresholdPercent: 100",
			},
		},
		{
			name: "a foreign node filesystem", node: true,
			want: []string{"  imagefs.available: 15%", "  imagefs.inodesFree: 5%", "  nodefs.available: 0%"},
			not:  []string{"imageGCHighThresholdPercent"},
		},
		{
			name: "a foreign image filesystem", image: true,
			want: []string{"  imagefs.available: 0%", "  nodefs.available: 10%", "  nodefs.inodesFree: 5%"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			if err := (Kubelet{ForeignNodeFs: tt.node, ForeignImageFs: tt.image}).Write(path); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range tt.want {
				if !strings.Contains("\n"+string(got), "\n"+line+"\n") {
					t.Errorf("no %q in:\n%s", line, got)
				}
			}
			for _, word := range tt.not {
				if strings.Contains(string(got), word) {
					t.Errorf("%q in:\n%s", word, got)
				}
			}
		})
	}
}

func containerd(dir string) Containerd {
	return Containerd{
		Dir:          dir,
		Root:         dir + "/root",
		State:        dir + "/state",
		Socket:       dir + "/c.sock",
		ShimSocket:   "/run/microlet-rig/a/s",
		Registry:     "127.0.0.1:20000",
		Bridge:       "mlrig0",
		PodCIDR:      netip.MustParsePrefix("10.210.0.0/22"),
		Gateway:      netip.MustParseAddr("10.210.0.1"),
		Pause:        "registry.k8s.io/pause:3.10.2",
		Reservations: "/reserved",
	}
}

func TestContainerdFiles(t *testing.T) {
	dir := t.TempDir()
	if err := containerd(dir).Write(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `root = "`+dir+`/root"`) {
		t.Errorf("no root folder in:\n%s", text)
	}
	conflist, err := os.ReadFile(filepath.Join(dir, "net.d/10-rig.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	var network struct {
		Name    string
		Plugins []struct {
			Type string
			IPAM struct{ DataDir string }
		}
	}
	if err := json.Unmarshal(conflist, &network); err != nil {
		t.Fatal(err)
	}
	if network.Name != "mlrig0" || len(network.Plugins) != 2 || network.Plugins[0].IPAM.DataDir != "/reserved" {
		t.Errorf("network %+v", network)
	}
	if _, err := os.Stat(filepath.Join(dir, "certs.d/_default/hosts.toml")); err != nil {
		t.Error(err)
	}
}

func TestContainerdSyncsImagesWhereItIsTold(t *testing.T) {
	const option = "\nimage_pull_with_sync_fs = true\nuse_local_image_pull = true"
	for _, sync := range []bool{false, true} {
		c := containerd(t.TempDir())
		c.SyncImages = sync
		if err := c.Write(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(c.ConfigFile())
		if err != nil {
			t.Fatal(err)
		}
		_, images, _ := strings.Cut(string(text), "\n[plugins.\"io.containerd.cri.v1.images\"]\n")
		images, _, _ = strings.Cut(images, "\n\n[")
		if strings.Contains(images, option) != sync || !strings.Contains("\n"+images, "\nsnapshotter = ") {
			t.Errorf("with SyncImages %t the section of images is:\n%s", sync, images)
		}
	}
}

func TestContainerdRefusesALongShimSocketFolder(t *testing.T) {
	c := containerd(t.TempDir())
	c.ShimSocket = "/run/microlet-rig/" + strings.Repeat("a", 25)
	if err := c.Write(); err == nil || !strings.Contains(err.Error(), "shorter instance name") {
		t.Errorf("error %v, want one with a remedy", err)
	}
}

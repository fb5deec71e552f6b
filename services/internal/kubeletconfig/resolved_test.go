package kubeletconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResolvedRoundTrip(t *testing.T) {
	want := mustLoad(t, "--config",
		file(t, "maxPods: 7\nclusterDNS: [10.0.0.1]\nregisterWithTaints: [{key: a, effect: NoSchedule}]\n"+
			"featureGates: {MemoryQoS: false}\nlogging: {flushFrequency: 3s}\n"),
		"--event-burst=0", "--resolv-conf=", "--node-labels=a=b", "--node-ip=10.0.0.1", "--max-open-files=0",
		"--register-node=false")
	path := filepath.Join(t.TempDir(), "resolved.yaml")
	if err := want.WriteResolved(path, os.Geteuid(), nil); err != nil {
		t.Fatal(err)
	}
	got, err := ReadResolved(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what is read is not what was written (-want +got):\n%s", diff)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode = %v, want -rw-------", info.Mode())
	}
	if err := want.WriteResolved(path, os.Geteuid(), nil); err != nil {
		t.Errorf("writing over it: %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("folder holds %v, %v, want resolved.yaml alone", entries, err)
	}
}

// TestPartOfTheConfiguration: who reads some fields gets those and nothing of the others.
func TestPartOfTheConfiguration(t *testing.T) {
	c := mustLoad(t, "--config", file(t, "maxPods: 7\nclusterDomain: elsewhere.local\n"+
		"staticPodURL: http://192.0.2.1/\nstaticPodURLHeader: {Authorization: [hunter2]}\n"),
		"--event-burst=0", "--node-labels=a=b", "--kube-reserved=", "--root-dir=/elsewhere")
	path := filepath.Join(t.TempDir(), "resolved.yaml")
	fields := []string{"maxPods", "eventBurst", "kubeReserved", "evictionHard", "registerWithTaints", "node.nodeLabels",
		"node.hostnameOverride"}
	if err := c.WriteResolved(path, os.Geteuid(), fields); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"hunter2", "192.0.2.1", "elsewhere.local", "/elsewhere"} {
		if strings.Contains(string(data), other) {
			t.Errorf("the file says %q:\n%s", other, data)
		}
	}
	got, err := ReadResolved(path)
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{Node: defaultNodeFlags()}
	want.Kubelet.TypeMeta = c.Kubelet.TypeMeta
	SetDefaults(&want.Kubelet)
	want.Kubelet.MaxPods, want.Kubelet.EventBurst, want.Kubelet.KubeReserved, want.Kubelet.EvictionHard = 7, 0,
		c.Kubelet.KubeReserved, c.Kubelet.EvictionHard
	want.Node.NodeLabels = map[string]string{"a": "b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what is read is not what was asked for (-want +got):\n%s", diff)
	}
	if err := c.WriteResolved(path, os.Geteuid(), []string{"maxPod"}); err == nil ||
		!strings.Contains(err.Error(), "maxPod") {
		t.Errorf("a field that is not there: %v", err)
	}
}

func TestMasked(t *testing.T) {
	c := mustLoad(t, "--config",
		file(t,
			"maxPods: 7\nstaticPodURL: http://me:hunter2@192.0.2.1/\nstaticPodURLHeader: {Authorization: [hunter2]}\n"))
	path := filepath.Join(t.TempDir(), "resolved.yaml")
	if err := c.Masked().WriteResolved(path, os.Geteuid(), nil); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(data), "hunter2") || !strings.Contains(string(data), "Authorization") {
		t.Errorf("it is, %v:\n%s", err, data)
	}
	if got, err := ReadResolved(path); err != nil || got.Kubelet.MaxPods != 7 {
		t.Errorf("it cannot be read: %v", err)
	}
	if c.Kubelet.StaticPodURLHeader["Authorization"][0] != "hunter2" {
		t.Error("the original is masked too")
	}
}

// TestWhatServicesRead: a header that is sent with no request is shown as it is, every other secret is masked.
func TestWhatServicesRead(t *testing.T) {
	for url, want := range map[string]string{"": "hunter2", "http://192.0.2.1/": masked} {
		c := mustLoad(t, "--config",
			file(t, "staticPodURL: \""+url+"\"\nstaticPodURLHeader: {Authorization: [hunter2]}\n"))
		got := c.ForServices().Kubelet.StaticPodURLHeader["Authorization"]
		if len(got) != 1 || got[0] != want {
			t.Errorf("with staticPodURL %q it is %q, want %q", url, got, want)
		}
		got[0] = "changed"
		if c.Kubelet.StaticPodURLHeader["Authorization"][0] != "hunter2" {
			t.Errorf("with staticPodURL %q the original changes with the copy", url)
		}
	}
}

func TestResolvedThatIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolved.yaml")
	if err := mustLoad(t).WriteResolved(path, os.Geteuid(), nil); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ old, new, want string }{
		"unknown key":   {"node:\n", "surprise: 1\nnode:\n", "surprise"},
		"invalid value": {"maxPods: 110", "maxPods: -110", "maxPods=-110"},
		"other kind":    {"kind: KubeletConfiguration", "kind: Pod", "Pod"},
	} {
		changed := strings.Replace(string(data), test.old, test.new, 1)
		if changed == string(data) {
			t.Fatalf("%s: %q does not appear in:\n%s", name, test.old, data)
		}
		write(t, path, changed)
		if _, err := ReadResolved(path); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v does not say %q", name, err, test.want)
		}
	}
	if _, err := ReadResolved("/nowhere/resolved.yaml"); err == nil {
		t.Error("a missing file is accepted")
	}
	if err := mustLoad(t).WriteResolved("/nowhere/resolved.yaml", os.Geteuid(), nil); err == nil {
		t.Error("a missing folder is accepted")
	}
}

// FuzzLoad holds the loader to its promise: whatever the bytes are, it answers with a valid configuration or an error,
// and what it accepts survives being written and read.
func FuzzLoad(f *testing.F) {
	config, err := os.ReadFile("testdata/kubeadm-config.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(config, []byte(header+"maxPods: null\n"), "110")
	f.Add([]byte(header+"evictionHard: {memory.available: 5%}\nlogging: {verbosity: 3}\n"),
		[]byte(header+"clusterDNS: [::1]\n"), "x")
	f.Add([]byte(`{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","registerWithTaints":[{"key":"a"}]}`), []byte("---\n"), "-1")
	f.Add([]byte("a: &a [*a]\n"), []byte("\x00"), "")
	f.Fuzz(func(t *testing.T, config, dropIn []byte, pods string) {
		dir := t.TempDir()
		path := write(t, filepath.Join(dir, "config.yaml"), string(config))
		write(t, filepath.Join(dir, "d/1.conf"), string(dropIn))
		for _, args := range [][]string{{"--config", path},
			{"--config-dir", filepath.Join(dir, "d"), "--max-pods=" + pods},
			{"--config", path, "--config-dir", filepath.Join(dir, "d")}} {
			c, _, err := load(t, args...)
			if err != nil {
				if c != nil || err.Error() == "" {
					t.Fatalf("a configuration beside the error %q", err)
				}
				continue
			}
			if err := Validate(c); err != nil {
				t.Fatalf("Load accepts what Validate refuses: %v", err)
			}
			resolved := filepath.Join(dir, "resolved.yaml")
			if err := c.WriteResolved(resolved, os.Geteuid(), nil); err != nil {
				t.Fatal(err)
			}
			if _, err := ReadResolved(resolved); err != nil {
				t.Fatalf("what was written is not read: %v", err)
			}
		}
	})
}

// FuzzDecode is FuzzLoad's first step alone, which is a hundred times as fast: a document is refused, or holds nothing
// but fields that are known.
func FuzzDecode(f *testing.F) {
	config, err := os.ReadFile("testdata/kubeadm-config.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(config)
	f.Add([]byte(header + "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\ntracing: {endpoint: a}\n"))
	f.Add([]byte(`{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","registerWithTaints":[{"key":"a"}],"port":1e400}`))
	f.Add([]byte("a: &a [*a]\n---\n? [x]\n: <<: 1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := decode("fuzz", data)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error that says nothing")
			}
			return
		}
		known := jsonFields(reflect.TypeFor[kc]())
		for key := range d.object {
			if _, ok := known[key]; !ok {
				t.Fatalf("the unknown key %q is accepted in %q", key, data)
			}
		}
		provenance{}.merge(d.object, "fuzz")
		SetDefaults(&d.config)
		asObject(d.config)
	})
}

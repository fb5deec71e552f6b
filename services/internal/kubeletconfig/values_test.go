package kubeletconfig

import (
	"strings"
	"testing"
)

func TestFlagValues(t *testing.T) {
	c, _, err := load(t, "--config",
		file(t, "maxPods: 7\nstaticPodURL: http://x/\nstaticPodURLHeader: {Authorization: [secret]}\n"),
		"--node-ip=192.0.2.1", "--hostname-override=n")
	if err != nil {
		t.Fatal(err)
	}
	before := *c.Kubelet.DeepCopy()
	got := c.FlagValues()
	for name, want := range map[string]string{
		"max-pods":            "7",
		"node-ip":             "192.0.2.1",
		"port":                "10250",
		"root-dir":            "/var/lib/kubelet",
		"manifest-url-header": "<masked>",
	} {
		if got[name] != want {
			t.Errorf("--%s is %q, want %q", name, got[name], want)
		}
	}
	for name, value := range got {
		if strings.Contains(value, "secret") {
			t.Errorf("--%s shows a secret: %s", name, value)
		}
	}
	if before.MaxPods != c.Kubelet.MaxPods || before.StaticPodURL != c.Kubelet.StaticPodURL {
		t.Error("asking for the values changed the configuration")
	}
}

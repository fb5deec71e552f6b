package kubeletconfig

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// inspectOn is loadOn with what is right of a configuration that is refused.
func inspectOn(t *testing.T, h host, args ...string) (*Config, error) {
	t.Helper()
	f := NewFlags()
	f.host = h
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.AddTo(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	c, _, err := Inspect(fs, f)
	return c, err
}

// A configuration that is refused starts with the drop-in that is suggested for it.
func TestTheSuggestedDropInIsEnough(t *testing.T) {
	for name, config := range map[string]string{
		"not built":        "topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\n",
		"a wrong value":    "maxPods: -3\nimageGCHighThresholdPercent: 101\n",
		"both, and nested": "logging: {format: xml}\ncpuManagerPolicy: static\n",
		"swap is on":       "failSwapOn: true\n",
	} {
		path := file(t, config)
		host := machine(t, "/swap file 1 0 -1\n")
		c, wrong := inspectOn(t, host, "--config="+path)
		if wrong == nil {
			t.Errorf("%s: it is accepted", name)
			continue
		}
		d, err := SuggestDropIn(c, wrong)
		if err != nil || len(d.ByHand) > 0 || len(d.Losses) != len(Flatten(wrong)) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		dir := t.TempDir()
		write(t, filepath.Join(dir, "90-microlet.conf"), string(d.YAML))
		if _, _, err := loadOn(t, host, "--config="+path, "--config-dir="+dir); err != nil {
			t.Errorf("%s: it is refused with the drop-in too: %v\n%s", name, err, d.YAML)
		}
	}
}

func TestWhatNoDropInCanSolve(t *testing.T) {
	path := file(t, "maxPodz: 3\n")
	c, wrong := inspectOn(t, machine(t, ""), "--config="+path, "--max-pods=-2", "--image-credential-provider-config=x")
	d, err := SuggestDropIn(c, wrong)
	if err != nil || len(d.YAML) > 0 || len(d.ByHand) != len(Flatten(wrong)) || len(d.ByHand) < 2 {
		t.Errorf("%+v, %v, of %v", d, err, wrong)
	}
}

func TestAnnotated(t *testing.T) {
	path := file(t, "maxPods: 30\nauthentication: {webhook: {cacheTTL: 1m}}\n"+
		"staticPodURL: http://u:s3cret@h/\nstaticPodURLHeader: {Authorization: [s3cret]}\n")
	c := mustLoad(t, "--config="+path, "--max-pods=40", "--root-dir=/srv/kubelet")
	text, err := c.Annotated()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"maxPods: 40    # flag --max-pods\n", "    cacheTTL: 1m0s    # file " + path + "\n",
		"    enabled: true    # default\n", "syncFrequency: 1m0s    # default\n",
		"#   --root-dir=/srv/kubelet    (flag --root-dir)\n", "#   --cert-dir=/var/lib/kubelet/pki    (default)\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("lacks %q", want)
		}
	}
	if strings.Contains(string(text), "s3cret") {
		t.Error("a secret is shown")
	}
	if t.Failed() {
		t.Log(string(text))
	}
	shown := write(t, filepath.Join(t.TempDir(), "shown.yaml"), string(text))
	again := mustLoad(t, "--config="+shown, "--root-dir=/srv/kubelet")
	if again.Kubelet.MaxPods != 40 || again.Kubelet.Authentication.Webhook.CacheTTL.Minutes() != 1 {
		t.Errorf("read as %+v", again.Kubelet)
	}
}

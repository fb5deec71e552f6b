package kubeletconfig

import (
	"errors"
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

// A file that is of another kind, or of another version, stays so, whatever is beside it.
func TestNoDropInCorrectsAKind(t *testing.T) {
	for _, text := range []string{
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfig\n",
		"apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\nmaxPods: -3\n",
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		write(t, path, text)
		c, wrong := inspectOn(t, machine(t, ""), "--config="+path)
		d, err := SuggestDropIn(c, wrong)
		if err != nil || len(d.ByHand) == 0 || strings.Contains(string(d.YAML), "kind: n") ||
			len(d.Losses) >= len(Flatten(wrong)) {
			t.Errorf("%s%+v, %v, of %v", text, d, err, wrong)
		}
	}
}

// What a value was is what the file says, and not what it comes to.
func TestALossNamesWhatWasGiven(t *testing.T) {
	c, wrong := inspectOn(t, machine(t, ""), "--config="+file(t, "syncFrequency: 10\n"))
	d, err := SuggestDropIn(c, wrong)
	if err != nil || len(d.Losses) != 1 || !strings.HasPrefix(d.Losses[0], "syncFrequency: 1m0s instead of 10; ") {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestOnce(t *testing.T) {
	problem := Problem{Field: "evictionHard.imagefs.avail", Value: "5%", Detail: "it is none", Remedy: "write another"}
	again := errors.New(`evictionHard.imagefs.avail: "imagefs.avail" is none`)
	other := errors.New("evictionHard.imagefs.available: it is twice")
	want := errors.Join(problem, other).Error()
	if got := Once(errors.Join(again, problem, other)); got == nil || got.Error() != want {
		t.Errorf("%v, want %s", got, want)
	}
	if err := Once(nil); err != nil {
		t.Error(err)
	}
}

// kubeadm's file has 0s where the default holds. A 0 that means something is the file's.
func TestAnnotatedZeros(t *testing.T) {
	path := file(t, "syncFrequency: 0s\nauthentication: {webhook: {cacheTTL: 0s}}\nmaxPods: 0\nhealthzPort: 0\n"+
		"imageMaximumGCAge: 0s\nfileCheckFrequency: 0s\n")
	dir := t.TempDir()
	dropIn := filepath.Join(dir, "1.conf")
	write(t, dropIn, "apiVersion: "+apiVersion+"\nkind: "+kind+"\nhttpCheckFrequency: 0s\nfileCheckFrequency: 7s\n")
	text, err := mustLoad(t, "--config="+path, "--config-dir="+dir).Annotated()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"syncFrequency: 1m0s    # default (0s in file " + path + ")\n",
		"    cacheTTL: 2m0s    # default (0s in file " + path + ")\n",
		"maxPods: 110    # default (0 in file " + path + ")\n",
		"httpCheckFrequency: 20s    # default (0s in drop-in " + dropIn + ")\n",
		"healthzPort: 0    # file " + path + "\n", "imageMaximumGCAge: 0s    # file " + path + "\n",
		"fileCheckFrequency: 7s    # drop-in " + dropIn + "\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("lacks %q\n%s", want, text)
		}
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

package kubeletconfig

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/component-base/featuregate"

	"github.com/microlet/microlet/services/internal/clientcert"
)

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func featureName(name string) featuregate.Feature { return featuregate.Feature(name) }

// machine makes a folder that stands for a machine with cgroup v2 and the given /proc/swaps.
func machine(t *testing.T, swaps string) host {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "sys/fs/cgroup/cgroup.controllers"), "cpu memory pids\n")
	write(t, filepath.Join(root, "sys/devices/system/cpu/online"), "0-3\n")
	write(t, filepath.Join(root, "proc/swaps"), "Filename\tType\tSize\tUsed\tPriority\n"+swaps)
	return host{root: root}
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// load parses args on a machine with cgroup v2 and loads.
func load(t *testing.T, args ...string) (*Config, []Warning, error) {
	t.Helper()
	return loadOn(t, machine(t, ""), args...)
}

func loadOn(t *testing.T, h host, args ...string) (*Config, []Warning, error) {
	t.Helper()
	f := NewFlags()
	f.host = h
	f.CheckCredentials(clientcert.Credentials{})
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.SetOutput(&strings.Builder{})
	f.AddTo(fs)
	if err := fs.Parse(args); err != nil {
		return nil, nil, err
	}
	return Load(fs, f)
}

func mustLoad(t *testing.T, args ...string) *Config {
	t.Helper()
	c, _, err := load(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func file(t *testing.T, content string) string {
	t.Helper()
	return write(t, filepath.Join(t.TempDir(), "config.yaml"), header+content)
}

func TestPrecedence(t *testing.T) {
	base := file(t, "maxPods: 20\npodsPerCore: 2\nkubeAPIQPS: 7\nclusterDNS: [10.0.0.1, 10.0.0.2]\nfeatureGates: "+
		"{KubeletCrashLoopBackOffMax: true, NodeSwap: true}\n")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "20-b.conf"), header+"maxPods: 40\nclusterDNS: [10.0.0.9]\n")
	write(t, filepath.Join(dir, "10-a.conf"),
		header+"maxPods: 30\npodsPerCore: 3\nauthentication: {webhook: {cacheTTL: 9s}}\n")
	write(t, filepath.Join(dir, "sub/30-c.conf"), header+"podsPerCore: 5\n")
	write(t, filepath.Join(dir, "99-ignored.yaml"), "not: read\n")

	c := mustLoad(t, "--config", base, "--config-dir", dir, "--max-pods=50",
		"--feature-gates=CustomCPUCFSQuotaPeriod=true", "--cpu_cfs_quota_period=50ms")
	k := c.Kubelet
	if k.MaxPods != 50 || k.PodsPerCore != 5 || *k.KubeAPIQPS != 7 {
		t.Errorf("maxPods, podsPerCore, kubeAPIQPS = %d, %d, %d, want 50 (flag), 5 (last drop-in), 7 (file)", k.MaxPods,
			k.PodsPerCore, *k.KubeAPIQPS)
	}
	if diff := cmp.Diff([]string{"10.0.0.9"}, k.ClusterDNS); diff != "" {
		t.Errorf("a drop-in's list does not replace the file's:\n%s", diff)
	}
	if k.Authentication.Webhook.CacheTTL.Duration.String() != "9s" || !*k.Authentication.Webhook.Enabled {
		t.Errorf("a drop-in's mapping is not merged: %+v", k.Authentication.Webhook)
	}
	gates := map[string]bool{"KubeletCrashLoopBackOffMax": true, "NodeSwap": true, "CustomCPUCFSQuotaPeriod": true}
	if diff := cmp.Diff(gates, k.FeatureGates); diff != "" {
		t.Errorf("feature gates of file and flag are not merged:\n%s", diff)
	}
	want := map[string]string{
		"maxPods":                         "flag --max-pods",
		"kubeAPIQPS":                      "file " + base,
		"clusterDNS":                      "drop-in " + filepath.Join(dir, "20-b.conf"),
		"podsPerCore":                     "drop-in " + filepath.Join(dir, "sub/30-c.conf"),
		"featureGates":                    "file " + base + " + flag --feature-gates",
		"authentication.webhook.cacheTTL": "drop-in " + filepath.Join(dir, "10-a.conf"),
		"cpuCFSQuotaPeriod":               "flag --cpu-cfs-quota-period",
		"--config":                        "flag --config",
		"--config-dir":                    "flag --config-dir",
	}
	if diff := cmp.Diff(want, c.Provenance); diff != "" {
		t.Errorf("provenance (-want +got):\n%s", diff)
	}
}

func TestDropInsMergeAsRFC7396(t *testing.T) {
	base := file(t, "maxPods: 20\nfeatureGates: {NodeSwap: true}\nregisterWithTaints: [{key: a, effect: NoSchedule}, "+
		"{key: b, effect: NoSchedule}]\n")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1.conf"),
		header+"maxPods: null\nfeatureGates: {KubeletCrashLoopBackOffMax: true}\nregisterWithTaints: [{key: c, effect: "+
			"NoExecute}]\n")
	c := mustLoad(t, "--config", base, "--config-dir", dir)
	if c.Kubelet.MaxPods != 110 {
		t.Errorf("maxPods = %d, want the default after null", c.Kubelet.MaxPods)
	}
	if _, set := c.Provenance["maxPods"]; set {
		t.Error("provenance still names who set maxPods")
	}
	if len(c.Kubelet.FeatureGates) != 2 {
		t.Errorf("feature gates = %v, want those of both files", c.Kubelet.FeatureGates)
	}
	if taints := c.Kubelet.RegisterWithTaints; len(taints) != 1 || taints[0].Key != "c" {
		t.Errorf("taints = %v, want the drop-in's alone", taints)
	}
}

// A null in a drop-in leaves the API's default. evictionHard has none; the kubelet fills in its own for the file alone.
func TestNullInADropIn(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1.conf"), header+"evictionHard: null\nreadOnlyPort: null\n")
	for name, args := range map[string][]string{
		"over a file":         {"--config", file(t, "evictionHard: {memory.available: 0%}\nreadOnlyPort: 1\n")},
		"over a default":      {"--config", file(t, "")},
		"over a command line": nil,
	} {
		c := mustLoad(t, append(args, "--config-dir", dir)...)
		if len(c.Kubelet.EvictionHard) != 0 || c.Kubelet.ReadOnlyPort != 0 {
			t.Errorf("%s: evictionHard, readOnlyPort = %v, %d, want none and 0", name, c.Kubelet.EvictionHard,
				c.Kubelet.ReadOnlyPort)
		}
	}
	if _, _, err := load(t, "--config", file(t, "evictionHard: null\n")); err != nil {
		t.Errorf("null in the file is refused: %v", err)
	}
}

func TestDropInsWithoutFile(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1.conf"), header+"maxPods: 9\n")
	c := mustLoad(t, "--config-dir", dir)
	if c.Kubelet.MaxPods != 9 || c.Kubelet.ReadOnlyPort != 10255 {
		t.Errorf("maxPods, readOnlyPort = %d, %d, want 9 over the command line's defaults (10255)", c.Kubelet.MaxPods,
			c.Kubelet.ReadOnlyPort)
	}
}

func TestFlagsReplaceMapsAndLists(t *testing.T) {
	base := file(t, "clusterDNS: [10.0.0.1]\nevictionHard: {memory.available: 0%}\n")
	c := mustLoad(t, "--config", base, "--cluster-dns=10.1.0.1,10.1.0.2", "--cluster-dns=10.1.0.3",
		"--eviction-hard=nodefs.available<0%", "--register-with-taints=a=b:NoSchedule",
		"--register-with-taints=c:NoExecute")
	if diff := cmp.Diff([]string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}, c.Kubelet.ClusterDNS); diff != "" {
		t.Errorf("clusterDNS (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"nodefs.available": "0%"}, c.Kubelet.EvictionHard); diff != "" {
		t.Errorf("evictionHard (-want +got):\n%s", diff)
	}
	if taints := c.Kubelet.RegisterWithTaints; len(taints) != 1 || taints[0].Key != "c" {
		t.Errorf("taints = %v, want those of the last use", taints)
	}
}

func TestZeroByFlagIsKept(t *testing.T) {
	c := mustLoad(t, "--config", file(t, "eventBurst: 3\n"), "--event-burst=0", "--healthz-port=0", "--resolv-conf=")
	if c.Kubelet.EventBurst != 0 || *c.Kubelet.HealthzPort != 0 || *c.Kubelet.ResolverConfig != "" {
		t.Errorf("eventBurst, healthzPort, resolvConf = %d, %d, %q, want the flags' zeros", c.Kubelet.EventBurst,
			*c.Kubelet.HealthzPort, *c.Kubelet.ResolverConfig)
	}
}

func TestWithoutFile(t *testing.T) {
	k := mustLoad(t).Kubelet
	if !*k.Authentication.Anonymous.Enabled || *k.Authentication.Webhook.Enabled ||
		k.Authorization.Mode != "AlwaysAllow" || k.ReadOnlyPort != 10255 || k.EvictionHard != nil {
		t.Errorf("without a file the kubelet's command line has other defaults: %+v", k)
	}
	k = mustLoad(t, "--config", file(t, "")).Kubelet
	if *k.Authentication.Anonymous.Enabled || k.ReadOnlyPort != 0 || len(k.EvictionHard) != 5 {
		t.Errorf("with a file the API's defaults hold: %+v", k)
	}
}

func TestRelativePaths(t *testing.T) {
	base := file(t, "resolvConf: dns/resolv.conf\ntlsCertFile: ../x.crt\n")
	folder := filepath.Dir(base)
	t.Chdir(filepath.Dir(folder))
	c := mustLoad(t, "--config", filepath.Join(filepath.Base(folder), "config.yaml"), "--root-dir=kubelet",
		"--tls-private-key-file=y.key")
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []struct{ name, got, want string }{
		{"resolvConf", *c.Kubelet.ResolverConfig, filepath.Join(folder, "dns/resolv.conf")},
		{"tlsCertFile", c.Kubelet.TLSCertFile, filepath.Join(filepath.Dir(folder), "x.crt")},
		{"tlsPrivateKeyFile", c.Kubelet.TLSPrivateKeyFile, filepath.Join(wd, "y.key")},
		{"--root-dir", c.Node.RootDir, filepath.Join(wd, "kubelet")},
		{"--config", c.Node.ConfigFile, base},
	} {
		if path.got != path.want {
			t.Errorf("%s = %s, want %s", path.name, path.got, path.want)
		}
	}
}

func TestJSONFile(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "c.json"), "{\n\t\"apiVersion\": \"kubelet.config.k8s.io/v1beta1\",\n"+
		"\t\"kind\": \"KubeletConfiguration\",\n\t\"maxPods\": 12\n}\n")
	if c := mustLoad(t, "--config", path); c.Kubelet.MaxPods != 12 {
		t.Errorf("maxPods = %d, want 12", c.Kubelet.MaxPods)
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		content string
		want    []string // each must appear in the error
	}{
		"unknown key": {header + "maxPodz: 3\n", []string{"maxPodz", "the key is unknown", `write "maxPods"`}},
		"unknown nested key": {header + "authentication: {webhook: {cacheTtl: 3s}}\n",
			[]string{"authentication.webhook.cacheTtl", `write "cacheTTL"`}},
		"unknown key in list": {header + "registerWithTaints: [{key: a, efect: NoSchedule}]\n",
			[]string{"registerWithTaints[0].efect", `write "effect"`}},
		"far from any key": {header + "qqqqqqqqqq: 3\n", []string{"qqqqqqqqqq", "remove it"}},
		"wrong case":       {header + "MaxPods: 3\n", []string{"MaxPods", "unknown"}},
		"duplicate key":    {header + "maxPods: 3\nmaxPods: 4\n", []string{"maxPods", "twice"}},
		"duplicate JSON key": {
			`{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","maxPods":3,"maxPods":4}`,
			[]string{"maxPods", "the key is given twice", "keep one"}},
		"wrong type": {header + "maxPods: many\n", []string{"maxPods=many", "a whole number"}},
		"wrong duration": {header + "authentication: {webhook: {cacheTTL: soon}}\n",
			[]string{"authentication.webhook.cacheTTL=soon", "a duration, such as 10s"}},
		"several wrong values": {header + "maxPods: many\nsyncFrequency: soon\nenableServer: 7\n",
			[]string{"maxPods=many", "syncFrequency=soon", "enableServer=7", "true or false"}},
		"no version": {"kind: KubeletConfiguration\n", []string{"apiVersion",
			"write kubelet.config.k8s.io/v1beta1"}},
		"no kind": {"apiVersion: kubelet.config.k8s.io/v1beta1\n", []string{"kind",
			"write KubeletConfiguration"}},
		"another kind": {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: CredentialProviderConfig\n",
			[]string{"kind=CredentialProviderConfig"}},
		"empty":          {"", []string{"the file is empty"}},
		"only a comment": {"# nothing\n", []string{"the file is empty"}},
		"two documents":  {header + "---\n" + header, []string{"2 documents"}},
		"a list":         {"- a\n- b\n", []string{"no mapping"}},
		"no YAML":        {header + "maxPods: [\n", []string{"not YAML or JSON"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, filepath.Join(t.TempDir(), "f.conf"), test.content)
			for kind, args := range map[string][]string{
				"file ":    {"--config", path},
				"drop-in ": {"--config-dir", filepath.Dir(path)},
			} {
				_, _, err := load(t, args...)
				if err == nil {
					t.Fatalf("%s: accepted", kind)
				}
				for _, want := range append(test.want, kind+path) {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q does not say %q", err, want)
					}
				}
			}
		})
	}
}

func TestAllFilesAreReported(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1.conf"), header+"maxPods: many\n")
	write(t, filepath.Join(dir, "2.conf"), header+"maxPodz: 1\n")
	_, _, err := load(t, "--config", file(t, "port: high\n"), "--config-dir", dir)
	for _, want := range []string{"port=high", "maxPods=many", "maxPodz"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	for _, args := range [][]string{{"--config=/nowhere/config.yaml"}, {"--config-dir=/nowhere"}} {
		if _, _, err := load(t, args...); err == nil || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("load(%v) = %v, want an error that names the path", args, err)
		}
	}
	if _, _, err := load(t, "stray"); err == nil || !strings.Contains(err.Error(), "stray") {
		t.Errorf("an argument that is no flag: %v", err)
	}
}

func TestFlagValuesThatAreRefused(t *testing.T) {
	for flag, want := range map[string]string{
		"--max-pods=x":                                       "max-pods",
		"--address=here":                                     "not an IP",
		"--register-with-taints=a":                           "has no effect",
		"--register-with-taints=a=b:Never":                   "Never",
		"--register-with-taints=a:NoSchedule,a=c:NoSchedule": "twice",
		"--reserved-memory=1Gi":                              "NUMA node",
		"--reserved-memory=x:memory=1Gi":                     "whole number",
		"--reserved-memory=0:memory":                         "type=quantity",
		"--reserved-memory=0:disk=1Gi":                       "disk",
		"--reserved-memory=0:memory=much":                    "much",
		"--version=1.2":                                      "vX.Y.Z",
		"--feature-gates=A":                                  "A",
		"--no-such-flag":                                     "no-such-flag",
		"--log-text-info-buffer-size=x":                      "log-text-info-buffer-size",
	} {
		if _, _, err := load(t, flag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v does not say %q", flag, err, want)
		}
	}
}

func TestLoggingFlags(t *testing.T) {
	c := mustLoad(t, "--config", file(t, "logging: {format: text, verbosity: 1}\n"), "-v=5", "--logging-format=json",
		"--log-flush-frequency=1s")
	if l := c.Kubelet.Logging; l.Verbosity != 5 || l.Format != "json" ||
		l.FlushFrequency.Duration.Duration.String() != "1s" {
		t.Errorf("logging = %+v, want the flags' values", l)
	}
}

func TestVersionFlag(t *testing.T) {
	for arg, want := range map[string]string{
		"--version":        "true",
		"--version=raw":    "raw",
		"--version=v1.2.3": "v1.2.3",
		"--version=false":  "",
	} {
		f := NewFlags()
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.AddTo(fs)
		if err := fs.Parse([]string{arg}); err != nil || f.Version() != want {
			t.Errorf("%s: Version() = %q, %v, want %q", arg, f.Version(), err, want)
		}
	}
}

func TestAccessors(t *testing.T) {
	c := mustLoad(t, "--hostname-override=Node-1.Example", "--node-ip=10.0.0.1,fd00::1",
		"--node-labels=a=b,topology.kubernetes.io/zone=z", "--node-labels=c=d",
		"--container-runtime-endpoint=unix:///run/x.sock", "--seccomp-default")
	if name, err := c.NodeName(); err != nil || name != "node-1.example" {
		t.Errorf("NodeName() = %q, %v", name, err)
	}
	var ips []string
	for _, ip := range c.NodeIPs() {
		ips = append(ips, ip.String())
	}
	if !slices.Equal(ips, []string{"10.0.0.1", "fd00::1"}) {
		t.Errorf("NodeIPs() = %v", ips)
	}
	if diff := cmp.Diff(map[string]string{"a": "b", "c": "d", "topology.kubernetes.io/zone": "z"},
		c.Node.NodeLabels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if !c.Standalone() || c.RuntimeEndpoint() != "unix:///run/x.sock" || c.ImageEndpoint() != "unix:///run/x.sock" ||
		!c.SeccompDefault() {
		t.Errorf("standalone, endpoints, seccomp default = %t, %s, %s, %t", c.Standalone(), c.RuntimeEndpoint(),
			c.ImageEndpoint(), c.SeccompDefault())
	}
	if !c.FeatureEnabled("NodeSwap") || c.FeatureEnabled("DefaultPodSysctls") {
		t.Error("feature gates do not have their defaults")
	}
	if c := mustLoad(t); c.NodeIPs() != nil {
		t.Errorf("NodeIPs() without --node-ip = %v", c.NodeIPs())
	}
}

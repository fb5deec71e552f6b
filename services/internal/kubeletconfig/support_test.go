package kubeletconfig

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// kubeadmNode lays out what kubeadm leaves on a node and returns the command line of its unit file.
func kubeadmNode(t *testing.T) (root string, args []string) {
	t.Helper()
	root = t.TempDir()
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	write(t, filepath.Join(root, "lib/kubelet/config.yaml"), read("kubeadm-config.yaml"))
	unit := strings.NewReplacer("%E", root+"/etc", "%S", root+"/lib").Replace(read("10-kubeadm.conf"))
	for _, value := range regexp.MustCompile(`="(?:KUBELET_\w+=)?(--[^"]*)"`).FindAllStringSubmatch(
		unit+read("kubeadm-flags.env"), -1,
	) {
		args = append(args, strings.Fields(value[1])...)
	}
	if len(args) != 7 {
		t.Fatalf("the unit's command line has %d flags: %v", len(args), args)
	}
	return root, args
}

func TestKubeadmNodeStarts(t *testing.T) {
	root, args := kubeadmNode(t)
	write(t, filepath.Join(root, "etc/kubernetes/kubelet.conf"), kubeconfig)
	c, got, err := load(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	if c.Kubelet.ContainerRuntimeEndpoint != "unix:///var/run/containerd/containerd.sock" ||
		c.Kubelet.CgroupDriver != "systemd" || c.Kubelet.SyncFrequency.Duration.String() != "1m0s" {
		t.Errorf("configuration of kubeadm is not taken over: %+v", c.Kubelet)
	}
	config := "(file " + root + "/lib/kubelet/config.yaml)"
	want := []Warning{
		{msgWarned, []string{"--pod-infra-container-image (flag --pod-infra-container-image)"}},
		{msgNotRenewed, []string{
			"rotateCertificates=true " + config,
			"--kubeconfig=" + root + "/etc/kubernetes/kubelet.conf (flag --kubeconfig)",
			"--cert-dir=/var/lib/kubelet/pki",
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// TestKubeadmNodeOf137: kubeadm 1.37 has the runtime's endpoint in the file and gives no flags; it adds the resolv.conf
// of a machine with systemd-resolved. "kubeadm upgrade node" writes the same.
func TestKubeadmNodeOf137(t *testing.T) {
	root, args := kubeadmNode(t)
	config := filepath.Join(root, "lib/kubelet/config.yaml")
	data, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	const empty, given = `containerRuntimeEndpoint: ""`, "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock"
	write(t, config, strings.Replace(string(data), empty, given, 1)+"resolvConf: /run/systemd/resolve/resolv.conf\n")
	write(t, filepath.Join(root, "etc/kubernetes/kubelet.conf"), kubeconfig)
	c, got, err := load(t, args[:3]...)
	if err != nil {
		t.Fatal(err)
	}
	k := c.Kubelet
	for field, is := range map[string]bool{
		"staticPodPath":        k.StaticPodPath == "/etc/kubernetes/manifests",
		"rotateCertificates":   k.RotateCertificates,
		"serverTLSBootstrap":   !k.ServerTLSBootstrap,
		"clusterDNS":           slices.Equal(k.ClusterDNS, []string{"10.96.0.10"}),
		"resolvConf":           *k.ResolverConfig == "/run/systemd/resolve/resolv.conf",
		"runtime endpoint":     k.ContainerRuntimeEndpoint == "unix:///run/containerd/containerd.sock",
		"healthz":              k.HealthzBindAddress == "127.0.0.1" && *k.HealthzPort == 10248,
		"volumeStatsAggPeriod": k.VolumeStatsAggPeriod.Duration == time.Minute, // 0 is the default
		"logging":              k.Logging.Format == "text",
		"clientCAFile":         k.Authentication.X509.ClientCAFile == "/etc/kubernetes/pki/ca.crt",
	} {
		if !is {
			t.Errorf("%s of kubeadm is not taken over", field)
		}
	}
	for _, w := range got {
		if w.Message != msgNotRenewed {
			t.Errorf("kubeadm's own settings give the warning %q: %q", w.Message, w.Fields)
		}
	}
}

func TestKubeadmNodeThatHasNotJoined(t *testing.T) {
	root, args := kubeadmNode(t)
	_, _, err := load(t, args...)
	want := "--bootstrap-kubeconfig=" + root + "/etc/kubernetes/bootstrap-kubelet.conf (flag --bootstrap-kubeconfig): " +
		"the file cannot be read: no such file or directory: " +
		"put a kubeconfig with a bootstrap token there, such as one of \"kubeadm join\""
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error = %v, want %s", err, want)
	}
	write(t, filepath.Join(root, "etc/kubernetes/bootstrap-kubelet.conf"), "garbage")
	if _, _, err := load(t, args...); err == nil || !strings.Contains(err.Error(), "the file is no kubeconfig") {
		t.Errorf("with garbage to bootstrap from: %v", err)
	}
	write(t, filepath.Join(root, "etc/kubernetes/bootstrap-kubelet.conf"), kubeconfig)
	if _, _, err := load(t, args...); err != nil {
		t.Errorf("with a bootstrap kubeconfig: %v", err)
	}
}

func TestKubeconfig(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--kubeconfig=/nowhere/k"}, "the file does not exist: create it"},
		{[]string{"--bootstrap-kubeconfig=/nowhere/b"}, "--kubeconfig is not given"},
	} {
		if _, _, err := load(t, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("load(%v) = %v, want %q", test.args, err, test.want)
		}
	}
}

func TestWhatIsNotBuiltIsRefused(t *testing.T) {
	for _, yaml := range []string{
		"cpuManagerPolicy: static", "memoryManagerPolicy: Static",
		"reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]", "topologyManagerPolicy: restricted",
	} {
		field := regexp.MustCompile(`\w+`).FindString(yaml)
		path := write(t, filepath.Join(t.TempDir(), "c.yaml"), header+yaml+"\n")
		_, _, err := load(t, "--config", path)
		if err == nil {
			t.Errorf("%s: accepted", yaml)
			continue
		}
		for _, want := range []string{field, "(file " + path + ")", notBuilt, notBuiltRemedy} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not say %q", yaml, err, want)
			}
		}
	}
	for _, flag := range []string{"--cpu-manager-policy=static"} {
		if _, _, err := load(t, flag); err == nil || !strings.Contains(err.Error(), notBuilt) {
			t.Errorf("%s: error = %v, want a refusal", flag, err)
		}
	}
}

// TestGatesOfWhatIsNotBuiltAreRefused: a gate that would change pods that run is refused by its name, and it stays off
// with AllAlpha.
func TestGatesOfWhatIsNotBuiltAreRefused(t *testing.T) {
	for _, gate := range slices.Sorted(maps.Keys(refusedGates)) {
		_, _, err := load(t, "--feature-gates="+gate+"=true")
		for _, want := range []string{"featureGates." + gate + "=true", "(flag --feature-gates)", notBuiltGate} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error is %v, want %q in it", gate, err, want)
			}
		}
		for _, fine := range []string{gate + "=false", "AllAlpha=true,AllBeta=true"} {
			if _, _, err := load(t, "--feature-gates="+fine); err != nil {
				t.Errorf("%s: %v", fine, err)
			}
		}
	}
}

func TestDeclaredFeatures(t *testing.T) {
	for _, test := range []struct {
		gates string
		want  []string
	}{
		{"", []string{"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling",
			"InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits"}},
		{"AllBeta=false", []string{"InPlacePodVerticalScalingInitContainers"}},
	} {
		c, _, err := load(t, "--feature-gates="+test.gates)
		if err != nil {
			t.Errorf("%s: %v", test.gates, err)
		} else if got := c.DeclaredFeatures(); !slices.Equal(got, test.want) {
			t.Errorf("with %q it declares %q, want %q", test.gates, got, test.want)
		}
	}
}

func TestReservationsAreSupported(t *testing.T) {
	const given = "systemReserved: {cpu: 100m, pid: '50'}\nkubeReserved: {memory: 1Gi, ephemeral-storage: 2Gi}\n" +
		"enforceNodeAllocatable: [pods, system-reserved, kube-reserved-compressible]\n" +
		"systemReservedCgroup: /system\nkubeReservedCgroup: /kube\n"
	if got := warningsOf(t, msgWarned, "--config", file(t, given)); got != nil {
		t.Errorf("warns of %q", got)
	}
	if got := warningsOf(t, msgWarned, "--system-reserved=cpu=1", "--kube-reserved=memory=1Gi"); got != nil {
		t.Errorf("warns of %q", got)
	}
}

// warningsOf returns the fields of the warning with the given message.
func warningsOf(t *testing.T, message string, args ...string) []string {
	t.Helper()
	_, warnings, err := load(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		if w.Message == message {
			return w.Fields
		}
	}
	return nil
}

func TestWarnings(t *testing.T) {
	for _, test := range []struct {
		yaml, message string
		want          []string // without the source
	}{
		{"cpuManagerReconcilePeriod: 5s\nmaxPods: 5\n", msgWarned, []string{"cpuManagerReconcilePeriod=5s"}},
		{"enableControllerAttachDetach: true\nsyncFrequency: 1m\n", msgWarned, nil},
		{"tracing: {endpoint: 'localhost:4317'}\n", msgWarned, nil},
		{"authorization: {mode: AlwaysAllow}\nauthentication: {anonymous: {enabled: true}}\n", msgWeaker,
			[]string{"authentication.anonymous.enabled=true", "authorization.mode=AlwaysAllow"}},
		{"enableServer: false\nhealthzPort: 0\nreadOnlyPort: 0\n", msgWeaker, nil},
		{"featureGates: {MemoryQoS: false, KubeletCrashLoopBackOffMax: true, CPUManagerPolicyAlphaOptions: true}\n", msgGates,
			[]string{"CPUManagerPolicyAlphaOptions=true"}},
	} {
		got := warningsOf(t, test.message, "--config", file(t, test.yaml))
		if len(got) != len(test.want) || slices.ContainsFunc(test.want, func(w string) bool {
			return !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, w) })
		}) {
			t.Errorf("%s\nwarns %q of %q, want %q", test.yaml, test.message, got, test.want)
		}
	}
	weaker := warningsOf(t, msgWeaker, "--config", file(t, ""), "--anonymous-auth", "--read-only-port=10255",
		"--tls-min-version=VersionTLS13")
	if want := []string{
		"authentication.anonymous.enabled=true (flag --anonymous-auth)",
		"readOnlyPort=10255 (flag --read-only-port)",
	}; !slices.Equal(weaker, want) {
		t.Errorf("warnings are %q, want %q", weaker, want)
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	_, _, err := load(t, "--config", file(t, "staticPodURLHeader: {Authorization: hunter2}\n"))
	if err == nil || strings.Contains(err.Error(), "hunter2") ||
		!strings.Contains(err.Error(), "staticPodURLHeader=<masked>") {
		t.Errorf("a header of the wrong type: %v", err)
	}
}

func TestHost(t *testing.T) {
	v1 := host{root: t.TempDir()}
	if _, _, err := loadOn(t, v1); err == nil ||
		!strings.Contains(err.Error(), "failCgroupV1=true: this machine has cgroup v1: boot it with cgroup v2") {
		t.Errorf("cgroup v1: error = %v", err)
	}
	if _, _, err := loadOn(t, v1, "--fail-cgroupv1=false"); err != nil {
		t.Errorf("cgroup v1 with --fail-cgroupv1=false: %v", err)
	}
	if _, _, err := loadOn(t, v1, "--config", file(t, "failCgroupV1: false\nsingleProcessOOMKill: false\n")); err == nil ||
		!strings.Contains(err.Error(), "singleProcessOOMKill=false") {
		t.Errorf("singleProcessOOMKill on cgroup v1: error = %v", err)
	}
	swap := machine(t, "/dev/sda2 partition 1000 0 -2\n")
	if _, _, err := loadOn(t, swap); err == nil || !strings.Contains(err.Error(), "swap is on: /dev/sda2") {
		t.Errorf("swap: error = %v", err)
	}
	limited := file(t, "failSwapOn: false\nmemorySwap: {swapBehavior: LimitedSwap}\n")
	if _, _, err := loadOn(t, swap, "--config", limited); err != nil {
		t.Errorf("LimitedSwap: %v", err)
	}
	if _, _, err := loadOn(t, v1, "--config", limited, "--fail-cgroupv1=false"); err == nil ||
		!strings.Contains(err.Error(), "memorySwap.swapBehavior=LimitedSwap") {
		t.Errorf("LimitedSwap on cgroup v1: %v", err)
	}
}

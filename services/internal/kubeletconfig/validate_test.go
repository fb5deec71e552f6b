package kubeletconfig

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// problemsOf returns what is wrong with a file, by field.
func problemsOf(t *testing.T, yaml string, args ...string) map[string]Problem {
	t.Helper()
	_, _, err := load(t, append([]string{"--config", file(t, yaml)}, args...)...)
	found := map[string]Problem{}
	if err == nil {
		return found
	}
	list := []error{err}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		list = joined.Unwrap()
	}
	for _, e := range list {
		var p Problem
		if !errors.As(e, &p) {
			t.Fatalf("%v is no Problem", e)
		}
		if p.Detail == "" || p.Remedy == "" {
			t.Errorf("%+v has no detail or no remedy", p)
		}
		found[p.Field] = p
	}
	return found
}

func TestValidation(t *testing.T) {
	for _, test := range []struct{ yaml, field, detail string }{
		{"nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds", "too small"},
		{"eventBurst: -1", "eventBurst", "too small"},
		{"eventRecordQPS: -1", "eventRecordQPS", "too small"},
		{"kubeAPIBurst: -1", "kubeAPIBurst", "too small"},
		{"kubeAPIQPS: -1", "kubeAPIQPS", "too small"},
		{"registryBurst: -1", "registryBurst", "too small"},
		{"registryPullQPS: -1", "registryPullQPS", "too small"},
		{"nodeStatusMaxImages: -2", "nodeStatusMaxImages", "too small"},
		{"maxOpenFiles: -1", "maxOpenFiles", "too small"},
		{"maxPods: -1", "maxPods", "too small"},
		{"podsPerCore: -1", "podsPerCore", "too small"},
		{"containerLogMaxWorkers: 0", "containerLogMaxWorkers", "too small"},
		{"containerLogMaxFiles: 1", "containerLogMaxFiles", "too small"},
		{"containerLogMonitorInterval: 1s", "containerLogMonitorInterval", "too short"},
		{"oomScoreAdj: -1001", "oomScoreAdj", "out of range"},
		{"port: 70000", "port", "out of range"},
		{"healthzPort: -1", "healthzPort", "out of range"},
		{"readOnlyPort: 70000", "readOnlyPort", "out of range"},
		{"iptablesMasqueradeBit: 32", "iptablesMasqueradeBit", "out of range"},
		{"iptablesDropBit: 32", "iptablesDropBit", "out of range"},
		{"cpuCFSQuotaPeriod: 2s", "cpuCFSQuotaPeriod", "out of range"},
		{"{cpuCFSQuotaPeriod: 50ms, featureGates: {CustomCPUCFSQuotaPeriod: false}}", "cpuCFSQuotaPeriod",
			"needs the feature gate"},
		{"topologyManagerPolicy: all", "topologyManagerPolicy", "no known choice"},
		{"topologyManagerScope: all", "topologyManagerScope", "no known choice"},
		{"cpuManagerPolicy: all", "cpuManagerPolicy", "no known choice"},
		{"memoryManagerPolicy: all", "memoryManagerPolicy", "no known choice"},
		{"hairpinMode: all", "hairpinMode", "no known choice"},
		{"cgroupDriver: all", "cgroupDriver", "no known choice"},
		{"memoryReservationPolicy: all", "memoryReservationPolicy", "no known choice"},
		{"configMapAndSecretChangeDetectionStrategy: all", "configMapAndSecretChangeDetectionStrategy", "no known choice"},
		{"qosReserved: {memory: 50%}", "qosReserved", "feature gate QOSReserved"},
		{"{featureGates: {QOSReserved: true}, qosReserved: {memory: 12.5%}}", "qosReserved.memory", "whole percentage"},
		{"{featureGates: {QOSReserved: true}, qosReserved: {memory: 101%}}", "qosReserved.memory", "whole percentage"},
		{"{featureGates: {QOSReserved: true}, qosReserved: {cpu: 5%}}", "qosReserved.cpu", "only memory"},
		{"memorySwap: {swapBehavior: all}", "memorySwap.swapBehavior", "no known choice"},
		{"memoryThrottlingFactor: 1.5", "memoryThrottlingFactor", "out of range"},
		{"{memoryThrottlingFactor: 0.5, featureGates: {MemoryQoS: false}}", "memoryThrottlingFactor",
			"needs the feature gate"},
		{"runOnce: true", "runOnce", "no run-once mode"},
		{"imageGCHighThresholdPercent: 101", "imageGCHighThresholdPercent", "out of range"},
		{"imageGCLowThresholdPercent: 90", "imageGCLowThresholdPercent", "not below"},
		{"imageMinimumGCAge: -1s", "imageMinimumGCAge", "negative"},
		{"imageMaximumGCAge: -1s", "imageMaximumGCAge", "negative"},
		{"imageMaximumGCAge: 1s", "imageMaximumGCAge", "not above"},
		{"maxParallelImagePulls: 0", "maxParallelImagePulls", "too small"},
		{"{maxParallelImagePulls: 3, serializeImagePulls: true}", "maxParallelImagePulls", "serializeImagePulls is true"},
		{"imagePullCredentialsVerificationPolicy: all", "imagePullCredentialsVerificationPolicy", "no known choice"},
		{"preloadedImagesVerificationAllowlist: [a]", "preloadedImagesVerificationAllowlist",
			"is not NeverVerifyAllowlistedImages"},
		{"shutdownGracePeriodCriticalPods: 10s", "shutdownGracePeriodCriticalPods", "above shutdownGracePeriod"},
		{"shutdownGracePeriod: 10ms", "shutdownGracePeriod", "too short"},
		{"{shutdownGracePeriod: 10s, shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]}",
			"shutdownGracePeriodByPodPriority", "set too"},
		{"crashLoopBackOff: {maxContainerRestartPeriod: 6m}", "crashLoopBackOff.maxContainerRestartPeriod", "out of range"},
		{"{featureGates: {KubeletCrashLoopBackOffMax: false}, crashLoopBackOff: {maxContainerRestartPeriod: 1m}}",
			"crashLoopBackOff.maxContainerRestartPeriod", "needs the feature gate"},
		{"featureGates: {NodeSwop: true}", "featureGates.NodeSwop", "no feature gate"},
		{"featureGates: {NodeSwap: false}", "featureGates.NodeSwap", "locked to true"},
		{"featureGates: {TopologyAwareWorkloadScheduling: true, GenericWorkload: false}", "featureGates", "depends on"},
		{"containerRuntimeEndpoint: tcp://1.2.3.4", "containerRuntimeEndpoint", "no unix socket"},
		{"imageServiceEndpoint: containerd.sock", "imageServiceEndpoint", "no unix socket"},
		{"registerWithTaints: [{key: a, effect: Never}]", "registerWithTaints[0]", "Never"},
		{"registerWithTaints: [{key: a, effect: NoExecute, timeAdded: '2026-01-01T00:00:00Z'}]",
			"registerWithTaints[0].timeAdded", "node controller"},
		{"clusterDNS: [dns.local]", "clusterDNS[0]", "no IP address"},
		{"podCIDR: 10.0.0.0", "podCIDR", "no range of addresses"},
		{"podCIDR: '10.0.0.0/24,fd00::/200'", "podCIDR", "no range of addresses"},
		{"systemCgroups: /sys", "systemCgroups", "cgroupRoot is not set"},
		{"{cgroupRoot: /, systemCgroups: /a/..}", "systemCgroups", "it is the root cgroup"},
		{"{cgroupRoot: /, systemCgroups: /kubepods}", "systemCgroups", "it is the pods' cgroup /kubepods,"},
		{"{cgroupRoot: /a, systemCgroups: a/kubepods/b}", "systemCgroups", "it is the pods' cgroup /a/kubepods,"},
		{"{cgroupRoot: /a, cgroupDriver: systemd, systemCgroups: /a.slice/a-kubepods.slice/b.slice}", "systemCgroups",
			"it is the pods' cgroup /a.slice/a-kubepods.slice,"},
		{"userNamespaces: {idsPerPod: 100}", "userNamespaces.idsPerPod", "multiple of 65536"},
		{"defaultPodSysctls: {kernel.shm_rmid_forced: '1'}", "defaultPodSysctls", "needs the feature gate"},
		{"{featureGates: {DefaultPodSysctls: true}, defaultPodSysctls: {vm.overcommit_memory: '1'}}", "defaultPodSysctls",
			"of its own"},
		{"{featureGates: {DefaultPodSysctls: true}, defaultPodSysctls: {net.ipv4.a: '1', net/ipv4/a: '2'}}",
			"defaultPodSysctls", "twice"},
		{"podLogsDir: /var/log/../pods", "podLogsDir", "shortest form"},
		{"podLogsDir: /var/logé", "podLogsDir", "ASCII"},
		{"enforceNodeAllocatable: [all]", "enforceNodeAllocatable[0]", "no known choice"},
		{"enforceNodeAllocatable: [pods, pods]", "enforceNodeAllocatable[1]", "twice"},
		{"enforceNodeAllocatable: [none, pods]", "enforceNodeAllocatable", "excludes all others"},
		{"kubeReserved: {cpu: '1'}\nenforceNodeAllocatable: [kube-reserved]", "enforceNodeAllocatable[0]",
			"kubeReservedCgroup is not set"},
		{"systemReservedCgroup: /system\nenforceNodeAllocatable: [system-reserved-compressible]", "enforceNodeAllocatable[0]",
			"systemReserved is empty"},
		{"cgroupsPerQOS: false", "enforceNodeAllocatable[0]", "cgroupsPerQOS is false"},
		{"systemReserved: {gpu: '1'}", "systemReserved.gpu", "cannot be reserved"},
		{"kubeReserved: {cpu: lots}", "kubeReserved.cpu", "no quantity"},
		{"kubeReserved: {memory: '-1Gi'}", "kubeReserved.memory", "negative"},
		{"reservedSystemCPUs: a-b", "reservedSystemCPUs", "no list of CPUs"},
		{"reservedSystemCPUs: 3-4", "reservedSystemCPUs", "does not have all of these CPUs"},
		{"reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]", "reservedMemory[0].limits.cpu", "cannot be reserved"},
		{"reservedMemory: [{numaNode: 0, limits: {memory: 0}}]", "reservedMemory[0].limits.memory", "zero"},
		{"evictionHard: {memory.avail: 1Gi}", "evictionHard.memory.avail", "no eviction signal"},
		{"evictionHard: {memory.available: most}", "evictionHard.memory.available", "neither"},
		{"evictionHard: {memory.available: NaN%}", "evictionHard.memory.available", "neither"},
		{"evictionSoft: {memory.available: 1Gi}", "evictionSoft.memory.available", "no grace period"},
		{"evictionSoftGracePeriod: {memory.available: soon}", "evictionSoftGracePeriod.memory.available", "no duration"},
		{"evictionMinimumReclaim: {memory.available: 0%}", "evictionMinimumReclaim.memory.available", "neither"},
		{"address: here", "address", "no IP address"},
		{"authorization: {mode: Maybe}", "authorization.mode", "no known choice"},
		{"tlsCipherSuites: [ROT13]", "tlsCipherSuites", "no cipher suite"},
		{"tlsMinVersion: TLS9", "tlsMinVersion", "no TLS version"},
		{"tlsCurvePreferences: [1]", "tlsCurvePreferences", "no known curve"},
		{"{featureGates: {RotateKubeletServerCertificate: false}, serverTLSBootstrap: true}", "serverTLSBootstrap",
			"needs the feature gate"},
		{"{enableSystemLogQuery: true, enableSystemLogHandler: false}", "enableSystemLogQuery",
			"enableSystemLogHandler is false"},
		{"tracing: {samplingRatePerMillion: -1}", "tracing.samplingRatePerMillion", "positive"},
		{"logging: {format: xml}", "logging.format", "no known choice"},
		{"logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}", "logging.vmodule", "text format alone"},
		{"{logging: {format: json}, featureGates: {LoggingBetaOptions: false}}", "logging.format", "LoggingBetaOptions"},
		{"showHiddenMetricsForVersion: '1.35'", "showHiddenMetricsForVersion", "the version before"},
		{"logging: {options: {text: {splitStream: true}}}", "logging.options.text.splitStream", "Feature"},
		{"{featureGates: {LoggingAlphaOptions: true}, logging: {options: {json: {infoBufferSize: '-1'}}}}",
			"logging.options.json.infoBufferSize", "negative"},
		{"{featureGates: {LoggingAlphaOptions: true}, logging: {options: {text: {infoBufferSize: '-64Ki'}}}}",
			"logging.options.text.infoBufferSize", "negative"},
	} {
		t.Run(test.yaml, func(t *testing.T) {
			yaml := test.yaml + "\n"
			if strings.HasPrefix(yaml, "{") { // a flow mapping holds more than one key; lay it out beside the header
				yaml = strings.Join(splitFlow(test.yaml), "\n") + "\n"
			}
			p, found := problemsOf(t, yaml)[test.field]
			if !found {
				t.Fatalf("no problem with %s in %v", test.field, problemsOf(t, yaml))
			}
			if !strings.Contains(p.Detail, test.detail) {
				t.Errorf("problem %q does not say %q", p, test.detail)
			}
		})
	}
}

func TestValidValues(t *testing.T) {
	for _, yaml := range []string{
		"podCIDR: 10.244.1.0/24",
		"podCIDR: 10.244.1.0/24,fd00::/64",
		"cgroupRoot: /\nsystemCgroups: /system",
		"cgroupRoot: /\nsystemCgroups: /kubepods-not",
		"cgroupRoot: /a\nsystemCgroups: /kubepods",
		"featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {text: {splitStream: true, infoBufferSize: 64Ki}}}",
	} {
		if found := problemsOf(t, yaml); len(found) > 0 {
			t.Errorf("%s: %v", yaml, found)
		}
	}
}

// The error of an option says what to do if its feature is off.
func TestLoggingOptionWithoutItsFeature(t *testing.T) {
	const name = "logging.options.text.splitStream"
	got := problemsOf(t, "logging: {options: {text: {splitStream: true}}}")[name]
	got.Source = ""
	const want = name + ": Feature LoggingAlphaOptions is disabled: turn the feature gate on, or remove the field"
	if got.Error() != want {
		t.Errorf("error is %q, want %q", got.Error(), want)
	}
}

// splitFlow turns "{a: 1, b: {c: 2}}" into its top-level entries.
func splitFlow(flow string) []string {
	flow = strings.TrimSuffix(strings.TrimPrefix(flow, "{"), "}")
	var entries []string
	depth, from := 0, 0
	for i, r := range flow {
		switch r {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 0 {
				entries, from = append(entries, strings.TrimSpace(flow[from:i])), i+1
			}
		}
	}
	return append(entries, strings.TrimSpace(flow[from:]))
}

func TestProblemsAreAggregatedWithTheirSources(t *testing.T) {
	found := problemsOf(t,
		"maxPods: -1\nport: 70000\nevictionHard: {memory.available: 1Gi}\ntopologyManagerPolicy: restricted\n",
		"--node-labels=kubernetes.io/role=x", "--oom-score-adj=2000")
	for field, source := range map[string]string{
		"maxPods": "file ", "port": "file ", "evictionHard.memory.available": "", "topologyManagerPolicy": "file ",
		"--node-labels": "flag --node-labels", "oomScoreAdj": "flag --oom-score-adj",
	} {
		p, ok := found[field]
		if field == "evictionHard.memory.available" {
			if ok {
				t.Errorf("a valid threshold is called invalid: %v", p)
			}
			continue
		}
		if !ok || !strings.HasPrefix(p.Source, source) {
			t.Errorf("problem with %s = %+v (found: %t), want source %q", field, p, ok, source)
		}
	}
	want := "oomScoreAdj=2000 (flag --oom-score-adj): the number is out of range: write a number from -1000 to 1000"
	if got := found["oomScoreAdj"].Error(); got != want {
		t.Errorf("error = %q, want %q", got, want)
	}
}

func TestNodeFlagValidation(t *testing.T) {
	for arg, want := range map[string]string{
		"--node-labels=x.k8s.io/a=b":            "Kubernetes' own namespace",
		"--node-labels=a b=c":                   "--node-labels",
		"--node-labels=a=b c":                   "--node-labels",
		"--node-ip=10.0.0":                      `"10.0.0" is no IP address`,
		"--node-ip=10.0.0.1,10.0.0.2":           "dual-stack",
		"--node-ip=0.0.0.0,::":                  "dual-stack",
		"--hostname-override=a_b":               "write a DNS name",
		"--root-dir=":                           "such as /var/lib/kubelet",
		"--cloud-provider=aws":                  "no cloud providers",
		"--exit-on-lock-contention":             "--lock-file is not given",
		"--image-credential-provider-config=/a": "only together with",
	} {
		if _, _, err := load(t, arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v does not say %q", arg, err, want)
		}
	}
	mustLoad(t, "--node-labels=node.kubernetes.io/a=b,kubernetes.io/arch=amd64,team.example.com/x=", "--node-ip=::")
}

func TestKubeletDefaultsAreValid(t *testing.T) {
	c := &Config{Kubelet: Default(), Node: defaultNodeFlags()}
	if err := Validate(c); err != nil {
		t.Error(err)
	}
	c.Kubelet.MaxPods = -1
	if err := Validate(c); err == nil {
		t.Error("maxPods: -1 is accepted")
	}
}

// An unknown key, or a value of the wrong type, hides nothing else that is wrong.
func TestAnUnknownKeyHidesNothing(t *testing.T) {
	base := file(t, "maxPodz: 5\nport: 70000\nfailSwapOn: maybe\noomScoreAdj: 2000\n")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1.conf"), header+"podsPerCor: 5\nhairpinMode: bridge\n")
	_, _, err := loadOn(t, machine(t, "/dev/sda2 partition 1 0 -2\n"), "--config="+base, "--config-dir="+dir,
		"--healthz-port=70000")
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"maxPodz (", "podsPerCor (", "port=70000 (", "failSwapOn=maybe (",
		"oomScoreAdj=2000 (", "hairpinMode=bridge (", "healthzPort=70000 (flag"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "failSwapOn"); n != 1 {
		t.Errorf("failSwapOn is named %d times, want once: its value is unknown:\n%v", n, err)
	}
}

// The kubelet does not start with an API in which no user could sign in.
func TestSomeAuthenticationIsNeeded(t *testing.T) {
	none := "authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}\n"
	if _, _, err := load(t, "--config="+file(t, none)); err == nil ||
		!strings.Contains(err.Error(), "no authentication method configured: set authentication.x509.clientCAFile") {
		t.Errorf("error is %v", err)
	}
	for name, c := range map[string]string{
		"certificates": strings.Replace(none, "{anonymous", "{x509: {clientCAFile: /ca.crt}, anonymous", 1),
		"tokens":       strings.Replace(none, "webhook: {enabled: false}", "webhook: {enabled: true}", 1),
		"anonymous":    strings.Replace(none, "anonymous: {enabled: false}", "anonymous: {enabled: true}", 1),
	} {
		if _, _, err := load(t, "--config="+file(t, c)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A list of CPUs takes the place of the CPU in both reservations.
func TestReserved(t *testing.T) {
	const both = "systemReserved: {cpu: 100m, memory: 1Gi}\nkubeReserved: {cpu: 200m, pid: '10'}\n"
	type reserved map[string]string
	for yaml, want := range map[string][2]reserved{
		"":                                   {nil, nil},
		both:                                 {{"cpu": "100m", "memory": "1Gi"}, {"cpu": "200m", "pid": "10"}},
		both + "reservedSystemCPUs: 0,2-3\n": {{"cpu": "3", "memory": "1Gi"}, {"pid": "10"}},
		"reservedSystemCPUs: '1'\n":          {{"cpu": "1"}, nil},
	} {
		c := mustLoad(t, "--config", file(t, yaml))
		system, kube := c.Reserved()
		if d := cmp.Diff(want, [2]reserved{system, kube}); d != "" {
			t.Errorf("%s: -want +got\n%s", yaml, d)
		}
		k := &c.Kubelet
		if k.SystemReserved["cpu"] == "3" || strings.HasPrefix(yaml, both) && k.KubeReserved["cpu"] != "200m" {
			t.Errorf("%s: the configuration itself says %v, %v", yaml, k.SystemReserved, k.KubeReserved)
		}
	}
}

// What the services read of the settings of memory.
func TestMemorySettings(t *testing.T) {
	c := mustLoad(t, "--config", file(t, ""))
	if c.ReservesMemory() || c.QOSReserved() != nil {
		t.Errorf("default: %v, %v", c.ReservesMemory(), c.QOSReserved())
	}
	c = mustLoad(t, "--config", file(t, "memoryReservationPolicy: TieredReservation\nqosReserved: {memory: 50%}\n"+
		"featureGates: {QOSReserved: true}\n"))
	if share := c.QOSReserved(); !c.ReservesMemory() || share == nil || *share != 50 {
		t.Errorf("set: %v, %v", c.ReservesMemory(), share)
	}
}

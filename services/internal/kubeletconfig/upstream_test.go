package kubeletconfig

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// The files under upstream are written by compose/tools/kubeletfacts from the pinned kubelet itself.

func readJSON[T any](t *testing.T, path string) T {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return v
}

func TestFlagsAreTheKubelets(t *testing.T) {
	type fact struct {
		Name, Shorthand, Type, Default string
		NoOptDefault                   string
		Deprecated, Hidden             bool
	}
	want := readJSON[[]fact](t, "upstream/flags.json")
	if len(want) != 130 {
		t.Fatalf("upstream/flags.json holds %d flags; the kubelet of 1.37 has 130 and --help", len(want))
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	NewFlags().AddTo(fs)
	var got []fact
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Name != podInfraFlag { // removed from the kubelet, see its row in supportTable
			got = append(got,
				fact{f.Name, f.Shorthand, f.Value.Type(), f.DefValue, f.NoOptDefVal, f.Deprecated != "", f.Hidden})
		}
	})
	slices.SortFunc(got, func(a, b fact) int { return strings.Compare(a.Name, b.Name) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags differ from the kubelet's (-kubelet +ours):\n%s", diff)
	}
}

func TestDefaultsAreTheKubelets(t *testing.T) {
	want := readJSON[map[string]any](t, "upstream/defaults.json")
	var empty kc
	SetDefaults(&empty)
	if diff := cmp.Diff(want, normal(t, empty)); diff != "" {
		t.Errorf("defaults differ from the kubelet's (-kubelet +ours):\n%s", diff)
	}
	before := normal(t, empty)
	SetDefaults(&empty)
	if diff := cmp.Diff(before, normal(t, empty)); diff != "" {
		t.Errorf("defaulting twice changes the configuration:\n%s", diff)
	}
}

// normal is c as its plain JSON.
func normal(t *testing.T, c kc) map[string]any {
	t.Helper()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDefaultValues(t *testing.T) {
	object := normal(t, Default())
	for path, want := range map[string]any{
		"syncFrequency":                          "1m0s",
		"maxPods":                                110.0,
		"port":                                   10250.0,
		"healthzPort":                            10248.0,
		"oomScoreAdj":                            -999.0,
		"nodeStatusUpdateFrequency":              "10s",
		"nodeStatusReportFrequency":              "5m0s",
		"nodeLeaseDurationSeconds":               40.0,
		"authentication.anonymous.enabled":       false,
		"authentication.webhook.cacheTTL":        "2m0s",
		"authorization.mode":                     "Webhook",
		"registryPullQPS":                        5.0,
		"registryBurst":                          10.0,
		"kubeAPIQPS":                             50.0,
		"kubeAPIBurst":                           100.0,
		"eventRecordQPS":                         50.0,
		"serializeImagePulls":                    true,
		"podPidsLimit":                           -1.0,
		"resolvConf":                             "/etc/resolv.conf",
		"cpuCFSQuotaPeriod":                      "100ms",
		"containerRuntimeEndpoint":               "unix:///run/containerd/containerd.sock",
		"podLogsDir":                             "/var/log/pods",
		"cgroupDriver":                           "cgroupfs",
		"failCgroupV1":                           true,
		"runtimeRequestTimeout":                  "2m0s",
		"contentType":                            "application/vnd.kubernetes.protobuf",
		"logging.format":                         "text",
		"imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages",
	} {
		if got := at(object, path); got != want {
			t.Errorf("default of %s = %v, want %v", path, got, want)
		}
	}
	want := map[string]any{
		"memory.available":   "100Mi",
		"nodefs.available":   "10%",
		"nodefs.inodesFree":  "5%",
		"imagefs.available":  "15%",
		"imagefs.inodesFree": "5%",
	}
	if diff := cmp.Diff(any(want), object["evictionHard"]); diff != "" {
		t.Errorf("evictionHard (-want +got):\n%s", diff)
	}
}

func TestConditionalDefaults(t *testing.T) {
	parse := func(yaml string) kc {
		d, err := decode("test", []byte(header+yaml))
		if err != nil {
			t.Fatal(err)
		}
		SetDefaults(&d.config)
		return d.config
	}
	if c := parse("maxParallelImagePulls: 3\n"); *c.SerializeImagePulls {
		t.Error("maxParallelImagePulls: 3 leaves pulls serial")
	}
	if c := parse("maxParallelImagePulls: 1\n"); !*c.SerializeImagePulls {
		t.Error("maxParallelImagePulls: 1 makes pulls parallel")
	}
	if c := parse("nodeStatusUpdateFrequency: 7s\n"); c.NodeStatusReportFrequency.Duration.String() != "7s" {
		t.Errorf("nodeStatusReportFrequency = %s, want that of nodeStatusUpdateFrequency",
			c.NodeStatusReportFrequency.Duration)
	}
	if c := parse("podPidsLimit: -7\n"); *c.PodPidsLimit != -1 {
		t.Errorf("podPidsLimit = %d, want -1 for any negative number", *c.PodPidsLimit)
	}
	c := parse("featureGates: {KubeletCrashLoopBackOffMax: false}\n")
	if c.CrashLoopBackOff.MaxContainerRestartPeriod != nil {
		t.Error("maxContainerRestartPeriod is defaulted without its gate")
	}
}

func TestEverySettingHasOneRow(t *testing.T) {
	known := map[string]bool{}
	for _, path := range leafFields("", reflect.TypeFor[kc]()) {
		known[path] = true
		if rowOf(path).name == "" {
			t.Errorf("supportTable has no row for the field %s", path)
		}
	}
	fields := fieldOfFlag()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	NewFlags().AddTo(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if field, mirrors := fields[f.Name]; mirrors {
			if !known[field] {
				t.Errorf("flag --%s mirrors %s, which is no field", f.Name, field)
			}
			return
		}
		known["--"+f.Name] = true
		if rowOf("--"+f.Name).name == "" {
			t.Errorf("supportTable has no row for the flag --%s", f.Name)
		}
	})
	seen := map[string]bool{}
	for _, row := range supportTable {
		if seen[row.name] {
			t.Errorf("supportTable has two rows for %s", row.name)
		}
		seen[row.name] = true
		covers := slices.ContainsFunc(slices.Collect(maps.Keys(known)), func(path string) bool {
			return path == row.name || strings.HasPrefix(path, row.name+".")
		})
		if !covers {
			t.Errorf("supportTable has a row for %s, which the kubelet does not have", row.name)
		}
	}
}

// leafFields lists the paths of all fields that hold a value.
func leafFields(prefix string, t reflect.Type) []string {
	var paths []string
	for name, field := range jsonFields(t) {
		if prefix == "" && (name == "kind" || name == "apiVersion") {
			continue
		}
		if inner := leafFields(prefix+name+".", field); jsonFields(field) != nil && len(inner) > 0 {
			paths = append(paths, inner...)
			continue
		}
		paths = append(paths, prefix+name)
	}
	return paths
}

func TestGates(t *testing.T) {
	gates := knownGates()
	if len(gates) < 200 {
		t.Fatalf("only %d gates are known", len(gates))
	}
	for name := range readGates {
		if _, known := gates[name]; !known {
			t.Errorf("gate %s is read and not known", name)
		}
	}
	locked := 0
	for _, g := range gates {
		if g.Locked {
			locked++
		}
	}
	if locked == 0 {
		t.Error("no gate is locked")
	}
	if gate, err := newGate(map[string]bool{"AllBeta": false}); err != nil {
		t.Errorf("newGate: %v", err)
	} else if got, want := gate.Enabled(featureName("RotateKubeletServerCertificate")),
		gateEnabled(map[string]bool{"AllBeta": false}, "RotateKubeletServerCertificate"); got != want {
		t.Errorf("with AllBeta=false a beta gate is %t here and %t in the library", want, got)
	}
	for _, name := range []string{gateCustomCPUCFSQuotaPeriod, gateCrashLoopBackOffMax, gateEnsureSecretPulledImages,
		gateGracefulNodeShutdown,
		gateGracefulNodeShutdownPriority, gateImageMaximumGCAge, gateMemoryQoS, gateNodeLogQuery, gateNodeSwap,
		gateRotateServerCertificate,
		gateDefaultPodSysctls, gateTopologyManagerOptions} {
		gate, err := newGate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := gateEnabled(nil, name), gate.Enabled(featureName(name)); got != want {
			t.Errorf("gate %s is %t, the library says %t", name, got, want)
		}
	}
}

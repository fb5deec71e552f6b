package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/service"
)

// refused runs a command line that must be refused, and returns why.
func refused(t *testing.T, args ...string) string {
	t.Helper()
	cmd := New()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(service.WithArguments(t.Context(), args))
	if err == nil {
		t.Fatalf("%q was accepted", args)
	}
	return err.Error()
}

// All that is wrong with any service's settings and the kubelet's is reported at once, before anything starts.
func TestAllFaultsAreToldAtOnce(t *testing.T) {
	dir := t.TempDir()
	config, kubeconfig, run := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "kubeconfig"), filepath.Join(dir,
		"run")
	data := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\nmaxPodz: 3\n" +
		"authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}\n"
	if err := errors.Join(os.WriteFile(config, []byte(data), 0o600),
		os.WriteFile(kubeconfig, []byte("garbage"), 0o600)); err != nil {
		t.Fatal(err)
	}
	got := refused(t, "up", "--config="+config, "--kubeconfig="+kubeconfig, "--runtime-dir="+run,
		"--hostname-override=n",
		"--runtime-calls=0", "--probe-plugin-dir=rel", "--probe-execs=0", "--list-timeout=-1s", "--api-max-logs=1",
		"--placement=both", "--prober-replicas=99", "--port=70000",
		"--bus-endpoint=x", "--bus-viewaddress=x", "--max-pods=abc", "--max-pods=7", "--register_schedulable",
		"--oom-score-adj", "low", "--nodelabels", "a=b")
	for _, want := range []string{
		"maxPodz (file " + config + "): the key is unknown", "--kubeconfig=" + kubeconfig,
		"no authentication method configured",
		"--runtime-calls=0: must be at least 1", `probe-plugin-dir is "rel": give an absolute path`, "probe-execs is 0",
		"list-timeout is -1s",
		"--bus-endpoint: the flag is unknown", "--bus-viewaddress: the flag is unknown: did you mean --bus-view-address?",
		"--max-pods=abc: the value does not fit",
		"--register_schedulable: the kubelet has no such flag any more", "--oom-score-adj=low: the value does not fit",
		"--nodelabels: the flag is unknown: did you mean --node-labels?",
		"api-max-logs is 1", `placement is "both"`, "prober-replicas is 99", "port=70000 (flag --port)",
	} {
		if n := strings.Count(got, want); n != 1 {
			t.Errorf("%q is reported %d times, want once", want, n)
		}
	}
	if t.Failed() {
		t.Log("\n" + got)
	}
	if _, err := os.Stat(run); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was started: %v", err)
	}
	if got := refused(t, "up", "--runtime-dir=rel"); strings.Count(got, "runtime-dir is") != 1 {
		t.Errorf("a setting that services share is not reported once:\n%s", got)
	}
}

// A mistake in the command line is explained in words, with what would be right.
func TestMistakesInTheCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"up", "--nod-ip=10.0.0.1"}, "did you mean --node-ip?"},
		{[]string{"up", "--prober-replica=2"}, "did you mean --prober-replicas?"},
		{[]string{"up", "--network-plugin=cni"}, "the kubelet has no such flag any more"},
		{[]string{"up", "--oom-score-adj=abc"}, "--oom-score-adj=abc: the value does not fit: write a whole number"},
		{[]string{"up", "--runtime-calls=abc"}, "--runtime-calls=abc: the value does not fit: write a whole number"},
		{[]string{"up", "--event-qps=99999999999"}, "--event-qps=99999999999: the value does not fit"},
		{[]string{"up", "--watchdog=soon"}, `"soon" is no duration`},
		{[]string{"prober", "--probe-execs=x"}, "--probe-execs=x: the value does not fit: write a whole number"},
		{[]string{"up", "extra"}, `"extra" is no flag, and microlet up takes nothing else`},
		{[]string{"bus", "extra"}, `"extra" is no flag, and microlet bus takes nothing else`},
		{[]string{"run-pod"}, `name the manifest's file, or "-" for the standard input: microlet run-pod FILE`},
		{[]string{"run-pod", "a", "b"}, `"b" is one too many`},
		{[]string{"rm-pod"}, "name the pod's name or UID"},
		{[]string{"run-pod", "a", "--tiemout=3s"}, "did you mean --timeout?"},
		{[]string{"status", "extra"}, `"extra" is no service`},
	} {
		got := refused(t, c.args...)
		if !strings.Contains(got, c.want) {
			t.Errorf("%q: %q lacks %q", c.args, got, c.want)
		}
		for _, raw := range []string{"strconv", "accepts 1 arg", "unknown command", "invalid argument"} {
			if strings.Contains(got, raw) {
				t.Errorf("%q: %q shows a library's words", c.args, got)
			}
		}
	}
}

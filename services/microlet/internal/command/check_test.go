package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/nodecheck"
)

// kubeletConfig writes a KubeletConfiguration that this machine could have, with these settings.
func kubeletConfig(t *testing.T, settings string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n" +
		"failSwapOn: false\ncontainerRuntimeEndpoint: unix:///nonexistent/cri.sock\nport: 1\nhealthzPort: 0\n" +
		"authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: " + file + "}}\n"
	if err := os.WriteFile(file, []byte(text+settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCheckReportsAllAtOnce(t *testing.T) {
	run := t.TempDir()
	file := kubeletConfig(t, "maxPods: -3\ntopologyManagerPolicy: single-numa-node\nregistryPullQPs: 3\n")
	out, err := execute(t, "check", "--config="+file, "--runtime-dir="+run, "--runtime-calls=0")
	if err == nil || !strings.Contains(err.Error(), " faults were found: do what is said above") {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{
		"configuration  maxPods=-3 (file " + file + "): ", "topologyManagerPolicy=single-numa-node (file",
		"registryPullQPs (file " + file + "): the key is unknown", `to do: write "registryPullQPS"`, "--runtime-calls=0",
		"nothing serves /nonexistent/cri.sock", "disk  ", "standalone",
		"2 of the settings above remain to be corrected by hand", "    maxPods: 110\n", "    topologyManagerPolicy: none\n",
		"topologyManagerPolicy: none instead of single-numa-node; the node does without what it enforces or protects",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// Flags that the kubelet has no more do not keep the rest of the machine from being looked at.
func TestCheckOfAnOldCommandLine(t *testing.T) {
	args := []string{
		"check", "--network-plugin=cni", "--housekeeping-interval=often", "--config=" + kubeletConfig(t, "maxPods: -3\n"),
		"--runtime-dir=" + t.TempDir(),
	}
	out, err := executeAll(t, args)
	if err == nil || !strings.Contains(err.Error(), "faults were found") {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{
		"flag           --network-plugin: the kubelet has no such flag any more\n", "to do: remove it: the container runtime",
		"flag           --housekeeping-interval=often: the value does not fit\n", "configuration  maxPods=-3",
		"nothing serves /nonexistent/cri.sock", "disk  ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q\n%s", want, out)
		}
	}
	if strings.Contains(out, "housekeeping-interval is 0s") {
		t.Errorf("says one fault twice\n%s", out)
	}
}

// The flags that are given win over those of the kubelet, and what is wrong with either is said.
func TestCheckLikeAKubelet(t *testing.T) {
	given := []string{"check", "--like=kubelet", "--max-pods=7", "--print-config"}
	cmd, _, err := New().Find(given[:1])
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Root().SetOut(&out)
	cmd.SetContext(service.WithArguments(t.Context(), given))
	file := kubeletConfig(t, "podsPerCore: 3\n")
	err = runAgain(cmd, &nodecheck.Kubelet{PID: 7, Args: []string{
		"--config", file, "--max-pods=5", "--network-plugin=cni", "--v=2",
	}})
	if err == nil || !strings.Contains(err.Error(), "--network-plugin: the kubelet has no such flag any more") {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"maxPods: 7    # flag --max-pods\n", "podsPerCore: 3    # file " + file + "\n",
		"# Refused: --network-plugin"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q\n%s", want, &out)
		}
	}
}

func TestPrintConfigInJSON(t *testing.T) {
	file := kubeletConfig(t, "maxPods: -1\n")
	out, err := execute(t, "check", "--config="+file, "--runtime-dir="+t.TempDir(), "--print-config", "-o", "json")
	var p printedConfig
	if json.Unmarshal([]byte(out), &p) != nil || err == nil || p.Config.MaxPods != -1 || len(p.Refused) != 1 ||
		p.Sources["maxPods"] != "file "+file || p.Flags["root-dir"] != "/var/lib/kubelet" {
		t.Errorf("%v\n%s", err, out)
	}
}

// A wrong flag remains, whatever a drop-in corrects.
func TestWrongFlagsRemain(t *testing.T) {
	out, err := executeAll(t, []string{"check", "--confg=x", "--config=" + kubeletConfig(t, "maxPods: -3\n"),
		"--runtime-dir=" + t.TempDir()})
	if err == nil || !strings.Contains(out, "1 of the settings above remains to be corrected by hand:") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Each fault is one finding, although several parts of the agent refuse it.
func TestEachFaultOnce(t *testing.T) {
	for fault, settings := range map[string]string{
		"imagefs.avail": "evictionHard: {imagefs.avail: 5%}\n", "tlsCertFile": "tlsCertFile: /nonexistent\n",
	} {
		out, _ := execute(t, "check", "--config="+kubeletConfig(t, settings), "--runtime-dir="+t.TempDir(), "-o", "json")
		var report checkReport
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		said := 0
		for _, f := range report.Findings {
			if strings.Contains(f.Detail, fault) {
				said++
			}
		}
		if said != 1 {
			t.Errorf("%s is in %d findings:\n%s", fault, said, out)
		}
	}
	out, _ := execute(t, "check", "--config="+kubeletConfig(t, ""), "--runtime-dir="+t.TempDir(),
		"--kubeconfig=/nonexistent", "--image-credential-provider-config=/nonexistent")
	for _, once := range []string{"failed   configuration  --kubeconfig", "credential-provider-config=/nonexistent"} {
		if strings.Count(out, once) != 1 || strings.Contains(out, "kubeconfig  /nonexistent") {
			t.Errorf("%q is said %d times:\n%s", once, strings.Count(out, once), out)
		}
	}
}

func TestCheckInJSON(t *testing.T) {
	out, _ := execute(t, "check", "--config="+kubeletConfig(t, ""), "--runtime-dir="+t.TempDir(), "-o", "json")
	var report struct {
		Findings []struct{ Check, State, Detail, Remedy string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Findings) < 5 {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range report.Findings {
		if f.State == "failed" && f.Remedy == "" {
			t.Errorf("%+v has no remedy", f)
		}
	}
}

func TestPrintConfig(t *testing.T) {
	file := kubeletConfig(t, "maxPods: 7\n")
	out, err := execute(t, "check", "--config="+file, "--runtime-dir="+t.TempDir(), "--print-config", "--pods-per-core=3")
	if err != nil || !strings.Contains(out, "maxPods: 7    # file "+file+"\n") ||
		!strings.Contains(out, "podsPerCore: 3    # flag --pods-per-core\n") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = execute(t, "check", "--config="+kubeletConfig(t, "maxPods: -1\n"), "--print-config")
	if err == nil || !strings.Contains(err.Error(), "maxPods=-1") || !strings.Contains(out, "maxPods: -1") {
		t.Errorf("of a refused configuration: %v\n%s", err, out)
	}
}

package test

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/microlet/internal/debugbundle/bundletest"
)

// command runs a command of the operator's against the agent.
func (a *agent) command(args ...string) (string, error) {
	out, err := proctest.Command(a.t.Context(), append(args, "--runtime-dir="+a.runtimeDir())...).CombinedOutput()
	return string(out), err
}

// A service that an operator restarts is another process, and no other service notices.
func TestRestart(t *testing.T) {
	a := newAgent(t)
	a.start()
	before := a.await("all ready, with heartbeats", func(rows map[string]row) bool {
		for _, name := range all[1:] {
			if rows[name].HeartbeatAgeSeconds == nil {
				return false
			}
		}
		return ready(rows)
	})
	out, err := a.command("restart", "pleg")
	if err != nil || !strings.HasPrefix(out, "pleg was restarted: pid ") {
		t.Errorf("%v\n%s", err, out)
	}
	after := a.await("all ready", ready)
	for _, name := range all {
		same := after[name].PID == before[name].PID
		if same == (name == "pleg") || name != "pleg" && after[name].Restarts != 0 {
			t.Errorf("%s had pid %d, and has %d after %d restarts", name, before[name].PID, after[name].PID,
				after[name].Restarts)
		}
	}
	for _, process := range []string{"up", "nodeapi.3"} {
		if out, err := a.command("restart", process); err == nil {
			t.Errorf("%s was restarted: %s", process, out)
		}
	}
	wide, err := a.command("status", "-o", "wide")
	if err != nil || !strings.Contains(wide, "prober --runtime-dir="+a.runtimeDir()) ||
		strings.Count(wide, "v0.0.0-devel") != len(all) {
		t.Errorf("%v\n%s", err, wide)
	}
	a.stop()
}

// The newest lines of the log are there without a journal, also while a user follows them.
func TestLogs(t *testing.T) {
	a := newAgent(t)
	a.start()
	a.await("all ready", ready)
	out, err := a.command("logs", "bus")
	if err != nil || !strings.Contains(out, `"service":"bus"`) || strings.Contains(out, `"service":"up"`) {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = a.command("logs", "--tail=3")
	if err != nil || strings.Count(out, "\n") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
	follower := proctest.Command(t.Context(), "logs", "-f", "--tail=1", "--runtime-dir="+a.runtimeDir())
	stdout, err := follower.StdoutPipe()
	if err == nil {
		err = follower.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	if _, err := lines.ReadString('\n'); err != nil { // from here on it follows
		t.Fatal(err)
	}
	if out, err := a.command("restart", "pleg"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	a.stop() // with a follower
	followed, err := io.ReadAll(lines)
	if err != nil {
		t.Error(err)
	}
	if err := follower.Wait(); err == nil {
		t.Error("a follower of the log gets no error when the agent ends")
	}
	if got := string(followed); !strings.Contains(got, "restart was asked for") || !strings.Contains(got, `"service":"pleg"`) {
		t.Errorf("followed:\n%s", got)
	}
}

// unpack reads an archive.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return bundletest.Read(t, f)
}

// secretsOf are what the agent has of secrets: keys of the bus, private keys, and what the test put into its settings
// and its environment.
func (a *agent) secretsOf(planted ...string) []string {
	secrets := planted
	keys := regexp.MustCompile(`(?s)PRIVATE KEY-----\n(.{40})`)
	err := filepath.WalkDir(a.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // it is gone, or has no content
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		if strings.HasSuffix(path, ".seed") {
			secrets = append(secrets, strings.TrimSpace(string(data)))
		}
		for _, key := range keys.FindAllSubmatch(data, -1) {
			secrets = append(secrets, string(key[1]))
		}
		return nil
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return secrets
}

// The archive for a report has what is needed of each service, and none of the node's secrets.
func TestDebugBundle(t *testing.T) {
	const password, token, variable = "hunter2hunter2", "s3cr3t-t0k3n", "v4riable"
	t.Setenv("REGISTRY_PASSWORD", variable)
	a := newAgent(t, "--manifest-url=http://operator:"+password+"@127.0.0.1:1/pods",
		"--manifest-url-header=X-Access:"+token)
	a.start()
	a.await("all ready", ready)
	archive := filepath.Join(t.TempDir(), "report.tar.gz")
	out, err := a.command("debug", "bundle", "-o", archive)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files := unpack(t, archive)
	want := []string{
		"version.json", "status.json", "pods.json", "files.txt", "machine/proc-meminfo", "machine/dmesg.txt",
		"config/podsync.yaml", "config/nodeapi.yaml",
	}
	for _, name := range all {
		want = append(want, "logs/"+name+".log", "metrics/"+name+".txt", "goroutines/"+name+".txt")
	}
	for _, name := range want {
		if len(files[name]) == 0 {
			t.Errorf("%s is missing or empty: %s\n%s", name, files["missing.txt"], out)
		}
	}
	if !strings.Contains(files["config/podsync.yaml"], "<masked>") || !strings.Contains(files["logs/pleg.log"], "pleg") {
		t.Errorf("config of podsync:\n%s\nlog of pleg:\n%s", files["config/podsync.yaml"], files["logs/pleg.log"])
	}
	if !strings.Contains(files["metrics/bus.txt"], `microlet_bus_store_bytes{stream="KV_HEARTBEATS_pleg"}`) {
		t.Error("what the bus holds is not there")
	}
	secrets := a.secretsOf(password, token, variable)
	if len(secrets) < len(all)+3 {
		t.Errorf("only %d secrets were looked for", len(secrets))
	}
	for name, text := range files {
		for i, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s has secret %d, %.6s…", name, i, secret)
			}
		}
	}
	if info, err := os.Stat(archive); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if out, err := a.command("debug", "bundle", "-o", archive); err == nil || !strings.Contains(out, "it exists") {
		t.Errorf("an archive that is there: %v\n%s", err, out)
	}
	a.stop()
	left := filepath.Join(t.TempDir(), "left.tar.gz")
	if out, err := a.command("debug", "bundle", "-o", left); err == nil || err.Error() != "exit status 3" ||
		!strings.Contains(out, "lacks status.json and pods.json") {
		t.Errorf("without an agent: %v\n%s", err, out)
	}
	if files := unpack(t, left); !strings.Contains(files["missing.txt"], "status.json: microlet up is not running") ||
		files["config/podsync.yaml"] == "" {
		t.Errorf("without an agent: %s", files["missing.txt"])
	}
}

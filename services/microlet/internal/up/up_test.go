package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

func parse(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	cfg := DefaultConfig()
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	cfg.AddFlags(fs)
	err := fs.Parse(args)
	return cfg, err
}

func TestFlags(t *testing.T) {
	cfg, err := parse(t)
	if err != nil || cfg.Placement != Processes || cfg.Watchdog != 10*time.Second {
		t.Errorf("defaults are %q, %v: %v", cfg.Placement, cfg.Watchdog, err)
	}
	for arg, want := range map[string]time.Duration{"off": 0, "0": 0, "20s": 20 * time.Second} {
		cfg, err := parse(t, "--watchdog="+arg)
		if err != nil || cfg.Watchdog != want {
			t.Errorf("--watchdog=%s is %v: %v", arg, cfg.Watchdog, err)
		}
	}
	for _, arg := range []string{"soon", "-1s"} {
		if _, err := parse(t, "--watchdog="+arg); err == nil {
			t.Errorf("--watchdog=%s was accepted", arg)
		}
	}
	cfg, err = parse(t, "--watchdog=1s", "--placement=both")
	if err != nil {
		t.Fatal(err)
	}
	err = cfg.Validate()
	for _, want := range []string{`placement is "both": "both" is no service; use processes, compact, single`,
		"watchdog is 1s: use 5s or more"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
}

func TestReplicasOfTheProber(t *testing.T) {
	cfg, err := parse(t, "--prober-replicas=3")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(cfg.Services, func(s service.Definition) bool { return s.Role == role.Prober })
	var names []string
	for n := range cfg.replicas(cfg.Services[i]) {
		names = append(names, processName(cfg.Services[i], n))
		if args := cfg.arguments(cfg.Services[i], n); !slices.Contains(args, fmt.Sprintf("--replica=%d", n)) {
			t.Errorf("arguments of replica %d are %q", n, args)
		}
	}
	if want := []string{"prober", "prober.1", "prober.2"}; !slices.Equal(names, want) {
		t.Errorf("processes are %q, want %q", names, want)
	}
	if n := cfg.replicas(cfg.Services[0]); n != 1 {
		t.Errorf("%d of %s", n, cfg.Services[0].Role)
	}
	for _, args := range [][]string{{"--prober-replicas=0"}, {"--prober-replicas=17"},
		{"--prober-replicas=2", "--placement=single"}} {
		cfg, err := parse(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "prober-replicas") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestArgumentsOfAService(t *testing.T) {
	cfg, err := parse(t, "--runtime-dir=/run/x", "--relist-period=3s", "--runtime-calls=7",
		"--peer-cgroups=/system.slice/a.service,/b", "--vmodule=engine=4")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Service.NodeName = "n"
	common := []string{"--runtime-dir=/run/x", "--node-name=n", "--replica=0",
		"--peer-cgroups=/system.slice/a.service,/b"}
	for r, more := range map[role.Role][]string{
		role.PLEG:    {"--logging-format=text", "--v=0", "--vmodule=engine=4", "--relist-period=3s"},
		role.Podsync: {"--resolved-config=/run/x/config/podsync.yaml", "--runtime-calls=7"},
	} {
		i := slices.IndexFunc(cfg.Services, func(s service.Definition) bool { return s.Role == r })
		want := slices.Concat([]string{string(r)}, common, more)
		if got := cfg.arguments(cfg.Services[i], 0); !slices.Equal(got, want) {
			t.Errorf("arguments of %s are %q, want %q", r, got, want)
		}
		// Its own command takes them.
		cmd := cfg.Services[i].Command()
		if err := cmd.ParseFlags(want[1:]); err != nil {
			t.Errorf("%s refuses its arguments: %v", r, err)
		}
	}
}

func TestEnvironmentOfAService(t *testing.T) {
	all := []string{
		"PATH=/bin", "GOGC=50", "TZ=UTC", "HTTPS_PROXY=http://me:secret@proxy", "no_proxy=10.0.0.0/8",
		"KUBE_FEATURE_WatchListClient=false",
		"SSL_CERT_FILE=/ca", "AWS_SECRET_ACCESS_KEY=secret", "NOTIFY_SOCKET=/run/systemd/notify", "LD_PRELOAD=/x.so",
		"KUBELET_EXTRA_ARGS=--v=4",
		"INVOCATION_ID=1", "GOGCX=1",
	}
	common := []string{"PATH=/bin", "GOGC=50", "TZ=UTC"}
	for r, want := range map[role.Role][]string{
		role.Bus: common, role.PLEG: common, role.Prober: common, role.NodeAPI: common,
		role.Podsync:    all[:7],
		role.NodeStatus: all[:7],
	} {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := environment(all, id); !slices.Equal(got, want) {
			t.Errorf("%s gets %q, want %q", r, got, want)
		}
	}
}

// TestStuckIsTold as "microlet status" asks for it.
func TestStuckIsTold(t *testing.T) {
	now := time.Now()
	s := newServer(&Config{Placement: Processes}, accounts{{
		Name:   "podsync",
		State:  supervisor.Stuck,
		Status: "waits for pid 7 to end, which holds the lock",
		Stuck:  []supervisor.StuckProcess{{PID: 7, Since: now, WaitsFor: "thread 8"}},
	}}, bus.Watch[busv1.Heartbeat](unservedBus(t), subject.Heartbeats, ">", nil), nil)
	answer, err := s.GetStatus(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := answer.GetProcesses()[1]
	if p.GetState() != supervisorv1.State_STATE_STUCK || p.GetPid() != 0 || len(p.GetStuck()) != 1 ||
		p.GetStuck()[0].GetPid() != 7 ||
		p.GetStuck()[0].GetWaitsFor() != "thread 8" || !p.GetStuck()[0].GetSince().AsTime().Equal(now) {
		t.Errorf("podsync is reported as %v", p)
	}
}

// accounts are agents that only account for themselves.
type accounts []supervisor.Process

func (a accounts) Run(context.Context) error       { return nil }
func (a accounts) Processes() []supervisor.Process { return a }

func (a accounts) Restart(name string) error {
	if !slices.ContainsFunc(a, func(p supervisor.Process) bool { return p.Name == name }) {
		return fmt.Errorf("%w as %q", supervisor.ErrUnknownProcess, name)
	}
	return nil
}

// unservedBus is a client of a bus that is not there.
func unservedBus(t *testing.T) *bus.Client {
	t.Helper()
	dir := t.TempDir()
	if err := bus.GenerateNKeys(dir, []role.Identity{{Role: role.Up}}); err != nil {
		t.Fatal(err)
	}
	c, err := bus.New(bus.Options{
		Socket:   filepath.Join(dir, "nats.sock"),
		SeedFile: bus.SeedFile(dir, role.Up),
		Role:     role.Up,
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOneFolderOneSupervisor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "up.lock")
	first, err := lockFolder(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	// The lock belongs to the open file, so a second one in this process is like another's.
	began := time.Now()
	if _, err := lockFolder(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another microlet up") {
		t.Errorf("the second got %v", err)
	}
	if took := time.Since(began); took < lockWait {
		t.Errorf("gave up after %v, before a predecessor had %v to end", took, lockWait)
	}
}

const sourceKubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: c
  cluster: {server: "https://127.0.0.1:1", certificate-authority: ca.crt}
users:
- name: u
  user: {client-certificate: pki/current.pem, client-key: pki/current.pem}
contexts:
- name: x
  context: {cluster: c, user: u}
current-context: x
`

func TestCredentialsFollowTheirSource(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	write := func(name, data string) {
		t.Helper()
		path := filepath.Join(source, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(data), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("kubeconfig", sourceKubeconfig)
	write("ca.crt", "authority")
	write("pki/current.pem", "first")
	id, err := role.Get(role.NodeStatus)
	if err != nil {
		t.Fatal(err)
	}
	c := credentials{source: filepath.Join(source, "kubeconfig"), dir: target, id: id}
	sync := func(want bool) {
		t.Helper()
		changed, err := c.sync()
		if err != nil || changed != want {
			t.Fatalf("sync is %v, %v, want %v", changed, err, want)
		}
	}
	sync(true)
	sync(false)
	config, err := clientcmd.LoadFromFile(c.path())
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		config.Clusters["c"].CertificateAuthority: "authority",
		config.AuthInfos["u"].ClientCertificate:   "first",
		config.AuthInfos["u"].ClientKey:           "first",
	} {
		data, err := os.ReadFile(path)
		if err != nil || string(data) != want || filepath.Dir(path) != target {
			t.Errorf("%s is %q, %v, want %q in %s", path, data, err, want, target)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || info.Mode().Perm() != 0o600 || int(st.Uid) != id.UID {
			t.Errorf("%s is %v of uid %d, want 0600 of %d", path, info.Mode(), st.Uid, id.UID)
		}
	}
	write("pki/current.pem", "second")
	sync(true)
	if data, err := os.ReadFile(config.AuthInfos["u"].ClientKey); err != nil || string(data) != "second" {
		t.Errorf("the copy is %q, %v", data, err)
	}
	if err := os.Remove(filepath.Join(source, "pki/current.pem")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.sync(); err == nil {
		t.Error("a certificate that is gone is no error")
	}
	c.requested = filepath.Join(source, "pki/current.pem")
	sync(false) // it may come yet
	write("pki/current.pem", "third")
	sync(true)
	if err := os.Remove(c.source); err != nil {
		t.Fatal(err)
	}
	if _, err := c.sync(); err == nil {
		t.Error("a source that is gone is no error")
	}
	if _, err := os.Stat(c.path()); err != nil {
		t.Error("the copy went with its source: ", err)
	}
}

// TestCopiesFollowNoLinkAndDoNotWait has the service that reads the copies put other things in their place.
func TestCopiesFollowNoLinkAndDoNotWait(t *testing.T) {
	id, err := role.Get(role.NodeStatus)
	if err != nil {
		t.Fatal(err)
	}
	dir := openDir(t)
	secret := filepath.Join(filepath.Dir(dir), "secret")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, id.UID, id.GID),
		os.WriteFile(secret, []byte("data"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"FIFO":      "mkfifo file",
		"link":      "ln -s " + secret + " file", // it holds what is expected, and is still no copy
		"long file": "echo longer than data > file",
		"nothing":   "true",
	} {
		if err := asUser(t, id.UID, "cd "+dir+" && rm -f file && "+script); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "file")
		changed, err := copyFile(path, []byte("data"), id)
		info, statErr := os.Lstat(path)
		if err != nil || statErr != nil || !changed || !info.Mode().IsRegular() {
			t.Errorf("%s: changed is %t, %v; there is %v, %v", name, changed, err, info, statErr)
			continue
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != "data" {
			t.Errorf("%s: the copy is %q, %v", name, data, err)
		}
		if changed, err := copyFile(path, []byte("data"), id); err != nil || changed {
			t.Errorf("%s: the second time changed is %t, %v", name, changed, err)
		}
	}
	if info, err := os.Stat(secret); err != nil || info.Mode() != 0o600 {
		t.Errorf("what the link leads to is %v, %v", info.Mode(), err)
	}
}

func TestEachServiceSeesItsOwnConfiguration(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"config", "credentials/nodestatus", "credentials/nodeapi"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	source := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(source, []byte(strings.ReplaceAll(sourceKubeconfig, ", certificate-authority: ca.crt", "")),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(filepath.Dir(source), "pki"), 0o700),
		os.WriteFile(filepath.Join(filepath.Dir(source), "pki/current.pem"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(filepath.Dir(source), "config.yaml")
	// Machines with cgroup v1 pass this test too.
	data := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\nenableServer: " +
		"false\ncontainerRuntimeEndpoint: unix:///run/c.sock\n" +
		"staticPodURL: http://192.0.2.1/\nstaticPodURLHeader: {Authorization: [hunter2]}\n"
	if err := os.WriteFile(config, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := kubeletconfig.NewFlags()
	set := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	flags.AddTo(set)
	if err := set.Parse([]string{"--kubeconfig=" + source, "--config=" + config, "--hostname-override=n"}); err != nil {
		t.Fatal(err)
	}
	kubelet, _, err := kubeletconfig.Load(set, flags)
	if err != nil {
		t.Fatal(err)
	}
	for placement, want := range map[string]string{
		Processes: filepath.Join(dir, "credentials/nodestatus/kubeconfig"),
		Single:    source,
	} {
		cfg := DefaultConfig()
		cfg.Service.RuntimeDir, cfg.Placement, cfg.Kubelet = dir, placement, kubelet
		if _, err := cfg.writeResolved(); err != nil {
			t.Fatal(err)
		}
		for file, kubeconfig := range map[string]string{"podsync.yaml": source, "nodestatus.yaml": want} {
			k, err := kubeletconfig.ReadResolved(filepath.Join(dir, "config", file))
			if err != nil {
				t.Fatal(err)
			}
			if k.Node.Kubeconfig != kubeconfig {
				t.Errorf("%s: %s names %s, want %s", placement, file, k.Node.Kubeconfig, kubeconfig)
			}
		}
		for service, secret := range map[string]bool{
			"podsync":    true,
			"nodestatus": false,
			"nodeapi":    placement == Single,
			"prober":     false,
		} {
			path := filepath.Join(dir, "config", service+".yaml")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), "hunter2") != secret {
				t.Errorf("%s: the secret for podsync is in %s: %t", placement, path, !secret)
			}
			if service == "prober" && strings.Contains(string(data), "/run/c.sock") {
				t.Errorf("%s: the prober gets what it does not read:\n%s", placement, data)
			}
			id, err := role.Get(role.Role(service))
			if err != nil {
				t.Fatal(err)
			}
			want := uint32(0)
			if placement == Processes {
				want = uint32(id.UID)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if st, ok := info.Sys().(*syscall.Stat_t); !ok || info.Mode() != 0o600 || st.Uid != want {
				t.Errorf("%s: %s is %v of uid %d, want -rw------- of uid %d", placement, path, info.Mode(), st.Uid,
					want)
			}
		}
	}
}

package nodecheck

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// machine makes a folder that stands for a machine with these files.
func machine(t *testing.T, files map[string]string) Host {
	t.Helper()
	h := Host{Root: t.TempDir(), RuntimeDir: t.TempDir(), Now: time.Now()}
	for name, text := range files {
		path := filepath.Join(h.Root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// config is a standalone node's.
func config(t *testing.T) *kubeletconfig.Config {
	t.Helper()
	k := &kubeletconfig.Config{Kubelet: kubeletconfig.Default(), Provenance: map[string]string{}}
	k.Kubelet.CgroupDriver, k.Node.RootDir, k.Node.HostnameOverride = "systemd", t.TempDir(), "node"
	return k
}

// expect fails the test unless the report has a finding with this check and state, and this text in it.
func (r *report) expect(t *testing.T, check string, state State, text string) {
	t.Helper()
	for _, f := range r.findings {
		if f.Check == check && f.State == state && strings.Contains(f.Detail, text) {
			if (state == Failed || state == Warning) && f.Remedy == "" {
				t.Errorf("%s has no remedy: %s", check, f.Detail)
			}
			return
		}
	}
	t.Errorf("no finding %q %s with %q in %+v", check, state, text, r.findings)
}

// kubelet are the files of a process that has the name.
func kubelet(pid, uid, cgroup string, args ...string) map[string]string {
	dir := "proc/" + pid + "/"
	return map[string]string{
		dir + "comm": "kubelet\n", dir + "status": "Name:\tkubelet\nUid:\t" + uid + "\t" + uid + "\n",
		dir + "cgroup":  "0::" + cgroup + "\n",
		dir + "cmdline": strings.Join(append([]string{"/usr/bin/kubelet"}, args...), "\x00") + "\x00",
	}
}

func TestMachine(t *testing.T) {
	const v2 = "sys/fs/cgroup/cgroup.controllers"
	for _, c := range []struct {
		name  string
		files map[string]string
		check string
		state State
		text  string
	}{
		{"another user has a UID", map[string]string{"etc/passwd": "bob:x:47102:100::/:/bin/sh\n"}, "users", Failed,
			"gives 47102, which is for pleg, to bob"},
		{"another group", map[string]string{"etc/group": "staff:x:47109:\n"}, "users", Failed, "to staff"},
		{"its own users", map[string]string{"etc/passwd": "microlet-pleg:x:47102:47100::/:/bin/false\nroot:x:0:0\nbad\n"},
			"users", OK, ""},
		{"cgroup v1", nil, "cgroup", Warning, "cgroup v1"},
		{"no memory controller", map[string]string{v2: "cpu pids io\n"}, "cgroup", Failed, "lacks the controllers memory"},
		{"cgroup v2", map[string]string{v2: "cpuset cpu io memory pids\n"}, "cgroup", OK, "version 2"},
		{"no overlay", map[string]string{"proc/filesystems": "\text4\n"}, "kernel module", Warning, "overlay"},
		{"overlay", map[string]string{"proc/filesystems": "nodev\toverlay\n"}, "kernel module", OK, "overlay"},
		{"no br_netfilter", nil, "kernel module", Warning, "br_netfilter"},
		{"bridge sysctl", map[string]string{"proc/sys/net/bridge/bridge-nf-call-iptables": "0\n"}, "sysctl", Warning,
			`net.bridge.bridge-nf-call-iptables is "0"`},
		{"no forwarding", map[string]string{"proc/sys/net/ipv4/ip_forward": "0\n"}, "sysctl", Warning, "ip_forward"},
		{"forwarding", map[string]string{"proc/sys/net/ipv4/ip_forward": "1\n"}, "sysctl", OK, "ip_forward is 1"},
		{"swap", map[string]string{"proc/swaps": "Filename Type Size\n/swapfile file 1\n"}, "swap", Failed, "/swapfile"},
		{"no swap", map[string]string{"proc/swaps": "Filename Type Size\n"}, "swap", OK, "off"},
		{"memory is off, v1", map[string]string{"proc/cgroups": "#subsys_name hierarchy num_cgroups enabled\nmemory 0 1 0\n"},
			"cgroup", Failed, "lacks the controller memory"},
		{"a kubelet", kubelet("123", "0", "/system.slice/kubelet.service", "--v=2"), "kubelet", Failed, "pid 123"},
		{"a pod with the name", kubelet("123", "0", "/kubepods.slice/x", "--v=2"), "kubelet", OK, ""},
		{"a user's", kubelet("123", "1000", "/user.slice", "--v=2"), "kubelet", OK, ""},
		{"a service of a copy", kubelet("123", "0", "/system.slice/x", "pleg"), "kubelet", OK, ""},
		{"no kubelet", map[string]string{"proc/123/comm": "kubelet-helper\n"}, "kubelet", OK, ""},
		{"no runtime known", nil, "runtime", Skipped, "names no runtime"},
	} {
		r := &report{findings: Run(t.Context(), machine(t, c.files), nil)}
		t.Run(c.name, func(t *testing.T) { r.expect(t, c.check, c.state, c.text) })
	}
}

// What the configuration is refused for is said there alone.
func TestRefusedSettingsAreNotLookedAtAgain(t *testing.T) {
	k := config(t)
	k.Node.Kubeconfig, k.Kubelet.TLSCertFile = "/nonexistent", "/nonexistent"
	h := machine(t, map[string]string{"proc/swaps": "/dev/sda2 partition 1\n"})
	h.Refused = []string{"failCgroupV1", "failSwapOn", "--kubeconfig", "tlsCertFile"}
	for _, f := range Run(t.Context(), h, k) {
		switch f.Check {
		case "cgroup", "swap", "kubeconfig", "serving certificate":
			t.Errorf("%+v", f)
		}
	}
}

// A credential plugin that fails says nothing about the API server.
func TestACredentialPluginThatFails(t *testing.T) {
	for plugin, why := range map[string]string{
		"/bin/false":      "exec: executable /bin/false failed with exit code 1",
		"nonexistent-aws": "exec: executable nonexistent-aws not found",
	} {
		t.Run(plugin, func(t *testing.T) { testCredentialPlugin(t, plugin, why) })
	}
}

func testCredentialPlugin(t *testing.T, plugin, why string) {
	t.Helper()
	k, r, h := config(t), &report{}, machine(t, nil)
	k.Node.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
users:
- name: u
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: ` + plugin + `, interactiveMode: Never}}
`
	if err := os.WriteFile(k.Node.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.kubeconfig(t.Context(), r, k)
	r.expect(t, "API server", Failed, "the credential plugin "+plugin+" failed: "+why)
	if n := len(r.findings[0].Detail); n > 200 {
		t.Errorf("its answer has %d characters: %s", n, r.findings[0].Detail)
	}
}

func TestSwapThatIsAllowed(t *testing.T) {
	k, r := config(t), &report{}
	k.Kubelet.FailSwapOn = new(false)
	machine(t, map[string]string{"proc/swaps": "/dev/sda2 partition 1\n"}).swap(r, k)
	r.expect(t, "swap", Warning, "failSwapOn allows it")
}

func TestWhoIsNotRoot(t *testing.T) {
	h, r := machine(t, nil), &report{}
	h.UID = 1000
	h.identity(r)
	r.expect(t, "user", Failed, "uid 1000")
}

func TestPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	k := config(t)
	k.Kubelet.Address, k.Kubelet.Port, k.Kubelet.HealthzPort = "127.0.0.1", int32(n), new(int32(0))
	for _, c := range []struct {
		running bool
		state   State
		text    string
	}{{false, Failed, "is in use"}, {true, OK, "by the running agent"}} {
		h, r := machine(t, nil), &report{}
		h.Running = c.running
		h.ports(t.Context(), r, k)
		r.expect(t, "port", c.state, c.text)
	}
	line := "   0: 0100007F:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000 %d        0 1 1 0 100 0 0 10 0\n"
	for uid, want := range map[int]State{47108: OK, 0: Failed} {
		r := &report{}
		machine(t, map[string]string{"proc/net/tcp": fmt.Sprintf(line, n, uid)}).ports(t.Context(), r, k)
		r.expect(t, "port", want, "is in use")
	}
	r := &report{}
	k.Kubelet.Address = "192.0.2.1"
	machine(t, nil).ports(t.Context(), r, k)
	r.expect(t, "port", Failed, "no such address")
}

func TestDisks(t *testing.T) {
	k, r := config(t), &report{}
	k.Node.RootDir = filepath.Join(k.Node.RootDir, "not", "there", "yet")
	machine(t, nil).disks(r, k)
	if len(r.findings) == 0 || !strings.Contains(r.findings[0].Detail, "% of its space") {
		t.Errorf("findings %+v", r.findings)
	}
}

// certificate makes a client certificate that is valid between these times.
func certificate(t *testing.T, begin, end time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:node"}, NotBefore: begin, NotAfter: end,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestCertificates(t *testing.T) {
	now := time.Now()
	day := 24 * time.Hour
	for _, c := range []struct {
		name  string
		data  []byte
		state State
		text  string
	}{
		{"valid", certificate(t, now.Add(-day), now.Add(300*day)), OK, "system:node:node is valid until"},
		{"ends soon", certificate(t, now.Add(-day), now.Add(9*day+time.Hour)), Warning, "in 9 days"},
		{"has ended", certificate(t, now.Add(-9*day), now.Add(-day)), Failed, "ended at"},
		{"begins later", certificate(t, now.Add(day), now.Add(9*day)), Failed, "begins at"},
		{"no certificate", []byte("garbage"), Failed, "holds no certificate"},
		{"a broken one", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), Failed,
			"cannot be read"},
	} {
		h, r := machine(t, nil), &report{}
		h.now(now).clientCertificate(r, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: c.data}})
		t.Run(c.name, func(t *testing.T) { r.expect(t, "client certificate", c.state, c.text) })
	}
}

func (h Host) now(t time.Time) Host { h.Now = t; return h }

func TestTheAPIServerIsAsked(t *testing.T) {
	for code, want := range map[int]struct {
		state State
		text  string
	}{
		200: {OK, "knows node node"}, 404: {OK, "is not registered yet"}, 401: {Failed, "does not accept"},
		403: {Failed, "does not let these credentials read node node"}, 500: {Warning, "answers 500"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/nodes/node" {
				t.Errorf("asked for %s", r.URL.Path)
			}
			w.WriteHeader(code)
		}))
		k, r := config(t), &report{}
		k.Node.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
		text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\n"+
			"users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"+
			"current-context: x\n", server.URL)
		if err := os.WriteFile(k.Node.Kubeconfig, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		machine(t, nil).kubeconfig(t.Context(), r, k)
		r.expect(t, "API server", want.state, want.text)
		server.Close()
		if code == 500 {
			r := &report{}
			machine(t, nil).kubeconfig(t.Context(), r, k)
			r.expect(t, "API server", Failed, "cannot be reached")
		}
	}
	k, r := config(t), &report{}
	k.Node.Kubeconfig, k.Node.BootstrapKubeconfig = filepath.Join(t.TempDir(), "gone"), "/etc/bootstrap.conf"
	machine(t, nil).kubeconfig(t.Context(), r, k)
	r.expect(t, "kubeconfig", Warning, "cannot be used")
	r = &report{}
	machine(t, nil).kubeconfig(context.Background(), r, config(t))
	r.expect(t, "API server", OK, "standalone")
}

package up

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// prepared is the configuration of a node with the arguments, and folders for what up writes.
func prepared(t *testing.T, placement, yaml string, args ...string) Config {
	t.Helper()
	run, config := t.TempDir(), filepath.Join(t.TempDir(), "config.yaml")
	data := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n" + yaml
	if err := os.WriteFile(config, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"config", "credentials/nodeapi", "credentials/nodestatus"} {
		if err := os.MkdirAll(filepath.Join(run, sub), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	flags, set := kubeletconfig.NewFlags(), pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	flags.AddTo(set)
	if err := set.Parse(append(args, "--config="+config, "--hostname-override=n")); err != nil {
		t.Fatal(err)
	}
	kubelet, _, err := kubeletconfig.Load(set, flags)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.Service.RuntimeDir, cfg.Service.NodeName, cfg.Placement, cfg.Kubelet = run, "n", placement, kubelet
	return cfg
}

// Without a certificate in the configuration, every placement serves with the node's own. In the single placement
// nodeapi reads the configuration of the process.
func TestTheNodesOwnCertificate(t *testing.T) {
	for _, placement := range []string{Processes, Single} {
		t.Run(placement, func(t *testing.T) {
			certs := t.TempDir()
			// Without an API server nobody signs anything else.
			cfg := prepared(t, placement, "serverTLSBootstrap: true\n", "--cert-dir="+certs)
			if _, err := cfg.writeResolved(); err != nil {
				t.Fatal(err)
			}
			resolved, err := kubeletconfig.ReadResolved(filepath.Join(cfg.Service.RuntimeDir, "config/nodeapi.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			want := filepath.Join(certs, "kubelet.crt")
			for from, k := range map[string]*kubeletconfig.Config{"of the process": cfg.Kubelet, "in nodeapi's file": resolved} {
				if k.Kubelet.TLSCertFile != want || k.Kubelet.ServerTLSBootstrap {
					t.Errorf("the configuration %s names %q, want %q", from, k.Kubelet.TLSCertFile, want)
				}
			}
			if _, err := os.Stat(want); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTheRequestedCertificate is copied for nodeapi when podsync has it, the configured one until then.
func TestTheRequestedCertificate(t *testing.T) {
	for name, configured := range map[string]string{"nothing before": "", "a configured one before": "CERT"} {
		t.Run(name, func(t *testing.T) {
			certs := t.TempDir()
			write := func(name, data string) string {
				path := filepath.Join(certs, name)
				if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
				return path
			}
			kubeconfig := write("kubeconfig", `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":`+
				`{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],`+
				`"users":[{"name":"u","user":{"token":"t"}}],"current-context":"x"}`)
			args := []string{"--cert-dir=" + certs, "--kubeconfig=" + kubeconfig}
			before := ""
			if configured != "" {
				args = append(args, "--tls-cert-file="+write("c", "CERT"), "--tls-private-key-file="+write("k", "KEY"))
				before = "CERT\nKEY\n"
			}
			cfg := prepared(t, Processes, "serverTLSBootstrap: true\n", args...)
			copies, err := cfg.writeResolved()
			if err != nil {
				t.Fatal(err)
			}
			pair := filepath.Join(cfg.Service.RuntimeDir, "credentials/nodeapi/serving.pem")
			expect := func(want string) {
				t.Helper()
				data, err := os.ReadFile(pair)
				if string(data) != want || want == "" && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("nodeapi has %q, %v, want %q", data, err, want)
				}
			}
			expect(before)
			write("kubelet-server-current.pem", "REQUESTED")
			for _, c := range copies {
				if _, err := c.sync(); err != nil {
					t.Error(err)
				}
			}
			expect("REQUESTED")
			if err := os.Remove(filepath.Join(certs, "kubelet-server-current.pem")); err != nil {
				t.Fatal(err)
			}
			for _, c := range copies {
				if _, err := c.sync(); err != nil {
					t.Error(err)
				}
			}
			if before == "" {
				expect("REQUESTED") // while the node runs
			}
			if _, err := cfg.writeResolved(); err != nil {
				t.Fatal(err)
			}
			expect(before)
			for _, absent := range []string{"serving.crt", "serving.key"} {
				if _, err := os.Stat(filepath.Join(filepath.Dir(pair), absent)); err == nil {
					t.Errorf("%s is there too", absent)
				}
			}
		})
	}
}

// TestStatusShowsWhenCertificatesEnd, and which one is missing.
func TestStatusShowsWhenCertificatesEnd(t *testing.T) {
	certs := t.TempDir()
	cfg := prepared(t, Processes, "", "--cert-dir="+certs)
	if _, err := cfg.writeResolved(); err != nil {
		t.Fatal(err)
	}
	s := newServer(&cfg, accounts{}, nil, nil)
	for _, missing := range []bool{false, true} {
		if missing {
			if err := os.Remove(filepath.Join(certs, "kubelet.crt")); err != nil {
				t.Fatal(err)
			}
		}
		answer, err := s.GetStatus(t.Context(), nil)
		if err != nil || len(answer.GetCertificates()) != 1 {
			t.Fatalf("status is %v, %v", answer, err)
		}
		c := answer.GetCertificates()[0]
		if c.GetName() != "serving" || (c.GetNotAfter() == nil) != missing || (c.GetError() != "") != missing {
			t.Errorf("missing %v: the certificate is %v", missing, c)
		}
	}
}

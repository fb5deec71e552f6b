package up

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
			// Without an API server, nothing else is signed.
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

// requesting is a node that has received its requested certificate, which serves in place of the configured one.
func requesting(t *testing.T) (cfg Config, certs string, sync func() error) {
	t.Helper()
	certs = t.TempDir()
	write := func(name, data string) string {
		t.Helper()
		path := filepath.Join(certs, name)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("first", "FIRST")
	write("second", "SECOND")
	if err := os.Symlink(filepath.Join(certs, "first"), filepath.Join(certs, "kubelet-server-current.pem")); err != nil {
		t.Fatal(err)
	}
	cfg = prepared(t, Processes, "serverTLSBootstrap: true\n", "--cert-dir="+certs,
		"--kubeconfig="+write("kubeconfig", strings.Replace(bootstrapFile, "certificate-authority: ca.crt, ", "", 1)),
		"--tls-cert-file="+write("c", "CERT"),
		"--tls-private-key-file="+write("k", "KEY"))
	copies, err := cfg.writeResolved()
	if err != nil {
		t.Fatal(err)
	}
	if served := servedPair(t, cfg); served != "FIRST" {
		t.Fatalf("at first %q is served", served)
	}
	return cfg, certs, func() error {
		var errs []error
		for _, c := range copies {
			_, err := c.sync()
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
}

func servedPair(t *testing.T, cfg Config) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(cfg.Service.RuntimeDir, "credentials/nodeapi/serving.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The configured pair has no use any more once the requested one is there, so it may go.
func TestTheConfiguredCertificateMayGo(t *testing.T) {
	cfg, certs, sync := requesting(t)
	link := filepath.Join(certs, "kubelet-server-current.pem")
	if err := errors.Join(os.Remove(filepath.Join(certs, "c")), os.Remove(filepath.Join(certs, "k")), os.Remove(link),
		os.Symlink(filepath.Join(certs, "second"), link)); err != nil {
		t.Fatal(err)
	}
	if err := sync(); err != nil {
		t.Error(err)
	}
	if served := servedPair(t, cfg); served != "SECOND" {
		t.Errorf("%q is served after a renewal", served)
	}
	if err := cfg.validateServing(); err != nil {
		t.Errorf("the next start is refused: %v", err)
	}
}

// Until the requested certificate is signed, the configured pair serves, and never half of it.
func TestHalfOfTheConfiguredCertificateIsNotCopied(t *testing.T) {
	cfg, certs, sync := requesting(t)
	if err := os.Remove(filepath.Join(certs, "kubelet-server-current.pem")); err != nil {
		t.Fatal(err)
	}
	if err := sync(); err != nil {
		t.Fatal(err)
	}
	if served := servedPair(t, cfg); served != "CERT\nKEY\n" {
		t.Errorf("%q is served", served)
	}
	if err := os.Remove(filepath.Join(certs, "k")); err != nil {
		t.Fatal(err)
	}
	if err := sync(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the key: %v", err)
	}
	if served := servedPair(t, cfg); served != "CERT\nKEY\n" {
		t.Errorf("without the key %q is served", served)
	}
}

// Between the two steps of a renewal there is no link to the current certificate.
func TestARenewalIsNoReturnToTheConfiguredCertificate(t *testing.T) {
	cfg, certs, sync := requesting(t)
	if err := errors.Join(
		os.Symlink(filepath.Join(certs, "second"), filepath.Join(certs, "kubelet-server-updated.pem")),
		os.Remove(filepath.Join(certs, "kubelet-server-current.pem"))); err != nil {
		t.Fatal(err)
	}
	if err := sync(); err != nil {
		t.Error(err)
	}
	if served := servedPair(t, cfg); served != "SECOND" {
		t.Errorf("%q is served", served)
	}
	if _, err := cfg.writeResolved(); err != nil {
		t.Fatal(err)
	}
	if served := servedPair(t, cfg); served != "SECOND" {
		t.Errorf("%q is served after another start", served)
	}
}

// A start was killed, or the disk was full, between the two files of the node's own certificate.
func TestHalfOfTheNodesOwnCertificateIsReplaced(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"the key alone":        {"kubelet.key": "KEY"},
		"an empty certificate": {"kubelet.key": "KEY", "kubelet.crt": ""},
		"a certificate alone":  {"kubelet.crt": "CERT"},
	} {
		t.Run(name, func(t *testing.T) {
			certs := t.TempDir()
			for name, data := range files {
				if err := os.WriteFile(filepath.Join(certs, name), []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cfg := prepared(t, Processes, "", "--cert-dir="+certs)
			if _, err := cfg.writeResolved(); err != nil {
				t.Fatal(err)
			}
			cert, key := filepath.Join(certs, "kubelet.crt"), filepath.Join(certs, "kubelet.key")
			if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
				t.Error(err)
			}
			if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the key is %v, %v", info.Mode(), err)
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

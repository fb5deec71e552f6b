package up

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// Without a certificate in the configuration, every placement serves with the node's own. In the single placement
// nodeapi reads the configuration of the process.
func TestTheNodesOwnCertificate(t *testing.T) {
	for _, placement := range []string{Processes, Single} {
		t.Run(placement, func(t *testing.T) {
			run, certs := t.TempDir(), t.TempDir()
			config := filepath.Join(t.TempDir(), "config.yaml")
			data := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n"
			if err := os.WriteFile(config, []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, sub := range []string{"config", "credentials/nodeapi"} {
				if err := os.MkdirAll(filepath.Join(run, sub), 0o750); err != nil {
					t.Fatal(err)
				}
			}
			flags, set := kubeletconfig.NewFlags(), pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
			flags.AddTo(set)
			if err := set.Parse([]string{"--config=" + config, "--cert-dir=" + certs, "--hostname-override=n"}); err != nil {
				t.Fatal(err)
			}
			kubelet, _, err := kubeletconfig.Load(set, flags)
			if err != nil {
				t.Fatal(err)
			}
			cfg := DefaultConfig()
			cfg.Service.RuntimeDir, cfg.Service.NodeName, cfg.Placement, cfg.Kubelet = run, "n", placement, kubelet
			if _, err := cfg.writeResolved(); err != nil {
				t.Fatal(err)
			}
			resolved, err := kubeletconfig.ReadResolved(filepath.Join(run, "config/nodeapi.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			want := filepath.Join(certs, "kubelet.crt")
			for from, k := range map[string]*kubeletconfig.Config{"of the process": cfg.Kubelet, "in nodeapi's file": resolved} {
				if k.Kubelet.TLSCertFile != want {
					t.Errorf("the configuration %s names %q, want %q", from, k.Kubelet.TLSCertFile, want)
				}
			}
			if _, err := os.Stat(want); err != nil {
				t.Error(err)
			}
		})
	}
}

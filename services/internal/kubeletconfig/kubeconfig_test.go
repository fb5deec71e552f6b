package kubeletconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: u, user: {token: none}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func TestWhatIsNoKubeconfig(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"usable": {kubeconfig, ""},
		"garbage": {"not a kubeconfig",
			"the file is no kubeconfig: put a kubeconfig with the node's client credentials there"},
		"no YAML": {"a: [", "the file is no kubeconfig: yaml: line 1"},
		"empty":   {"", "the file is empty"},
		"no such context": {strings.Replace(kubeconfig, "current-context: x", "current-context: other", 1),
			`specified context: other`},
		"no such cluster": {strings.Replace(kubeconfig, "cluster: c,", "cluster: d,", 1), `cluster "d" was not found`},
		"certificate gone": {strings.Replace(kubeconfig, "{token: none}",
			"{client-certificate: gone.pem, client-key: gone.pem}", 1), "gone.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, filepath.Join(t.TempDir(), "kubeconfig"), c.data)
			_, _, err := load(t, "--kubeconfig="+path)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" &&
				(err == nil || !strings.Contains(err.Error(), "--kubeconfig="+path) ||
					!strings.Contains(err.Error(), c.want)):
				t.Errorf("error is %v, want %q", err, c.want)
			case err != nil && strings.Contains(err.Error(), "Go value"):
				t.Errorf("the error is Go's: %v", err)
			}
		})
	}
	if _, _, err := load(t, "--kubeconfig="+t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "it is no file") {
		t.Errorf("a folder: %v", err)
	}
}

// TestTheLinkOfACertificateThatIsRenewed: a kubeconfig that names it is renewed, so there is nothing to warn of. If it
// is missing because its replacement was cut off, the node starts.
func TestTheLinkOfACertificateThatIsRenewed(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "kubelet-client-current.pem")
	path := write(t, filepath.Join(t.TempDir(), "kubeconfig"), strings.Replace(kubeconfig, "{token: none}",
		"{client-certificate: "+link+", client-key: "+link+"}", 1))
	args := []string{"--kubeconfig=" + path, "--cert-dir=" + dir, "--rotate-certificates"}
	if _, _, err := load(t, args...); err == nil || !strings.Contains(err.Error(), link) {
		t.Errorf("without a certificate: %v", err)
	}
	pem := write(t, filepath.Join(dir, "kubelet-client-2026-01-02-03-04-05.pem"), "")
	if err := os.Symlink(pem, filepath.Join(dir, "kubelet-client-updated.pem")); err != nil {
		t.Fatal(err)
	}
	_, warnings, err := load(t, args...)
	if err != nil {
		t.Errorf("after a cut off replacement: %v", err)
	}
	for _, w := range warnings {
		if w.Message == msgNotRenewed {
			t.Errorf("warned of %v", w)
		}
	}
}

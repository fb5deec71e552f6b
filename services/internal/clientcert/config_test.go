package clientcert

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestWhichCertificateIsUsed: that of --cert-dir comes first if it is the node's and ends no sooner.
func TestWhichCertificateIsUsed(t *testing.T) {
	at := func(node string, left time.Duration) []byte { return pairUntil(t, node, time.Now().Add(left)) }
	earlier, later, ended := at("n", time.Hour), at("n", 2*time.Hour), at("n", -time.Hour)
	others := at("m", 2*time.Hour)
	for name, test := range map[string]struct {
		own    []byte // of the kubeconfig
		inFile bool
		there  []byte // in --cert-dir
		want   bool   // the one in --cert-dir
	}{
		"none is there":                  {own: earlier},
		"a later one is there":           {own: earlier, there: later, want: true},
		"an earlier one is there":        {own: later, there: earlier},
		"another node's is there":        {own: earlier, there: others},
		"one that has ended is there":    {own: earlier, there: ended},
		"garbage is there":               {own: earlier, there: []byte("garbage")},
		"a later one than a file's":      {own: earlier, inFile: true, there: later, want: true},
		"an earlier one than a file's":   {own: later, inFile: true, there: earlier},
		"the file that is named is gone": {inFile: true, there: earlier, want: true},
		"the user signs in by a token":   {there: later},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "node.pem")
			user := &clientcmdapi.AuthInfo{ClientCertificateData: test.own, ClientKeyData: test.own}
			switch {
			case test.inFile:
				user = &clientcmdapi.AuthInfo{ClientCertificate: file, ClientKey: file}
				if test.own != nil {
					write(t, file, test.own)
				}
			case test.own == nil:
				user = &clientcmdapi.AuthInfo{Token: "t"}
			}
			if test.there != nil {
				write(t, Path(dir), test.there)
			}
			writeKubeconfig(t, path, &clientcmdapi.Cluster{Server: "https://192.0.2.1"}, user)
			config, files, err := Load(path, dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := files != nil && files.Certificate == Path(dir); got != test.want {
				t.Errorf("files %v", files)
			}
			for _, user := range config.AuthInfos {
				if test.want && user.ClientCertificateData != nil {
					t.Error("the configuration contains the other certificate")
				}
				if !test.want && !test.inFile && !bytes.Equal(user.ClientCertificateData, test.own) {
					t.Error("the configuration does not contain its certificate")
				}
			}
			if _, files, err := Load(path, ""); err != nil || files != nil && files.Certificate == Path(dir) {
				t.Errorf("where nothing is renewed the files are %v, %v", files, err)
			}
		})
	}
}

// A kubeconfig may name the certificate of --cert-dir in another way, also before there is one.
func TestTheCertificateByAnotherName(t *testing.T) {
	dir := t.TempDir()
	certDir, link := filepath.Join(dir, "pki"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(certDir, 0o755), os.Symlink(certDir, link)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Path(link), certDir + "//kubelet-client-current.pem", "pki/kubelet-client-current.pem"} {
		path := filepath.Join(dir, "kubeconfig")
		writeKubeconfig(t, path, &clientcmdapi.Cluster{Server: "https://192.0.2.1"},
			&clientcmdapi.AuthInfo{ClientCertificate: name, ClientKey: name})
		_, files, err := Load(path, certDir)
		if want := (Files{Path(certDir), Path(certDir)}); err != nil || files == nil || *files != want {
			t.Errorf("%s: %v, %v", name, files, err)
		}
	}
}

func TestClusters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	read := func(cluster *clientcmdapi.Cluster) Cluster {
		t.Helper()
		writeKubeconfig(t, path, cluster, &clientcmdapi.AuthInfo{Token: "t"})
		c, err := ReadCluster(path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	until := time.Now().Add(time.Hour)
	one, other := pairUntil(t, "ca", until), pairUntil(t, "ca", until)
	of := func(ca []byte) Cluster {
		t.Helper()
		return read(&clientcmdapi.Cluster{Server: "https://192.0.2.1", CertificateAuthorityData: ca})
	}
	first := of(one)
	if first.Server != "https://192.0.2.1" || len(first.CAs) != 1 {
		t.Errorf("read %+v", first)
	}
	for name, test := range map[string]struct {
		with Cluster
		want bool
	}{
		"the same": {of(one), true}, "both": {of(append(one[:len(one):len(one)], other...)), true},
		"another": {of(other), false}, "the host's": {read(&clientcmdapi.Cluster{Server: "https://192.0.2.1"}), false},
	} {
		if first.Shares(test.with) != test.want || test.with.Shares(first) != test.want {
			t.Errorf("%s: shared: %v", name, !test.want)
		}
	}
	writeKubeconfig(t, path, &clientcmdapi.Cluster{Server: "https://192.0.2.1", CertificateAuthority: "/no/such/file"},
		&clientcmdapi.AuthInfo{Token: "t"})
	if _, err := ReadCluster(path); err == nil {
		t.Error("a CA that is not there is read")
	}
}

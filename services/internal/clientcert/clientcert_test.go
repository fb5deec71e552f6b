package clientcert

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestACertificateIsReplaced: requests fail before there is a certificate, the next one uses a new one, and a request
// that runs is not cut.
func TestACertificateIsReplaced(t *testing.T) {
	server := newServer(t)
	dir := t.TempDir()
	link := Path(dir)
	client := newClient(t, server, link)

	_, err := get(client, server.URL+"/name")
	if err == nil || !strings.Contains(err.Error(), "no client certificate yet") {
		t.Fatalf("without a certificate: %v", err)
	}
	write(t, link, pair(t, "first"))
	if name, err := get(client, server.URL+"/name"); err != nil || name != "first" {
		t.Fatalf("the server saw %q, %v", name, err)
	}
	stream, err := client.Get(server.URL + "/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	if !lines.Scan() {
		t.Fatalf("the stream ended: %v", lines.Err())
	}

	write(t, link, pair(t, "second"))
	await(t, client, server.URL, "second")
	for range 3 {
		if !lines.Scan() {
			t.Fatalf("the stream ended with the old certificate: %v", lines.Err())
		}
		if lines.Text() != "first" {
			t.Fatalf("the stream is of %q", lines.Text())
		}
	}

	// Neither a file that is gone nor one that is no certificate takes what works away.
	for name, spoil := range map[string]func() error{
		"garbage": func() error { return os.WriteFile(link, []byte("garbage"), 0o600) },
		"gone":    func() error { return os.Remove(link) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(checkPeriod + 100*time.Millisecond)
		if seen, err := get(client, server.URL+"/name"); err != nil || seen != "second" {
			t.Errorf("%s: the server saw %q, %v", name, seen, err)
		}
	}
	write(t, link, pair(t, "third"))
	await(t, client, server.URL, "third")
}

// TestOtherCredentialsStay: a kubeconfig without the files of a certificate is client-go's.
func TestOtherCredentialsStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	for name, user := range map[string]*clientcmdapi.AuthInfo{
		"token":    {Token: "abc"},
		"embedded": {ClientCertificateData: pair(t, "x"), ClientKeyData: pair(t, "x")},
	} {
		writeKubeconfig(t, path, &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}, user)
		config, err := Config(path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if config.Transport != nil || config.BearerToken != user.Token ||
			!bytes.Equal(config.CertData, user.ClientCertificateData) {
			t.Errorf("%s: changed to %v", name, config)
		}
	}
	if _, err := Config(filepath.Join(t.TempDir(), "gone"), "", nil); err == nil {
		t.Error("a kubeconfig that does not exist is usable")
	}
}

func await(t *testing.T, client *http.Client, url, want string) {
	t.Helper()
	var name string
	var err error
	for range 100 {
		if name, err = get(client, url+"/name"); err == nil && name == want {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("the server sees %q, %v, want %q", name, err, want)
}

// newServer returns a server that answers with the name in the client's certificate.
func newServer(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/name", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", protobuf) // any other success is read
		fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	})
	mux.HandleFunc("/watch", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", protobuf)
		for r.Context().Err() == nil {
			fmt.Fprintln(w, r.TLS.PeerCertificates[0].Subject.CommonName)
			w.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond)
		}
	})
	s := httptest.NewUnstartedServer(mux)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func newClient(t *testing.T, server *httptest.Server, link string) *http.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	writeKubeconfig(t, path, &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: ca},
		&clientcmdapi.AuthInfo{ClientCertificate: link, ClientKey: link})
	config, err := Config(path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func writeKubeconfig(t *testing.T, path string, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"], config.AuthInfos["u"] = cluster, user
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
}

// pair is a self-signed certificate and its key.
func pair(t *testing.T, name string) []byte {
	t.Helper()
	return pairUntil(t, name, time.Now().Add(time.Hour))
}

func pairUntil(t *testing.T, name string, end time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: end.Add(-24 * time.Hour), NotAfter: end,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func get(client *http.Client, url string) (string, error) {
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return string(data), err
}

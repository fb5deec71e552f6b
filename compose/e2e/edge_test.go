//go:build !bench

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/record"
)

// kubectl runs the real client to its end.
func (s *scene) kubectl(stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.node.Kubectl(), append([]string{"--kubeconfig=" + s.node.Kubeconfig(), "--namespace=" + s.ns}, args...)...)
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &problems
	err = cmd.Run()
	return out.String(), problems.String(), err
}

// says runs the client, which must succeed and say so much.
func (s *scene) says(want string, args ...string) {
	s.t.Helper()
	if out, problems, err := s.kubectl(nil, args...); err != nil || !strings.Contains(out, want) {
		s.t.Errorf("kubectl %s: %v, %.500q, %q; want %q", strings.Join(args, " "), err, out, problems, want)
	}
}

// refuses runs the client, which must fail and say why.
func (s *scene) refuses(want string, args ...string) {
	s.t.Helper()
	if out, problems, err := s.kubectl(nil, args...); err == nil || !strings.Contains(problems, want) {
		s.t.Errorf("kubectl %s: %v, %q, %q; want to be told %q", strings.Join(args, " "), err, out, problems, want)
	}
}

// TestEdge is what people and the control plane ask of a node, by the real client through the real
// apiserver.
func TestEdge(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	talk := scripted("talk", `echo first; echo second >&2; `+forever)
	talk.Spec.Containers = append(talk.Spec.Containers, shell("again", `echo life; exit 1`),
		shell("web", `mkdir -p /tmp/www; cp /bin/busybox /tmp/www/file; httpd -f -p 8080 -h /tmp/www`))
	s.create(talk)
	s.wait(patience, "the first container to have been restarted", func(v record.View) error {
		for _, c := range s.statuses(v, "talk") {
			if c.Name == "again" && c.RestartCount > 0 {
				return nil
			}
		}
		return fmt.Errorf("it was not")
	})
	first := talk.Spec.Containers[0].Name

	s.says("first\n", "logs", "talk", "-c", first)
	s.says("second\n", "logs", "talk", "-c", first, "--tail=1")
	s.says("life\n", "logs", "talk", "-c", "again", "--previous")
	s.refuses("previous terminated container", "logs", "talk", "-c", first, "--previous")
	s.says("firs", "logs", "talk", "-c", first, "--limit-bytes=4")

	for _, how := range []string{"true", "false"} { // WebSocket, SPDY
		t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", how)
		t.Setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", how)
		blob := make([]byte, 2<<20)
		if _, err := rand.Read(blob); err != nil {
			t.Fatal(err)
		}
		out, problems, err := s.kubectl(bytes.NewReader(blob), "exec", "-i", "talk", "-c", first, "--", "cat")
		if err != nil || out != string(blob) {
			t.Errorf("exec, WebSocket %s: %d of %d bytes came back: %v %s", how, len(out), len(blob), err, problems)
		}
		if _, problems, err := s.kubectl(nil, "exec", "talk", "-c", first, "--", "sh", "-c", "echo oops >&2; exit 7"); err == nil || !strings.Contains(problems, "oops") || !strings.Contains(problems, "exit code 7") {
			t.Errorf("exec, WebSocket %s: %v, %q", how, err, problems)
		}
		s.forward(t, how)
	}

	local := filepath.Join(t.TempDir(), "blob")
	if err := os.WriteFile(local, []byte("copied"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.says("", "cp", local, s.ns+"/talk:/tmp/blob", "-c", first)
	s.says("copied", "exec", "talk", "-c", first, "--", "cat", "/tmp/blob")

	proxy := "/api/v1/nodes/" + s.node.NodeName() + "/proxy"
	for path, want := range map[string]string{
		"/pods": `"name":"talk"`, "/runningpods/": `"name":"talk"`, "/configz": `"kubeletconfig"`, "/healthz": "ok", "/healthz/pleg": "ok",
		"/metrics": "kubelet_runtime_operations_total", "/statusz": "kubelet statusz", "/flagz": "hostname-override=" + s.node.NodeName(), "/logs/": "<a href=",
		"/debug/pprof/cmdline": "podsync",
	} {
		s.says(want, "get", "--raw", proxy+path)
	}
	s.refuses("unable to handle the request", "get", "--raw", proxy+"/stats/summary")
	s.strangers(t)
}

// freeAddress is one of loopback that nobody has at this moment, for a program that is to listen there.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// forward fetches a file through a forwarded port and compares it with the same bytes by exec.
func (s *scene) forward(t *testing.T, how string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	cmd := exec.CommandContext(ctx, s.node.Kubectl(), "--kubeconfig="+s.node.Kubeconfig(), "--namespace="+s.ns, "port-forward", "--address=127.0.0.1", "talk", port+":8080")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	var body []byte
	await(t, patience, "the forwarded port to answer", func() error {
		answer, err := http.Get("http://" + address + "/file")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err = io.ReadAll(answer.Body)
		return err
	})
	want, problems, err := s.kubectl(nil, "exec", "talk", "-c", "web", "--", "cat", "/tmp/www/file")
	if err != nil || len(body) < 1<<20 || string(body) != want {
		t.Errorf("port-forward, WebSocket %s: %d bytes, by exec %d: %v %s", how, len(body), len(want), err, problems)
	}
}

// strangers go to the port itself.
func (s *scene) strangers(t *testing.T) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	account, problems, err := s.kubectl(nil, "create", "token", "default")
	if err != nil {
		t.Fatal(err, problems)
	}
	base := "https://" + net.JoinHostPort(s.node.NodeIP(), "10250")
	for _, path := range []string{"/pods", "/metrics", "/exec/a/b/c", "/nosuch", "/healthz", "/logs/"} {
		for token, want := range map[string]int{"": 401, "wrong": 401, strings.TrimSpace(account): 403} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(answer.Body)
			if err := answer.Body.Close(); err != nil {
				t.Error(err)
			}
			if answer.StatusCode != want {
				t.Errorf("%s with %d characters of token: %d %s, want %d", path, len(token), answer.StatusCode, body, want)
			}
		}
	}
}

package test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/nodeapi/internal/testpki"
)

// session is a command that repeats its input, by the client library that kubectl has.
type session struct {
	t     *testing.T
	stdin *io.PipeWriter
	out   *proctest.Buffer
	done  chan error
}

func (e *testNode) exec(user string) *session {
	e.t.Helper()
	// nodeapi hears of pods when it hears of them, and says "pod does not exist" of others.
	e.user("witness get_proxy").awaitGet(slack, "/containerLogs/ns/p/c?tailLines=0", 200)
	certificate, key := e.clients.Issue(testpki.Client(user))
	config := &rest.Config{
		Host:            "https://" + e.secure(),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertData: certificate, KeyData: key},
	}
	to := &url.URL{Scheme: "https", Host: e.secure(), Path: "/exec/ns/p/c", RawQuery: "command=cat&input=1&output=1"}
	executor, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, to)
	if err != nil {
		e.t.Fatal(err)
	}
	in, stdin := io.Pipe()
	s := &session{t: e.t, stdin: stdin, out: &proctest.Buffer{}, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		s.done <- executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: s.out})
	}()
	e.t.Cleanup(func() { cancel(); _ = stdin.Close() })
	return s
}

// repeats sends a text, which must come back.
func (s *session) repeats(text string) {
	s.t.Helper()
	sent := make(chan error, 1)
	go func() { _, err := io.WriteString(s.stdin, text); sent <- err }()
	select {
	case err := <-sent:
		if err != nil {
			s.t.Fatal(err)
		}
	case err := <-s.done:
		s.t.Fatalf("the session ended: %v", err)
	case <-time.After(slack):
		s.t.Fatalf("%q cannot be sent", text)
	}
	proctest.Await(s.t, slack, fmt.Sprintf("%q comes back", text),
		func() bool { return strings.HasSuffix(s.out.String(), text) })
}

// startProcess starts nodeapi as a process of its own, with the same configuration.
func (e *testNode) startProcess() *proctest.Process {
	e.t.Helper()
	p := proctest.Start(e.t, "nodeapi", e.arguments()...)
	e.awaitPorts()
	return p
}

// arguments are the command line of nodeapi's process.
func (e *testNode) arguments() []string {
	e.t.Helper()
	kubelet := e.kubelet()
	kubelet.APIVersion, kubelet.Kind = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	kubelet.FailCgroupV1 = new(false)
	data, err := json.Marshal(kubelet)
	if err != nil {
		e.t.Fatal(err)
	}
	file := filepath.Join(e.dir, "kubelet.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		e.t.Fatal(err)
	}
	return []string{"--config=" + file, "--runtime-dir=" + e.Dir(), "--node-name=" + bustest.NodeName,
		"--hostname-override=" + bustest.NodeName, "--root-dir=" + e.dir}
}

// TestSIGTERM stops the process while it serves one of each kind: a session, a log that is followed, an
// answer that takes its time, a connection that waits for its next request, and a review that hangs.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startPeers()
	asked := make(chan struct{}, 8)
	takesItsTime := make(chan struct{})
	release := sync.OnceFunc(func() { close(takesItsTime) })
	t.Cleanup(release)
	e.startMetrics(func() error { asked <- struct{}{}; <-takesItsTime; return nil })
	nodeapi := e.startProcess()
	jane := e.user("jane get_proxy,get_pods")
	jane.awaitGet(slack, "/pods", 200)
	s := e.exec("jane create_proxy,get_proxy")
	s.repeats("hello")
	follow, err := jane.do(http.MethodGet, "/containerLogs/ns/p/c?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Body.Close()
	if _, err := io.ReadFull(follow.Body, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	idle, err := tls.Dial("tcp", e.secure(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	go func() { _, _ = e.user("hang get_pods").get("/pods") }() // ends with the process
	proctest.Await(t, slack, "a request waits for a review", func() bool { return e.reviews.hanging() == 1 })
	slow := make(chan string, 1)
	go func() {
		code, body := e.user("joe get_healthz").get("/healthz/podsync")
		slow <- fmt.Sprint(code, body)
	}()
	<-asked

	began := time.Now()
	nodeapi.Signal(syscall.SIGTERM)
	proctest.Await(t, slack, "the stop has begun", func() bool {
		c, err := net.Dial("tcp", e.secure())
		if err == nil {
			_ = c.Close() // it was only tried
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	release()
	if got := <-slow; got != "200ok" {
		t.Errorf("an answer that was under way: %q, want all of it", got)
	}
	if err := nodeapi.End(e.config.Service.StopTimeout); err != nil {
		t.Errorf("nodeapi ended with %v", err)
	}
	took := time.Since(began)
	t.Logf("nodeapi ended %v after SIGTERM", took)
	select {
	case <-s.done:
	case <-time.After(slack):
		t.Error("the session's client got no reason")
	}
	if _, err := io.Copy(io.Discard, follow.Body); err == nil {
		t.Error("the log ended as if there were no more to come")
	}
	for _, path := range []string{e.config.Service.Socket(role.NodeAPI), e.config.Service.MetricsSocket(role.NodeAPI)} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was left: %v", path, err)
		}
	}
}

package test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/nodeapi/internal/testpki"
)

// dialFrom opens a connection to a port from an address, until the test ends.
func (e *testNode) dialFrom(from, to string) net.Conn {
	e.t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: soon}).Dial("tcp", to)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestNoCallerKeepsOthersOut has strangers take all the connections that they get, from two addresses and from many, on
// each port, and without pause.
func TestNoCallerKeepsOthersOut(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.config.MaxConnections = 40
	e.startReviews()
	e.startGateway()
	e.startPodsync()
	e.start()
	jane := e.user("jane get_pods")
	jane.awaitGet(30*time.Second, "/pods", 200)
	for name, addresses := range map[string]int{"two addresses": 2, "many addresses": 60} {
		for i := range 60 {
			for _, port := range []string{e.secure(), e.health()} {
				e.dialFrom(callerAddress(i%addresses+1), port)
			}
		}
		if code, body := jane.get("/pods"); code != 200 {
			t.Errorf("%s, who is known, on his connection: %d %s", name, code, body)
		}
		if code, body := e.user("joe get_pods").get("/pods"); code != 200 {
			t.Errorf("%s, who has a certificate: %d %s", name, code, body)
		}
		if code, body := e.holder("good-jim-get_pods").get("/pods"); code != 200 {
			t.Errorf("%s, who has a token: %d %s", name, code, body)
		}
		if code, body := e.healthz("/healthz/ping"); code != 200 {
			t.Errorf("%s, the node's health: %d %s", name, code, body)
		}
	}
}

// TestLoopbackIsOneAddress has a stranger in the host's network connect from as many of its addresses as he likes.
func TestLoopbackIsOneAddress(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.config.MaxConnections = 40 // 5 an address
	e.startReviews()
	e.start()
	other := e.dialFrom(callerAddress(1), e.secure())
	conns := []net.Conn{}
	for i := range 60 {
		conns = append(conns, e.dialFrom(fmt.Sprintf("127.0.1.%d", i+1), e.secure()))
	}
	for i, c := range conns[:len(conns)-5] {
		if err := c.SetReadDeadline(time.Now().Add(soon)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !isReset(err) {
			t.Errorf("connection %d of 60, of which 5 may stay: %v", i, err)
		}
	}
	for i, c := range append(conns[len(conns)-5:], other) {
		if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d of those that may stay: %v", i, err)
		}
	}
}

// TestKnownCallersMayBeMany has one caller hold more connections than an address may have of strangers, each
// with a log that is followed, behind the address that strangers flood from too, as behind a NAT.
func TestKnownCallersMayBeMany(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.config.MaxConnections = 40 // 5 an address
	e.startReviews()
	e.startGateway()
	e.startPodsync()
	e.start()
	e.user("jane get_pods").awaitGet(30*time.Second, "/pods", 200)
	var logs []*http.Response
	for range 15 {
		answer, err := e.user("apiserver get_proxy").do(http.MethodGet, "/containerLogs/ns/p/c?follow=true")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != 200 {
			t.Fatalf("log %d: %s", len(logs), answer.Status)
		}
		logs = append(logs, answer)
	}
	for range 100 {
		e.dialFrom("127.0.0.1", e.secure())
	}
	for i, answer := range logs {
		line := make([]byte, 4)
		if _, err := io.ReadFull(answer.Body, line); err != nil || string(line) != "one\n" {
			t.Errorf("log %d: %q, %v", i, line, err)
		}
		// It is still followed: nothing comes, and it does not end.
		ended := make(chan error, 1)
		go func() { _, err := answer.Body.Read(line); ended <- err }()
		select {
		case err := <-ended:
			t.Errorf("log %d ended: %v", i, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if code, body := e.user("apiserver get_pods").get("/pods"); code != 200 {
		t.Errorf("another connection: %d %s", code, body)
	}
}

// TestFloodOfTokens has strangers send more tokens than can be reviewed, while the apiserver does not answer.
func TestFloodOfTokens(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.config.MaxUnauthenticated = 16 // 4 an address
	e.startReviews()
	e.startGateway()
	e.startPodsync()
	e.start()
	e.user("jane get_pods").awaitGet(30*time.Second, "/pods", 200)
	defer close(e.reviews.goOn)
	var flood sync.WaitGroup
	defer flood.Wait()
	codes := make(chan int, 200)
	for i := range cap(codes) {
		c := e.caller(callerAddress(i%2 + 1))
		c.token = fmt.Sprintf("hang-%d", i)
		flood.Go(func() {
			code, _ := c.get("/pods")
			codes <- code
		})
	}
	proctest.Await(t, soon, "tokens are reviewed", func() bool { return e.reviews.hanging() >= 8 })
	began := time.Now()
	if code, body := e.holder("good-jim-get_pods").get("/pods"); code != 200 {
		t.Errorf("another token: %d %s", code, body)
	}
	if code, body := e.user("joe get_pods").get("/pods"); code != 200 {
		t.Errorf("a certificate: %d %s", code, body)
	}
	if took := time.Since(began); took > soon {
		t.Errorf("they waited %v", took)
	}
	proctest.Await(t, 20*time.Second, "most of the flood is asked to try again",
		func() bool { return len(codes) >= cap(codes)/2 })
	if got := e.reviews.hanging(); got > 8 {
		t.Errorf("%d tokens of two addresses are reviewed at one time, want 8 at most", got)
	}
	if code := <-codes; code != http.StatusTooManyRequests {
		t.Errorf("the flood's first answer is %d", code)
	}
}

// TestStreamsOfStrangers reads what the server says of the streams that a connection may have.
func TestStreamsOfStrangers(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startReviews()
	e.start()
	streams := func(pairs ...tls.Certificate) uint32 {
		t.Helper()
		c, err := tls.Dial("tcp", e.secure(),
			&tls.Config{InsecureSkipVerify: true, Certificates: pairs, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(soon)); err != nil {
			t.Fatal(err)
		}
		framer := http2.NewFramer(c, c)
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := framer.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		settings, ok := f.(*http2.SettingsFrame)
		if !ok {
			t.Fatalf("the first frame is %v", f)
		}
		n, _ := settings.Value(http2.SettingMaxConcurrentStreams)
		return n
	}
	proctest.Await(t, 30*time.Second, "a known client gets many streams", func() bool {
		return streams(e.clients.Pair(testpki.Client("apiserver"))) == 250 // the CA's file is read meanwhile
	})
	if got := streams(); got != 8 {
		t.Errorf("a stranger may have %d streams, want 8", got)
	}
	if got := streams(e.servers.Pair(testpki.Client("apiserver"))); got != 8 {
		t.Errorf("a stranger with a certificate of his own may have %d streams, want 8", got)
	}
	// And HTTP/2 works, for both.
	for name, pairs := range map[string][]tls.Certificate{
		"a stranger":     nil,
		"a known client": {e.clients.Pair(testpki.Client("jane get_healthz"))},
	} {
		transport := &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, Certificates: pairs},
			ForceAttemptHTTP2: true,
		}
		defer transport.CloseIdleConnections()
		answer, err := (&http.Client{Transport: transport, Timeout: soon}).Get("https://" + e.secure() + "/nosuch")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.ProtoMajor != 2 || answer.StatusCode != map[bool]int{true: 401, false: 403}[pairs == nil] {
			t.Errorf("%s: %s %s %q", name, answer.Proto, answer.Status, body)
		}
	}
}

// TestAnonymousCallersAreStrangers lets every caller ask for the node's health, which makes none of them known. Only
// where every caller may do everything are there no strangers.
func TestAnonymousCallersAreStrangers(t *testing.T) {
	t.Parallel()
	for mode, stays := range map[kubeletv1beta1.KubeletAuthorizationMode]bool{
		kubeletv1beta1.KubeletAuthorizationModeWebhook: false, kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow: true,
	} {
		e := newTestNode(t)
		e.config.MaxConnections = 40 // 5 an address
		e.kubelet().Authentication.Anonymous.Enabled, e.kubelet().Authorization.Mode = new(true), mode
		e.startReviews()
		e.start()
		var conns []net.Conn
		for range 6 {
			c := tls.Client(e.dialFrom(callerAddress(1), e.secure()), &tls.Config{InsecureSkipVerify: true})
			if err := c.SetDeadline(time.Now().Add(soon)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, "GET /healthz/ping HTTP/1.1\r\nHost: n\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || answer.StatusCode != 200 {
				t.Fatalf("%s: %v, %v", mode, answer, err)
			}
			_ = answer.Body.Close()
			conns = append(conns, c)
		}
		if err := conns[0].SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		_, err := conns[0].Read(make([]byte, 1))
		if open := errors.As(err, &timeout) && timeout.Timeout(); open != stays {
			t.Errorf("%s: the oldest of six connections is open: %t, want %t: %v", mode, open, stays, err)
		}
	}
}

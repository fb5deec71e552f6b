package test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/nodeapi/internal/testpki"
)

// expect fails the test unless a request is answered so, and within so long.
func expect(t *testing.T, within time.Duration, what string, ask func() (int, string), want int, says string) {
	t.Helper()
	began := time.Now()
	code, body := ask()
	if took := time.Since(began); code != want || !strings.Contains(body, says) || took > within {
		t.Errorf("%s: %d %.300q after %v; want %d %q within %v", what, code, body, took, want, says, within)
	}
}

// TestPeersComeAndGo begins without peers: no bus, no podsync, no gateway, no nodestatus.
func TestPeersComeAndGo(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.StopBus()
	e.start()
	jane := e.user("jane get_pods,get_proxy,create_proxy")
	ping := func() (int, string) { return e.healthz("/healthz/ping") }
	expect(t, soon, "ping", ping, 200, "ok")
	expect(t, soon, "health", func() (int, string) { return e.healthz("/healthz") }, 500,
		"[-]syncloop failed: podsync has no socket: it does not run")
	expect(t, soon, "health of one who never was there", func() (int, string) { return e.healthz("/healthz/pleg") },
		404, "")
	var waiting sync.WaitGroup
	waiting.Go(func() {
		expect(t, reviewTimeout+slack, "pods, while no review says what jane may do",
			func() (int, string) { return jane.get("/pods") }, 500, "Authorization error (user=jane get_pods")
	})
	waiting.Go(func() {
		expect(t, reviewTimeout+slack, "pods, while no review says which user has the token",
			func() (int, string) { return e.holder("good-joe-get_pods").get("/pods") }, 401, "Unauthorized")
	})
	waiting.Wait()
	expect(t, soon, "ping after that", ping, 200, "ok")

	t.Log("nodestatus comes")
	stopReviews := e.startReviews()
	jane.awaitGet(slack, "/pods", 503)
	expect(t, soon, "pods without the bus", func() (int, string) { return jane.get("/pods") }, 503,
		"the node's pods are not known yet")
	expect(t, soon, "what runs without the gateway", func() (int, string) { return jane.get("/runningpods/") }, 500, "")

	t.Log("podsync and the bus come")
	stopMetrics := e.startMetrics(func() error { return nil })
	stopGateway := e.startGateway()
	e.StartBus()
	e.startPodsync()
	jane.awaitGet(slack, "/pods", 200)
	jane.awaitGet(slack, "/containerLogs/ns/p/c", 200)
	jane.awaitGet(slack, "/runningpods/", 200) // nodeapi is connected to the gateway
	expect(t, soon, "the log", func() (int, string) { return jane.get("/containerLogs/ns/p/c") }, 200, "one\n")
	expect(t, soon, "health", func() (int, string) { return e.healthz("/healthz") }, 200, "ok")
	expect(t, soon, "health of podsync", func() (int, string) { return e.healthz("/healthz/podsync") }, 200, "ok")

	t.Log("the bus, nodestatus and podsync are killed")
	e.StopBus()
	stopReviews()
	stopGateway()
	stopMetrics()
	expect(t, soon, "what was known, by whom was allowed a moment ago",
		func() (int, string) { return jane.get("/pods") }, 200, `"name":"p"`)
	expect(t, soon, "a log without the gateway",
		func() (int, string) { return jane.get("/containerLogs/ns/p/c?tailLines=1") }, 200, "")
	expect(t, soon, "a command without the gateway",
		func() (int, string) { return jane.get("/exec/ns/p/c?output=1&command=x") }, 500, "")
	expect(t, soon, "health without podsync", func() (int, string) { return e.healthz("/healthz") }, 500,
		"[-]syncloop failed")
	expect(t, soon, "ping", ping, 200, "ok")

	t.Log("they come back, and podsync has one more pod")
	e.startReviews()
	e.startGateway()
	e.startMetrics(func() error { return errors.New("the loop stands still") })
	e.StartBus()
	e.addPod("q")
	e.user("joe get_proxy").awaitGet(slack*2, "/containerLogs/ns/q/c", 200)
	expect(t, soon, "health as podsync reports it", func() (int, string) { return e.healthz("/healthz") }, 500,
		"the loop stands still")
	jane.awaitGet(slack, "/runningpods/", 200) // again
	s := e.exec("joe create_proxy,get_proxy")
	s.repeats("after all of that")
}

// TestStatsComesAndGoes asks for figures while stats is not there, is there, hangs, is killed, and is back.
func TestStatsComesAndGoes(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startPeers()
	e.start()
	jane := e.user("jane get_stats,create_stats,get_metrics,get_proxy")
	pages := []string{"/stats/summary", "/metrics/resource", "/metrics/cadvisor"}
	missing := func(says string, within time.Duration) {
		t.Helper()
		for _, page := range pages {
			expect(t, within, page, func() (int, string) { return jane.get(page) }, 503, "stats has no figures: "+says)
		}
	}
	jane.awaitGet(slack, "/containerLogs/ns/p/c", 200)
	missing("", soon)

	t.Log("stats comes")
	f := &figures{}
	stop := e.startStats(f)
	jane.awaitGet(slack, "/stats/summary", 200)
	for path, want := range map[string]string{
		"/stats/summary": `{"node":{"nodeName":"all: true"}}`,
		"/stats/summary?only_cpu_and_memory=true": `{"node":{"nodeName":"all: false"}}`,
		"/metrics/resource":                       "# TYPE scrape_error gauge\nscrape_error 1\n",
		"/metrics/cadvisor":                       "# TYPE scrape_error gauge\nscrape_error 2\n",
	} {
		expect(t, soon, path, func() (int, string) { return jane.get(path) }, 200, want)
	}
	joe := e.user("joe get_metrics")
	expect(t, soon, "the summary for who may read metrics alone",
		func() (int, string) { return joe.get("/stats/summary") }, 403, "")
	expect(t, soon, "metrics for the same", func() (int, string) { return joe.get("/metrics/resource") }, 200,
		"scrape_error")

	t.Log("stats hangs")
	f.hangs.Store(true)
	var waiting sync.WaitGroup
	for _, page := range pages {
		waiting.Go(func() {
			expect(t, statsTimeout+slack, page, func() (int, string) { return jane.get(page) }, 503, "no answer within")
		})
	}
	expect(t, soon, "a log meanwhile", func() (int, string) { return jane.get("/containerLogs/ns/p/c") }, 200, "one\n")
	waiting.Wait()

	t.Log("stats is killed, and comes back")
	stop()
	missing("", soon)
	f.hangs.Store(false)
	e.startStats(f)
	jane.awaitGet(slack, "/metrics/cadvisor", 200)
}

// TestReviewsThatHang holds up many callers, each with a question of his own, and looks what it costs
// the others.
func TestReviewsThatHang(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startReviews()
	e.startPodsync()
	e.start()
	jane := e.user("jane get_pods")
	jane.awaitGet(slack, "/pods", 200)
	const callers = 40
	var others []*caller // each of whom needs a review
	for i := range 20 {
		others = append(others, e.user(fmt.Sprintf("other%d get_pods", i)))
	}
	var hung sync.WaitGroup
	for i := range callers {
		c, want := e.caller(callerAddress(1+i%4)), 401 // one address may have a few reviewed at one time
		c.token = fmt.Sprintf("good-hang%d", i)
		if i%2 == 1 {
			c, want = e.user(fmt.Sprintf("hang%d get_pods", i)), 500
		}
		hung.Go(func() {
			began := time.Now()
			code, body := c.get("/pods")
			if took := time.Since(began); code != want || took < reviewTimeout-time.Second ||
				took > reviewTimeout+slack {
				t.Errorf("a caller about whom nothing can be learned: %d %q after %v; want %d after %v", code, body,
					took, want, reviewTimeout)
			}
		})
	}
	proctest.Await(t, reviewTimeout, "most of them are asked about at once",
		func() bool { return e.reviews.hanging() > callers*3/4 })
	// All at once: they are to be done before those who hang are given up, on a busy machine too.
	answers := make(chan string, len(others))
	for _, c := range others {
		go func() {
			began := time.Now()
			code, body := c.get("/pods")
			if took := time.Since(began); code != 200 || took > reviewTimeout/2 {
				answers <- fmt.Sprintf("another caller: %d %q after %v", code, body, took)
				return
			}
			answers <- ""
		}()
	}
	for range others {
		if problem := <-answers; problem != "" {
			t.Error(problem)
		}
	}
	if still := e.reviews.hanging(); still < callers/2 {
		t.Errorf("only %d of %d still hang: the others were not measured beside them", still, callers)
	}
	hung.Wait()
	close(e.reviews.goOn)
	expect(t, soon, "the same caller, once there is an answer",
		func() (int, string) { return e.user("hang1 get_pods").get("/pods") }, 200, "")
	expect(t, soon, "the same token", func() (int, string) { return e.holder("good-hang0").get("/pods") }, 403,
		"Forbidden (user=hang0")
}

// TestCredentials comes with certificates and tokens, good and bad, over real TLS.
func TestCredentials(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	stopReviews := e.startReviews()
	e.startPodsync()
	e.start()
	const jane = "jane get_pods"
	other := testpki.New(t, "other")
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	pods := func(c *caller) func() (int, string) { return func() (int, string) { return c.get("/pods") } }
	e.user(jane).awaitGet(slack, "/pods", 200)
	for _, c := range []struct {
		what string
		who  *caller
		want int
	}{
		{"no credential", e.caller("127.0.0.1"), 401},
		{"a certificate", e.user(jane), 200},
		{"a certificate without the right", e.user("joe get_log"), 403},
		{"an expired certificate", e.caller("127.0.0.1",
			e.clients.Pair(testpki.Leaf{Name: jane, Usage: client, From: -time.Hour, To: -time.Second})), 401},
		{"a certificate of tomorrow", e.caller("127.0.0.1",
			e.clients.Pair(testpki.Leaf{Name: jane, Usage: client, From: time.Minute, To: time.Hour})), 401},
		{"a certificate of another authority", e.caller("127.0.0.1", other.Pair(testpki.Client(jane))), 401},
		{"a server's certificate", e.caller("127.0.0.1", e.clients.Pair(testpki.Server(jane))), 401},
		{"the node's own certificate", e.caller("127.0.0.1", e.servers.Pair(testpki.Server(jane))), 401},
		{"a good token", e.holder("good-joe-get_pods"), 200},
		{"a good token without the right", e.holder("good-joe"), 403},
		{"a bad token", e.holder("bad-joe-get_pods"), 401},
	} {
		expect(t, soon, c.what, pods(c.who), c.want, "")
	}
	stopReviews()
	expect(t, soon, "a token that was good a moment ago", pods(e.holder("good-joe-get_pods")), 200, "")
	expect(t, soon, "a token that was bad a moment ago", pods(e.holder("bad-joe-get_pods")), 401, "")
	expect(t, reviewTimeout+slack, "a new token while no review is possible", pods(e.holder("good-jim-get_pods")), 401,
		"")
}

// TestCertificatesAreReplaced replaces the node's certificate and the clients' authority under connections
// that live.
func TestCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startPeers()
	e.start()
	jane := e.user("jane get_pods")
	jane.awaitGet(slack, "/pods", 200)
	session := e.exec("jane create_proxy,get_proxy")
	session.repeats("before")

	e.renewServing("second")
	served := func() string {
		c, err := tls.Dial("tcp", e.secure(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	proctest.Await(t, 30*time.Second, "the new certificate is served", func() bool { return served() == "second" })
	expect(t, soon, "a request on a connection from before", func() (int, string) { return jane.get("/pods") }, 200, "")
	session.repeats("while the certificate changed")

	next := testpki.New(t, "next")
	testpki.Replace(t, map[string][]byte{e.kubelet().Authentication.X509.ClientCAFile: next.PEM})
	e.caller("127.0.0.1", next.Pair(testpki.Client("jane get_pods"))).awaitGet(30*time.Second, "/pods", 200)
	expect(t, soon, "a connection from before, of the old authority's client",
		func() (int, string) { return jane.get("/pods") }, 401, "")
	session.repeats("while the authority changed")

	// What is broken is not taken: the last good one stays.
	testpki.Replace(t,
		map[string][]byte{
			e.kubelet().TLSPrivateKeyFile:                []byte("broken"),
			e.kubelet().Authentication.X509.ClientCAFile: []byte("broken"),
		})
	joe := e.caller("127.0.0.1", next.Pair(testpki.Client("joe get_pods")))
	for range 20 {
		if name := served(); name != "second" {
			t.Fatalf("after a broken key the certificate is of %q", name)
		}
		expect(t, soon, "with a broken file of the authority", func() (int, string) { return joe.get("/pods") }, 200,
			"")
	}
}

// TestStrangersWhoAreSlow takes all connections that one address may have, and gives them up in no other way
// than by being thrown out.
func TestStrangersWhoAreSlow(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.config.MaxConnections = 64
	e.startReviews()
	e.startPodsync()
	e.start()
	const share, headerTimeout = 8, 10 * time.Second
	stranger := callerAddress(7) // alone with its share
	jane := e.user("jane get_pods,get_metrics")
	jane.awaitGet(slack, "/pods", 200)
	dial := func() net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(stranger)}}).DialContext(t.Context(), "tcp",
			e.secure())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	secured := func(begin string) net.Conn {
		t.Helper()
		c := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true})
		if _, err := io.WriteString(c, begin); err != nil {
			t.Fatal(err)
		}
		return c
	}
	const header = "GET /pods HTTP/1.1\r\nHost: n\r\n"
	began := time.Now()
	conns := map[string]net.Conn{"who says nothing": dial(), "who begins a handshake": dial()}
	hello := []byte{0x16, 3, 1, 2, 0}
	if _, err := conns["who begins a handshake"].Write(hello); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		conns[fmt.Sprintf("who only shakes hands %d", i)] = secured("")
		conns[fmt.Sprintf("who sends a header byte by byte %d", i)] = secured(header + "X: ")
		conns[fmt.Sprintf("who announces a body %d", i)] = secured(header + "Content-Length: 1000\r\n\r\n")
	}
	if len(conns) != share {
		t.Fatalf("%d connections", len(conns))
	}
	// All of them are counted when one more takes the oldest one's place.
	oldest := conns["who says nothing"]
	conns["who comes last"] = dial()
	if err := oldest.SetReadDeadline(time.Now().Add(slack)); err != nil {
		t.Fatal(err)
	}
	if _, err := oldest.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !isReset(err) {
		t.Errorf("the oldest of one connection too many of one address: %v", err)
	}

	var dripping sync.WaitGroup
	var longest atomic.Int64
	for who, c := range conns {
		dripping.Go(func() {
			if strings.Contains(who, "byte by byte") {
				go func() { // ends with the connection
					for {
						if _, err := io.WriteString(c, "x"); err != nil {
							return
						}
						time.Sleep(200 * time.Millisecond) // how slow he is is what is tested
					}
				}()
			}
			_ = c.SetReadDeadline(began.Add(time.Minute))
			_, err := io.Copy(io.Discard, c)
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("%s is still connected after %v", who, time.Since(began))
			}
			longest.Store(max(longest.Load(), int64(time.Since(began))))
		})
	}
	gone := make(chan struct{})
	go func() { dripping.Wait(); close(gone) }()
	var worst time.Duration
	visits := time.NewTicker(50 * time.Millisecond) // often enough, and not so that this test makes the machine busy
	defer visits.Stop()
	for borne := true; borne; {
		at := time.Now()
		joe := e.user("joe get_pods")
		code, body := joe.get("/pods")
		joe.CloseIdleConnections()
		if code != 200 {
			t.Fatalf("another address, on a connection of its own: %d %q", code, body)
		}
		worst = max(worst, time.Since(at))
		select {
		case <-gone:
			borne = false
		case <-visits.C:
		}
	}
	t.Logf("the last of them was gone after %v; meanwhile another's slowest request took %v",
		time.Duration(longest.Load()), worst)
	if took := time.Duration(longest.Load()); took > headerTimeout+slack {
		t.Errorf("a slow caller was borne for %v, want %v", took, headerTimeout)
	}
	if worst > soon {
		t.Errorf("another address was held up for %v", worst)
	}
	expect(t, soon, "the stranger's address again", func() (int, string) { return e.caller(stranger).get("/pods") },
		401, "")
	expect(t, 2*soon, "what is reported of it", func() (int, string) { return jane.get("/metrics") }, 200,
		`microlet_nodeapi_connections_evicted_total{reason="address",server="https",service="nodeapi"} 1`)
}

// isReset reports whether the other end threw the connection away.
func isReset(err error) bool {
	return err != nil && strings.Contains(err.Error(), "reset by peer")
}

// TestReaderWhoReadsNothing follows logs and takes nothing of what comes.
func TestReaderWhoReadsNothing(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.config.MaxLogs = 3 // of which one namespace may have 2
	e.kubelet().StreamingConnectionIdleTimeout.Duration = 3 * time.Second
	e.startPeers()
	line := append(append([]byte("2026-01-01T00:00:00.000000000Z stdout F "), bytes.Repeat([]byte("x"), 8000)...), '\n')
	if err := os.WriteFile(filepath.Join(e.kubelet().PodLogsDir, "p", "c.log"), bytes.Repeat(line, 8000),
		0o644); err != nil {
		t.Fatal(err)
	}
	e.start()
	const name = "jane get_proxy"
	e.user(name).awaitGet(slack, "/containerLogs/ns/p/c?tailLines=0", 200)
	for range 2 {
		c, err := tls.Dial("tcp", e.secure(),
			&tls.Config{
				InsecureSkipVerify: true,
				Certificates:       []tls.Certificate{e.clients.Pair(testpki.Client(name))},
			})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /containerLogs/ns/p/c?follow=true HTTP/1.1\r\nHost: n\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 9)); err != nil {
			t.Fatal(err)
		}
	}
	reader := e.user(name)
	expect(t, soon, "one log more than may be",
		func() (int, string) { return reader.get("/containerLogs/ns/p/c?tailLines=1") }, 429,
		"too many requests of this kind")
	reader.awaitGet(4*e.kubelet().StreamingConnectionIdleTimeout.Duration+slack, "/containerLogs/ns/p/c?tailLines=1",
		200)
}

// TestPathsThatLeadOut writes request lines that no client would.
func TestPathsThatLeadOut(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	e.startPeers()
	e.start()
	const name = "jane get_proxy,get_log"
	e.user(name).awaitGet(slack, "/containerLogs/ns/p/c", 200)
	up := []string{"..", "%2e%2e", ".%2e", "%2E.", "..%2f", "..%5c", "%252e%252e", "..;", "%c0%ae%c0%ae", "..%00"}
	var targets []string
	for _, dots := range up {
		climb := strings.Repeat(dots+"/", 6)
		for _, top := range []string{"/logs/", "/logs//", "//logs/", "/logs/./", "/logs/nosuch/",
			"/containerLogs/ns/p/", "/containerLogs/", "/containerLogs/ns/", "/debug/pprof/"} {
			targets = append(targets, top+climb+"etc/passwd", top+strings.ReplaceAll(climb, "/", "%2f")+"etc%2fpasswd")
		}
		targets = append(targets, "/logs/?query="+strings.ReplaceAll("/"+climb, "/", "%2f")+"etc/passwd")
	}
	targets = append(targets, "/logs/etc/passwd", "/logs//etc/passwd", "/logs/%2fetc/passwd",
		"/logs/?query=%2fetc%2fpasswd", "/logs/?query=--file%3d%2fetc%2fpasswd",
		"/logs/?query=kubelet&pattern=--file%3d%2fetc%2fpasswd", "/logs", "/logs/..", "/containerLogs/ns/p/c%00",
		"/containerLogs/ns/p%2f..%2fp/c")
	seen := map[string]int{}
	for _, target := range targets {
		answer := e.raw(name, "GET "+target+" HTTP/1.1")
		if strings.Contains(answer, "root:x") {
			t.Errorf("%s shows what is outside of the logs:\n%s", target, answer)
		}
		status, _, _ := strings.Cut(answer, "\r\n")
		if !strings.HasPrefix(status, "HTTP/1.1 ") || strings.HasPrefix(status, "HTTP/1.1 500") {
			t.Errorf("%s: %q", target, status)
		}
		seen[status]++
	}
	t.Logf("%d targets: %v", len(targets), seen)
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Fatalf("what must not be seen is not there: %v", err)
	}
	for _, line := range []string{"OPTIONS * HTTP/1.1", "CONNECT n:1 HTTP/1.1", "CONNECT /pods HTTP/1.1",
		"GET http://other/pods HTTP/1.1", "PRI * HTTP/2.0", "GET  /pods HTTP/1.1", "GET /pods HTTP/9.9"} {
		if answer := e.raw("", line); strings.HasPrefix(answer, "HTTP/1.1 2") ||
			strings.HasPrefix(answer, "HTTP/1.1 3") {
			t.Errorf("without a credential %q is answered %q", line, answer)
		}
	}
}

// raw sends one request line as it is, with that user's certificate, and returns all that comes.
func (e *testNode) raw(user, line string) string {
	e.t.Helper()
	config := &tls.Config{InsecureSkipVerify: true}
	if user != "" {
		config.Certificates = []tls.Certificate{e.clients.Pair(testpki.Client(user))}
	}
	c, err := tls.Dial("tcp", e.secure(), config)
	if err != nil {
		e.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(reviewTimeout + slack)); err != nil {
		e.t.Fatal(err)
	}
	if _, err := io.WriteString(c, line+"\r\nHost: n\r\nConnection: close\r\n\r\n"); err != nil {
		e.t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil && len(answer) == 0 {
		e.t.Errorf("%s: %v", line, err)
	}
	return string(answer)
}

// TestPortThatIsTaken has another process on the health port.
func TestPortThatIsTaken(t *testing.T) {
	t.Parallel()
	e := newTestNode(t)
	l, err := net.Listen("tcp", e.health())
	if err != nil {
		t.Fatal(err)
	}
	e.startReviews()
	e.startPodsync()
	e.start()
	e.user("jane get_pods").awaitGet(slack, "/pods", 200)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, slack, "the port is served once it is free",
		func() bool { code, _ := e.healthz("/healthz/ping"); return code == 200 })
}

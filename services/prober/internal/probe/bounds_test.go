package probe

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/testing/largecert"
)

// lines are as many headers of 4 KiB.
func lines(n int) map[string]string {
	all := map[string]string{}
	for i := range n {
		all[fmt.Sprint("x-", i)] = strings.Repeat("x", 4000)
	}
	return all
}

// TestHeadersOfAProbeAreBounded over every protocol: those of an answer, of what comes before it, and of what comes
// after it.
func TestHeadersOfAProbeAreBounded(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, prefix := 3, "" // 12 KiB
		if strings.HasSuffix(r.URL.Path, "many") {
			n = 8
		}
		if strings.HasPrefix(r.URL.Path, "/after") {
			prefix = http.TrailerPrefix
		}
		for name, value := range lines(n) {
			w.Header().Set(prefix+name, value)
		}
		if strings.HasPrefix(r.URL.Path, "/before") {
			w.WriteHeader(http.StatusEarlyHints)
			clear(w.Header())
		}
		if strings.HasPrefix(r.URL.Path, "/redirect") {
			w.Header().Set("Location", "/few")
			w.WriteHeader(http.StatusFound)
		}
		fmt.Fprint(w, "body")
	})
	start := func(secure bool, set func(p *http.Protocols)) string {
		server := httptest.NewUnstartedServer(handler)
		server.Config.Protocols = new(http.Protocols)
		set(server.Config.Protocols)
		if secure {
			server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
			server.EnableHTTP2 = server.Config.Protocols.HTTP2()
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		return server.URL
	}
	http1 := func(p *http.Protocols) { p.SetHTTP1(true) }
	h2c := v1.HTTPProtocolHTTP2
	for name, server := range map[string]struct {
		url      string
		protocol *v1.HTTPProtocol
	}{
		"HTTP":         {start(false, http1), nil},
		"HTTPS":        {start(true, http1), nil},
		"HTTPS HTTP/2": {start(true, func(p *http.Protocols) { p.SetHTTP2(true) }), nil},
		"h2c":          {start(false, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }), &h2c},
	} {
		for path, want := range map[string]Outcome{
			"/few": Success, "/many": Failure, "/before/few": Success, "/before/many": Failure,
			"/redirect/few": Success, "/redirect/many": Failure,
		} {
			target := get(t, server.url+path)
			target.Probe.HTTPGet.Protocol, target.Probe.TimeoutSeconds = server.protocol, 10
			got, err := prober().Probe(t.Context(), target)
			if err != nil || got.Outcome != want {
				t.Errorf("%s %s: %v %.200q, %v", name, path, got.Outcome, got.Output, err)
			}
		}
		target := get(t, server.url+"/after/many")
		target.Probe.HTTPGet.Protocol, target.Probe.TimeoutSeconds = server.protocol, 10
		if got, err := prober().Probe(t.Context(), target); err == nil {
			t.Errorf("%s: %v with 32 KiB of headers after the body", name, got.Outcome)
		}
	}
}

// TestMetadataIsBounded of a gRPC server, before the answer and after it.
func TestMetadataIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		send func(ctx context.Context, md metadata.MD) error
		n    int
		want Outcome
	}{
		"few":        {grpc.SetHeader, 3, Success},
		"many":       {grpc.SetHeader, 8, Failure},
		"few after":  {grpc.SetTrailer, 3, Success},
		"many after": {grpc.SetTrailer, 8, Failure},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo,
			next grpc.UnaryHandler) (any, error) {
			if err := test.send(ctx, metadata.New(lines(test.n))); err != nil {
				return nil, err
			}
			return next(ctx, r)
		}))
		grpc_health_v1.RegisterHealthServer(server, health.NewServer())
		go func() { _ = server.Serve(l) }()
		defer server.Stop()
		got, err := prober().Probe(t.Context(), Target{PodIP: "127.0.0.1", Probe: &v1.Probe{
			TimeoutSeconds: 10,
			ProbeHandler:   v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: int32(l.Addr().(*net.TCPAddr).Port)}},
		}})
		if err != nil || got.Outcome != test.want {
			t.Errorf("%s: %v %.200q, %v", name, got.Outcome, got.Output, err)
		}
	}
}

// TestSettingsThatGoOnTakeNoMemory of the prober: a server of gRPC sends them and reads no acknowledgement.
func TestSettingsThatGoOnTakeNoMemory(t *testing.T) {
	const most = 64 << 20
	var settings bytes.Buffer
	// As many as a frame has room for.
	if err := http2.NewFramer(&settings, nil).WriteSettings(make([]http2.Setting, 2730)...); err != nil {
		t.Fatal(err)
	}
	sent := make(chan int, 1)
	address := serve(t, func(c net.Conn) {
		n := 0
		defer func() { sent <- n }()
		for n < most {
			k, err := c.Write(settings.Bytes())
			if n += k; err != nil {
				return
			}
		}
	})
	port, err := strconv.Atoi(address[strings.LastIndex(address, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	got, err := prober().Probe(t.Context(), Target{PodIP: "127.0.0.1", Probe: &v1.Probe{
		TimeoutSeconds: 10, ProbeHandler: v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: int32(port)}},
	}})
	if err != nil || got.Outcome != Failure {
		t.Errorf("%v %.200q, %v", got.Outcome, got.Output, err)
	}
	if n := <-sent; n >= most {
		t.Errorf("%d MiB of settings are taken", n>>20)
	}
}

// TestHeadersThatGoOnTakeNoMemory while a probe waits for their end.
func TestHeadersThatGoOnTakeNoMemory(t *testing.T) {
	head := []byte("HTTP/1.1 200 OK\r\n")
	for i := 0; len(head) < 9<<20; i++ {
		head = fmt.Appendf(head, "%06x:\r\n", i)
	}
	address := serve(t, func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = c.Write(head) // and no empty line
		_, _ = c.Read(make([]byte, 1))
	})
	target := get(t, address)
	target.Probe.TimeoutSeconds = 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := prober().Probe(t.Context(), target)
	runtime.ReadMemStats(&after)
	if err != nil || got.Outcome != Failure || !strings.Contains(got.Output, "headers exceeded 16384 bytes") {
		t.Errorf("%v %.200q, %v", got.Outcome, got.Output, err)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8<<20 {
		t.Errorf("%d MiB allocated", allocated>>20)
	}
}

// TestCertificatesOfAProbeAreBounded has a server show one with 200 KB of names.
func TestCertificatesOfAProbeAreBounded(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{largecert.Pair(t, 50_000)}}
	server.StartTLS()
	defer server.Close()
	got, err := prober().Probe(t.Context(), get(t, server.URL+"/"))
	if want := "more than 64 KiB before the handshake is done"; err != nil || got.Outcome != Failure ||
		!strings.HasSuffix(got.Output, want) {
		t.Errorf("%v %.200q, %v; want a failure that ends in %q", got.Outcome, got.Output, err, want)
	}
}

// TestAServerThatShakesNoHands keeps no connection beyond the probe.
func TestAServerThatShakesNoHands(t *testing.T) {
	closed := make(chan error, 1)
	address := serve(t, func(c net.Conn) {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, err := io.Copy(io.Discard, c) // what begins the handshake
		closed <- err
	})
	target := get(t, strings.Replace(address, "http:", "https:", 1))
	target.Probe.TimeoutSeconds = 1
	if got, err := prober().Probe(t.Context(), target); err != nil || got.Outcome != Failure {
		t.Errorf("%v %.200q, %v", got.Outcome, got.Output, err)
	}
	if err := <-closed; err != nil {
		t.Errorf("the probe keeps its connection: %v", err)
	}
}

// TestAServerThatRefusesRequests over HTTP/2, so that the transport asks again on another connection, is asked a few
// times.
func TestAServerThatRefusesRequests(t *testing.T) {
	server, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{largecert.Pair(t, 1)}, NextProtos: []string{"h2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conns := make(chan struct{}, 1000)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			conns <- struct{}{}
			// SETTINGS, and a GOAWAY which says that no request was served.
			_, _ = c.Write([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00" +
				"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
	}()
	target := get(t, "https://"+server.Addr().String()+"/")
	target.Probe.TimeoutSeconds = 2
	if got, err := prober().Probe(t.Context(), target); err != nil || got.Outcome != Failure {
		t.Errorf("%v %.200q, %v", got.Outcome, got.Output, err)
	}
	if n := len(conns); n == 0 || n > 16 {
		t.Errorf("a probe has %d connections", n)
	}
}

// TestFewConnectionsLinger of those whose server takes nothing: each that does keeps a thread for a second.
func TestFewConnectionsLinger(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	full := func() net.Conn {
		c, err := dial(t.Context(), "tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Write(make([]byte, 16<<20)); err == nil {
			t.Fatal("the server takes all")
		}
		return c
	}
	last := full()
	for range maxLingering {
		lingerers <- struct{}{} // as others that close
	}
	defer func() {
		for range maxLingering {
			<-lingerers
		}
	}()
	began := time.Now()
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > time.Second/2 {
		t.Errorf("a connection lingers for %v beside %d others", took, maxLingering)
	}
}

// TestWaitingProbesTakeLittleMemory however short the headers are of an answer whose end does not come.
func TestWaitingProbesTakeLittleMemory(t *testing.T) {
	const probes, most = 32, 512 << 10
	var head []byte
	for i := 0; len(head) < maxHeader-200; i++ {
		head = fmt.Appendf(head, "%s:\n", strconv.FormatInt(int64(i), 36))
	}
	sent := make(chan struct{}, probes)
	address := serve(t, func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = c.Write(append([]byte("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n"), head...))
		_, _ = c.Write([]byte("\r\nbody")) // of which the rest does not come
		sent <- struct{}{}
		_, _ = c.Read(make([]byte, 1))
	})
	target := get(t, address)
	target.Probe.TimeoutSeconds = 60
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, probes)
	p := prober()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for range probes {
		go func() {
			_, _ = p.Probe(ctx, target)
			ended <- struct{}{}
		}()
	}
	for range probes {
		<-sent
	}
	if got := int64(heap()-before) / probes; got > most {
		t.Errorf("a probe that waits takes %d KiB", got>>10)
	}
	cancel()
	for range probes {
		<-ended
	}
}

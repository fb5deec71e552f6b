// Package test runs nodeapi alone against a real bus.
//
// The test plays the runtime behind podsync's gateway, nodestatus's reviews, and podsync's metrics and pods.
package test

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/nodeapi"
	"github.com/microlet/microlet/services/nodeapi/internal/testpki"
	"github.com/microlet/microlet/services/nodeapi/internal/teststream"
)

func TestMain(m *testing.M) {
	proctest.Program(func() { service.Main(nodeapi.Command()) })
	if os.Getenv(networkEnv) == "" {
		os.Exit(inNetwork())
	}
	if err := addAddresses(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil { // they wait, most of the time
		panic(err)
	}
	os.Exit(m.Run())
}

const (
	// reviewTimeout is how long nodeapi waits for nodestatus' word, and slack what a busy machine adds.
	reviewTimeout = 10 * time.Second
	slack         = 10 * time.Second
	// statsTimeout is how long nodeapi waits for the figures of stats.
	statsTimeout = 8 * time.Second
	// soon is what a request takes at most that nothing holds up, on such a machine. It is well below all
	// that nodeapi waits for.
	soon = 5 * time.Second
)

// testNode is a node with nodeapi's certificates and configuration, and peers that may come and go.
type testNode struct {
	*bustest.Node
	t       *testing.T
	dir     string // of files
	config  nodeapi.Config
	clients *testpki.Authority
	servers *testpki.Authority

	reviews *reviews
	runtime *teststream.Runtime
	crio    bool // the runtime has CRI-O's manners
	pods    *bus.Writer
	status  *bus.Writer
}

// newTestNode makes what nodeapi finds; no peer is there yet, but the bus.
func newTestNode(t *testing.T) *testNode {
	t.Helper()
	e := &testNode{
		Node:    bustest.New(t),
		t:       t,
		dir:     t.TempDir(),
		clients: testpki.New(t, "clients"),
		servers: testpki.New(t, "servers"),
		reviews: newReviews(),
		runtime: teststream.New(t),
		config:  nodeapi.DefaultConfig(),
	}
	kubelet := kubeletconfig.Default()
	kubelet.Address, kubelet.HealthzBindAddress = "127.0.0.1", "127.0.0.1"
	kubelet.Port, kubelet.HealthzPort = freePort(t), new(freePort(t))
	kubelet.TLSCertFile, kubelet.TLSPrivateKeyFile = filepath.Join(e.dir, "serving.crt"), filepath.Join(e.dir,
		"serving.key")
	kubelet.Authentication.X509.ClientCAFile = filepath.Join(e.dir, "ca.crt")
	kubelet.PodLogsDir = filepath.Join(e.dir, "pods")
	if err := os.Mkdir(kubelet.PodLogsDir, 0o755); err != nil {
		t.Fatal(err)
	}
	e.config.Service = e.Service()
	e.config.Kubelet = &kubeletconfig.Config{Kubelet: kubelet, Node: kubeletconfig.NodeFlags{RootDir: e.dir}}
	e.renewServing("first")
	testpki.Replace(t, map[string][]byte{kubelet.Authentication.X509.ClientCAFile: e.clients.PEM})
	return e
}

// freePort is a port that is free at this moment, below those that the kernel gives to connections.
func freePort(t *testing.T) int32 {
	t.Helper()
	for range 100 {
		port := 10240 + rand.Int32N(9000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = l.Close() // it was only tried
			return port
		}
	}
	t.Fatal("there is no free port")
	return 0
}

func (e *testNode) kubelet() *kubeletv1beta1.KubeletConfiguration { return &e.config.Kubelet.Kubelet }

// renewServing replaces the serving certificate by one of that name.
func (e *testNode) renewServing(name string) {
	e.t.Helper()
	certificate, key := e.servers.Issue(testpki.Server(name))
	testpki.Replace(e.t, map[string][]byte{e.kubelet().TLSCertFile: certificate, e.kubelet().TLSPrivateKeyFile: key})
}

// start starts nodeapi inside the test, and waits for both of its ports.
func (e *testNode) start() {
	e.t.Helper()
	e.Run(func(ctx context.Context) error { return nodeapi.Run(ctx, e.config) })
	e.awaitPorts()
}

func (e *testNode) awaitPorts() {
	e.t.Helper()
	for _, address := range []string{e.secure(), e.health()} {
		proctest.Await(e.t, 30*time.Second, "port "+address+" is open", func() bool {
			c, err := net.Dial("tcp", address)
			if err != nil {
				return false
			}
			return c.Close() == nil
		})
	}
}

func (e *testNode) secure() string { return fmt.Sprintf("127.0.0.1:%d", e.kubelet().Port) }
func (e *testNode) health() string { return fmt.Sprintf("127.0.0.1:%d", *e.kubelet().HealthzPort) }

// startPodsync is podsync on the bus, with one pod "ns/p". Its container "c" runs and has logged "one".
func (e *testNode) startPodsync() {
	e.t.Helper()
	e.Client(role.Podsync, func(c *bus.Client) {
		e.pods, e.status = c.Own(subject.Pods), c.Own(subject.PodStatus)
	})
	e.addPod("p")
	e.pods.Complete()
	e.status.Complete()
}

// addPod puts a pod of this name on the bus, and has the runtime run it.
func (e *testNode) addPod(name string) {
	e.t.Helper()
	p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")}}
	p.Spec.Containers = []v1.Container{{Name: "c", Image: "image"}}
	logs := filepath.Join(e.kubelet().PodLogsDir, name)
	_, ids, err := e.runtime.StartPod(e.t.Context(),
		fake.Pod{Namespace: "ns", Name: name, UID: string(p.UID), LogDirectory: logs, Containers: []string{"c"}})
	if err != nil {
		e.t.Fatal(err)
	}
	p.Status.ContainerStatuses = []v1.ContainerStatus{{
		Name:        "c",
		ContainerID: "fake://" + ids["c"],
		State:       v1.ContainerState{Running: &v1.ContainerStateRunning{}},
	}}
	if err := e.firstLine(logs, ids["c"]); err != nil {
		e.t.Fatal(err)
	}
	spec, err := p.Marshal()
	if err != nil {
		e.t.Fatal(err)
	}
	status, err := p.Status.Marshal()
	if err != nil {
		e.t.Fatal(err)
	}
	e.pods.Put(subject.PodKey(string(p.UID)), &podsyncv1.Pod{Pod: spec, Source: podsyncv1.PodSource_POD_SOURCE_API})
	e.status.Put(subject.PodKey(string(p.UID)), &podsyncv1.PodStatus{Status: status})
}

// firstLine logs "one".
func (e *testNode) firstLine(logs, container string) error {
	if e.crio {
		return e.runtime.WriteLog(container, "one")
	}
	return errors.Join(os.Mkdir(logs, 0o755), os.WriteFile(filepath.Join(logs, "c.log"),
		[]byte("2026-01-01T00:00:00.000000000Z stdout F one\n"), 0o644))
}

// startMetrics serves podsync's metrics and health.
func (e *testNode) startMetrics(healthy func() error) (stop func()) {
	e.t.Helper()
	l, err := net.Listen("unix", e.config.Service.MetricsSocket(role.Podsync))
	if err != nil {
		e.t.Fatal(err)
	}
	return e.Run(func(ctx context.Context) error {
		return telemetry.Serve(ctx, l, e.config.Service.Peers(), prometheus.NewRegistry(), healthy)
	})
}

// caller sends requests, each with its own deadline.
type caller struct {
	*http.Client
	t     *testing.T
	base  string
	token string
}

// caller returns one with these client certificates, from an address: loopback's or a callerAddress.
func (e *testNode) caller(from string, pairs ...tls.Certificate) *caller {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: pairs},
		DialContext:     (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext,
	}
	e.t.Cleanup(transport.CloseIdleConnections)
	return &caller{
		Client: &http.Client{Transport: transport, Timeout: reviewTimeout + slack},
		t:      e.t,
		base:   "https://" + e.secure(),
	}
}

// user is a caller that its certificate names. The name says what it may do, see reviews.
func (e *testNode) user(name string) *caller {
	return e.caller("127.0.0.1", e.clients.Pair(testpki.Client(name)))
}

// holder is a caller with a bearer token, of which the same is true.
func (e *testNode) holder(token string) *caller {
	c := e.caller("127.0.0.1")
	c.token = token
	return c
}

// healthz asks the health port.
func (e *testNode) healthz(path string) (int, string) {
	e.t.Helper()
	c := e.caller("127.0.0.1")
	c.base = "http://" + e.health()
	return c.get(path)
}

func (c *caller) do(method, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.Do(r)
}

// get returns the code and body of an answer; code 0 is that there was none.
func (c *caller) get(path string) (int, string) {
	answer, err := c.do(http.MethodGet, path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(body)
}

// awaitGet asks until the answer has the code, each time on a new connection: who was not asked for the
// certificate that he has stays a stranger on the old one.
func (c *caller) awaitGet(within time.Duration, path string, want int) {
	c.t.Helper()
	code, body := 0, ""
	defer func() {
		if code != want {
			c.t.Logf("the last answer to %s was %d %q", path, code, body)
		}
	}()
	proctest.Await(c.t, within, fmt.Sprintf("%s answers %d", path, want), func() bool {
		c.CloseIdleConnections()
		code, body = c.get(path)
		return code == want
	})
}

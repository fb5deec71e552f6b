// Package test runs real bus processes with the clients of every role, and kills the bus under every bucket.
package test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(strangerEnv); path != "" {
		beStranger(path)
	}
	if path := os.Getenv(dialEnv); path != "" {
		peertest.Ready()
		beDialer(path)
	}
	proctest.Program(func() { beBus(os.Args[1]) })
	os.Exit(m.Run())
}

// beBus is a bus in a folder until it is killed.
func beBus(dir string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if _, err := bustest.Start(context.Background(), dir, log, nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, isReady)
	select {}
}

// isReady is what a bus logs once it serves.
const isReady = "the bus is ready"

// node is a runtime folder and the bus that serves it.
type node struct {
	t   *testing.T
	dir string
	bus *proctest.Process
}

// newNode makes the folder and the keys, and starts the bus.
func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{t: t, dir: dir}
	bustest.NKeys(t, n.nkeys())
	n.start()
	return n
}

func (n *node) config() service.Config { return service.Config{RuntimeDir: n.dir} }

func (n *node) nkeys() string { c := n.config(); return c.NKeys() }

func (n *node) socket() string { c := n.config(); return c.BusSocket() }

// start starts the bus and returns when it says that it is ready.
func (n *node) start() {
	n.t.Helper()
	n.bus = proctest.Start(n.t, "the bus", n.dir)
	n.bus.Await(time.Minute, isReady, func() bool { return strings.Contains(n.bus.Log.String(), isReady+"\n") })
}

// newBoot makes the store one of another boot.
func (n *node) newBoot() {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, "bus", "boot_id"), []byte("another boot\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// peer is a client with its log and metrics.
type peer struct {
	*bus.Client
	t       *testing.T
	metrics *prometheus.Registry
	log     *proctest.Buffer
	cancel  context.CancelFunc
	done    chan error
}

// peer makes a client of a role that runs until the test ends or it is closed. setup is called before
// it runs, and may be nil. An empty socket is the bus's.
func (n *node) peer(r role.Role, replica, socket string, setup func(*bus.Client)) *peer {
	n.t.Helper()
	p := &peer{t: n.t, metrics: prometheus.NewRegistry(), log: &proctest.Buffer{}, done: make(chan error, 1)}
	if socket == "" {
		socket = n.socket()
	}
	c, err := bus.New(bus.Options{
		Socket: socket, SeedFile: bus.SeedFile(n.nkeys(), r), Role: r, Replica: replica,
		Log: slog.New(slog.NewTextHandler(p.log, nil)), Metrics: p.metrics, AuditPeriod: 400 * time.Millisecond,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	p.Client = c
	if setup != nil {
		setup(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.done <- c.Run(ctx) }()
	n.t.Cleanup(func() {
		p.close()
		if n.t.Failed() {
			n.t.Logf("log of %s:\n%s", c.Writer(), p.log)
		}
	})
	return p
}

func (p *peer) close() {
	p.cancel()
	select {
	case err, ok := <-p.done:
		if ok && err != nil {
			p.t.Errorf("client %s: %v", p.Writer(), err)
		}
		if ok {
			close(p.done)
		}
	case <-time.After(bound):
		p.t.Errorf("client %s does not end", p.Writer())
	}
}

// metric sums a counter or gauge over the labels that are given as name, value, ….
func (p *peer) metric(name string, labels ...string) float64 {
	p.t.Helper()
	families, err := p.metrics.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if matches(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func matches(m *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		found := false
		for _, l := range m.GetLabel() {
			found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}

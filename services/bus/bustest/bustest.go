// Package bustest surrounds one service with what it finds on a node, for the tests that run it alone.
//
// A Node is a runtime folder with the keys of all roles and a real bus, which can be killed and started
// again at its address. The test plays the service's peers: on the bus with the clients of their roles,
// and with servers on their sockets.
//
// It guarantees that whatever it started has ended when the test has.
package bustest

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/microlet/microlet/proto/role"
	server "github.com/microlet/microlet/services/bus"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
)

// NodeName is the name of every Node.
const NodeName = "node-1"

// Node is a runtime folder and the bus that serves it.
type Node struct {
	t       testing.TB
	dir     string
	address string
	server  *server.Server
}

// New makes the folder and its keys, and starts the bus.
func New(t testing.TB) *Node {
	t.Helper()
	// The test's own folder has the test's name in it, and a socket's path may have 108 bytes.
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	n := &Node{t: t, dir: dir, address: "127.0.0.1:0"}
	NKeys(t, filepath.Join(dir, "nkeys"))
	folders := []string{filepath.Join(dir, "cri")}
	for _, r := range role.All() {
		folders = append(folders, (&service.Config{RuntimeDir: dir}).SocketDir(r))
	}
	for _, f := range folders {
		if err := os.MkdirAll(f, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	n.StartBus()
	return n
}

// NKeys makes the keys of all roles in a folder, for this test's own user.
func NKeys(t testing.TB, dir string) {
	t.Helper()
	var ids []role.Identity
	for _, r := range role.All() {
		ids = append(ids, role.Identity{Role: r, UID: os.Getuid(), GID: os.Getgid()})
	}
	if err := bus.GenerateNKeys(dir, ids); err != nil {
		t.Fatal(err)
	}
}

// Dir is the runtime folder.
func (n *Node) Dir() string { return n.dir }

// Service is the config of a service of the node.
func (n *Node) Service() service.Config {
	c := service.DefaultConfig()
	c.RuntimeDir, c.BusAddress, c.NodeName = n.dir, n.address, NodeName
	return c
}

// StartBus starts the bus, again at the address that it had before.
func (n *Node) StartBus() {
	n.t.Helper()
	s, err := server.StartServer(n.t.Context(), server.ServerOptions{
		Address: n.address, StoreDir: filepath.Join(n.dir, "bus"), NKeyDir: filepath.Join(n.dir, "nkeys"),
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.server, n.address = s, s.Address()
	n.t.Cleanup(s.Close)
}

// StopBus ends the bus and cuts every connection to it.
func (n *Node) StopBus() { n.server.Close() }

// Client runs the bus's client of a role until the test ends. setup makes its watches and writers.
func (n *Node) Client(r role.Role, setup func(*bus.Client)) {
	n.t.Helper()
	c, err := bus.New(bus.Options{
		Address: n.address, SeedFile: bus.SeedFile(filepath.Join(n.dir, "nkeys"), r), Role: r, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	setup(c)
	n.Run(c.Run)
}

// Serve serves a peer's API on a socket of the node until the test ends or stop is called. stop cuts
// every connection, as the peer's death would.
func (n *Node) Serve(path string, register func(*grpc.Server)) (stop func()) {
	n.t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		n.t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // its error after Stop says that it was stopped
	stop = sync.OnceFunc(func() { s.Stop(); serving.Wait() })
	n.t.Cleanup(stop)
	return stop
}

// Run runs f until the test ends or stop is called, and then waits for it. An error of f's fails the test.
func (n *Node) Run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("ended with %v", err)
		}
	})
	n.t.Cleanup(stop)
	return stop
}

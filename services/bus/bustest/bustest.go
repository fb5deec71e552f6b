// Package bustest provides the surroundings of one service for tests that run it alone.
//
// A Node is a runtime folder with the keys of all roles and a real bus. A test can kill the bus and start it again
// at the same socket. The test plays the peers of the service: on the bus with the clients of their roles, and with
// servers on their sockets. Everything that the package starts ends with the test.
package bustest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/microlet/microlet/proto/role"
	server "github.com/microlet/microlet/services/bus"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// NodeName is the name of every Node.
const NodeName = "node-1"

// Node is a runtime folder and the bus that serves it.
type Node struct {
	t   testing.TB
	dir string
	bus *Bus
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
	n := &Node{t: t, dir: dir}
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
	c.RuntimeDir, c.NodeName = n.dir, NodeName
	return c
}

// StartBus starts the bus, again at the socket that it had before.
func (n *Node) StartBus() {
	n.t.Helper()
	b, err := Start(n.t.Context(), n.dir, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		n.t.Fatal(err)
	}
	n.bus = b
	n.t.Cleanup(b.Close)
}

// StopBus ends the bus and cuts every connection to it.
func (n *Node) StopBus() { n.bus.Close() }

// Bus is a bus that serves a runtime folder, as the service does but without its heartbeat.
type Bus struct {
	*server.Server
	stop func()
}

// Start starts a bus in a runtime folder that has the keys of all roles. alter, if not nil, changes its options.
func Start(ctx context.Context, dir string, log *slog.Logger, alter func(*server.ServerOptions)) (*Bus, error) {
	cfg := service.Config{RuntimeDir: dir}
	o := server.ServerOptions{StoreDir: filepath.Join(dir, "bus"), NKeyDir: cfg.NKeys(), Log: log}
	if alter != nil {
		alter(&o)
	}
	folder := filepath.Dir(cfg.BusSocket())
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return nil, err
	}
	l, err := unixgrpc.Listen(cfg.BusSocket(), 0o660, -1)
	if err != nil {
		return nil, err
	}
	l = unixgrpc.Bound(l, unixgrpc.BoundOptions{Peers: cfg.Peers(), Log: log})
	s, err := server.StartServer(ctx, o)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- server.NewDoor(s, cfg.Peers(), nil).Serve(ctx, l) }()
	return &Bus{Server: s, stop: sync.OnceFunc(func() {
		cancel()
		s.Close()
		if err := <-served; err != nil {
			log.Error("the door of the bus failed", logkey.Err, err)
		}
	})}, nil
}

// Close ends the bus and cuts every connection to it.
func (b *Bus) Close() { b.stop() }

// Client runs the bus's client of a role until the test ends. setup makes its watches and writers.
func (n *Node) Client(r role.Role, setup func(*bus.Client)) {
	n.t.Helper()
	cfg := n.Service()
	c, err := bus.New(bus.Options{
		Socket: cfg.BusSocket(), SeedFile: bus.SeedFile(cfg.NKeys(), r), Role: r, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	setup(c)
	n.Run(c.Run)
}

// Serve serves a peer's API on a socket of the node until the test ends or stop is called. Its health serves the names
// of its services, as service.Service.Offer has it. stop cuts every connection, as the peer's death would.
func (n *Node) Serve(path string, register func(*grpc.Server)) (stop func()) {
	n.t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		n.t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	status := health.NewServer()
	for name := range s.GetServiceInfo() {
		status.SetServingStatus(name, grpc_health_v1.HealthCheckResponse_SERVING)
	}
	grpc_health_v1.RegisterHealthServer(s, status)
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

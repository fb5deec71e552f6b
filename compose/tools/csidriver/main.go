// Command csidriver is a CSI driver whose volumes are folders, for tests on one node.
//
// It truly mounts: a stage binds the volume's folder to the staging path, and a publish binds that to the target. It
// passes csi-test's sanity suite.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/mount-utils"
)

func main() {
	endpoint := flag.String("endpoint", "/run/csidriver/csi.sock", "`path` of the socket to serve")
	dir := flag.String("dir", "/var/lib/csidriver", "`folder` of the volumes")
	name := flag.String("name", "csidriver.microlet.example", "the driver's `name`")
	node := flag.String("node-id", "", "the node's `name`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *endpoint, driver{name: *name, node: *node, store: store{*dir}}); err != nil {
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(1)
	}
}

// run serves a driver until ctx ends.
func run(ctx context.Context, endpoint string, d driver) error {
	if d.node == "" {
		return errors.New("-node-id is empty: write the node's name")
	}
	if err := os.MkdirAll(d.store.dir, 0o700); err != nil {
		return err
	}
	if err := os.Remove(endpoint); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", endpoint)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, identity{driver: d})
	csi.RegisterControllerServer(server, controller{driver: d})
	csi.RegisterNodeServer(server, &node{driver: d, mounter: mount.New("")})
	stopped := context.AfterFunc(ctx, server.GracefulStop)
	defer stopped()
	return server.Serve(l)
}

// driver is what its services share.
type driver struct {
	name, node string
	store      store
}

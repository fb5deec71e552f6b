// Command csidriver is a CSI driver for tests on one node. Its volumes are folders or files.
//
// It truly mounts: a stage binds the volume's folder to the staging path, and a publish binds that to the target. A
// block volume is a file, which a stage attaches to a loop device. With the parameter kind: memory of a StorageClass,
// the folder is a file system of the size that was asked for. Both of these grow, also while pods have them. It passes
// csi-test's sanity suite. It registers itself with the node agent.
//
// The flags that Kubernetes' hostpathplugin has too are named as there, since the images of upstream's suite are called
// with them.
//
// It writes each call to a file, a line of JSON at its begin and one at its end. A file of rules says which calls come
// late, fail, wait, or end the driver.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/mount-utils"

	"github.com/microlet/microlet/compose/tools/csidriver/proxy"
	"github.com/microlet/microlet/compose/tools/csidriver/registration"
)

func main() {
	var o options
	flag.StringVar(&o.endpoint, "endpoint", "/run/csidriver/csi.sock", "`path` of the socket to serve, or its URL: "+
		"unix:///csi/csi.sock")
	flag.StringVar(&o.registration, "registration", "", "`path` of the socket for the node agent's plugin registration, "+
		"in its folder plugins_registry (default: none)")
	flag.StringVar(&o.dir, "statedir", "/csi-data-dir", "`folder` of the volumes")
	flag.StringVar(&o.name, "drivername", "csidriver.microlet.example", "the driver's `name`")
	flag.StringVar(&o.node, "nodeid", "", "the node's `name`")
	flag.BoolVar(&o.can.attach, "enable-attach", false, "attach volumes to the node, and want them attached")
	flag.BoolVar(&o.can.topology, "enable-topology", false, "say on which node volumes are")
	flag.Int64Var(&o.can.limit, "attach-limit", 0, "the same as -maxvolumespernode, which wins if it comes later (`number`)")
	flag.Int64Var(&o.can.limit, "maxvolumespernode", 0,
		"say that the node takes so many volumes, which the driver does not count (default: any `number`)")
	flag.BoolVar(&o.can.modify, "enable-controller-modify-volume", false, "take changes of a volume's parameters")
	flag.Func("accepted-mutable-parameter-names", "the `names` of the parameters that may change, joined by commas",
		func(names string) error {
			o.can.mutable = strings.Split(names, ",")
			return nil
		})
	flag.BoolVar(&o.can.keepInUse, "check-volume-lifecycle", false, "delete no volume that is staged or published")
	flag.BoolVar(&o.can.expand, "node-expand-required", false, "have the node expand folders too")
	flag.StringVar(&o.proxy, "proxy-endpoint", "", "be no driver, but a proxy to one that connects to this `address`, "+
		"as tcp://:9000")
	flag.StringVar(&o.calls, "calls", "", "`file` to which calls are written (default: none)")
	flag.StringVar(&o.rules, "rules", "", "`file` of the rules for calls, which is read at each (default: none)")
	flag.IntVar(&o.verbosity, "v", 0, "log each call with all that it contains, from `level` 5 on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(1)
	}
}

type options struct {
	endpoint, registration, dir, name, node, proxy, calls, rules string

	can       abilities
	verbosity int
}

// abilities are what a driver may do or leave.
type abilities struct {
	attach, topology, expand bool
	modify, keepInUse        bool
	mutable                  []string
	limit                    int64
}

// run serves a driver until ctx ends. Calls under way end then.
func run(ctx context.Context, o options) error {
	o.endpoint = strings.TrimPrefix(o.endpoint, "unix://")
	if o.proxy != "" {
		return proxy.Run(ctx, o.endpoint, o.proxy)
	}
	if o.node == "" {
		return errors.New("-nodeid is empty: write the node's name")
	}
	d := driver{name: o.name, node: o.node, can: o.can, store: store{o.dir}}
	if err := os.MkdirAll(d.store.dir, 0o700); err != nil {
		return err
	}
	w, err := newWatcher(o.calls, o.rules)
	if err != nil {
		return err
	}
	defer w.close()
	around := []grpc.UnaryServerInterceptor{w.call}
	if o.verbosity >= 5 {
		around = append(around, logCalls(os.Stdout))
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(around...))
	csi.RegisterIdentityServer(server, identity{driver: d})
	csi.RegisterControllerServer(server, controller{driver: d})
	csi.RegisterNodeServer(server, &node{driver: d, mounter: mount.New("")})
	listener, err := listen(o.endpoint)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer context.AfterFunc(ctx, server.Stop)()
	if o.registration == "" {
		return server.Serve(listener)
	}
	// The agent calls as soon as this socket is there, so it is the last.
	second, err := listen(o.registration)
	if err != nil {
		return err
	}
	register := registration.Server(registration.Driver{Name: o.name, Endpoint: o.endpoint, Refused: func(reason string) {
		fmt.Fprintln(os.Stderr, "csidriver: the node agent refuses the driver:", reason)
	}})
	defer register.Stop()
	all.Go(func() { _ = register.Serve(second) })
	return server.Serve(listener)
}

// listen takes the place of what an earlier process has left.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// driver is what its services share.
type driver struct {
	name, node string
	can        abilities
	store      store
}

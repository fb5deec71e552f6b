// Command registrar registers a CSI driver with the node agent, under the flags of Kubernetes' node-driver-registrar.
//
// It asks the driver for its name, and serves the agent's plugin registration in the folder -registration-dir. It ends
// with an error if the agent refuses the driver, so that it is started again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/microlet/microlet/compose/tools/csidriver/registration"
)

func main() {
	var o options
	flag.StringVar(&o.driver, "csi-address", "/run/csi/socket", "`path` of the driver's socket")
	flag.StringVar(&o.endpoint, "kubelet-registration-path", "", "`path` of the driver's socket on the node")
	flag.StringVar(&o.dir, "registration-dir", "/registration", "the node agent's `folder` of registrations")
	flag.StringVar(&o.http, "http-endpoint", "", "`address` at which /healthz is served (default: none)")
	flag.DurationVar(&o.timeout, "timeout", time.Second, "how long the driver has for an answer")
	flag.Int("v", 0, "ignored: this program logs little")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "registrar:", err)
		os.Exit(1)
	}
}

type options struct {
	driver, endpoint, dir, http string
	timeout                     time.Duration
}

// run registers the driver until ctx ends or the agent refuses it.
func run(ctx context.Context, o options) error {
	if o.endpoint == "" {
		return errors.New("-kubelet-registration-path is empty: write where the driver's socket is on the node")
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	name, err := nameOf(ctx, o)
	if err != nil {
		return err
	}
	path := filepath.Join(o.dir, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path) // its close removes the socket
	if err != nil {
		return err
	}
	register := registration.Server(registration.Driver{Name: name, Endpoint: o.endpoint, Refused: func(reason string) {
		end(fmt.Errorf("the node agent refuses driver %s: %s", name, reason))
	}})
	health := &http.Server{
		Addr: o.http, ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") }),
	}
	var all sync.WaitGroup
	defer all.Wait()
	if o.http != "" {
		all.Go(func() {
			if err := health.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
				end(err)
			}
		})
	}
	defer context.AfterFunc(ctx, func() {
		_ = health.Close()
		register.Stop()
	})()
	fmt.Printf("registrar: driver %s is offered at %s\n", name, path)
	if err := register.Serve(listener); err != nil {
		end(err)
		_ = health.Close()
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// nameOf asks the driver until it answers.
func nameOf(ctx context.Context, o options) (string, error) {
	conn, err := grpc.NewClient("unix://"+o.driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	for {
		limit, cancel := context.WithTimeout(ctx, o.timeout)
		info, err := csi.NewIdentityClient(conn).GetPluginInfo(limit, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		cancel()
		if err == nil && info.GetName() != "" {
			return info.GetName(), nil
		}
		fmt.Fprintf(os.Stderr, "registrar: the driver at %s does not give its name: %v\n", o.driver, err)
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

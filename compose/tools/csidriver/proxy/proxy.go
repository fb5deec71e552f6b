// Package proxy offers a CSI driver that runs elsewhere at a socket of the node.
//
// It joins each connection of the socket with one that comes to its TCP port, in the order of their arrival. The
// end-to-end suite of Kubernetes connects to the port through the node agent's port forwarding, and answers the calls
// itself.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
)

// Run joins connections until ctx ends. The remote address is of the form tcp://:9000.
func Run(ctx context.Context, endpoint, remote string) error {
	address, ok := strings.CutPrefix(remote, "tcp://")
	if !ok {
		return fmt.Errorf("-proxy-endpoint is %q: it must be tcp://<address>", remote)
	}
	if err := os.Remove(endpoint); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	local, err := net.Listen("unix", endpoint)
	if err != nil {
		return err
	}
	far, err := net.Listen("tcp", address)
	if err != nil {
		_ = local.Close()
		return err
	}
	closeBoth := func() { _, _ = local.Close(), far.Close() }
	defer closeBoth()
	defer context.AfterFunc(ctx, closeBoth)()
	var pairs sync.WaitGroup
	defer pairs.Wait()
	for {
		near, err := local.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		driver, err := far.Accept()
		if err != nil {
			_ = near.Close()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		pairs.Go(func() { join(ctx, near, driver) })
	}
}

// join copies both ways until one side ends, or ctx does.
func join(ctx context.Context, a, b net.Conn) {
	closeBoth := func() { _, _ = a.Close(), b.Close() }
	defer context.AfterFunc(ctx, closeBoth)()
	var ways sync.WaitGroup
	ways.Go(func() { _, _ = io.Copy(a, b); closeBoth() })
	ways.Go(func() { _, _ = io.Copy(b, a); closeBoth() })
	ways.Wait()
}

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig/internal/network"
)

// The link of a machine that has a network namespace of its own. No two such machines see each other.
var (
	privateGateway = netip.MustParseAddr("192.168.77.1")
	privateAddress = netip.MustParsePrefix("192.168.77.2/24")
)

const privateTap = "tap0"

// enterPrivate puts the calling thread into a new network namespace with a tap device that has the gateway's address.
// The thread can't go back: its goroutine ends without unlocking it.
func enterPrivate() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	// A handle of its own: others may have been opened in the old namespace.
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	tap, err := network.AddTap(h, privateTap)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP:   privateGateway.AsSlice(),
		Mask: net.CIDRMask(privateAddress.Bits(), 32),
	}}
	if err := h.AddrAdd(tap, addr); err != nil {
		return fmt.Errorf("give %s the address %s: %w", privateTap, privateGateway, err)
	}
	return nil
}

// dial connects from the network namespace of the process, or from the caller's if pid is 0.
func dial(ctx context.Context, pid int, address string) (net.Conn, error) {
	var d net.Dialer
	if pid == 0 {
		return d.DialContext(ctx, "tcp4", address)
	}
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// The thread is not unlocked, and so ends with this goroutine. A socket is of the namespace in which it was
		// made, and for an address that is no name the dialer makes it in this goroutine.
		runtime.LockOSThread()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			err = errors.Join(err, ns.Close())
		}
		if err != nil {
			done <- result{nil, fmt.Errorf("enter the machine's network namespace: %w", err)}
			return
		}
		conn, err := d.DialContext(ctx, "tcp4", address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

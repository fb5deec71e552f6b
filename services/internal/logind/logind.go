// Package logind speaks to systemd-logind over D-Bus about the shutdown of the machine.
//
// logind sends a signal to all clients that a shutdown begins (PrepareForShutdown), and then waits for the holders of
// delay inhibitors, up to InhibitDelayMaxSec. See https://systemd.io/INHIBITOR_LOCKS/ and org.freedesktop.login1(5).
package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// The names of logind and systemd on the bus.
const (
	service   = "org.freedesktop.login1"
	path      = dbus.ObjectPath("/org/freedesktop/login1")
	manager   = service + ".Manager"
	signal    = "PrepareForShutdown"
	unit      = "systemd-logind.service"
	systemd   = "org.freedesktop.systemd1"
	initPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	initUnits = systemd + ".Manager"
)

// CallTimeout bounds each call: logind answers at once, or is not there.
const CallTimeout = 5 * time.Second

// ErrInProgress is returned by Inhibit while a shutdown is under way: logind gives no new inhibitor then.
var ErrInProgress = errors.New("a shutdown is under way, logind gives no inhibitor until it is over")

// policies are the places of the rule of the bus by which only root may send PrepareForShutdown; see
// deploy/dbus/microlet.conf. The bus reads it as soon as it is there.
var policies = []string{"/usr/share/dbus-1/system.d/microlet.conf", "/etc/dbus-1/system.d/microlet.conf"}

// Conn is a connection to the system's bus.
type Conn struct {
	bus     *dbus.Conn
	signals chan *dbus.Signal
	// guarded says that only root may send the signal, so that any such signal is true: root may shut the machine down
	// anyway.
	guarded bool
}

// Connect connects to the system's bus (DBUS_SYSTEM_BUS_ADDRESS, or /run/dbus/system_bus_socket) and subscribes to
// PrepareForShutdown. The caller closes the connection.
func Connect(ctx context.Context) (*Conn, error) { return connect(ctx, policies) }

func connect(ctx context.Context, policies []string) (*Conn, error) {
	bus, err := connectBus(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the system's D-Bus: %w", err)
	}
	c := &Conn{bus: bus, signals: make(chan *dbus.Signal, 8)}
	for _, policy := range policies {
		if _, err := os.Stat(policy); err == nil {
			c.guarded = true
		}
	}
	bus.Signal(c.signals)
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	match := []dbus.MatchOption{
		dbus.WithMatchObjectPath(path), dbus.WithMatchInterface(manager), dbus.WithMatchMember(signal),
	}
	if !c.guarded {
		match = append(match, dbus.WithMatchSender(service))
	}
	err = bus.AddMatchSignalContext(ctx, match...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to %s: %w", signal, err), bus.Close())
	}
	return c, nil
}

// connectBus waits for a bus that does not answer no longer than CallTimeout: the library's handshake has no deadline.
func connectBus(ctx context.Context) (*dbus.Conn, error) {
	type result struct {
		bus *dbus.Conn
		err error
	}
	connected := make(chan result, 1)
	go func() {
		bus, err := dbus.ConnectSystemBus()
		connected <- result{bus, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	select {
	case r := <-connected:
		return r.bus, r.err
	case <-ctx.Done():
		go func() { // ends when the handshake does
			if r := <-connected; r.err == nil {
				_ = r.bus.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// Close ends the connection. An inhibitor stays.
func (c *Conn) Close() error { return c.bus.Close() }

// Next waits for the next signal and returns whether a shutdown is under way: what the signal says where only root may
// send it. Elsewhere, any process of the machine may send one of this name to this connection, so it is a hint, and
// Preparing decides. Next returns an error when the connection or ctx ends.
func (c *Conn) Next(ctx context.Context) (bool, error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case s, ok := <-c.signals:
			if !ok {
				return false, errors.New("the connection to the system's D-Bus has ended")
			}
			if s.Name != manager+"."+signal {
				continue
			}
			if begins, ok := said(s); ok && c.guarded {
				return begins, nil
			}
			return c.Preparing(ctx)
		}
	}
}

// said is the signal's only value.
func said(s *dbus.Signal) (begins, ok bool) {
	if len(s.Body) == 1 {
		begins, ok = s.Body[0].(bool)
	}
	return begins, ok
}

// Preparing reports whether a shutdown is under way that inhibitors delay.
func (c *Conn) Preparing(ctx context.Context) (bool, error) {
	return property[bool](ctx, c, "PreparingForShutdown")
}

// MaxDelay is how long logind waits for inhibitors.
func (c *Conn) MaxDelay(ctx context.Context) (time.Duration, error) {
	µs, err := property[uint64](ctx, c, "InhibitDelayMaxUSec")
	return time.Duration(µs) * time.Microsecond, err
}

func property[T any](ctx context.Context, c *Conn, name string) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	var value T
	var v dbus.Variant
	err := c.bus.Object(service, path).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, name).
		Store(&v)
	if err != nil {
		return value, fmt.Errorf("read logind's %s: %w", name, err)
	}
	value, ok := v.Value().(T)
	if !ok {
		return value, fmt.Errorf("read logind's %s: it is %s, want %T", name, v, value)
	}
	return value, nil
}

// Inhibit takes a delay inhibitor of shutdown. It holds until the last descriptor of the file is closed.
func (c *Conn) Inhibit(ctx context.Context, who, why string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	var fd dbus.UnixFD
	err := c.bus.Object(service, path).
		CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", who, why, "delay").Store(&fd)
	var refused dbus.Error
	if errors.As(err, &refused) && refused.Name == "org.freedesktop.login1.OperationInProgress" {
		return nil, ErrInProgress
	}
	if err != nil {
		return nil, fmt.Errorf("take a delay inhibitor of shutdown: %w", err)
	}
	return os.NewFile(uintptr(fd), "logind inhibitor"), nil
}

// Reload has logind read its configuration again, as "systemctl reload systemd-logind" does. logind does so a little
// later.
func (c *Conn) Reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	const sighup = int32(1)
	err := c.bus.Object(systemd, initPath).CallWithContext(ctx, initUnits+".KillUnit", 0, unit, "all", sighup).Err
	if err != nil {
		return fmt.Errorf("have logind reload its configuration: %w", err)
	}
	return nil
}

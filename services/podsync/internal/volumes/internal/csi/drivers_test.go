package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/services/internal/pluginsocket"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/pluginregistration"
)

// node notes its calls.
type node struct {
	calls []string
	err   error
}

func (n *node) Registered(_ context.Context, driver string, info *csi.NodeGetInfoResponse) error {
	n.calls = append(n.calls, driver+" as "+info.NodeId)
	return n.err
}

func (n *node) Removed(_ context.Context, driver string) { n.calls = append(n.calls, "no "+driver) }

func plugin(d *csitest.Driver, versions ...string) pluginregistration.Plugin {
	return pluginregistration.Plugin{Name: "d.example", Endpoint: d.Socket, Versions: versions}
}

func TestADriverRegistersAndGoes(t *testing.T) {
	metrics := prometheus.NewPedanticRegistry()
	n := &node{}
	drivers := NewDrivers(os.TempDir(), n, metrics)
	changed := drivers.Changed()
	if _, err := drivers.Driver("d.example"); err == nil ||
		err.Error() != "driver name d.example not found in the list of registered CSI drivers" {
		t.Errorf("before: %v", err)
	}
	p := plugin(csitest.Start(t, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME), "1.0.0", "0.3.0")
	if err := errors.Join(drivers.Validate(t.Context(), p), drivers.Register(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
	<-changed
	driver, err := drivers.Driver("d.example")
	if err != nil {
		t.Fatal(err)
	}
	if can, err := driver.Capabilities(t.Context()); err != nil || !can.Stages() || can.GivesToGroup() {
		t.Errorf("capabilities: %v, %v", can, err)
	}
	if n := testutil.CollectAndCount(drivers.seconds, "csi_operations_seconds"); n != 2 {
		t.Errorf("%d methods are measured", n)
	}
	drivers.Deregister(t.Context(), p)
	if _, err := drivers.Driver("d.example"); err == nil {
		t.Error("a driver that is gone is found")
	}
	if got := strings.Join(n.calls, ", "); got != "d.example as node-1, no d.example" {
		t.Errorf("the node got %s", got)
	}
}

func TestDriversThatAreRefused(t *testing.T) {
	drivers := NewDrivers(os.TempDir(), &node{}, nil)
	d := csitest.Start(t)
	for versions, want := range map[string]string{
		"":            "empty list for supported versions",
		"0.3.0 2.0.0": "version 2.0.0 is not 1.x",
		"one":         "could not parse",
	} {
		err := drivers.Validate(t.Context(), plugin(d, strings.Fields(versions)...))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("versions %q: %v, want %s", versions, err, want)
		}
	}
	if err := drivers.Register(t.Context(), plugin(d, "1.5.0")); err != nil {
		t.Fatal(err)
	}
	other := plugin(csitest.Start(t), "1.4.0")
	if err := drivers.Validate(t.Context(), other); err == nil {
		t.Error("an older driver may take the name of a newer one")
	}
	other.Versions = []string{"1.6.0"}
	if err := drivers.Register(t.Context(), other); err != nil {
		t.Errorf("a newer driver: %v", err)
	}
	drivers.Deregister(t.Context(), plugin(d, "1.5.0"))
	if _, err := drivers.Driver("d.example"); err != nil {
		t.Errorf("the end of the older driver took the newer one along: %v", err)
	}
}

func TestADriverThatTheNodeRefuses(t *testing.T) {
	refused := errors.New("refused")
	drivers := NewDrivers(os.TempDir(), &node{err: refused}, nil)
	if err := drivers.Register(t.Context(), plugin(csitest.Start(t), "1.0.0")); !errors.Is(err, refused) {
		t.Error(err)
	}
}

// A driver that has registered may put a link in the place of its socket.
func TestADriverBehindALinkIsRefused(t *testing.T) {
	n := &node{}
	d := csitest.Start(t)
	root := filepath.Dir(d.Socket)
	drivers := NewDrivers(root, n, nil)
	if err := drivers.Register(t.Context(), plugin(d, "1.0.0")); err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(root, "real.sock")
	if err := errors.Join(os.Rename(d.Socket, real), os.Symlink(real, d.Socket)); err != nil {
		t.Fatal(err)
	}
	driver, err := drivers.Driver("d.example")
	if err != nil {
		t.Fatal(err)
	}
	want := d.Socket + " is a symbolic link: name the socket itself"
	if err := driver.Unpublish(t.Context(), "v", "/t"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a call gives %v, want %s", err, want)
	}
	if err := NewDrivers(root, n, nil).Register(t.Context(), plugin(d, "1.0.0")); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("the registration gives %v, want %s", err, want)
	}
	if got := strings.Join(n.calls, ", "); got != "d.example as node-1" {
		t.Errorf("the node got %s", got)
	}
	if got := d.Calls(); len(got) != 0 {
		t.Errorf("the driver was called: %q", got)
	}
}

func TestAHungDriverIsGivenUp(t *testing.T) {
	d := csitest.Start(t)
	d.Before(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
	ctx, cancel := context.WithCancel(t.Context())
	driver := &Driver{
		name: "d.example", endpoint: d.Socket, folder: pluginsocket.Folder{Path: os.TempDir()}, seconds: newSeconds(nil),
	}
	time := make(chan error, 1)
	go func() { time <- driver.Unpublish(ctx, "v", "/t") }()
	cancel()
	if err := <-time; status.Code(err) != codes.Canceled || Final(err) {
		t.Errorf("given up: %v", err)
	}
}

func TestFinal(t *testing.T) {
	for code, want := range map[codes.Code]bool{
		codes.Internal: true, codes.InvalidArgument: true, codes.NotFound: true, codes.FailedPrecondition: true,
		codes.Canceled: false, codes.DeadlineExceeded: false, codes.Unavailable: false, codes.ResourceExhausted: false,
		codes.Aborted: false,
	} {
		if got := Final(status.Error(code, "")); got != want {
			t.Errorf("%s is final: %t", code, got)
		}
	}
	if Final(nil) || Final(errors.New("not sent")) {
		t.Error("what was not answered is final")
	}
}

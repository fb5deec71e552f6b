package bus

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	client "github.com/microlet/microlet/services/internal/bus"
)

func runtimeDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var ids []role.Identity
	for _, r := range role.All() {
		ids = append(ids, role.Identity{Role: r, UID: os.Getuid(), GID: os.Getgid()})
	}
	if err := client.GenerateNKeys(filepath.Join(dir, "nkeys"), ids); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestServerSaysWhatIsWrong(t *testing.T) {
	dir := runtimeDir(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	good := ServerOptions{
		StoreDir: filepath.Join(dir, "bus"),
		NKeyDir:  filepath.Join(dir, "nkeys"),
		Log:      slog.New(slog.DiscardHandler),
	}
	view := func(address string) func(*ServerOptions) {
		return func(o *ServerOptions) { o.View = &View{Address: address, CertFile: filepath.Join(dir, "view.crt")} }
	}
	for want, alter := range map[string]func(*ServerOptions){
		"loopback":  view("0.0.0.0:4222"),
		"use a loo": view("192.0.2.1:4222"),
		"host:port": view("127.0.0.1"),
		"1 to 6553": view("127.0.0.1:70000"),
		"in use":    view(taken.Addr().String()),
		"store fol": func(o *ServerOptions) { o.StoreDir = "" },
		"nkey of b": func(o *ServerOptions) { o.NKeyDir = dir },
		"boot id":   func(o *ServerOptions) { o.bootIDFile = filepath.Join(dir, "absent") },
	} {
		o := good
		alter(&o)
		s, err := StartServer(t.Context(), o)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that contains %q", err, want)
		}
	}
	// Twice on the same store: what is there is no obstacle.
	for range 2 {
		s, err := StartServer(t.Context(), good)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Healthy(); err != nil {
			t.Error(err)
		}
		s.Close()
	}
}

func TestStoreIsEmptiedAtANewBoot(t *testing.T) {
	dir := t.TempDir()
	store, boot := filepath.Join(dir, "bus"), filepath.Join(dir, "boot_id")
	prepare := func(id string) bool {
		t.Helper()
		if err := os.WriteFile(boot, []byte(id+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		emptied, err := prepareStore(store, boot)
		if err != nil {
			t.Fatal(err)
		}
		return emptied
	}
	if prepare("one") {
		t.Error("a new store was emptied")
	}
	kept := filepath.Join(store, "jetstream", "kept")
	if err := os.MkdirAll(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	if prepare("one") {
		t.Error("the store was emptied within a boot")
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if !prepare("two") {
		t.Error("the store was kept over a boot")
	}
	if _, err := os.Stat(kept); err == nil {
		t.Error("the store of another boot is still there")
	}
	if info, err := os.Stat(store); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("store is %v, %v", info, err)
	}
}

// The bus as a service: it takes clients, and its own heartbeat is among what they hear.
func TestRunBeats(t *testing.T) {
	dir := runtimeDir(t)
	cfg := DefaultConfig()
	cfg.Service.RuntimeDir = dir
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()

	c, err := client.New(client.Options{
		Socket: cfg.Service.BusSocket(), SeedFile: client.SeedFile(cfg.Service.NKeys(), role.PLEG), Role: role.PLEG,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 16)
	client.Watch[busv1.Heartbeat](c, subject.Heartbeats, ">", func(key string) { heard <- key })
	cctx, ccancel := context.WithCancel(t.Context())
	cdone := make(chan error, 1)
	go func() { cdone <- c.Run(cctx) }()
	select {
	case key := <-heard:
		if key != subject.HeartbeatKey(role.Bus, cfg.Service.Replica) {
			t.Errorf("heard %s", key)
		}
	case err := <-done:
		t.Fatalf("the bus ended: %v", err)
	case <-time.After(time.Minute):
		t.Error("no heartbeat of the bus")
	}
	ccancel()
	if err := <-cdone; err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the bus ended with %v", err)
	}
}

package main

import (
	"bufio"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	server "github.com/microlet/microlet/services/bus"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

func TestMain(m *testing.M) {
	proctest.Program(main)
	os.Exit(m.Run())
}

// The program prints what podsync puts, with the viewer's key alone.
func TestWatchPods(t *testing.T) {
	dir := proctest.TempDir(t, 0o755)
	cfg := service.Config{RuntimeDir: dir}
	bustest.NKeys(t, cfg.NKeys())
	b, err := bustest.Start(t.Context(), dir, slog.New(slog.DiscardHandler), func(o *server.ServerOptions) {
		o.View = &server.View{Address: "127.0.0.1:0", CertFile: filepath.Join(filepath.Dir(cfg.BusSocket()), "view.crt")}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)

	program := proctest.Command(t.Context(), dir, b.ViewAddress())
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	program.Stderr = t.Output()
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = program.Process.Kill(), program.Wait() })

	client, err := bus.New(bus.Options{
		Socket: cfg.BusSocket(), SeedFile: bus.SeedFile(cfg.NKeys(), role.Podsync), Role: role.Podsync, Replica: "0",
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	w := client.Own(subject.PodStatus)
	ended := make(chan error, 1)
	go func() { ended <- client.Run(t.Context()) }()
	t.Cleanup(func() { <-ended })

	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	// The program has no signal that it listens: the pod changes until it has been seen.
	change := time.NewTicker(100 * time.Millisecond)
	defer change.Stop()
	for n, end := 0, time.After(time.Minute); ; n++ {
		w.Put(subject.PodKey("uid-1"), &podsyncv1.PodStatus{
			SandboxId: strings.Repeat("s", n%2+1), PodIps: []string{"10.0.0.7"},
		})
		select {
		case line, ok := <-lines:
			if !ok || !strings.HasPrefix(line, "uid-1 sandbox s") ||
				!strings.HasSuffix(line, "addresses [10.0.0.7] containers 0") {
				t.Errorf("the program prints %q", line)
			}
			return
		case <-end:
			t.Fatal("the program prints nothing")
		case <-change.C:
		}
	}
}

// The page quotes the program as it is.
func TestPageQuotesTheProgram(t *testing.T) {
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../../docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok := strings.Cut(string(program), "\nfunc main() {")
	if !ok || !strings.Contains(string(page), "```go\nfunc main() {"+body+"```\n") {
		t.Error("docs/contract.md has another text of func main than main.go")
	}
}

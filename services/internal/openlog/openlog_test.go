package openlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/passfile"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// TestMain is also a caller, who says what he is answered.
func TestMain(m *testing.M) {
	proctest.Program(func() {
		peertest.Ready()
		f, err := NewClient(os.Args[1], unixgrpc.Rules{}).Open(context.Background(), "abc")
		if err != nil {
			fmt.Println(err)
			return
		}
		text, err := io.ReadAll(f)
		_, writeErr := f.WriteString("x")
		fmt.Println(strings.TrimSpace(string(text)), err, writeErr != nil)
	})
	os.Exit(m.Run())
}

// opened is a server with a runtime that writes each container's log where paths say.
type opened struct {
	folder, socket string

	mu      sync.Mutex
	paths   map[string]string
	results map[string]int
}

func serve(t *testing.T, rules unixgrpc.Rules) *opened {
	t.Helper()
	o := &opened{folder: t.TempDir(), paths: map[string]string{}, results: map[string]int{}}
	sockets := proctest.TempDir(t, 0o750)
	o.socket = filepath.Join(sockets, "logs.sock")
	if err := os.Lchown(sockets, -1, role.GroupNode); err != nil {
		t.Fatal(err)
	}
	l, err := unixgrpc.Listen(o.socket, 0o660, role.GroupNode)
	if err != nil {
		t.Fatal(err)
	}
	l = unixgrpc.Bound(l, unixgrpc.BoundOptions{Peers: rules})
	s := &Server{Folder: o.folder, Path: o.path, Peers: rules, Log: slog.New(slog.DiscardHandler), Count: o.count}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return o
}

func (o *opened) count(result string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.results[result]++
}

func (o *opened) path(_ context.Context, id string) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	path, ok := o.paths[id]
	if !ok {
		return "", status.Errorf(codes.NotFound, "could not find container %q", id)
	}
	return path, nil
}

// log writes a log that is root's alone.
func (o *opened) log(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(o.folder, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhoGetsALog(t *testing.T) {
	o := serve(t, unixgrpc.Rules{})
	o.paths["abc"] = o.log(t, "pod/c/0.log", "one\n")
	for _, r := range role.All() {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		got := peertest.Start(t, peertest.Options{UID: id.UID}, o.socket).Line(t)
		switch may := r == role.NodeAPI || id.UID == 0; {
		case may && got != "one <nil> true":
			t.Errorf("%s is answered %q, want the log, which cannot be written", r, got)
		case !may && !strings.Contains(got, "may not open a log"):
			t.Errorf("%s is answered %q", r, got)
		}
	}
	if got := peertest.Start(t, peertest.Options{UID: 47108, Cgroups: peertest.Cgroup(t, "kubepods/pod1/c")},
		o.socket).Line(t); !strings.Contains(got, "may not open a log") {
		t.Errorf("a pod with the user of nodeapi is answered %q", got)
	}
	proctest.Await(t, 10*time.Second, "each request is counted by its result", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return maps.Equal(o.results, map[string]int{passfile.OK: 3, passfile.Denied: 8})
	})
}

func TestWhatIsOpened(t *testing.T) {
	o := serve(t, unixgrpc.Rules{})
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := o.log(t, "pod/c/0.log", "one\n")
	other := o.log(t, "other/c/0.log", "other\n")
	below := func(name string) string { return filepath.Join(o.folder, name) }
	if err := errors.Join(os.Symlink(other, below("pod/c/1.log")), os.Symlink(below("other"), below("linked")),
		os.Symlink(outside, below("pod/c/2.log")), unix.Mkfifo(below("pod/c/3.log"), 0o600)); err != nil {
		t.Fatal(err)
	}
	client := NewClient(o.socket, unixgrpc.Rules{})
	for id, test := range map[string]struct {
		path string
		code codes.Code
	}{
		"log":        {path, codes.OK},
		"link":       {below("pod/c/1.log"), codes.FailedPrecondition},
		"folder":     {below("linked/c/0.log"), codes.FailedPrecondition},
		"out":        {below("pod/c/2.log"), codes.FailedPrecondition},
		"fifo":       {below("pod/c/3.log"), codes.FailedPrecondition},
		"a folder":   {below("pod/c"), codes.FailedPrecondition},
		"elsewhere":  {outside, codes.FailedPrecondition},
		"by dots":    {o.folder + "/../" + filepath.Base(filepath.Dir(outside)) + "/secret", codes.FailedPrecondition},
		"no path":    {"", codes.FailedPrecondition},
		"being made": {below("pod/c/4.log"), codes.NotFound},
	} {
		o.mu.Lock()
		o.paths[id] = test.path
		o.mu.Unlock()
		f, err := client.Open(t.Context(), id)
		if err == nil {
			f.Close()
		}
		if status.Code(err) != test.code {
			t.Errorf("%s: %v, want %v", id, err, test.code)
		}
	}
	for id, want := range map[string]codes.Code{
		"none": codes.NotFound, strings.Repeat("x", 4096): codes.Unavailable, "": codes.NotFound,
	} {
		if _, err := client.Open(t.Context(), id); status.Code(err) != want {
			t.Errorf("container %.20q: %v, want %v", id, err, want)
		}
	}
}

// TestManyAtOnce has more readers than connections are allowed, as when the logs of a node are rotated.
func TestManyAtOnce(t *testing.T) {
	o := serve(t, unixgrpc.Rules{})
	o.paths["abc"] = o.log(t, "pod/c/0.log", "one\n")
	client := NewClient(o.socket, unixgrpc.Rules{})
	var readers sync.WaitGroup
	for range 500 {
		readers.Go(func() {
			f, err := client.Open(t.Context(), "abc")
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			if text, err := io.ReadAll(f); err != nil || string(text) != "one\n" {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
	readers.Wait()
}

func TestNoServer(t *testing.T) {
	client := NewClient(filepath.Join(t.TempDir(), "logs.sock"), unixgrpc.Rules{})
	if _, err := client.Open(t.Context(), "abc"); status.Code(err) != codes.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
}

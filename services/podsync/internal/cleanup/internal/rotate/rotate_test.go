package rotate

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// writer is a runtime. Its containers write logs as a shim does: into an open file, which stays the same however it is
// renamed.
type writer struct {
	mu       sync.Mutex
	logs     map[string]*os.File
	paths    map[string]string
	states   map[string]runtimeapi.ContainerState
	reopens  int
	lists    int
	statuses int
	// refuse is what ReopenContainerLog fails with; late lets it take effect nevertheless.
	refuse error
	late   bool
	// hang holds every call until its context ends.
	hang bool
}

func newWriter() *writer {
	return &writer{
		logs:   map[string]*os.File{},
		paths:  map[string]string{},
		states: map[string]runtimeapi.ContainerState{},
	}
}

func (w *writer) hung(ctx context.Context) error {
	w.mu.Lock()
	hang := w.hang
	w.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (w *writer) List(ctx context.Context) (map[types.UID]*pod.State, error) {
	if err := w.hung(ctx); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists++
	st := &pod.State{UID: "u"}
	for id, state := range w.states {
		st.Containers = append(st.Containers, pod.Container{ID: id, State: state})
	}
	return map[types.UID]*pod.State{"u": st}, nil
}

func (w *writer) LogPath(ctx context.Context, id string) (string, error) {
	if err := w.hung(ctx); err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statuses++
	return w.paths[id], nil
}

func (w *writer) ReopenContainerLog(ctx context.Context, id string) error {
	if err := w.hung(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reopens++
	if w.refuse != nil && !w.late {
		return w.refuse
	}
	f, err := os.OpenFile(w.paths[id], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	w.logs[id].Close()
	w.logs[id] = f
	return w.refuse
}

type bench struct {
	*testing.T
	*writer
	dir string
	r   *Rotator
}

func newBench(t *testing.T, files int) *bench {
	b := &bench{T: t, writer: newWriter(), dir: t.TempDir()}
	var err error
	b.r, err = New(Options{
		Runtime:  b.writer,
		MaxSize:  "10",
		MaxFiles: files,
		Workers:  1,
		Interval: 10 * time.Second,
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// container starts one that writes its log.
func (b *bench) container(id string) {
	b.paths[id] = filepath.Join(b.dir, id, "0.log")
	if err := os.MkdirAll(filepath.Dir(b.paths[id]), 0o755); err != nil {
		b.Fatal(err)
	}
	f, err := os.Create(b.paths[id])
	if err != nil {
		b.Fatal(err)
	}
	b.logs[id] = f
	b.states[id] = runtimeapi.ContainerState_CONTAINER_RUNNING
	b.Cleanup(func() { b.logs[id].Close() })
}

func (b *bench) write(id, text string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.logs[id].WriteString(text); err != nil {
		b.Fatal(err)
	}
}

// run runs the rotator until the test ends.
func (b *bench) run() {
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- b.r.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	synctest.Wait()
}

func (b *bench) names(id string) []string {
	b.Helper()
	entries, err := os.ReadDir(filepath.Dir(b.paths[id]))
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// text is what is left of a container's log, oldest first.
func (b *bench) text(id string) string {
	b.Helper()
	var all strings.Builder
	names := b.names(id)
	slices.SortFunc(names, func(x, y string) int { // the present log is the newest
		if x == "0.log" || y == "0.log" {
			return strings.Compare(y, x)
		}
		return strings.Compare(x, y)
	})
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(b.paths[id]), name))
		if err != nil {
			b.Fatal(err)
		}
		if strings.HasSuffix(name, compressed) {
			zip, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				b.Fatal(err)
			}
			if data, err = io.ReadAll(zip); err != nil {
				b.Fatal(err)
			}
		}
		all.Write(data)
	}
	return all.String()
}

func TestRotatesCompressesAndKeepsAsManyAsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		b.container("a")
		b.container("small")
		b.write("small", "tiny")
		b.run()
		for i := range 5 {
			b.write("a", fmt.Sprintf("round %d is long\n", i))
			time.Sleep(10 * time.Second) // virtual
			synctest.Wait()
		}
		names := b.names("a")
		if len(names) != 3 || names[0] != "0.log" || !strings.HasSuffix(names[1], ".gz") ||
			strings.HasSuffix(names[2], ".gz") {
			t.Fatalf("files %v", names)
		}
		at, err := time.ParseInLocation("0.log."+timeFormat, names[2], time.Local)
		if err != nil || !at.Equal(time.Now()) {
			t.Errorf("name %s: %v, want the time %s", names[2], err, time.Now())
		}
		if got := b.text("a"); got != "round 3 is long\nround 4 is long\n" {
			t.Errorf("text %q", got)
		}
		if got := b.names("small"); len(got) != 1 {
			t.Errorf("a small log was rotated: %v", got)
		}
		if b.statuses != 2 || b.lists != 6 {
			t.Errorf("%d status calls in %d rounds for 2 containers", b.statuses, b.lists)
		}
	})
}

func TestExactlyTheSizeIsTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.container("below")
		b.container("at")
		b.write("below", "123456789")
		b.write("at", "1234567890")
		b.run()
		if got := b.names("below"); len(got) != 1 {
			t.Errorf("9 bytes of 10: %v", got)
		}
		if got := b.names("at"); len(got) != 2 {
			t.Errorf("10 bytes of 10: %v", got)
		}
		b.write("at", "1234567890")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := b.names("at"); len(got) != 2 || strings.HasSuffix(got[1], compressed) {
			t.Errorf("two files are to be kept: %v", got)
		}
	})
}

func TestAReopenThatFailsLosesNothing(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late=", late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 5)
				b.container("a")
				b.write("a", "a first long line\n")
				b.refuse, b.late = errors.New("the shim does not answer"), late
				b.run()
				b.write("a", "second\n")
				if want := map[bool]int{false: 1, true: 2}[late]; len(b.names("a")) != want {
					t.Errorf("files %v, want %d", b.names("a"), want)
				}
				b.mu.Lock()
				b.refuse = nil
				b.mu.Unlock()
				b.write("a", "third long line\n")
				time.Sleep(10 * time.Second)
				synctest.Wait()
				b.write("a", "fourth")
				if got := b.text("a"); got != "a first long line\nsecond\nthird long line\nfourth" {
					t.Errorf("text %q", got)
				}
			})
		})
	}
}

func TestCrashesAreRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 5)
		// One was cut short between the rename and the reopening, ...
		b.container("running")
		b.write("running", "written before\n")
		move(t, b.paths["running"], b.paths["running"]+".19990101-000000")
		// ... one that ended meanwhile, ...
		b.container("ended")
		b.write("ended", "last words\n")
		move(t, b.paths["ended"], b.paths["ended"]+".19990101-000000")
		b.states["ended"] = runtimeapi.ContainerState_CONTAINER_EXITED
		// ... and one while it compressed: half a file, and a whole one with its source still there.
		b.container("half")
		b.write("half", "a long enough line\n")
		for name, text := range map[string]string{
			".19990101-000000":     "full\n",
			".19990101-000000.gz":  zipped(t, "full\n"),
			".19990101-000001":     "next\n",
			".19990101-000001.tmp": "ne",
		} {
			if err := os.WriteFile(b.paths["half"]+name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b.run()
		b.write("running", "and after")
		for id, want := range map[string]string{
			"running": "written before\nand after", "ended": "last words\n", "half": "full\nnext\na long enough line\n",
		} {
			if got := b.text(id); got != want {
				t.Errorf("%s: %q, want %q", id, got, want)
			}
		}
		if got := b.names("ended"); !slices.Equal(got, []string{"0.log"}) {
			t.Errorf("ended: %v", got)
		}
		for _, name := range b.names("half") {
			if strings.HasSuffix(name, temporary) {
				t.Errorf("left behind: %s", name)
			}
		}
	})
}

func TestAHungRuntimeIsLeftAfterATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 5)
		b.container("a")
		b.write("a", "a first long line\n")
		b.hang = true
		b.run()
		time.Sleep(3 * callTimeout)
		b.mu.Lock()
		b.hang = false
		b.mu.Unlock()
		time.Sleep(2*callTimeout + 10*time.Second)
		synctest.Wait()
		if got := b.names("a"); len(got) != 2 {
			t.Errorf("files %v after the runtime is back", got)
		}
	})
}

func TestAFullDiskStillRotates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		b.container("a")
		// A folder in the place of the temporary file makes compressing fail, as a full disk does.
		rotated := b.paths["a"] + ".19990101-000000"
		if err := os.WriteFile(rotated, []byte("old\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(rotated+temporary, 0o700); err != nil {
			t.Fatal(err)
		}
		b.write("a", "a first long line\n")
		b.run()
		names := b.names("a")
		old := filepath.Base(rotated)
		want := []string{"0.log", old, old + temporary, "0.log." + time.Now().Format(timeFormat)}
		if !slices.Equal(want, names) {
			t.Errorf("files: %s", cmp.Diff(want, names))
		}
	})
}

func TestOptions(t *testing.T) {
	good := Options{MaxSize: "10Mi", MaxFiles: 2, Workers: 1, Interval: time.Second}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"containerLogMaxSize":         func(o *Options) { o.MaxSize = "ten" },
		"containerLogMaxSize=":        func(o *Options) { o.MaxSize = "1m" },
		"containerLogMaxFiles":        func(o *Options) { o.MaxFiles = 1 },
		"containerLogMaxWorkers":      func(o *Options) { o.Workers = 0 },
		"containerLogMonitorInterval": func(o *Options) { o.Interval = 0 },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(name, "=")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	off := good
	off.MaxSize, off.Log = "-1", slog.New(slog.DiscardHandler)
	r, err := New(off)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err != nil { // returns by itself
		t.Fatal(err)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	if _, err := zip.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

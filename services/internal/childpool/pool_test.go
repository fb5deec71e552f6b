package childpool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/services/internal/testing/childtest"
)

// What the tests' pools may have.
var (
	maxChildren, parallel     = defaultBounds.Children, defaultBounds.Quick
	perFileSystem, maxForeign = defaultBounds.Lane, defaultBounds.Foreign
	slow, idleTime            = defaultBounds.Slow, defaultBounds.Idle
)

// world has the children of a test, which hang where the test says.
type world struct {
	*Pool
	mu      sync.Mutex
	release map[string]chan struct{}
	started int
	alive   int
	// before is how many children of an earlier process hang.
	before int
}

var touch = Operation[string, string]{Name: "touch"}

// touched is what a child does: it hangs, deaf to all, on a path that begins with /hung, and on one with /slow until
// its context ends. On one with /left it answers, and a thread of it hangs.
func (w *world) touched(ctx context.Context, path string) (string, error) {
	switch {
	case strings.HasPrefix(path, "/hung"):
		<-w.released(path)
	case strings.HasPrefix(path, "/left"):
		Leave(ctx)
	case strings.HasPrefix(path, "/slow"):
		<-ctx.Done()
		return "", context.Cause(ctx)
	case strings.HasPrefix(path, "/counted"):
		for i := range int64(31) {
			Report(ctx, i)
			time.Sleep(100 * time.Millisecond)
		}
	case strings.HasPrefix(path, "/missing"):
		return "part", fmt.Errorf("look at it: %w", &fs.PathError{Op: "stat", Path: path, Err: syscall.ENOENT})
	}
	return "touched " + path, nil
}

// released returns what is closed when the path answers again.
func (w *world) released(path string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.release[path] == nil {
		w.release[path] = make(chan struct{})
	}
	return w.release[path]
}

func (w *world) start() (*Child, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started++
	w.alive++
	parent, own := childtest.Pipe()
	ended := make(chan struct{})
	table := Table{}
	var left []chan struct{}
	Handle(table, touch, func(ctx context.Context, path string) (string, error) {
		if strings.HasPrefix(path, "/left") {
			left = append(left, w.released(path))
		}
		return w.touched(ctx, path)
	})
	go func() {
		defer close(ended)
		_ = Serve(own, table)
		_ = own.Close()
		for _, release := range left { // the kernel keeps the child for its threads
			<-release
		}
		w.mu.Lock()
		w.alive--
		w.mu.Unlock()
	}()
	return &Child{Conn: parent, Kill: func() { _ = own.Close() }, Ended: ended, PID: w.started}, nil
}

// newWorld is of virtual time.
func newWorld(t *testing.T) *world {
	t.Helper()
	return worldAfter(t, 0)
}

// worldAfter is one in which children of an earlier process hang.
func worldAfter(t *testing.T, before int) *world {
	t.Helper()
	w := &world{release: map[string]chan struct{}{}, before: before}
	w.Pool = New(Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Start: w.start,
		countLeft: w.leftBefore, Mounts: everyFolder})
	return w
}

func (w *world) leftBefore() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.before
}

// everyFolder has a file system of its own.
func everyFolder() (MountPoints, error) {
	var points []string
	for i := range 2 * maxChildren {
		points = append(points, fmt.Sprintf("/hung/%d", i))
	}
	return listOf(points...)()
}

// end lets all children end.
func (w *world) end(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	for _, release := range w.release {
		close(release)
	}
	clear(w.release)
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Serve(ctx); err != nil {
		t.Error(err)
	}
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.idle) != 0 || len(w.leases) != 0 || len(w.waiting) != 0 || w.alive != 0 {
		t.Errorf("%d children are left, %d idle, and calls %v, %v", w.alive, len(w.idle), w.leases, w.waiting)
	}
}

func TestACallThatHangsIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		began := time.Now()
		_, err := touch.Do(t.Context(), w, "/hung", "/hung")
		if err == nil || err.Error() != "touch /hung: has not answered for 30s: the file system may hang" ||
			time.Since(began) != DefaultPatience+leave {
			t.Fatalf("%v after %s", err, time.Since(began))
		}
		_, err = touch.Do(t.Context(), w, "/hung", "/hung")
		if err == nil || !strings.Contains(err.Error(), "a call that began 31s ago still hangs there") || w.started != 1 {
			t.Fatalf("%v, %d children: a path that hangs must cost one child", err, w.started)
		}
		if got, err := touch.Do(t.Context(), w, "/other", "/other"); err != nil || got != "touched /other" {
			t.Fatalf("another path: %q, %v", got, err)
		}
		close(w.release["/hung"])
		synctest.Wait()
		w.release["/hung"] = make(chan struct{})
		close(w.release["/hung"])
		if _, err := touch.Do(t.Context(), w, "/hung", "/hung"); err != nil {
			t.Fatalf("it answers again: %v", err)
		}
		clear(w.release)
		w.end(t)
	})
}

// TestAChildOfWhichAThreadHangsIsLeft: its answer counts, but it gets no further call.
func TestAChildOfWhichAThreadHangsIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		began := time.Now()
		got, err := touch.Do(t.Context(), w, "/left", "/left")
		if err != nil || got != "touched /left" || time.Since(began) > leave {
			t.Fatalf("%q, %v after %s", got, err, time.Since(began))
		}
		if got, err := touch.Do(t.Context(), w, "/other", "/other"); err != nil || got != "touched /other" || w.started != 2 {
			t.Fatalf("another path: %q, %v, %d children", got, err, w.started)
		}
		_, err = touch.Do(t.Context(), w, "/left", "/left")
		if err == nil || !strings.Contains(err.Error(), "still hangs there") {
			t.Fatal(err)
		}
		if _, _, hung := w.Children(); hung != 1 {
			t.Errorf("%d children hang", hung)
		}
		w.end(t)
	})
}

func TestCallsThatHangDelayNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var hung sync.WaitGroup
		for i := range maxChildren - 1 {
			hung.Go(func() {
				path := fmt.Sprintf("/hung/%d", i)
				if _, err := touch.Do(t.Context(), w, path, path); err == nil {
					t.Error("it did not hang")
				}
			})
		}
		time.Sleep(time.Duration(maxChildren/parallel) * slow) // all have begun, and given their places back
		began := time.Now()
		for range 100 {
			if _, err := touch.Do(t.Context(), w, "/other", "/other"); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("100 calls took %s beside those that hang", took)
		}
		hung.Wait()
		last, err := touch.Do(t.Context(), w, "/hung/last", "/hung/last")
		if err == nil {
			t.Fatal(last)
		}
		began = time.Now()
		_, err = touch.Do(t.Context(), w, "/other", "/other")
		const want = "touch /other: not tried: all 32 processes for calls on volumes are in use, and 32 of them hang"
		if err == nil || err.Error() != want || time.Since(began) != 0 {
			t.Errorf("%v after %s, want %s at once", err, time.Since(began), want)
		}
		w.end(t)
	})
}

func TestChildrenOfAnEarlierProcessCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := worldAfter(t, maxChildren)
		_, err := touch.Do(t.Context(), w, "/other", "/other")
		if err == nil || !strings.Contains(err.Error(), "and 32 of them hang") {
			t.Errorf("%v beside %d that hang", err, w.before)
		}
		w.before-- // one has ended
		if _, err := touch.Do(t.Context(), w, "/other", "/other"); err != nil {
			t.Error(err)
		}
		w.end(t)
	})
}

func TestCallsOnOnePathRunOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := touch.Do(t.Context(), w, "/hung", "/hung"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		second := false
		all.Go(func() {
			if _, err := touch.Do(t.Context(), w, "/hung", "/other"); err != nil {
				t.Error(err)
			}
			second = true
		})
		synctest.Wait()
		if second {
			t.Fatal("two calls on one path at a time")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := touch.Do(ctx, w, "/hung", "/other"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("waited for the path beyond its deadline: %v", err)
		}
		w.mu.Lock()
		close(w.release["/hung"])
		clear(w.release)
		w.mu.Unlock()
		all.Wait()
		w.end(t)
	})
}

func TestThoseThatWaitForAPathLearnThatItHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		began := time.Now()
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				if i > 0 {
					time.Sleep(time.Second)
				}
				_, err := touch.Do(t.Context(), w, "/hung", "/hung")
				want := "has not answered for 30s"
				if i > 0 {
					want = "a call that began 30s ago still hangs there"
				}
				if err == nil || !strings.Contains(err.Error(), want) || time.Since(began) > DefaultPatience+leave {
					t.Errorf("call %d: %v after %s", i, err, time.Since(began))
				}
			})
		}
		all.Wait()
		w.end(t)
	})
}

func TestACallThatIsNotWantedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err := touch.Do(ctx, w, "/slow", "/slow")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		synctest.Wait()
		if w.alive != 0 {
			t.Errorf("%d children", w.alive)
		}
		w.end(t)
	})
}

// TestProgress: a child says at once that it has begun, and then every second how far it is.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		began, reports := time.Now(), []string{}
		ctx := WithProgress(t.Context(), func(done int64) {
			reports = append(reports, fmt.Sprintf("%d after %s", done, time.Since(began)))
		})
		for range 2 { // the second call is the same child's
			began, reports = time.Now(), nil
			got, err := touch.Do(ctx, w, "/counted", "/counted")
			want := []string{"0 after 0s", "10 after 1s", "20 after 2s", "30 after 3s"}
			if err != nil || got != "touched /counted" || !slices.Equal(reports, want) {
				t.Errorf("%q, %v, reports %q", got, err, reports)
			}
		}
		// A call needs no listener.
		if got, err := touch.Do(t.Context(), w, "/counted", "/counted"); err != nil || got != "touched /counted" {
			t.Errorf("%q, %v", got, err)
		}
		w.end(t)
	})
}

func TestErrorsKeepTheirCauseAndResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		got, err := touch.Do(t.Context(), w, "/missing", "/missing")
		if !errors.Is(err, fs.ErrNotExist) || err.Error() != "look at it: stat /missing: no such file or directory" ||
			got != "part" {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := (Operation[string, string]{Name: "unknown"}).Do(t.Context(), w, "/a", ""); err == nil {
			t.Error("an operation that is not defined")
		}
		w.end(t)
	})
}

func TestAnIdleChildEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range 3 {
			if _, err := touch.Do(t.Context(), w, "/a", "/a"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(idleTime - time.Second)
		}
		if w.started != 1 {
			t.Errorf("%d children for calls one after the other", w.started)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if w.alive != 0 {
			t.Errorf("%d children after %s without a call", w.alive, idleTime)
		}
		w.end(t)
	})
}

// Real children follow.

var (
	self = Operation[struct{}, int]{Name: "say the process ID"}
	die  = Operation[struct{}, int]{Name: "die"}
	real = Program("microlet-mounter", func() Table {
		t := Table{}
		Handle(t, self, func(context.Context, struct{}) (int, error) { return os.Getpid(), nil })
		Handle(t, die, func(context.Context, struct{}) (int, error) { os.Exit(0); return 0, nil })
		return t
	})
)

func TestMain(m *testing.M) {
	if real.Run() {
		return
	}
	os.Exit(m.Run())
}

func TestRealChildren(t *testing.T) {
	p := New(Options{Program: real})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		if err := p.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	first, err := self.Do(ctx, p, "/a", struct{}{})
	if err != nil || first == os.Getpid() {
		t.Fatalf("%d is this process, %v", first, err)
	}
	if second, err := self.Do(ctx, p, "/b", struct{}{}); err != nil || second != first {
		t.Errorf("process %d after %d, %v: a child serves again", second, first, err)
	}
	if _, err := die.Do(ctx, p, "/a", struct{}{}); err == nil ||
		!strings.Contains(err.Error(), "die /a: the process that did it has ended") {
		t.Errorf("of a child that died: %v", err)
	}
	if third, err := self.Do(ctx, p, "/a", struct{}{}); err != nil || third == first {
		t.Errorf("process %d after %d, %v", third, first, err)
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x10{\"errno\":-1}"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var a answer
		if readMessage(strings.NewReader(string(data)), &a) == nil {
			_ = a.err()
		}
	})
}

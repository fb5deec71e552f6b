package sources

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

func metrics(t *testing.T) *Metrics {
	t.Helper()
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func text(name, image string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: %s}]}\n",
		name, image)
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// stepped is a file source that reads when the test says so, and what it wants after each read.
func stepped(t *testing.T, path string) (*File, *wants) {
	t.Helper()
	f := NewFile(FileOptions{
		Path:     path,
		Period:   time.Hour,
		NodeName: "node-1",
		Log:      slog.New(slog.DiscardHandler),
		Metrics:  metrics(t),
	})
	w := newWants()
	f.set = newSet(podsyncv1.PodSource_POD_SOURCE_FILE, w, f.o.Log)
	return f, w
}

// wants is what a source wants now, by name and image.
type wants struct {
	mu      sync.Mutex
	removed int
	pods    map[types.UID]*v1.Pod
	synced  bool
	changed chan struct{}
}

func newWants() *wants {
	return &wants{pods: map[types.UID]*v1.Pod{}, changed: make(chan struct{}, 100)}
}

func (w *wants) SetPod(p *v1.Pod, _ podsyncv1.PodSource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[p.UID] = p
	w.changed <- struct{}{}
}

func (w *wants) RemovePod(uid types.UID, _ podsyncv1.PodSource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
	w.removed++
	w.changed <- struct{}{}
}

func (w *wants) SourceSynced(podsyncv1.PodSource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.synced = true
	w.changed <- struct{}{}
}

func (w *wants) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, p := range w.pods {
		all = append(all, p.Name+"="+p.Spec.Containers[0].Image)
	}
	slices.Sort(all)
	if !w.synced {
		return "not synced"
	}
	return strings.Join(all, " ")
}

func (w *wants) are(t *testing.T, want string) {
	t.Helper()
	if got := w.String(); got != want {
		t.Fatalf("wants %q, not %q", got, want)
	}
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	f, w := stepped(t, dir+"/")
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	put(t, a, text("a", "one"))
	put(t, filepath.Join(dir, ".hidden"), text("hidden", "one"))
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.relist()
	w.are(t, "a-node-1=one")
	broken := f.o.Metrics.broken.WithLabelValues("file")
	if n := testutil.ToFloat64(broken); n != 1 { // the folder
		t.Errorf("%v broken manifests", n)
	}

	put(t, b, text("b", "one")+"garbage: [")
	f.relist()
	w.are(t, "a-node-1=one")
	put(t, b, text("b", "one"))
	f.relist()
	w.are(t, "a-node-1=one b-node-1=one")

	put(t, b, "half: [writ")
	f.reread(b) // reported by the watch: it may be half written
	f.publish()
	w.are(t, "a-node-1=one b-node-1=one")
	if n := testutil.ToFloat64(broken); n != 2 {
		t.Errorf("%v broken manifests", n)
	}
	f.relist() // broken for good: as the kubelet, it ends the pod
	w.are(t, "a-node-1=one")

	put(t, b, text("b", "two"))
	f.reread(b)
	f.publish()
	w.are(t, "a-node-1=one b-node-1=two")

	if err := os.Rename(a, filepath.Join(dir, "z.yaml")); err != nil {
		t.Fatal(err)
	}
	before := uidOf(t, w, "a-node-1")
	f.reread(a)
	f.reread(filepath.Join(dir, "z.yaml"))
	f.publish()
	w.are(t, "a-node-1=one b-node-1=two")
	if uidOf(t, w, "a-node-1") == before {
		t.Error("a manifest of another name has the same UID")
	}

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	f.relist()
	w.are(t, "")
}

func uidOf(t *testing.T, w *wants, name string) types.UID {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, p := range w.pods {
		if p.Name == name {
			if p.Annotations[manifest.HashAnnotation] != string(uid) ||
				p.Annotations[podutil.ConfigSourceAnnotation] != "file" ||
				p.Annotations[manifest.SeenAnnotation] == "" {
				t.Errorf("annotations of %s are %v", name, p.Annotations)
			}
			return uid
		}
	}
	t.Fatalf("no pod %s", name)
	return ""
}

func TestTwoManifestsOfOneName(t *testing.T) {
	dir := t.TempDir()
	f, w := stepped(t, dir)
	put(t, filepath.Join(dir, "1.yaml"), text("a", "one"))
	put(t, filepath.Join(dir, "2.yaml"), text("a", "two"))
	f.relist()
	w.are(t, "a-node-1=two") // as the kubelet: the last
	if err := os.Remove(filepath.Join(dir, "2.yaml")); err != nil {
		t.Fatal(err)
	}
	f.relist()
	w.are(t, "a-node-1=one")
}

func TestOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod.yaml")
	f, w := stepped(t, path)
	f.relist()
	w.are(t, "")
	put(t, path, text("a", "one"))
	f.relist()
	w.are(t, "a-node-1=one")
	put(t, path, "broken: [")
	f.relist() // as the kubelet, of a single file the last good version runs on
	w.are(t, "a-node-1=one")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.relist()
	w.are(t, "")
}

func TestAFolderThatCannotBeReadRemovesNothing(t *testing.T) {
	if os.Geteuid() == 0 {
		// Root reads everything: a file system that fails is a path below a file instead.
		file := filepath.Join(t.TempDir(), "file")
		put(t, file, "")
		f, w := stepped(t, filepath.Join(file, "folder"))
		f.relist()
		w.are(t, "not synced")
		return
	}
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a.yaml"), text("a", "one"))
	f, w := stepped(t, dir)
	f.relist()
	if err := os.Chmod(dir, 0); err != nil {
		t.Fatal(err)
	}
	f.relist()
	w.are(t, "a-node-1=one")
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

// watchFolder follows a folder by the kernel's notifications until the test ends.
func watchFolder(t *testing.T, dir string) *wants {
	t.Helper()
	f := NewFile(FileOptions{
		Path:     dir,
		Period:   time.Hour,
		NodeName: "n",
		Log:      slog.New(slog.DiscardHandler),
		Metrics:  metrics(t),
	})
	w := newWants()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, w) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestWatch relies on the kernel's notifications.
func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	w := watchFolder(t, dir)
	await := func(want string) {
		t.Helper()
		end := time.After(20 * time.Second)
		for w.String() != want {
			select {
			case <-w.changed:
			case <-end:
				t.Fatalf("wants %q, not %q", w, want)
			}
		}
	}
	await("")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "a.yaml"), text("a", "one"))
	await("a-n=one")
	put(t, filepath.Join(dir, ".b.tmp"), text("b", "one"))
	if err := os.Rename(filepath.Join(dir, ".b.tmp"), filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	await("a-n=one b-n=one")
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	await("b-n=one")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "c.yaml"), text("c", "one"))
	await("c-n=one")
}

// TestAFileThatIsPutBack: a manifest that is removed and put back at once is taken back and wanted again, as under the
// kubelet; one that is replaced by renaming, or written again, with the same content, is not.
func TestAFileThatIsPutBack(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	put(t, a, text("a", "one"))
	w := watchFolder(t, dir)
	await := func(want string, removed int) {
		t.Helper()
		end := time.After(20 * time.Second)
		for {
			w.mu.Lock()
			got := w.removed
			w.mu.Unlock()
			if w.String() == want && got == removed {
				return
			}
			select {
			case <-w.changed:
			case <-end:
				t.Fatalf("wants %q with %d removed, not %q with %d", w, got, want, removed)
			}
		}
	}
	await("a-n=one", 0)
	before := uidOf(t, w, "a-n")

	put(t, a, text("a", "one")) // the same
	put(t, filepath.Join(dir, ".a.tmp"), text("a", "one"))
	if err := os.Rename(filepath.Join(dir, ".a.tmp"), a); err != nil {
		t.Fatal(err)
	}
	put(t, b, text("b", "one"))
	await("a-n=one b-n=one", 0)

	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	put(t, a, text("a", "one"))
	await("a-n=one b-n=one", 1)

	away := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.Rename(a, away); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(away, a); err != nil {
		t.Fatal(err)
	}
	await("a-n=one b-n=one", 2)
	if uid := uidOf(t, w, "a-n"); uid != before {
		t.Errorf("uid %s, want %s", uid, before)
	}
}

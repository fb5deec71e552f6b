package containerlogs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/nodeapi/internal/runtime"
)

// rotated is a container of CRI-O that writes to a log that is rotated.
type rotated struct {
	*fake.Runtime
	t      *testing.T
	folder string
	id     string
	lines  int
}

func newRotated(t *testing.T) *rotated {
	t.Helper()
	r := &rotated{Runtime: fake.NewRuntime(nil), t: t, folder: t.TempDir()}
	r.ActAsCRIO()
	_, ids, err := r.StartPod(t.Context(), fake.Pod{Namespace: "ns", Name: "p", UID: "p-uid",
		LogDirectory: filepath.Join(r.folder, "p"), Containers: []string{"c"}})
	if err != nil {
		t.Fatal(err)
	}
	r.id = ids["c"]
	return r
}

// write has the container write another line, and returns it.
func (r *rotated) write() string {
	r.t.Helper()
	r.lines++
	line := fmt.Sprintf("line %d", r.lines)
	if err := r.WriteLog(r.id, line); err != nil {
		r.t.Fatal(err)
	}
	return line + "\n"
}

// moveAway gives the log another name, as podsync does, and reopen has the runtime open the next one.
func (r *rotated) moveAway() {
	r.t.Helper()
	path := filepath.Join(r.folder, "p", "c.log")
	if err := os.Rename(path, fmt.Sprintf("%s.%d", path, r.lines)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rotated) reopen() {
	r.t.Helper()
	if _, err := r.ReopenContainerLog(r.t.Context(),
		&runtimeapi.ReopenContainerLogRequest{ContainerId: r.id}); err != nil {
		r.t.Fatal(err)
	}
}

// TestALogThatIsRotated follows a log through rotations, of podsync's and of the runtime's own, of which no one is
// notified. The last one comes just before the container's end.
func TestALogThatIsRotated(t *testing.T) {
	r := newRotated(t)
	reader := &Reader{Runtime: runtime.New(r.Conn(), crilist.Options{}, time.Second), Folder: r.folder}
	out, done := &gathering{rounds: make(chan string)}, make(chan error, 1)
	want := r.write()
	go func() {
		done <- reader.Read(t.Context(), Container{ID: "cri-o://" + r.id}, &v1.PodLogOptions{Follow: true}, out, out)
	}()
	var got strings.Builder
	await := func() {
		t.Helper()
		for got.Len() < len(want) {
			select {
			case lines := <-out.rounds:
				got.WriteString(lines)
			case err := <-done:
				t.Fatalf("the log ended after %q: %v", got.String(), err)
			case <-time.After(10 * time.Second):
				t.Fatalf("%q are shown, want %q", got.String(), want)
			}
		}
	}
	await()
	for range 3 {
		r.moveAway()
		want += r.write() // to the file that was moved
		r.reopen()
		want += r.write()
		await()
		want += r.write()
		r.reopen() // as the runtime does by itself
		want += r.write()
		await()
	}
	r.moveAway()
	want += r.write()
	r.reopen()
	want += r.write()
	if err := r.ExitContainer(r.id, 0); err != nil {
		t.Fatal(err)
	}
	await()
	for {
		select {
		case lines := <-out.rounds:
			got.WriteString(lines)
			continue
		case err := <-done:
			got.WriteString(out.String()) // no round follows the last lines
			if err != nil || got.String() != want {
				t.Errorf("%v, and %q are shown, want %q", err, got.String(), want)
			}
		case <-time.After(10 * time.Second):
			t.Error("the container has ended, and its log is still followed")
		}
		return
	}
}

// first is a writer that does something at the first line.
type first struct {
	strings.Builder
	do func()
}

func (f *first) Write(p []byte) (int, error) {
	if f.Len() == 0 {
		f.do()
	}
	return f.Builder.Write(p)
}

// TestALogThatIsRotatedEarly rotates a log after it was opened and before its folder is watched.
func TestALogThatIsRotatedEarly(t *testing.T) {
	r := newRotated(t)
	want := r.write()
	out := &first{do: func() {
		r.moveAway()
		want += r.write()
		r.reopen()
		want += r.write()
		if err := r.ExitContainer(r.id, 0); err != nil {
			t.Error(err)
		}
	}}
	reader := &Reader{Runtime: runtime.New(r.Conn(), crilist.Options{}, time.Second), Folder: r.folder}
	err := reader.Read(t.Context(), Container{ID: "cri-o://" + r.id}, &v1.PodLogOptions{Follow: true}, out, out)
	if err != nil || out.String() != want {
		t.Errorf("%v, and %q are shown, want %q", err, out.String(), want)
	}
}

package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

// large is a Runtime over pods of two containers, with annotations of these values. exit ends container d of the last
// pod.
func large(t *testing.T, pods int, sandbox, container string) (r *Runtime, exit func()) {
	t.Helper()
	cri, dir := fake.NewRuntime(nil), t.TempDir()
	var ids map[string]string
	for i := range pods {
		uid := fmt.Sprint("uid-", i)
		if err := os.Mkdir(filepath.Join(dir, uid), 0o750); err != nil {
			t.Fatal(err)
		}
		var err error
		if _, ids, err = cri.StartPod(t.Context(), fake.Pod{
			Namespace: "ns", Name: "p", UID: uid, Containers: []string{"c", "d"},
			Annotations: map[string]string{"long": sandbox}, ContainerAnnotations: map[string]string{"long": container},
		}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(cri.Conn(), cri.Conn(), Options{PodsDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return r, func() {
		if err := cri.ExitContainer(ids["d"], 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListsLargerThanAMessage(t *testing.T) {
	long := strings.Repeat("x", 1350<<10)
	for name, annotations := range map[string][2]string{
		"sandboxes": {long, "short"}, "containers": {"short", long}, "both": {long, long},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := large(t, 13, annotations[0], annotations[1])
			states, err := r.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			running, err := r.Running(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range 13 {
				uid := types.UID(fmt.Sprint("uid-", i))
				if s := states[uid]; s == nil || len(s.Sandboxes) != 1 || len(s.Containers) != 2 || !running[uid] {
					t.Errorf("pod %s: %v, runs: %v", uid, s, running[uid])
				}
			}
		})
	}
}

// A pod with a list of its own that is larger than a message is read too, if what runs of it and what has ended are
// not.
func TestAPodLargerThanAMessage(t *testing.T) {
	r, exit := large(t, 1, "short", strings.Repeat("x", 9<<20))
	listed, err := r.List(t.Context())
	if err == nil {
		t.Fatalf("two containers of 18 MiB that run are listed: %v", listed)
	}
	exit()
	s, err := r.State(t.Context(), "uid-0")
	if err != nil || len(s.Containers) != 2 {
		t.Errorf("%v: %v", s, err)
	}
}

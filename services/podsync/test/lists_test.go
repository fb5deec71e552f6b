package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// Pods are seen even if their annotations make the runtime's lists larger than a message: here podsync removes them,
// since no source wants them.
func TestListsLargerThanAMessage(t *testing.T) {
	n := newNode(t)
	long := map[string]string{"long": strings.Repeat("x", 1350<<10)}
	for i := range 13 {
		uid := fmt.Sprint("00000000-0000-0000-0000-0000000000", 10+i)
		if err := os.MkdirAll(filepath.Join(n.root, "pods", uid), 0o750); err != nil {
			t.Fatal(err)
		}
		if _, _, err := n.runtime.StartPod(t.Context(), fake.Pod{
			Namespace: "ns", Name: fmt.Sprint("long-", i), UID: uid, Containers: []string{"c"}, Annotations: long,
			ContainerAnnotations: long,
		}); err != nil {
			t.Fatal(err)
		}
	}
	n.put("a")
	n.start()
	n.runs("a")
	proctest.Await(t, soon, "the pods are removed", func() bool { return len(n.runtime.Calls("RemovePodSandbox")) >= 13 })
}

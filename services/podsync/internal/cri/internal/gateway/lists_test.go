package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/testing/fake"
)

// A list that the runtime refuses to send is read through the gateway all the same.
func TestListsLargerThanAMessage(t *testing.T) {
	b := newBench(t, anyone)
	long := map[string]string{"long": strings.Repeat("x", 1350<<10)}
	for i := range 13 {
		b.pods = append(b.pods, fmt.Sprint("uid-", i))
		if _, _, err := b.fake.StartPod(t.Context(), fake.Pod{
			UID: b.pods[i], Containers: []string{"c"}, Annotations: long, ContainerAnnotations: long,
		}); err != nil {
			t.Fatal(err)
		}
	}
	l := crilist.New(b.byRole[role.PLEG], b.byRole[role.PLEG], crilist.Options{})
	sandboxes, err := crilist.Collect(l.Sandboxes(t.Context(), nil))
	if err != nil || len(sandboxes) != 13 {
		t.Errorf("%d of 13 sandboxes: %v", len(sandboxes), err)
	}
	// A role that has no sandboxes has all containers nevertheless.
	l = crilist.New(b.byRole[role.ImageGC], b.byRole[role.ImageGC], crilist.Options{})
	containers, err := crilist.Collect(l.Containers(t.Context(), nil))
	if err != nil || len(containers) != 13 {
		t.Errorf("%d of 13 containers: %v", len(containers), err)
	}
}

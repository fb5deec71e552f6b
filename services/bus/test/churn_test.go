package test

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// What comes and goes in TestMemoryAfterChurn.
const (
	churnBatches = 6
	churnPods    = 50 // at one time
	churnSteps   = 4  // changes of a pod's status; a pod itself changes in half of them
	podSize      = 8 << 10
	statusSize   = 4 << 10
)

const (
	// atRest is how long a process that came to rest may take to give its memory back: a look at its heap every 30 s.
	atRest = 75 * time.Second
	// keptAfterChurn is what it may keep of it.
	keptAfterChurn = 5 << 20
)

// TestMemoryAfterChurn: 300 pods come and go, each with a status that changes. When they are gone, the bus has its
// memory back.
func TestMemoryAfterChurn(t *testing.T) {
	n := newNode(t)
	var pods, status *bus.Writer
	n.peer(role.Podsync, "", "", func(c *bus.Client) {
		pods, status = c.Own(subject.Pods), c.Own(subject.PodStatus)
		pods.Complete()
		status.Complete()
	})
	for _, r := range []role.Role{role.Evictor, role.Stats, role.NodeAPI} {
		n.peer(r, "", "", func(c *bus.Client) {
			bus.Watch[value](c, subject.Pods, ">", nil)
			bus.Watch[value](c, subject.PodStatus, ">", nil)
		})
	}
	written := func() bool { return pods.Pending()+status.Pending() == 0 }
	proctest.Await(t, bound, "the writer's marks", func() bool { return pods.Marked() && status.Marked() })
	time.Sleep(20 * time.Second) // what the start took is given back
	before := n.heap()

	text := func(i, step, size int) *wrapperspb.StringValue {
		return wrapperspb.String(fmt.Sprintf("%d %d %s", i, step, strings.Repeat("x", size)))
	}
	for b := range churnBatches {
		key := func(i int) string { return subject.PodKey(fmt.Sprintf("pod-%d-%d", b, i)) }
		for step := range churnSteps {
			for i := range churnPods {
				if step%2 == 0 {
					pods.Put(key(i), text(i, step, podSize))
				}
				status.Put(key(i), text(i, step, statusSize))
			}
			proctest.Await(t, bound, "the entries are written", written)
		}
		for i := range churnPods {
			pods.Delete(key(i))
			status.Delete(key(i))
		}
		proctest.Await(t, bound, "the deletes are written", written)
	}
	most := n.heap()
	var after int64
	for end := time.Now().Add(atRest); ; time.Sleep(time.Second) {
		if after = n.heap(); after <= before+keptAfterChurn || time.Now().After(end) {
			break
		}
	}
	t.Logf("heap of the bus: %.1f MiB before, %.1f at the end of the churn, %.1f at rest", mib(before), mib(most),
		mib(after))
	if after > before+keptAfterChurn {
		t.Errorf("the bus keeps %.1f MiB of the churn, want at most %.1f", mib(after-before), mib(keptAfterChurn))
	}
}

// heap asks the bus how many bytes its heap holds of the kernel.
func (n *node) heap() int64 {
	n.t.Helper()
	asked := strings.Count(n.bus.Log.String(), heldIs)
	n.bus.Signal(syscall.SIGUSR1)
	answers := func() []string { return strings.Split(n.bus.Log.String(), heldIs)[1:] }
	n.bus.Await(bound, "how much the heap holds", func() bool {
		all := answers()
		return len(all) > asked && strings.Contains(all[asked], "\n")
	})
	text, _, _ := strings.Cut(answers()[asked], "\n")
	bytes, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		n.t.Fatal(err)
	}
	return bytes
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

package allocation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

func TestAResizeThatFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a := testPod("a", "1")
		a.Spec.InitContainers = []v1.Container{{Name: "i"}}
		n.admit(a)
		if got, ok := n.granted.Get("a"); !ok || !got.Equal(pod.ResourcesOf(a)) {
			t.Errorf("the file has %+v of the admitted pod", got)
		}
		if n.changed(); !n.Want(asking(a, "2")) {
			t.Error("no decision follows")
		}
		if got := n.changed(); !slices.Equal(got, []types.UID{"a"}) {
			t.Errorf("changed: %v", got)
		}
		n.wantCPU("a:2")
		if got, _ := n.granted.Get("a"); cpuOf(got) != "2" {
			t.Errorf("the file has %+v", got)
		}
		n.wantShown("a", "PodResizeInProgress 2")
		granted := n.Apply(asking(a, "2"))
		n.Actuating(granted)
		time.Sleep(70 * time.Millisecond)
		n.SetActuatedContainer("a", "c", granted.Spec.Containers[0].Resources)
		n.Completed(granted)
		n.Completed(granted)
		n.wantShown("a")
		want := []string{
			`Normal ResizeStarted Pod resize started: {"initContainers":[{"name":"i","resources":{}}],` +
				`"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":2}`,
			`Normal ResizeCompleted Pod resize completed: {"initContainers":[{"name":"i","resources":{}}],` +
				`"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":2}`,
		}
		if diff := cmp.Diff(want, n.recorded()); diff != "" {
			t.Error(diff)
		}
		if got, _ := n.actuated.Get("a"); cpuOf(got) != "2" {
			t.Errorf("the file of what was given has %+v", got)
		}
		n.count(n.metrics.requested.WithLabelValues("cpu", "requests", "increase"), 1)
		n.count(n.metrics.inProgress, 0)
		if got := testutil.CollectAndCount(n.metrics.duration); got != 1 {
			t.Errorf("%d durations", got)
		}
	})
}

// TestADeferredResize waits for room, and says who has it.
func TestADeferredResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a, b := testPod("a", "1"), testPod("b", "2500m")
		n.admit(a, b)
		n.want(asking(a, "2"))
		n.wantCPU("a:1")
		n.wantShown("a", "PodResizePending Deferred 2")
		const message = "Node didn't have enough resource: cpu, requested: 2000, used: 2500, capacity: 4000 (used by b: 2500)"
		want := []string{`Warning ResizeDeferred Pod resize Deferred: {"containers":[{"name":"c","resources":` +
			`{"requests":{"cpu":"2"}}}],"generation":2,"error":"` + message + `"}`}
		if diff := cmp.Diff(want, n.recorded()); diff != "" {
			t.Error(diff)
		}
		if c := n.Conditions("a")[0]; c.Message != message || c.Status != v1.ConditionTrue {
			t.Errorf("the condition is %+v", c)
		}
		n.count(n.metrics.pending.WithLabelValues("deferred", "normal"), 1)
		time.Sleep(10 * time.Minute)
		if got := n.reasons(); len(got) > 0 {
			t.Errorf("it is deferred still: %v", got)
		}
		since := n.Conditions("a")[0].LastTransitionTime
		n.want(asking(asking(a, "2"), "3"))
		n.wantShown("a", "PodResizePending Deferred 3")
		if got := n.reasons(); !slices.Equal(got, []string{"Warning ResizeDeferred"}) {
			t.Errorf("another version is deferred: %v", got)
		}
		if got := n.Conditions("a")[0].LastTransitionTime; got != since {
			t.Errorf("it is deferred since %s and says %s", since, got)
		}
		n.want(asking(b, "1"))
		n.wantCPU("a:3 b:1")
		n.wantShown("a", "PodResizeInProgress 3")
		n.count(n.metrics.accepted.WithLabelValues("pod_resized"), 1)
		n.count(n.metrics.pending.WithLabelValues("deferred", "normal"), 0)
		if got := testutil.CollectAndCount(n.metrics.deferred); got != 1 {
			t.Errorf("%d durations of deferred resizes", got)
		}
	})
}

// TestWhatGivesRoom has those that wait decided upon.
func TestWhatGivesRoom(t *testing.T) {
	for want, happens := range map[trigger]func(*node){
		podTerminated: func(n *node) { n.end("b") },
		podsRemoved:   func(n *node) { n.remove("b") },
		periodicRetry: func(n *node) {
			n.admitter.Ended("b") // and nothing was heard of it
			time.Sleep(period + time.Second)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t)
			a, b := testPod("a", "1"), testPod("b", "3")
			n.admit(a, b)
			n.want(asking(a, "2"))
			n.wantCPU("a:1")
			happens(n)
			n.wantCPU("a:2")
			n.count(n.metrics.accepted.WithLabelValues(string(want)), 1)
		})
	}
}

func TestAnInfeasibleResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a := testPod("a", "1")
		n.admit(a)
		n.infeasible = true
		n.want(asking(a, "2"))
		n.wantShown("a", "PodResizePending Infeasible 2")
		n.count(n.metrics.pending.WithLabelValues("infeasible", "normal"), 1)
		want := []string{`Warning ResizeInfeasible Pod resize Infeasible: {"containers":[{"name":"c","resources":` +
			`{"requests":{"cpu":"2"}}}],"generation":2,"error":"never"}`}
		if diff := cmp.Diff(want, n.recorded()); diff != "" {
			t.Error(diff)
		}
		n.changed()
		n.infeasible = false
		time.Sleep(time.Hour)
		if got := n.changed(); len(got) > 0 {
			t.Error("it was decided upon again")
		}
		n.count(n.metrics.infeasible.WithLabelValues("swap_limitation"), 1)
		labelled := asking(a, "2")
		labelled.Labels = map[string]string{"x": "y"}
		if n.Want(labelled) {
			t.Error("a version that asks for the same is decided upon")
		}
		n.want(asking(asking(a, "2"), "3"))
		n.wantCPU("a:3")
		n.wantShown("a", "PodResizeInProgress 3")
	})
}

func TestAResizeThatIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a, b := testPod("a", "1"), testPod("b", "3")
		n.admit(a, b)
		n.want(asking(a, "2"))
		time.Sleep(time.Minute)
		if n.Want(asking(asking(a, "2"), "1")) {
			t.Error("there is something to decide")
		}
		n.wantShown("a")
		n.remove("b")
		n.wantCPU("a:1")
		n.count(n.metrics.pending.WithLabelValues("deferred", "normal"), 0)
		if got := n.metricsOf("reverted", "normal"); got != 1 {
			t.Errorf("%d were reverted", got)
		}
	})
}

func (n *node) metricsOf(labels ...string) int {
	n.t.Helper()
	before := testutil.CollectAndCount(n.metrics.deferred)
	n.metrics.deferred.WithLabelValues(labels...)
	if testutil.CollectAndCount(n.metrics.deferred) != before {
		return 0 // there was none with these labels
	}
	return 1
}

// TestAGrantThatCannotBeRecorded is none: the pod keeps what it has and says why, until the disk has space again.
func TestAGrantThatCannotBeRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a := testPod("a", "1")
		n.admit(a)
		n.granted.set(func(d *disk) { d.full = true })
		n.want(asking(a, "2"))
		n.wantCPU("a:1")
		n.wantShown("a", "PodResizePending Deferred 2")
		const message = "The new resources cannot be recorded on the node: no space left on device"
		if got := n.Conditions("a")[0].Message; got != message {
			t.Errorf("got %q, want %q", got, message)
		}
		if e, _ := n.Explain("a"); e.Unwritten == nil {
			t.Error("nobody says that the file cannot be written")
		}
		time.Sleep(time.Minute)
		if got := n.reasons(); !slices.Equal(got, []string{"Warning ResizeDeferred"}) {
			t.Errorf("events %v", got)
		}
		other := testPod("b", "2500m")
		n.admit(other) // it starts all the same
		n.granted.set(func(d *disk) { d.full = false })
		time.Sleep(soon)
		n.wantCPU("a:1 b:2500m") // there is no room any more
		n.want(asking(asking(a, "2"), "1500m"))
		n.wantCPU("a:1500m")
		time.Sleep(lastRewrite)
		synctest.Wait()
		if _, ok := n.granted.Get("b"); !ok {
			t.Error("a pod that was admitted while the disk was full is not recorded")
		}
		if e, _ := n.Explain("a"); e.Unwritten != nil {
			t.Error(e.Unwritten)
		}
	})
}

// TestADiskThatHangs holds up nothing but grants.
func TestADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a, b := testPod("a", "1"), testPod("b", "1")
		n.admit(a)
		hangs := make(chan struct{})
		n.granted.set(func(d *disk) { d.hangs = hangs })
		n.want(asking(a, "2"))
		n.admit(b)
		n.changed()
		time.Sleep(lateGrant)
		if got := n.changed(); !slices.Equal(got, []types.UID{"a"}) {
			t.Errorf("changed: %v; the worker waits for the disk", got)
		}
		n.wantCPU("a:1 b:1")
		n.want(asking(asking(a, "2"), "1")) // it takes back what is being granted
		n.want(asking(b, "2500m"))
		n.wantShown("b")
		close(hangs)
		time.Sleep(time.Second)
		n.wantCPU("a:1 b:2500m")
		n.wantShown("a", "PodResizeInProgress 3")
		if got, _ := n.granted.Get("a"); !got.Equal(pod.ResourcesOf(a)) {
			t.Errorf("the file has %+v", got)
		}
	})
}

// TestNothingIsDecidedEarly: the pods that hold the room may not be known before every source is synced.
func TestNothingIsDecidedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		granted := newDisk()
		a := testPod("a", "1")
		granted.pods["a"], granted.pods["gone"] = pod.ResourcesOf(a), pod.ResourcesOf(a)
		actuated := newDisk()
		actuated.pods["gone"] = pod.ResourcesOf(a)
		n := newNode(t, granted, actuated)
		defer n.stop()
		n.admit(asking(a, "2"))
		if n.Want(asking(asking(a, "2"), "3")) {
			t.Error("a decision follows at once")
		}
		time.Sleep(time.Hour)
		n.wantCPU("a:1")
		if len(granted.UIDs()) != 2 {
			t.Error("pods that may yet come were dropped")
		}
		close(n.synced)
		n.wantCPU("a:3")
		if !slices.Equal(granted.UIDs(), []types.UID{"a"}) || len(actuated.UIDs()) != 0 {
			t.Errorf("the files have %v and %v", granted.UIDs(), actuated.UIDs())
		}
	})
}

// TestARestart goes on: the pod keeps what it was granted, also what only the file knows, and what it shows.
func TestARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		granted, actuated := newDisk(), newDisk()
		n := newNode(t, granted, actuated)
		close(n.synced)
		a, b, c := testPod("a", "1"), testPod("b", "1"), testPod("c", "1")
		n.admit(a, b, c)
		n.SetActuatedContainer("a", "c", a.Spec.Containers[0].Resources)
		n.SetActuatedPod("a", nil)
		a, b = asking(a, "1500m"), asking(b, "2")
		n.want(a, b)
		n.wantCPU("a:1500m b:1")
		n.wantShown("a", "PodResizeInProgress 2")
		n.wantShown("b", "PodResizePending Deferred 2")
		a.Status.Conditions, b.Status.Conditions = n.Conditions("a"), n.Conditions("b")
		n.recorded()
		n.stop()

		time.Sleep(time.Minute)
		next := newNode(t, granted, actuated)
		defer next.stop()
		next.admit(a, b, c)
		if diff := cmp.Diff(n.Conditions("b"), next.Conditions("b")); diff != "" {
			t.Error(diff)
		}
		close(next.synced)
		next.wantCPU("a:1500m b:1 c:1")
		next.wantShown("a", "PodResizeInProgress 2")
		next.wantShown("b", "PodResizePending Deferred 2")
		if got := next.reasons(); len(got) > 0 {
			t.Errorf("what was said is said again: %v", got)
		}
		next.count(next.metrics.pending.WithLabelValues("deferred", "normal"), 1)
		next.count(next.metrics.inProgress, 1)
		if r, ok := next.Actuated("a"); !ok || cpuOf(r) != "1" {
			t.Errorf("the pod was given %+v, %v", r, ok)
		}
		next.remove("c")
		next.wantCPU("b:2")
	})
}

// TestACrashBetweenWriteAndCommit: the file decides.
func TestACrashBetweenWriteAndCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		granted := newDisk()
		a := asking(testPod("a", "1"), "2")
		granted.pods["a"] = pod.ResourcesOf(a) // and the status shows nothing of it
		actuated := newDisk()
		actuated.pods["a"] = pod.ResourcesOf(testPod("a", "1"))
		n := newNode(t, granted, actuated)
		defer n.stop()
		close(n.synced)
		n.admit(a)
		n.wantCPU("a:2")
		n.Actuating(n.Apply(a))
		n.wantShown("a", "PodResizeInProgress 2")
		n.Completed(n.Apply(a))
		n.wantShown("a")
		if got := n.reasons(); !slices.Equal(got, []string{"Normal ResizeCompleted"}) {
			t.Errorf("events %v", got)
		}
	})
}

// TestAPodWithoutAFile keeps what its status shows.
func TestAPodWithoutAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a := asking(testPod("a", "1"), "5")
		a.Status.ContainerStatuses = []v1.ContainerStatus{{
			Name: "c", ContainerID: "x://1",
			AllocatedResources: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")},
		}}
		a.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Reason: "Deferred", ObservedGeneration: 2}}
		n.admit(a)
		n.wantCPU("a:1")
		n.wantShown("a", "PodResizePending Deferred 2")
	})
}

func TestAPodThatWasNotAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a := testPod("a", "1")
		if got := n.Apply(a); got != a {
			t.Errorf("it has %+v", got)
		}
		if n.Want(asking(a, "2")) || n.Want(testPod("unknown", "1")) {
			t.Error("its resources are decided upon")
		}
		n.Admitted(a) // with the version that was judged
		n.count(n.metrics.requested.WithLabelValues("cpu", "requests", "increase"), 0)
		if _, err := n.admitter.Admit(t.Context(), a, static, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(period)
		n.wantCPU("a:2")
		for _, call := range []func(){
			func() { n.Admitted(testPod("unknown", "1")) }, func() { n.Ended("unknown") }, func() { n.Forget("unknown") },
			func() { n.Completed(testPod("unknown", "1")) }, func() { n.Actuating(testPod("unknown", "1")) },
			func() { n.Failed(testPod("unknown", "1"), errors.New("x")) }, func() { n.SetActuatedPod("unknown", nil) },
		} {
			call()
		}
		if _, ok := n.Explain("unknown"); ok || n.Conditions("unknown") != nil || len(n.Allocation.pods) != 1 {
			t.Error("an unknown pod is known")
		}
	})
}

// TestWhatAWorkerReportsOfAnOlderGrant does not count.
func TestWhatAWorkerReportsOfAnOlderGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a := testPod("a", "1")
		n.admit(a)
		first, second := asking(a, "2"), asking(asking(a, "2"), "3")
		n.want(first)
		n.Actuating(first)
		n.want(second)
		n.recorded()
		n.Completed(first)
		n.Failed(first, errors.New("old"))
		n.wantShown("a", "PodResizeInProgress 3")
		n.Failed(second, errors.New("cannot"))
		n.wantShown("a", "PodResizeInProgress Error 3")
		n.Failed(second, errors.New("cannot at 7%"))
		if got := n.Conditions("a")[0].Message; got != "cannot at 7%" {
			t.Errorf("the condition says %q", got)
		}
		want := []string{`Warning ResizeError Pod resize error: {"containers":[{"name":"c","resources":` +
			`{"requests":{"cpu":"3"}}}],"generation":3,"error":"cannot"}`}
		if diff := cmp.Diff(want, n.recorded()); diff != "" {
			t.Error(diff)
		}
		n.Actuating(second)
		n.wantShown("a", "PodResizeInProgress Error 3")
		n.want(asking(second, "2"))
		n.wantShown("a", "PodResizeInProgress 4")
	})
}

// TestTheEndOfAPod ends its resize, whatever is under way.
func TestTheEndOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a, b := testPod("a", "1"), testPod("b", "1")
		n.admit(a, b)
		n.want(asking(a, "4"), asking(b, "2"))
		n.wantShown("a", "PodResizePending Deferred 2")
		n.end("a")
		n.end("a")
		n.wantShown("a")
		if n.Want(asking(asking(a, "4"), "1500m")) {
			t.Error("a pod that has ended is resized")
		}
		hangs := make(chan struct{})
		n.granted.set(func(d *disk) { d.hangs = hangs })
		n.want(asking(asking(b, "2"), "3"))
		n.remove("b")
		close(hangs)
		synctest.Wait()
		if _, ok := n.granted.Get("b"); ok {
			t.Error("the file has a pod that is gone")
		}
		n.count(n.metrics.inProgress, 0)
		deleted := testPod("d", "1")
		n.admit(deleted)
		deleted = asking(deleted, "2")
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		n.want(deleted)
		n.wantCPU("d:1")
	})
}

func TestACriticalPodPreempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		critical, victim, other := withPriority(testPod("critical", "1"), 2000000000), testPod("v", "2"), testPod("o", "1")
		n.admit(critical, victim, other)
		n.want(asking(critical, "3"))
		n.want(asking(other, "500m"))
		n.wantCPU("critical:1 o:500m") // nobody waits for the victim's end
		time.Sleep(5 * time.Second)
		n.wantCPU("critical:3")
		if !slices.Equal(n.evicted, []types.UID{"v"}) {
			t.Errorf("evicted %v", n.evicted)
		}
		n.count(n.metrics.pending.WithLabelValues("deferred", "system-critical"), 0)
	})
}

// TestManyThatWait: each pass decides in the order, and none is lost.
func TestManyThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		const pods = 1000
		var all, asked []*v1.Pod
		for i := range pods {
			p := withPriority(testPod(fmt.Sprintf("p%04d", i), "1m"), int32(i%10))
			all, asked = append(all, p), append(asked, asking(p, "2m"))
		}
		big := testPod("big", "3")
		n.admit(append(all, big)...)
		n.want(asked...)
		granted := func() (count int) {
			synctest.Wait()
			for i := range pods {
				if n.has(fmt.Sprintf("p%04d", i)) == "2m" {
					count++
				}
			}
			return count
		}
		if got := granted(); got != 0 {
			t.Errorf("%d of the pods have got what there is not", got)
		}
		n.count(n.metrics.pending.WithLabelValues("deferred", "medium"), 900)
		n.want(asking(big, "2800m"))
		if got := granted(); got != 200 {
			t.Errorf("%d of the pods have got what there is for 200", got)
		}
		for i := range pods {
			if want := i%10 >= 8; want != (n.has(fmt.Sprintf("p%04d", i)) == "2m") {
				t.Fatalf("pod %d of priority %d was granted more: %v", i, i%10, !want)
			}
		}
		n.remove("big")
		if got := granted(); got != pods {
			t.Errorf("%d of %d pods have got what they asked for", got, pods)
		}
	})
}

func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		a := testPod("a", "1")
		n.admit(a)
		n.want(asking(a, "9"))
		e, ok := n.Explain("a")
		if !ok || cpuOf(e.Desired) != "9" || e.Granted == nil || e.Actuated != nil ||
			e.Pending == nil || !strings.Contains(e.Pending.Message, "enough") || e.InProgress != nil || e.Deciding {
			t.Errorf("%+v", e)
		}
	})
}

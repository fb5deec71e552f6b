package pods

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

// lifetimes records when each command began and ended.
type lifetimes struct {
	mu           sync.Mutex
	began, ended map[string][]time.Time
}

func newLifetimes() *lifetimes {
	return &lifetimes{began: map[string][]time.Time{}, ended: map[string][]time.Time{}}
}

// forever is an exec that runs until it is killed.
func (l *lifetimes) forever(ctx context.Context, cmd []string) (stdout, stderr []byte, code int32, err error) {
	l.mu.Lock()
	l.began[cmd[0]] = append(l.began[cmd[0]], time.Now())
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended[cmd[0]] = append(l.ended[cmd[0]], time.Now())
	return nil, nil, 0, ctx.Err()
}

// TestSidecarsWhosePreStopDoesNotExitEndTogether, as upstream's node suite has it: the hooks live
// through the grace period and the two seconds that each container gets after it.
func TestSidecarsWhosePreStopDoesNotExitEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		hooks := newLifetimes()
		p := testPod("a")
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		names := []string{"s1", "s2", "s3"}
		for _, name := range names {
			c := sidecar(name)
			c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{name}}}}
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
			n.cri.SetProgram(name, fake.Program{StopDelay: 5 * time.Second, Exec: hooks.forever})
		}
		n.cri.SetProgram("c", fake.Program{Lifetime: 5 * time.Second})
		defer n.run()()
		n.dispatcher.SetPod(p, api)
		n.wait(6 * time.Second)
		n.workers.Wake("a", "test") // as pleg does when c has ended
		n.wait(time.Minute)

		if s := n.status("a"); s.Phase != v1.PodSucceeded {
			t.Fatalf("phase %s", s.Phase)
		}
		for _, s := range n.status("a").InitContainerStatuses {
			if s.State.Terminated == nil || s.State.Terminated.ExitCode != 137 {
				t.Errorf("%s: %+v", s.Name, s.State)
			}
		}
		if got := slices.Sorted(maps.Keys(hooks.began)); !slices.Equal(got, names) {
			t.Fatalf("hooks of %v", got)
		}
		for _, name := range names {
			if len(hooks.began[name]) != 1 || len(hooks.ended[name]) != 1 {
				t.Fatalf("the hook of %s ran %d times", name, len(hooks.began[name]))
			}
			if lived := hooks.ended[name][0].Sub(hooks.began[name][0]); lived != 32*time.Second {
				t.Errorf("the hook of %s lived for %v", name, lived)
			}
			if !hooks.ended[name][0].Equal(hooks.ended["s1"][0]) {
				t.Errorf("the hook of %s did not end with the others", name)
			}
		}
		if got := stopGraces(n.cri); !slices.Equal(got, []int64{2, 2, 2}) {
			t.Errorf("grace periods %v", got)
		}
		failed := func(e string) bool { return strings.Contains(e, reasonFailedPreStopHook) }
		if got := len(slices.DeleteFunc(n.drain(), func(e string) bool { return !failed(e) })); got != 3 {
			t.Errorf("%d failures reported", got)
		}
	})
}

// TestAShorterGracePeriodLeavesTheHookRunning, and does not run it again.
func TestAShorterGracePeriodLeavesTheHookRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		hooks := newLifetimes()
		n.cri.SetProgram("c", fake.Program{StopDelay: time.Hour, Exec: hooks.forever})
		defer n.run()()
		p := withPreStop(testPod("a"), "hook")
		n.apply(p)
		n.dispatcher.SetPod(deleted(p, 600), api)
		n.wait(10 * time.Second)
		n.dispatcher.SetPod(deleted(p, 5), api)
		n.wait(8 * time.Second)
		if !n.final["a"] {
			t.Fatal("the pod stays")
		}
		if len(hooks.began["hook"]) != 1 || len(hooks.ended["hook"]) != 1 {
			t.Fatalf("the hook ran %d times", len(hooks.began["hook"]))
		}
		if lived := hooks.ended["hook"][0].Sub(hooks.began["hook"][0]); lived != 17*time.Second {
			t.Fatalf("the hook lived for %v, want 10 s, the shorter grace period and 2 s", lived)
		}
	})
}

// TestAHookEndsWithItsPod, also one that does nothing in the container.
func TestAHookEndsWithItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{StopErr: errors.New("no such signal"), Exec: takes})
		defer n.run()()
		p := testPod("a")
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
			PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 3600}},
		}
		n.apply(p)
		n.dispatcher.SetPod(deleted(p, 5), api)
		n.wait(8 * time.Second)
		n.dispatcher.RemovePod("a", api)
		n.wait(2 * time.Second)
		if n.workers.Known("a") {
			t.Fatal("its worker waits for the hook")
		}
	})
}

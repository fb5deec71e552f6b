package leftovers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const (
	dying   = runtimeapi.ContainerState_CONTAINER_EXITED
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	unknown = runtimeapi.ContainerState_CONTAINER_UNKNOWN
)

// containers gives a pod containers, the newest first, one second apart. Each is written as
// name/id and, if it is not dead, its state: "web/1", "web/2 running".
func (m *machine) containers(uid types.UID, list ...string) {
	if m.states == nil {
		m.states = map[types.UID]*pod.State{}
	}
	s := &pod.State{UID: uid, Sandboxes: []pod.Sandbox{{ID: "s-" + string(uid), Ready: true}}}
	for i, text := range list {
		text, state, _ := strings.Cut(text, " ")
		name, id, _ := strings.Cut(text, "/")
		s.Containers = append(s.Containers, pod.Container{
			ID:        id,
			Name:      name,
			SandboxID: "s-" + string(uid),
			Created:   time.Now().Add(-time.Duration(i+1) * time.Second),
			State:     map[string]runtimeapi.ContainerState{"": dying, "running": running, "unknown": unknown}[state],
		})
	}
	m.states[uid] = s
}

func TestPolicy(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy Policy
		pods   map[types.UID][]string
		ended  []types.UID
		want   []string
	}{
		{"one dead instance stays", Policy{MaxPerContainer: 1, MaxContainers: -1},
			map[types.UID][]string{"p": {"web/4 running", "web/3", "web/2", "web/1", "log/9"}}, nil,
			[]string{"1", "2"}},
		{"each container counts for itself", Policy{MaxPerContainer: 2, MaxContainers: -1},
			map[types.UID][]string{"p": {"web/3", "web/2", "web/1"}, "q": {"web/6", "web/5"}}, nil, []string{"1"}},
		{"none, but what lives keeps its newest", Policy{MaxPerContainer: 0, MaxContainers: -1},
			map[types.UID][]string{"p": {"web/3 running", "web/2", "web/1", "done/7", "done/6"}}, nil,
			[]string{"1", "2", "6"}},
		{"none of a pod that has ended", Policy{MaxPerContainer: 0, MaxContainers: -1},
			map[types.UID][]string{"p": {"web/3", "web/2"}}, []types.UID{"p"}, []string{"2", "3"}},
		{"no limit", Policy{MaxPerContainer: -1, MaxContainers: -1},
			map[types.UID][]string{"p": {"web/3", "web/2", "web/1"}}, nil, nil},
		{"the node's limit is shared out", Policy{MaxPerContainer: -1, MaxContainers: 4},
			map[types.UID][]string{"p": {"web/3", "web/2", "web/1"}, "q": {"web/13", "web/12", "web/11"}}, nil,
			[]string{"1", "11"}},
		{"and then takes the oldest of the node", Policy{MaxPerContainer: -1, MaxContainers: 1},
			map[types.UID][]string{"p": {"web/3 running", "web/2"}, "q": {"x/9 running", "web/13 running", "web/12"}},
			nil, []string{"12"}},
		{"the node's limit takes nothing that a pod needs", Policy{MaxPerContainer: -1, MaxContainers: 0},
			map[types.UID][]string{"p": {"web/3", "web/2"}}, nil, []string{"2"}},
		{"young ones stay", Policy{MinAge: 2500 * time.Millisecond, MaxPerContainer: 0, MaxContainers: -1},
			map[types.UID][]string{"p": {"web/4 running", "web/3", "web/2"}}, nil, []string{"2"}},
		{"an unknown one is stopped first", Policy{MaxPerContainer: 1, MaxContainers: -1},
			map[types.UID][]string{"p": {"web/3", "web/2 unknown"}}, nil, []string{"2", "stop 2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // for one moment of all
				var m machine
				c := m.cleanup(t)
				c.Policy = test.policy
				for uid, list := range test.pods {
					m.containers(uid, list...)
					m.known = append(m.known, uid)
				}
				m.ended = test.ended
				for _, uid := range test.ended {
					m.states[uid].Sandboxes[0].Ready = false
				}
				if err := c.round(t.Context()); err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, what := range m.touched {
					got = append(got, strings.TrimPrefix(what, "remove "))
				}
				slices.Sort(got)
				if !slices.Equal(got, test.want) {
					t.Errorf("removed %q, want %q", got, test.want)
				}
				if m.listed != 1 || len(m.asked) > len(test.want) {
					t.Errorf("%d lists and %d log paths for %d removals", m.listed, len(m.asked), len(test.want))
				}
			})
		})
	}
}

// TestAContainerThatIsGoneIsNoFailure: its pod's worker removes dead containers too.
func TestAContainerThatIsGoneIsNoFailure(t *testing.T) {
	var m machine
	c := m.cleanup(t, "p")
	m.containers("p", "web/3", "web/2", "web/1")
	m.gone = []string{"1"}
	if err := c.round(t.Context()); err != nil || m.failed != nil {
		t.Errorf("%v, and ContainerGCFailed for %v", err, m.failed)
	}
	if want := []string{"remove 2"}; !slices.Equal(m.touched, want) {
		t.Errorf("touched %q, want %q", m.touched, want)
	}
}

func TestLogsGoWithTheirContainer(t *testing.T) {
	var m machine
	c := m.cleanup(t, "p")
	m.containers("p", "web/2", "web/1")
	for _, id := range []string{"1", "2"} {
		for _, name := range []string{"0.log", "0.log.20260101-000000.gz", "1.log"} {
			if err := os.MkdirAll(filepath.Join(m.logDir, id), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(m.logDir, id, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{"1": 1, "2": 3} {
		left, err := os.ReadDir(filepath.Join(m.logDir, id))
		if err != nil || len(left) != want {
			t.Errorf("logs of container %s: %v, %v; want %d", id, left, err, want)
		}
	}
}

// TestALogBehindALinkKeepsNoContainer: a pod that may write to the folder of all logs puts a link in the place of one.
func TestALogBehindALinkKeepsNoContainer(t *testing.T) {
	var m machine
	c := m.cleanup(t, "p")
	m.containers("p", "web/2", "web/1")
	outside := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "0.log"), nil, 0o600),
		os.Symlink(outside, filepath.Join(m.logDir, "1"))); err != nil {
		t.Fatal(err)
	}
	if err := c.round(t.Context()); err == nil || m.failed == nil {
		t.Errorf("%v, and ContainerGCFailed for %v: the log that stays is not reported", err, m.failed)
	}
	if want := []string{"remove 1"}; !slices.Equal(m.touched, want) {
		t.Errorf("touched %q, want %q", m.touched, want)
	}
	if _, err := os.Stat(filepath.Join(outside, "0.log")); err != nil {
		t.Error(err)
	}
}

func TestSandboxes(t *testing.T) {
	var m machine
	c := m.cleanup(t, "p")
	m.containers("p", "web/1")
	m.states["p"].Sandboxes = []pod.Sandbox{{ID: "s-newest"}, {ID: "s-old"}, {ID: "s-p"}, {ID: "s-ready", Ready: true}}
	if err := c.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stop s-old", "remove s-old"}; !slices.Equal(m.touched, want) {
		t.Errorf("touched %q, want %q", m.touched, want)
	}
}

func TestWhatRunsOfAnEndedPodIsStopped(t *testing.T) {
	var m machine
	c := m.cleanup(t, "p", "q")
	m.ended = []types.UID{"p"}
	m.containers("p", "web/1 running")
	m.containers("q", "web/2 running")
	if err := c.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stop 1", "stop s-p"}; !slices.Equal(m.touched, want) {
		t.Errorf("touched %q, want %q", m.touched, want)
	}
}

func TestNoticesOfOrphansMakeOneRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m machine
		c := m.cleanup(t)
		orphans := make(chan struct{}, 1)
		c.Orphans = orphans
		notice := func() {
			select {
			case orphans <- struct{}{}:
			default:
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		synced := make(chan struct{})
		close(synced)
		done := make(chan error)
		go func() { done <- c.Run(ctx, synced) }()
		time.Sleep(10 * time.Second)
		m.hold("late", "api")
		for range 20 {
			notice()
		}
		time.Sleep(2 * soon)
		synctest.Wait()
		m.mu.Lock()
		if !slices.Contains(m.touched, "remove s-late") || m.listed != 2 {
			t.Errorf("after %d rounds: %q", m.listed, m.touched)
		}
		m.mu.Unlock()
		for range 20 { // each of them a sign, but not each a round
			notice()
			time.Sleep(soon)
		}
		m.mu.Lock()
		if m.listed > 2+20/int(gap/time.Second)+1 {
			t.Errorf("%d rounds", m.listed)
		}
		m.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestAPodThatHangsHoldsUpNoOther lets one removal hang for ever.
func TestAPodThatHangsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m machine
		for i := range 10 {
			m.hold(types.UID(fmt.Sprint("orphan", i)), "api")
		}
		c := m.cleanup(t)
		c.Runtime = hanging{&m, []string{"c-orphan3", "s-orphan3"}}
		begun := time.Now()
		if err := c.round(t.Context()); err == nil {
			t.Error("the failure is not reported")
		}
		removed := 0
		for _, what := range m.touched {
			if strings.HasPrefix(what, "remove s-") {
				removed++
			}
		}
		if removed != 9 || time.Since(begun) != podTimeout {
			t.Errorf("%d of 9 removed after %s", removed, time.Since(begun))
		}
	})
}

// TestAStopThatHangsLeavesTimeForTheSandbox. The end of the sandbox is the end of the container too.
func TestAStopThatHangsLeavesTimeForTheSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m machine
		m.hold("orphan", "api")
		c := m.cleanup(t)
		c.Runtime = hanging{&m, []string{"c-orphan"}}
		if err := c.round(t.Context()); err == nil {
			t.Error("the failure is not reported")
		}
		if want := []string{"stop s-orphan", "remove c-orphan", "remove s-orphan"}; !slices.Equal(m.touched, want) {
			t.Errorf("touched %q, want %q", m.touched, want)
		}
	})
}

// hanging is a machine that does not come back from stopping some of what it holds.
type hanging struct {
	*machine
	ids []string
}

func (h hanging) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	if slices.Contains(h.ids, id) {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.machine.StopContainer(ctx, id, grace)
}

func (h hanging) StopSandbox(ctx context.Context, id string) error {
	if slices.Contains(h.ids, id) {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.machine.StopSandbox(ctx, id)
}

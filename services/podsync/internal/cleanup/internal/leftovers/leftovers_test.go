package leftovers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// machine holds pods' remains and forgets what is removed.
type machine struct {
	mu      sync.Mutex
	states  map[types.UID]*pod.State
	lists   error
	listed  int
	stuck   types.UID // a pod with a container that cannot be removed
	failing []string  // what cannot be stopped
	gone    []string  // containers that were removed after the list was read
	folders []types.UID
	cgroups map[types.UID]string
	touched []string
	logDir  string
	asked   []string // log paths that were asked for
	known   []types.UID
	ended   []types.UID
	failed  error
}

func (m *machine) touch(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.touched = append(m.touched, what)
}

func (m *machine) List(context.Context) (map[types.UID]*pod.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed++
	all := map[types.UID]*pod.State{}
	for uid, s := range m.states {
		all[uid] = s
	}
	return all, m.lists
}

func (m *machine) LogPath(_ context.Context, id string) (string, error) {
	m.asked = append(m.asked, id)
	if slices.Contains(m.gone, id) {
		return "", fmt.Errorf("status of container %s: %w", id, status.Error(codes.NotFound, "no such container"))
	}
	return filepath.Join(m.logDir, id, "0.log"), nil
}

func (m *machine) Known(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.known, uid)
}

func (m *machine) Ended(uid types.UID) bool { return slices.Contains(m.ended, uid) }

func (m *machine) StopContainer(_ context.Context, id string, _ time.Duration) error {
	if slices.Contains(m.failing, id) {
		return errors.New("failed to parse stop signal")
	}
	m.touch("stop " + id)
	return nil
}

func (m *machine) RemoveContainer(_ context.Context, id string) error {
	if m.stuck != "" && id == "c-"+string(m.stuck) {
		return errors.New("device busy")
	}
	m.touch("remove " + id)
	return nil
}

func (m *machine) StopSandbox(_ context.Context, id string) error {
	if slices.Contains(m.failing, id) {
		return errors.New("no network plugin")
	}
	m.touch("stop " + id)
	return nil
}

func (m *machine) RemoveSandbox(_ context.Context, id string) error {
	m.touch("remove " + id)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.states, types.UID(id[2:]))
	return nil
}

func (m *machine) Orphans() ([]types.UID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.folders), nil
}

func (m *machine) Unmount(_ context.Context, uid types.UID) error {
	m.touch("unmount " + string(uid))
	return nil
}

func (m *machine) Pods() (map[types.UID]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.cgroups), nil
}

func (m *machine) RemovePod(_ context.Context, uid types.UID) error {
	m.touch("cgroup " + string(uid))
	return nil
}

// holds a pod with one running container, from a source.
func (m *machine) hold(uid types.UID, source string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states == nil {
		m.states, m.cgroups = map[types.UID]*pod.State{}, map[types.UID]string{}
	}
	m.states[uid] = &pod.State{
		UID: uid,
		Sandboxes: []pod.Sandbox{{
			ID:          "s-" + string(uid),
			Ready:       true,
			Annotations: map[string]string{"kubernetes.io/config.source": source},
		}},
		Containers: []pod.Container{{ID: "c-" + string(uid), State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	}
	m.folders = append(m.folders, uid)
	m.cgroups[uid] = "/kubepods/pod" + string(uid)
}

func (m *machine) cleanup(t *testing.T, known ...types.UID) *Cleanup {
	m.known = known
	m.logDir = t.TempDir()
	return New(Options{
		Runtime: m, Volumes: m, Cgroups: m, Logs: logs.Folders{Pods: m.logDir}, Pods: m,
		Policy: Policy{MaxPerContainer: 1, MaxContainers: -1}, Failed: func(err error) { m.failed = err },
		Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil),
	})
}

// round is a round with the unmounts that it begins.
func (c *Cleanup) round(ctx context.Context) error {
	defer c.unmounts.wait()
	return c.once(ctx)
}

func TestRemovesOnlyWhatHasNoOwner(t *testing.T) {
	var m machine
	m.hold("known", "api")
	m.hold("orphan", "api")
	m.hold("static", "file") // it has a worker as long as its manifest is there
	if err := m.cleanup(t, "known", "static").round(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"stop c-orphan", "stop s-orphan", "remove c-orphan", "remove s-orphan", "cgroup orphan",
		"unmount orphan"}
	slices.Sort(m.touched[4:]) // both at once
	if !slices.Equal(m.touched, want) {
		t.Fatalf("touched %q", m.touched)
	}
}

func TestNothingIsConcludedFromAListThatFailed(t *testing.T) {
	var m machine
	m.hold("orphan", "api")
	m.lists = errors.New("runtime is down")
	if err := m.cleanup(t).round(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if m.touched != nil || m.failed == nil {
		t.Fatalf("touched %q, reported %v", m.touched, m.failed)
	}
}

func TestOneThatCannotBeRemovedHoldsUpNoOther(t *testing.T) {
	var m machine
	m.hold("stuck", "api")
	m.hold("orphan", "api")
	m.stuck = "stuck"
	if err := m.cleanup(t).round(t.Context()); err == nil {
		t.Fatal("the failure is not reported")
	}
	if slices.Contains(m.touched, "unmount stuck") || slices.Contains(m.touched, "cgroup stuck") {
		t.Fatalf("folders of a pod that still runs were touched: %q", m.touched)
	}
	if !slices.Contains(m.touched, "cgroup orphan") {
		t.Fatalf("the other pod was held up: %q", m.touched)
	}
}

// TestAContainerThatCannotBeStoppedEndsWithItsSandbox, and keeps no orphan for ever.
func TestAContainerThatCannotBeStoppedEndsWithItsSandbox(t *testing.T) {
	var m machine
	m.hold("orphan", "api")
	m.failing = []string{"c-orphan"}
	if err := m.cleanup(t).round(t.Context()); err == nil {
		t.Error("the failure is not reported")
	}
	if want := []string{"stop s-orphan", "remove c-orphan", "remove s-orphan"}; !slices.Equal(m.touched, want) {
		t.Errorf("touched %q, want %q", m.touched, want)
	}
}

// TestASandboxThatCannotBeStoppedStays: its network is still there.
func TestASandboxThatCannotBeStoppedStays(t *testing.T) {
	var m machine
	m.hold("orphan", "api")
	m.failing = []string{"s-orphan"}
	if err := m.cleanup(t).round(t.Context()); err == nil {
		t.Error("the failure is not reported")
	}
	if want := []string{"stop c-orphan", "remove c-orphan"}; !slices.Equal(m.touched, want) {
		t.Errorf("touched %q, want %q", m.touched, want)
	}
}

// TestWhatRunsOfAnEndedPodEndsWithItsSandbox when it cannot be stopped by itself.
func TestWhatRunsOfAnEndedPodEndsWithItsSandbox(t *testing.T) {
	var m machine
	m.hold("p", "api")
	c := m.cleanup(t, "p")
	m.ended, m.failing = []types.UID{"p"}, []string{"c-p"}
	if err := c.round(t.Context()); err == nil {
		t.Error("the failure is not reported")
	}
	if want := []string{"stop s-p"}; !slices.Equal(m.touched, want) {
		t.Errorf("touched %q, want %q", m.touched, want)
	}
}

func TestWaitsForTheSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m machine
		m.hold("orphan", "api")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := m.cleanup(t).Run(ctx, make(chan struct{})); err != nil {
			t.Fatal(err)
		}
		if m.touched != nil {
			t.Fatalf("touched %q before the sources were heard", m.touched)
		}
	})
}

// TestWhatRunsGetsItsHook, and what does not run gets none.
func TestWhatRunsGetsItsHook(t *testing.T) {
	m := &machine{}
	var hooked []string
	r := Remover{Runtime: m, PreStop: func(ctx context.Context, _ *pod.State, c *pod.Container) {
		if _, ends := ctx.Deadline(); !ends {
			t.Error("the hook has no deadline")
		}
		hooked = append(hooked, c.ID)
	}}
	state := &pod.State{Containers: []pod.Container{
		{ID: "runs", State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		{ID: "ended", State: runtimeapi.ContainerState_CONTAINER_EXITED},
	}}
	if err := r.Remove(t.Context(), state); err != nil || !slices.Equal(hooked, []string{"runs"}) {
		t.Fatalf("%v, %v", hooked, err)
	}
}

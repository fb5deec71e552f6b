package cleanup

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/podlogs"
)

// machine holds pods' remains and forgets what is removed.
type machine struct {
	states  map[types.UID]*pod.State
	lists   error
	stuck   types.UID // a pod whose container cannot be removed
	folders []types.UID
	cgroups map[types.UID]string
	touched []string
}

func (m *machine) States(context.Context) (map[types.UID]*pod.State, error) {
	all := map[types.UID]*pod.State{}
	for uid, s := range m.states {
		all[uid] = s
	}
	return all, m.lists
}

func (m *machine) StopContainer(_ context.Context, id string, _ time.Duration) error {
	m.touched = append(m.touched, "stop "+id)
	return nil
}

func (m *machine) RemoveContainer(_ context.Context, id string) error {
	if m.stuck != "" && id == "c-"+string(m.stuck) {
		return errors.New("device busy")
	}
	m.touched = append(m.touched, "remove "+id)
	return nil
}

func (m *machine) StopSandbox(_ context.Context, id string) error {
	m.touched = append(m.touched, "stop "+id)
	return nil
}

func (m *machine) RemoveSandbox(_ context.Context, id string) error {
	m.touched = append(m.touched, "remove "+id)
	delete(m.states, types.UID(id[2:]))
	return nil
}

func (m *machine) Orphans() ([]types.UID, error) { return m.folders, nil }

func (m *machine) Unmount(_ context.Context, uid types.UID) error {
	m.touched = append(m.touched, "unmount "+string(uid))
	return nil
}

func (m *machine) Pods() (map[types.UID]string, error) { return m.cgroups, nil }

func (m *machine) RemovePod(_ context.Context, uid types.UID) error {
	m.touched = append(m.touched, "cgroup "+string(uid))
	return nil
}

// holds a pod with one running container, from a source.
func (m *machine) hold(uid types.UID, source string) {
	if m.states == nil {
		m.states, m.cgroups = map[types.UID]*pod.State{}, map[types.UID]string{}
	}
	m.states[uid] = &pod.State{
		UID:        uid,
		Sandboxes:  []pod.Sandbox{{ID: "s-" + string(uid), Ready: true, Annotations: map[string]string{"kubernetes.io/config.source": source}}},
		Containers: []pod.Container{{ID: "c-" + string(uid), State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	}
	m.folders = append(m.folders, uid)
	m.cgroups[uid] = "/kubepods/pod" + string(uid)
}

func (m *machine) cleanup(t *testing.T, known ...types.UID) *Cleanup {
	return &Cleanup{
		Runtime: m, Volumes: m, Cgroups: m, Logs: podlogs.Folders{Pods: t.TempDir()},
		Known: func(uid types.UID) bool { return slices.Contains(known, uid) }, Log: slog.New(slog.DiscardHandler),
	}
}

func TestRemovesOnlyWhatNobodyOwns(t *testing.T) {
	var m machine
	m.hold("known", "api")
	m.hold("orphan", "api")
	m.hold("static", "file")
	if err := m.cleanup(t, "known").once(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"stop c-orphan", "remove c-orphan", "stop s-orphan", "remove s-orphan", "unmount orphan", "cgroup orphan"}
	if !slices.Equal(m.touched, want) {
		t.Fatalf("touched %q", m.touched)
	}
}

func TestNothingIsConcludedFromAListThatFailed(t *testing.T) {
	var m machine
	m.hold("orphan", "api")
	m.lists = errors.New("runtime is down")
	if err := m.cleanup(t).once(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if m.touched != nil {
		t.Fatalf("touched %q", m.touched)
	}
}

func TestOneThatCannotBeRemovedHoldsUpNoOther(t *testing.T) {
	var m machine
	m.hold("stuck", "api")
	m.hold("orphan", "api")
	m.stuck = "stuck"
	if err := m.cleanup(t).once(t.Context()); err == nil {
		t.Fatal("the failure is not told")
	}
	if slices.Contains(m.touched, "unmount stuck") || slices.Contains(m.touched, "cgroup stuck") {
		t.Fatalf("folders of a pod that still runs were touched: %q", m.touched)
	}
	if !slices.Contains(m.touched, "cgroup orphan") {
		t.Fatalf("the other pod was held up: %q", m.touched)
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

package volumes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/growth"
)

// expansion notes its calls.
type expansion struct {
	calls []string
	err   error
}

func (e *expansion) DuringMount(ctx context.Context, v *growth.Volume) error {
	e.calls = append(e.calls, "mount of "+v.PV.Name)
	return errors.Join(e.err, v.Grow(ctx, v.PV.Spec.Capacity[v1.ResourceStorage]))
}

func (e *expansion) Online(_ context.Context, v *growth.Volume) {
	e.calls = append(e.calls, "look at "+v.PV.Name)
}

func (e *expansion) Forget(pv string) { e.calls = append(e.calls, "forget "+pv) }

func TestClaimsAreLookedAtForExpansion(t *testing.T) {
	root := t.TempDir()
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv-1", local(t.TempDir()))}}
	first := claimManager(t, root, "boot", c, "u1", "u2", "u3")
	e := &expansion{}
	first.opts.Expansion = e
	for _, plugin := range first.plugins {
		if claims, ok := plugin.(*claim); ok {
			claims.expansion = e
		}
	}
	for _, p := range []*v1.Pod{claimant("u1", false), claimant("u2", false), claimant("u3", true)} {
		if _, err := first.Mount(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := first.Refresh(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"mount of pv-1", "look at pv-1", "mount of pv-1", "look at pv-1", "mount of pv-1"}
	if !slices.Equal(e.calls, want) {
		t.Errorf("%q, want %q", e.calls, want)
	}

	// The claim cannot be read: the pod goes on with what it has.
	delete(c.volumes, "data")
	if err := first.Refresh(t.Context(), claimant("u1", false)); err != nil {
		t.Error(err)
	}

	e.calls = nil
	for i, uid := range []string{"u1", "u2", "u3"} {
		if len(e.calls) > 0 {
			t.Errorf("with %d pods left: %q", 3-i, e.calls)
		}
		if err := first.Unmount(t.Context(), types.UID(uid)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(e.calls, []string{"forget pv-1"}) {
		t.Errorf("%q", e.calls)
	}
}

func TestAnExpansionThatFailsKeepsThePodFromTheVolume(t *testing.T) {
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv-1", local(t.TempDir()))}}
	m := claimManager(t, t.TempDir(), "boot", c, "u1")
	for _, plugin := range m.plugins {
		if claims, ok := plugin.(*claim); ok {
			claims.expansion = &expansion{err: errors.New("boom")}
		}
	}
	_, err := m.Mount(t.Context(), claimant("u1", false))
	want := `MountVolume.Setup failed while expanding volume for volume "pv-1" : boom`
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, there := m.Existing(claimant("u1", false)); there {
		t.Error("the volume counts as mounted")
	}
}

func TestUsage(t *testing.T) {
	hostPath := v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv-1", local(t.TempDir()))}}
	m := claimManager(t, t.TempDir(), "boot", c, "u1", "u2")
	if _, err := m.Mount(t.Context(), claimant("u1", false)); err != nil {
		t.Fatal(err)
	}
	u, err := m.Usage(t.Context(), "u1", "data")
	if err != nil || u.Capacity == 0 || u.Used == 0 || u.Used+u.Available > u.Capacity || u.InodesUsed > u.Inodes {
		t.Errorf("%+v, %v", u, err)
	}
	c.volumes["data"] = persistentVolume("pv-2", hostPath)
	if _, err := m.Mount(t.Context(), claimant("u2", false)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Usage(t.Context(), "u2", "data"); !errors.Is(err, csivolume.ErrNotMeasured) {
		t.Errorf("of a hostPath: %v", err)
	}
	for _, name := range []string{"other", "../data", "", strings.Repeat("a", 300)} {
		if _, err := m.Usage(t.Context(), "u1", name); !errors.Is(err, ErrNoVolume) {
			t.Errorf("of %.20q: %v", name, err)
		}
	}
	if _, err := m.Usage(t.Context(), "../u1", "data"); !errors.Is(err, ErrNoVolume) {
		t.Errorf("of a pod that cannot be: %v", err)
	}
}

package volumes

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
)

// slowAPI answers after a minute.
type slowAPI struct{ *api }

func (s slowAPI) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	time.Sleep(time.Minute)
	return s.api.ConfigMap(ctx, namespace, name)
}

// TestHold: what a container mounts by a path is not renewed while it is held, whatever else is. To hold it takes no
// answer of the API.
func TestHold(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		mode := int32(0o644)
		source := func(name string) v1.VolumeSource {
			return v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
				LocalObjectReference: v1.LocalObjectReference{Name: name}, DefaultMode: &mode,
			}}
		}
		a := &api{configMaps: map[string]*v1.ConfigMap{"path": {Data: map[string]string{"f": "old"}},
			"expr": {Data: map[string]string{"f": "old"}}, "whole": {Data: map[string]string{"f": "old"}}}}
		m := NewManager(ManagerOptions{RootDir: root, Objects: slowAPI{a}, Tokens: a, Mounter: mount.NewFakeMounter(nil)})
		p := podWith(v1.Volume{Name: "path", VolumeSource: source("path")},
			v1.Volume{Name: "expr", VolumeSource: source("expr")}, v1.Volume{Name: "whole", VolumeSource: source("whole")})
		c := &v1.Container{VolumeMounts: []v1.VolumeMount{
			{Name: "path", MountPath: "/a", SubPath: "f"}, {Name: "path", MountPath: "/b", SubPath: "f"},
			{Name: "expr", MountPath: "/c", SubPathExpr: "$(F)"}, {Name: "whole", MountPath: "/d"},
		}}
		mounted, err := m.Mount(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range a.configMaps {
			o.Data["f"] = "new"
		}
		refreshed := make(chan error, 1)
		go func() { refreshed <- m.Refresh(t.Context(), p) }()
		time.Sleep(time.Second)
		began := time.Now()
		release, err := m.Hold(t.Context(), p, c)
		if err != nil || time.Since(began) != 0 {
			t.Fatalf("held after %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Minute + time.Second)
		show := func() (all []string) {
			synctest.Wait()
			for _, name := range []string{"path", "expr", "whole"} {
				all = append(all, read(t, filepath.Join(mounted[name].HostPath, "f")))
			}
			return all
		}
		if got := show(); !slices.Equal(got, []string{"old", "old", "new"}) {
			t.Errorf("held: %v", got)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.Hold(short, p, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("held twice: %v", err)
		}
		release()
		if got := show(); !slices.Equal(got, []string{"new", "new", "new"}) || <-refreshed != nil {
			t.Errorf("released: %v", got)
		}
	})
}

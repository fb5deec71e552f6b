package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"

	"golang.org/x/sys/unix"
)

// api holds objects and gives tokens that contain their number.
type api struct {
	configMaps map[string]*v1.ConfigMap
	secrets    map[string]*v1.Secret
	token      int
}

func (a *api) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	if o, ok := a.configMaps[name]; ok {
		return o, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (a *api) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if o, ok := a.secrets[name]; ok {
		return o, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func (a *api) Token(_ context.Context, namespace, account string,
	r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	r.Status.Token = fmt.Sprintf("token %d of %s/%s for %s", a.token, namespace, account, r.Spec.BoundObjectRef.UID)
	return r, nil
}

func (a *api) Forget(types.UID) {}

func servicePod() *v1.Pod {
	mode, expiry := int32(0o644), int64(3607)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1"},
		Spec: v1.PodSpec{
			ServiceAccountName: "sa", Containers: []v1.Container{{Name: "c"}},
			Volumes: []v1.Volume{{Name: "access", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
				DefaultMode: &mode,
				Sources: []v1.VolumeProjection{
					{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &expiry}},
					{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "ca"},
						Items: []v1.KeyToPath{{Key: "ca.crt", Path: "ca/ca.crt"}}}},
					{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "namespace",
						FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
				},
			}}}},
		},
	}
}

func manager(t *testing.T, a *api) (*Manager, *mount.FakeMounter) {
	t.Helper()
	mounts := mount.NewFakeMounter(nil)
	k := &kernel{mounter: func() mount.Interface { return mounts }, unmount: func(path string, _ int) error {
		return mounts.Unmount(path)
	}}
	return NewManager(ManagerOptions{RootDir: t.TempDir(), Objects: a, Tokens: a, Mounter: mounts,
		Foreign: k.operations()}), mounts
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestMountRefreshesAtomicallyAndUnmounts(t *testing.T) {
	a := &api{configMaps: map[string]*v1.ConfigMap{"ca": {Data: map[string]string{"ca.crt": "one"}}}}
	m, mounts := manager(t, a)
	p := servicePod()
	if there, ok := m.Existing(p); ok {
		t.Fatalf("found %v before it was mounted", there)
	}
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	dir := mounted["access"].HostPath
	if want := filepath.Join(m.opts.RootDir, "pods/u1/volumes/kubernetes.io~projected/access"); dir != want {
		t.Fatalf("mounted at %s, the kubelet's folder is %s", dir, want)
	}
	if got := read(t, filepath.Join(dir, "token")); got != "token 0 of ns/sa for u1" {
		t.Fatalf("token %q", got)
	}
	if got := read(t, filepath.Join(dir, "namespace")); got != "ns" {
		t.Fatalf("namespace %q", got)
	}
	before, _ := os.Readlink(filepath.Join(dir, dataLink))
	if err := m.Refresh(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.Readlink(filepath.Join(dir, dataLink)); again != before {
		t.Fatal("files that did not change were written again")
	}
	if there, ok := m.Existing(p); !ok || there["access"].HostPath != dir {
		t.Fatalf("what is mounted is not found: %v", there)
	}
	a.configMaps["ca"].Data["ca.crt"] = "two"
	if again, err := m.Mount(t.Context(), p); err != nil || again["access"].HostPath != dir {
		t.Fatalf("%v, %v", again, err)
	}
	if got := read(t, filepath.Join(dir, "ca/ca.crt")); got != "one" {
		t.Fatalf("ca %q: mounting what is mounted asked the API", got)
	}
	if err := m.Refresh(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dir, "ca/ca.crt")); got != "two" {
		t.Fatalf("ca %q after the change", got)
	}
	if _, err := os.Stat(filepath.Join(dir, before)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the old version is still there: %v", err)
	}
	if len(mounts.MountPoints) != 1 {
		t.Fatalf("mounted %d times", len(mounts.MountPoints))
	}
	var gone []types.UID
	m.opts.Gone = func(uid types.UID) { gone = append(gone, uid) }
	for range 2 { // what is gone is unmounted
		if err := m.Unmount(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
	}
	if len(gone) != 2 || gone[0] != p.UID {
		t.Errorf("called with %v", gone)
	}
	if left, err := m.Orphans(); err != nil || len(left) != 0 || len(mounts.MountPoints) != 0 {
		t.Fatalf("left %v, %v, %v", left, mounts.MountPoints, err)
	}
}

func TestTokenIsItsUsersOnly(t *testing.T) {
	a := &api{configMaps: map[string]*v1.ConfigMap{"ca": {Data: map[string]string{"ca.crt": "x"}}}}
	for name, test := range map[string]struct {
		security *v1.PodSecurityContext
		mode     fs.FileMode
	}{
		"all users": {nil, 0o644},
		"one user":  {&v1.PodSecurityContext{RunAsUser: new(int64)}, 0o600},
		"fsGroup":   {&v1.PodSecurityContext{FSGroup: new(int64)}, 0o640},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := manager(t, a)
			p := servicePod()
			p.Spec.SecurityContext = test.security
			mounted, err := m.Mount(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(mounted["access"].HostPath, "token"))
			if err != nil || info.Mode().Perm() != test.mode {
				t.Fatalf("mode %v, %v; want %v", info.Mode(), err, test.mode)
			}
		})
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	m, mounts := manager(t, &api{})
	err := m.Check(t.Context(), servicePod())
	var failed *Error
	if !errors.As(err, &failed) || failed.Volume != "access" {
		t.Fatalf("%v", err)
	}
	if want := `MountVolume.SetUp failed for volume "access" : configmaps "ca" not found`; err.Error() != want {
		t.Fatalf("reported %q, want %q", err, want)
	}
	if len(mounts.MountPoints) != 0 {
		t.Fatal("mounted although it is missing")
	}
	optional := true
	p := servicePod()
	p.Spec.Volumes[0].Projected.Sources[1].ConfigMap.Optional = &optional
	if err := m.Check(t.Context(), p); err != nil {
		t.Fatalf("an optional object may be missing: %v", err)
	}
}

func FuzzCheckPath(f *testing.F) {
	for _, s := range []string{"a", "a/b", "../a", "a/../../b", "/a", "..data", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if checkPath(path) != nil {
			return
		}
		joined := filepath.Join("/volume", path)
		if strings.HasPrefix(joined, "/volume/..") {
			t.Fatalf("%q meets the volume's own names: %s", path, joined)
		}
		if joined != "/volume" && !strings.HasPrefix(joined, "/volume/") {
			t.Fatalf("%q leaves the volume: %s", path, joined)
		}
	})
}

// crowded counts how many requests are under way at one time.
type crowded struct {
	*api
	mu          sync.Mutex
	under, most int
}

func (c *crowded) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	c.mu.Lock()
	c.under++
	c.most = max(c.most, c.under)
	c.mu.Unlock()
	time.Sleep(30 * time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.under--
	return &v1.ConfigMap{Data: map[string]string{"f": "x"}}, nil
}

// TestAPodOfManyVolumes asks the API server for some at one time, and stops when its time is over.
func TestAPodOfManyVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &crowded{api: &api{}}
		m := NewManager(ManagerOptions{RootDir: "/nowhere", Objects: a, Tokens: a, Mounter: mount.NewFakeMounter(nil)})
		var volumes []v1.Volume
		for i := range maxMounts {
			volumes = append(volumes, v1.Volume{Name: fmt.Sprint("v", i), VolumeSource: v1.VolumeSource{
				ConfigMap: &v1.ConfigMapVolumeSource{DefaultMode: new(int32)},
			}})
		}
		began := time.Now()
		err := m.Check(t.Context(), podWith(volumes...))
		took := time.Since(began)
		if !errors.Is(err, context.DeadlineExceeded) || a.most != maxAtOnce || took > defaultDeadline+30*time.Second {
			t.Errorf("%d requests at one time, an end after %v with %.100v", a.most, took, err)
		}
	})
}

// TestWhereOthersAreMounted: the folders for mounts in a volume are those below the volume's own mounts.
func TestWhereOthersAreMounted(t *testing.T) {
	mounts := []v1.VolumeMount{
		{Name: "v", MountPath: "/a"}, {Name: "v", MountPath: "/a/b/"}, {Name: "w", MountPath: "/a/b/c//d"},
		{Name: "w", MountPath: "/ab"}, {Name: "w", MountPath: "/b/a/x"}, {Name: "v", MountPath: "/"},
		{Name: "w", MountPath: "/a/" + strings.Repeat("x/", unix.PathMax)},
	}
	got := slices.Sorted(nested(mounts, "v"))
	if want := []string{"b", "b/c/d", "c/d"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := slices.Collect(nested(mounts, "w")); len(got) != 0 {
		t.Errorf("nothing is mounted in the other: %q", got)
	}
	if got := slices.Collect(nested(mounts, "none")); len(got) != 0 {
		t.Errorf("it is not mounted: %q", got)
	}
}

package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/podsync/internal/cluster/podcertificate"
)

// authority has a trust bundle and certificates, and keeps which pods were forgotten.
type authority struct {
	missing   error
	version   int
	asked     podcertificate.Place
	forgotten []types.UID
}

func (a *authority) TrustAnchors(_ context.Context, pod types.UID, p *v1.ClusterTrustBundleProjection) ([]byte, error) {
	return fmt.Appendf(nil, "anchors of %s for %s, version %d", *p.Name, pod, a.version), a.missing
}

func (a *authority) Bundle(_ context.Context, _ *v1.Pod, at podcertificate.Place,
	source *v1.PodCertificateProjection) (podcertificate.Bundle, error) {
	a.asked = at
	return podcertificate.Bundle{
		Key: fmt.Appendf(nil, "%s key %d;", source.KeyType, a.version), Chain: fmt.Appendf(nil, "chain %d", a.version),
	}, a.missing
}

func (a *authority) Forget(pod types.UID) { a.forgotten = append(a.forgotten, pod) }

func authorityManager(t *testing.T, own *authority) *Manager {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	a := &api{
		configMaps: map[string]*v1.ConfigMap{"c": {Data: map[string]string{"one": "1", "two": "2"}}},
		secrets:    map[string]*v1.Secret{"s": {Data: map[string][]byte{"one": []byte("1"), "two": []byte("2")}}},
	}
	m := NewManager(ManagerOptions{RootDir: t.TempDir(), Objects: a, Tokens: a, TrustBundles: own, Certificates: own,
		Mounter: mount.New(""), Foreign: Operations()})
	t.Cleanup(func() {
		if err := m.Unmount(context.WithoutCancel(t.Context()), "u1"); err != nil {
			t.Error(err)
		}
	})
	return m
}

// facts are the owner, the mode and the content of the files of a volume.
func facts(t *testing.T, dir string, names ...string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, name := range names {
		// With fs.protected_symlinks, the kernel follows the link of another user in such a folder for that user alone.
		path, err := filepath.EvalSymlinks(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		got[name] = fmt.Sprintf("%d %o %s", info.Sys().(*syscall.Stat_t).Uid, info.Mode().Perm(), read(t, path))
	}
	return got
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s: %q, want %q", name, got[name], text)
		}
	}
}

func authorityPod() *v1.Pod {
	mode := int32(0o644)
	return podWith(volumeOf("all", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: &mode,
		Sources: []v1.VolumeProjection{
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: new("roots"), Path: "roots.pem"}},
			{PodCertificate: &v1.PodCertificateProjection{KeyType: "ED25519", CredentialBundlePath: "bundle.pem",
				KeyPath: "deep/key.pem", CertificateChainPath: "chain.pem"}},
		}}}))
}

func TestTrustBundlesAndCertificates(t *testing.T) {
	own := &authority{missing: errors.New("not yet")}
	m, p := authorityManager(t, own), authorityPod()
	if err := m.Check(t.Context(), p); err == nil ||
		!strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "all" : not yet`) {
		t.Error(err)
	}
	own.missing = nil
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	dir, names := mounted["all"].HostPath, []string{"roots.pem", "bundle.pem", "deep/key.pem", "chain.pem"}
	compare(t, facts(t, dir, names...), map[string]string{
		"roots.pem":    "0 644 anchors of roots for u1, version 0",
		"bundle.pem":   "0 644 ED25519 key 0;chain 0",
		"deep/key.pem": "0 644 ED25519 key 0;",
		"chain.pem":    "0 644 chain 0",
	})
	if own.asked != (podcertificate.Place{Volume: "all", Source: 1}) {
		t.Errorf("asked for that of %+v", own.asked)
	}
	own.version = 1
	if err := m.Refresh(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	compare(t, facts(t, dir, names...), map[string]string{
		"roots.pem": "0 644 anchors of roots for u1, version 1", "bundle.pem": "0 644 ED25519 key 1;chain 1",
	})
	if err := m.Unmount(t.Context(), p.UID); err != nil || !slices.Equal(own.forgotten, []types.UID{"u1", "u1"}) {
		t.Errorf("forgotten: %v, %v", own.forgotten, err)
	}
}

// TestWhoOwnsCredentials: they are for the user that all containers run as, and for the pod's group.
func TestWhoOwnsCredentials(t *testing.T) {
	m, p := authorityManager(t, &authority{}), authorityPod()
	user, group, other := int64(1000), int64(2000), int64(3000)
	p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, FSGroup: &group}
	p.Spec.Volumes[0].Projected.Sources[1].PodCertificate.User = &other
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, facts(t, mounted["all"].HostPath, "roots.pem", "deep/key.pem"), map[string]string{
		"roots.pem":    "1000 640 anchors of roots for u1, version 0",
		"deep/key.pem": "3000 640 ED25519 key 0;",
	})
}

// TestOwnersOfFiles: a file's own owner counts first, then that of the volume.
func TestOwnersOfFiles(t *testing.T) {
	m := authorityManager(t, &authority{})
	mode, all, one := int32(0o440), int64(1000), int64(2000)
	items := []v1.KeyToPath{{Key: "one", Path: "one", User: &one}, {Key: "two", Path: "two"}}
	name := &v1.ObjectFieldSelector{FieldPath: "metadata.name"}
	fields := []v1.DownwardAPIVolumeFile{{Path: "one", FieldRef: name, User: &one}, {Path: "two", FieldRef: name}}
	p := podWith(
		volumeOf("config", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "c"}, DefaultMode: &mode, DefaultUser: &all, Items: items}}),
		volumeOf("whole", v1.VolumeSource{Secret: &v1.SecretVolumeSource{
			SecretName: "s", DefaultMode: &mode, DefaultUser: &all}}),
		volumeOf("downward", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
			DefaultMode: &mode, DefaultUser: &all, Items: fields}}),
		volumeOf("projected", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: &mode, DefaultUser: &all,
			Sources: []v1.VolumeProjection{
				{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "two"}},
				{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "s"}, Items: items[:1]}},
			}}}),
	)
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for volume, want := range map[string]map[string]string{
		"config":    {"one": "2000 440 1", "two": "1000 440 2"},
		"whole":     {"one": "1000 440 1", "two": "1000 440 2"},
		"downward":  {"one": "2000 440 p", "two": "1000 440 p"},
		"projected": {"one": "2000 440 1", "two": "1000 600 token 0 of ns/ for u1"},
	} {
		compare(t, facts(t, mounted[volume].HostPath, "one", "two"), want)
	}
}

func TestTheModeOfAnEmptyDir(t *testing.T) {
	m := authorityManager(t, &authority{})
	sticky, closed := int32(0o1777), int32(0o2750)
	memory := func(mode *int32) v1.VolumeSource {
		return v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, Mode: mode}}
	}
	p := podWith(
		volumeOf("open", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		volumeOf("sticky", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Mode: &sticky}}),
		volumeOf("closed", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Mode: &closed}}),
		volumeOf("memory", memory(&closed)),
	)
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"open": "drwxrwxrwx", "sticky": "dtrwxrwxrwx", "closed": "dgrwxr-x---", "memory": "dgrwxr-x---",
	} {
		info, err := os.Stat(mounted[name].HostPath)
		if err != nil || info.Mode().String() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}
